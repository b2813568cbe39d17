"""Runs inside the sandbox, before and beside the program under test; its order comes on stdin.

    {"secret": …, "program": …, "function": None, "inputs": ["3\\n"], "check": None, "seconds": 5}
    → the secret, then a line a test: {"output": "9\\n"} or {"problem": "took more than 5 s"}

The program runs in processes of its own, with nothing of the order but its inputs. This process is
made undumpable first, so that they can read neither its memory nor its descriptors; all they can do
is to end it, which passes no test. Standard library only: nothing of the project is visible here.
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
# loads the program as a module, answers calls with the repr of plain values; its own stdout is
# the answers' channel, so what the program prints goes nowhere
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
    """The program under test, in a process group of its own."""

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
        """Output up to a line's end, or all of it. Raises Failed at a limit."""
        stream = self.process.stdout
        assert stream is not None
        while not (line and b"\n" in self.buffer):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise Failed(f"took more than {self.seconds:g} s")
            part = os.read(stream.fileno(), 65536)
            self.buffer += part
            if len(self.buffer) > MOST_OUTPUT:
                raise Failed(f"more than {MOST_OUTPUT} bytes of output")
            if not part:
                break
        end = self.buffer.find(b"\n") + 1 if line else len(self.buffer)
        text, self.buffer = self.buffer[:end], self.buffer[end:]
        return text

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_program(text: str, seconds: float) -> str:
    own = Process(["program.py"], seconds)
    deadline = time.monotonic() + seconds
    try:
        feeder = os.fork()  # a program that does not read must not hold us up
        if feeder == 0:
            own.write(text.encode("utf-8", "surrogatepass"))
            os._exit(0)
        assert own.process.stdin is not None
        own.process.stdin.close()
        output = own.read(deadline, line=False)
        os.kill(feeder, signal.SIGKILL)
        os.waitpid(feeder, 0)
        if own.process.wait(max(0.1, deadline - time.monotonic())):
            raise Failed(f"exit code {own.process.returncode}")
        return output.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {seconds:g} s") from None
    finally:
        own.kill()


class _Candidate:
    """Stands for the function under test: arguments and results travel as plain literals."""

    def __init__(self, function: str, seconds: float) -> None:
        self.own = Process(["-c", _SERVER, function], seconds)
        self.seconds = seconds

    def __call__(self, *arguments: Any, **names: Any) -> Any:
        self.own.write(repr((arguments, names)).replace("\n", " ").encode() + b"\n")
        line = self.own.read(time.monotonic() + self.seconds, line=True).decode("ascii", "replace")
        if line.startswith("! "):
            name, _, message = line[2:].strip().partition(" ")
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                raise kind(message)
            raise Failed(f"raises {name}")
        if not line.startswith("= "):
            raise Failed("ends without a result")
        try:
            return ast.literal_eval(line[2:].strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise Failed("the result is no plain value") from None


def run_check(order: dict[str, Any]) -> str:
    candidate = _Candidate(order["function"], order["seconds"])
    space: dict[str, Any] = {"__name__": "check"}
    try:
        exec(compile(f"{order['setup']}\n{order['check']}", "check.py", "exec"), space)  # noqa: S102
        space[order["function"]] = candidate
        space["check"](candidate)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: nothing but the end passes
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    finally:
        candidate.own.kill()
    return f"{order['secret']} passed"


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    order = json.loads(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    with open("program.py", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(order["program"])
    print(order["secret"], flush=True)
    if order["check"] is not None:
        print(run_check(order), flush=True)
        return
    function, candidate = order["function"], None
    if function is not None:
        candidate = _Candidate(function, order["seconds"])
    for one in order["inputs"]:
        try:
            result = candidate(*one) if candidate else run_program(one, order["seconds"])
            text = json.dumps({"output": result})
        except Exception as error:  # noqa: BLE001 - a builtin error that the function raised
            print(json.dumps({"problem": f"{type(error).__name__}: {error}"[:200]}), flush=True)
            return
        print(text, flush=True)


if __name__ == "__main__":
    main()
