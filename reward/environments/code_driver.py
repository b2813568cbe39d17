"""Driver inside the sandbox: runs the program under test, as an order on stdin says.

    {"secret": …, "program": …, "function": None, "inputs": ["3\\n"], "check": None, "seconds": 5}
    → the secret, then a line per test: {"output": "9\\n"} or {"problem": "took more than 5 s"}

The program runs in processes of its own and gets only its inputs. The driver's process is made
undumpable first, so that the program can read neither its memory nor its descriptors; all it can do
is to kill the driver, which passes no test. Standard library only: the project is not visible here.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_DUMPABLE = 4
MOST_OUTPUT = 256 * 1024  # bytes of one test's output
# loads the program as a module and answers calls with the repr of plain values; stdout is the
# channel of the answers, so anything that the program prints is discarded
_SERVER = """
import ast, os, sys
answers = os.fdopen(os.dup(1), "w", encoding="ascii", errors="backslashreplace")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
space = {"__name__": "solution"}
exec(compile(open("program.py", encoding="utf-8", errors="surrogatepass").read(), "program.py",
     "exec"), space)
for line in sys.stdin:
    try:
        arguments, names = ast.literal_eval(line)
        called = space.get(sys.argv[1]) or getattr(space["Solution"](), sys.argv[1])
        text = "= " + repr(called(*arguments, **names))
    except Exception as error:
        text = "! " + type(error).__name__ + " " + repr(str(error)[:200])
    answers.write(text.replace("\\n", " ") + "\\n")
    answers.flush()
"""


class Failed(Exception):
    """The program failed a test."""


class Process:
    """Process of the program under test, in a process group of its own."""

    def __init__(self, arguments: list[str], seconds: float) -> None:
        self.seconds = seconds
        self.process = subprocess.Popen(  # noqa: S603 - inside the sandbox
            [sys.executable, "-s", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.buffer = b""

    def read(self, deadline: float, *, line: bool) -> bytes:
        """Read one line of the output, or all of it. Raises Failed at a limit of time or bytes."""
        stream = self.process.stdout
        assert stream is not None
        while not (line and b"\n" in self.buffer):
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0 or not select.select([stream], [], [], remaining_seconds)[0]:
                raise Failed(f"took more than {self.seconds:g} s")
            chunk = os.read(stream.fileno(), 65536)
            self.buffer += chunk
            if len(self.buffer) > MOST_OUTPUT:
                raise Failed(f"more than {MOST_OUTPUT} bytes of output")
            if not chunk:
                break
        end = self.buffer.find(b"\n") + 1 if line else len(self.buffer)
        text = self.buffer[:end]
        self.buffer = self.buffer[end:]
        return text

    def write(self, data: bytes) -> None:
        """Write to the program's stdin, unless the program has closed it or ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the program with its process group, and wait for its end."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_program(stdin: str, seconds: float) -> str:
    """Run the program on an input; returns its output. Raises Failed: a limit, or an exit code."""
    program = Process(["program.py"], seconds)
    deadline = time.monotonic() + seconds
    try:
        feeder = os.fork()  # writing would block us where the program does not read
        if feeder == 0:
            program.write(stdin.encode("utf-8", "surrogatepass"))
            os._exit(0)
        assert program.process.stdin is not None
        program.process.stdin.close()
        output = program.read(deadline, line=False)
        os.kill(feeder, signal.SIGKILL)
        os.waitpid(feeder, 0)
        if program.process.wait(max(0.1, deadline - time.monotonic())):
            raise Failed(f"exit code {program.process.returncode}")
        return output.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {seconds:g} s") from None
    finally:
        program.kill()


class _RemoteFunction:
    """Function under test, called in its own process; arguments and results are plain literals."""

    def __init__(self, function: str, seconds: float) -> None:
        self.server = Process(["-c", _SERVER, function], seconds)
        self.seconds = seconds

    def __call__(self, *arguments: Any, **names: Any) -> Any:
        """Call the function. Raises its error if that is a builtin one, else Failed."""
        self.server.write(repr((arguments, names)).replace("\n", " ").encode() + b"\n")
        deadline = time.monotonic() + self.seconds
        line = self.server.read(deadline, line=True).decode("ascii", "replace")
        if line.startswith("! "):
            name, _, message = line[2:].strip().partition(" ")
            error_class = getattr(builtins, name, None)
            if isinstance(error_class, type) and issubclass(error_class, Exception):
                raise error_class(message)  # a check may expect it
            raise Failed(f"raises {name}")
        if not line.startswith("= "):
            raise Failed("ends without a result")
        try:
            return ast.literal_eval(line[2:].strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise Failed("the result is no plain value") from None


def run_check(order: dict[str, Any]) -> str:
    """Run the order's `check` on the function; the line that passes, or the error."""
    function = _RemoteFunction(order["function"], order["seconds"])
    space: dict[str, Any] = {"__name__": "check"}
    try:
        exec(compile(f"{order['setup']}\n{order['check']}", "check.py", "exec"), space)  # noqa: S102
        space[order["function"]] = function
        space["check"](function)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: only reaching the end passes
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    finally:
        function.server.kill()
    return f"{order['secret']} passed"


def main() -> None:
    """Carry out the order on stdin, see above."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    order = json.loads(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # becomes descriptor 0
    with open("program.py", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(order["program"])
    print(order["secret"], flush=True)
    if order["check"] is not None:
        print(run_check(order), flush=True)
        return
    function: _RemoteFunction | None = None
    if order["function"] is not None:
        function = _RemoteFunction(order["function"], order["seconds"])
    for test_input in order["inputs"]:
        try:
            if function is None:
                result = run_program(test_input, order["seconds"])
            else:
                result = function(*test_input)
            text = json.dumps({"output": result})
        except Exception as error:  # noqa: BLE001 - a builtin error that the function raised
            print(json.dumps({"problem": f"{type(error).__name__}: {error}"[:200]}), flush=True)
            return
        print(text, flush=True)


if __name__ == "__main__":
    main()
