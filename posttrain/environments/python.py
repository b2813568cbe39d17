"""Python as a tool: each call runs one program in a sandbox of its own and returns what it printed.

As at a prompt, the value of a last expression is printed unless it is None. Output is stdout and
stderr in the order written.
"""

from __future__ import annotations

from posttrain.environments.base import Tool
from posttrain.environments.sandbox import Limits, SandboxResult, check_sandbox, run_sandboxed

_DESCRIPTION = (
    "Run a Python 3 program and return what it prints; the value of a last expression is printed "
    "too. Only the standard library, no network, no files from outside. Nothing is kept between "
    "calls."
)
_PROGRAM = "program.py"
# Runs inside the sandbox, so what it reads can do no more to it than to itself. It imports what is
# loaded anyway: importing `ast` and `traceback` takes longer than most programs run.
_RUNNER = """
import _ast, os, sys
os.dup2(1, 2)
sys.stdout.reconfigure(line_buffering=True)
sys.stderr = sys.stdout
path = sys.argv.pop()
sys.argv[0] = path
runner, main = sys.modules["__main__"], type(sys)("__main__")
main.__file__, sys.modules["__main__"] = path, main
space = main.__dict__
try:
    with open(path, encoding="utf-8") as file:
        tree = compile(file.read(), path, "exec", _ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, path, "exec"), space)
    if last is not None:
        value = eval(compile(_ast.Expression(last.value), path, "eval"), space)
        if value is not None:
            print(repr(value))
except Exception as error:
    import traceback
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    sys.exit(1)
"""
_LIMIT_REASONS = {
    "time": "stopped after {0.seconds:g} s",
    "cpu": "stopped after {0.cpu_seconds} s of processor time",
    "memory": "stopped: more than {0.memory_mb} MB of memory",
    "files": "stopped: more than {0.files} files",
    "output": "stopped: more than {0.output_bytes} bytes of output",
}


def python_tool(limits: Limits | None = None) -> Tool:
    """The tool `python`.

    Args:
        limits: bounds of one call.

    Raises:
        ConfigError: programs cannot be contained on this machine.
    """
    python = check_sandbox()
    call_limits = limits or Limits()

    async def run(code: str) -> str:
        argv = [python, "-P", "-s", "-c", _RUNNER, _PROGRAM]
        source = code.encode("utf-8", "surrogatepass")
        result = await run_sandboxed(argv, files={_PROGRAM: source}, limits=call_limits)
        return _result_text(result, call_limits)

    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the whole program"}},
        "required": ["code"],
        "additionalProperties": False,
    }
    return Tool("python", _DESCRIPTION, parameters, run)


def _result_text(result: SandboxResult, limits: Limits) -> str:
    output = (result.stdout + result.stderr).decode("utf-8", "replace").rstrip("\n")
    if result.ok:
        return output or "(no output)"
    reason = f"exit code {result.exit_code}"
    if result.limit is not None:
        reason = _LIMIT_REASONS[result.limit].format(limits)
    return f"error: {reason}\n{output}" if output else f"error: {reason}"
