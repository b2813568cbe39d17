"""The environment "code": a Python program that passes every test, in a sandbox.

    {"environment": "code", "question": "Read n, print n squared. …", "metadata": {"tests": [
        {"input": "3\\n", "output": "9\\n"}]}, "gold": "print(int(input()) ** 2)"}
    {…, "metadata": {"function": "square", "tests": [{"input": [3], "output": 9}]}}
    {…, "metadata": {"function": "square", "check": "def check(candidate): assert …"}}

The program is the last fenced block of Python, or the last that defines the function, which may be
a method of `Solution` (a new one for each call). `setup` is code that stands before it, `seconds`
the wall time of each test, `tolerance` what a function's results with decimals may be off, relative
or absolute (null: 1e-9). What tests expect stays outside of
the sandbox; code that checks runs in a process of its own, which the program can neither read nor
speak for.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
import secrets
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from posttrain.environments.sandbox import Limits, SandboxResult, check_sandbox, run_sandboxed
from posttrain.records import NOT_IN_FORMAT, Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, same_value, says

SECONDS = 5.0  # of one test
TOTAL_SECONDS = 60.0  # of all tests of one program
MOST_TESTS = 50
LONGEST = 100_000  # characters of a program
OUTPUT_BYTES = 4 << 20
# possessive: in a long line that is no fence nothing is tried twice
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w+-]*+)[^\n`]*+$", re.MULTILINE)
_LANGUAGES = ("", "python", "python3", "py")
_DRIVER = Path(__file__).with_name("code_driver.py").read_text("utf-8")


class CodeEnvironment(RLVREnvironment):
    name = "code"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        tests, check = task.get("tests"), task.get("check")
        if (tests is None) == (check is None):
            return "either tests or check"
        for field in ("check", "setup", "function"):
            if not isinstance(task.get(field), str | None):
                return f"{field} is no text"
        if not isinstance(task.get("tolerance"), int | float | None):
            return "tolerance is no number"
        if check is not None:
            ast.parse(f"{task.get('setup') or ''}\n{check}")
            return None if task.get("function") else "check without function"
        if not isinstance(tests, list) or not 0 < len(cast(list[Any], tests)) <= MOST_TESTS:
            return f"tests: a list of 1 to {MOST_TESTS}"
        kind = list if task.get("function") else str
        for test in cast(list[Any], tests):
            if not isinstance(test["input"], kind):
                return f"an input of a test is no {kind.__name__}"
            if "output" not in test:
                return "a test without output"
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        return None if prompt.gold is None else says(f"```python\n{prompt.gold}\n```")

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("```python\nimport sys\nsys.exit(0)\n```")]

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        task = metadata_of(prompt)
        function, check = task.get("function"), task.get("check")
        program = find_program(completion.answer, function)
        if program is None:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no program in a fenced block")
        secret, setup = secrets.token_hex(16), task.get("setup") or ""
        tests: list[dict[str, Any]] = task.get("tests") or []
        seconds = float(task.get("seconds") or SECONDS)
        order = {"secret": secret, "program": f"{setup}\n{program}", "setup": setup, "check": check}
        order |= {"function": function, "inputs": [t["input"] for t in tests], "seconds": seconds}
        data = json.dumps(order).encode("utf-8", "surrogatepass")
        total = max(TOTAL_SECONDS, 2 * seconds)
        limits = Limits(seconds=total, cpu_seconds=int(total), output_bytes=OUTPUT_BYTES)
        try:
            result = await run_program(["-I", "-c", _DRIVER], data, limits)
        except OSError as error:
            return Score(None, None, f"the sandbox: {error}", "sandbox")
        started, *lines = result.stdout.split(b"\n")
        if started != secret.encode():
            tail = (result.stderr[-200:] or started[:50]).decode("utf-8", "replace")
            return Score(None, None, f"the sandbox did not start: {tail}", "sandbox")
        if check is None:
            tolerance = float(task.get("tolerance") or 0)
            same = functools.partial(same_result, tolerance=tolerance) if function else same_output
            return _compare(lines, tests, same)
        if lines[:1] == [f"{secret} passed".encode()]:
            return Score(1.0, None, "every check holds")
        return Score(0.0, None, f"fails: {b''.join(lines[:1]).decode('utf-8', 'replace')[:200]}")


async def run_program(options: Sequence[str], order: bytes, limits: Limits) -> SandboxResult:
    argv = [check_sandbox(), *options]
    return await run_sandboxed(argv, stdin=order, limits=limits)


def find_program(answer: str, function: str | None) -> str | None:
    """The last fenced block of Python that defines the function, else the last that says that it is
    Python, else the last; without any fence, an answer that is Python as a whole; or None."""
    if len(answer) > LONGEST:
        return None
    fences = list(_FENCE.finditer(answer))
    if not fences:
        try:
            ast.parse(answer)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None
        return answer
    blocks, opening = list[tuple[str, bool]](), None
    for fence in fences:
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]) and not fence[2]:
            if (language := opening[2].lower()) in _LANGUAGES:
                block = textwrap.dedent(answer[opening.end() : fence.start()].strip("\r\n"))
                blocks.append((block, bool(language)))
            opening = None
    chosen = [block for block, named in blocks if named] or [block for block, _ in blocks]
    if function is not None:
        kinds = r"(?:async[ \t]+def|def|class)"
        defines = re.compile(rf"^[ \t]*{kinds}[ \t]+{re.escape(function)}\b", re.M)
        chosen = [block for block, _ in blocks if defines.search(block)] or chosen
    return chosen[-1] if chosen else None


def _compare(
    lines: Sequence[bytes], tests: Sequence[Mapping[str, Any]], same: Callable[[Any, Any], bool]
) -> Score:
    """The outputs, one JSON text a line, with what is expected."""
    for number, test in enumerate(tests, 1):
        place = f"test {number} of {len(tests)}"
        try:
            given: dict[str, Any] = json.loads(lines[number - 1])
        except (LookupError, ValueError, RecursionError):
            return Score(0.0, None, f"{place}: no result")
        if "output" not in given:
            return Score(0.0, None, f"{place}: {str(given.get('problem'))[:100]}")
        if not same(test["output"], given["output"]):
            return Score(0.0, str(given["output"])[:200], f"{place}: another result")
    return Score(1.0, None, f"{len(tests)} tests pass")


def same_result(expected: Any, given: Any, *, tolerance: float) -> bool:
    """As `same_value`; numbers of which one has decimals may be off by the tolerance."""
    if isinstance(expected, list) and isinstance(given, list):
        items, others = cast(list[Any], expected), cast(list[Any], given)
        same = functools.partial(same_result, tolerance=tolerance)
        return len(items) == len(others) and all(map(same, items, others))
    if same_value(expected, given):
        return True
    if isinstance(expected, bool) or isinstance(given, bool):
        return False
    if not isinstance(expected, int | float) or not isinstance(given, int | float):
        return False
    if isinstance(expected, int) and isinstance(given, int):
        return False
    try:
        return math.isclose(expected, given, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # beyond a float's range
        return False


def same_output(expected: str, given: Any) -> bool:
    """Whether two outputs have the same lines, white space at their ends aside. A number with
    decimals may be written with others, to a relative 1e-9."""
    if not isinstance(given, str):
        return False
    one, other = ([line.split() for line in t.rstrip().split("\n")] for t in (expected, given))
    return len(one) == len(other) and all(
        len(a) == len(b) and all(map(_same_token, a, b)) for a, b in zip(one, other, strict=True)
    )


def _same_token(expected: str, given: str) -> bool:
    if expected == given:
        return True
    if "." not in expected or not re.fullmatch(r"[-+]?\d*\.?\d*(?:e[-+]?\d+)?", given[:60], re.I):
        return False
    try:
        return same_value(float(expected), float(given))
    except ValueError:
        return False
