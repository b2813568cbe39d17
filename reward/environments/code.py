"""The environment "code": a Python program that passes every test, in a sandbox.

    {"environment": "code", "question": "Read n, print n squared. …", "metadata": {"tests": [
        {"input": "3\\n", "output": "9\\n"}]}, "gold": "print(int(input()) ** 2)"}
    {…, "metadata": {"function": "square", "tests": [{"input": [3], "output": 9}]}}
    {…, "metadata": {"function": "square", "check": "def check(candidate): assert …"}}

The program is the last fenced block of Python, or the last that defines the function, which may be
a method of `Solution` (a new instance for each call). `setup` is code that runs before it,
`seconds` the wall time of each test, `tolerance` the relative or absolute error that a function's
results with decimals may have (null: 1e-9). The outputs that tests expect stay outside the sandbox;
the code of `check` runs in a process of its own, which the program can neither read nor answer for.
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

SECONDS = 5.0  # limit of one test
TOTAL_SECONDS = 60.0  # limit of all tests of one program
MOST_TESTS = 50
LONGEST = 100_000  # characters of an answer
OUTPUT_BYTES = 4 << 20
# possessive quantifiers: a long line that is no fence is scanned only once
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w+-]*+)[^\n`]*+$", re.MULTILINE)
_LANGUAGES = ("", "python", "python3", "py")
_DRIVER = Path(__file__).with_name("code_driver.py").read_text("utf-8")


class CodeEnvironment(RLVREnvironment):
    """Programs in Python, run on tests in a sandbox."""

    name = "code"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        tests = task.get("tests")
        check = task.get("check")
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
        input_type = list if task.get("function") else str
        for test in cast(list[Any], tests):
            if not isinstance(test["input"], input_type):
                return f"an input of a test is no {input_type.__name__}"
            if "output" not in test:
                return "a test without output"
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        return None if prompt.gold is None else says(f"```python\n{prompt.gold}\n```")

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("```python\nimport sys\nsys.exit(0)\n```")]

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        task = metadata_of(prompt)
        function = task.get("function")
        check = task.get("check")
        program = find_program(completion.answer, function)
        if program is None:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no program in a fenced block")
        # only the driver knows the secret: a line with it cannot come from the program
        secret = secrets.token_hex(16)
        setup = task.get("setup") or ""
        tests: list[dict[str, Any]] = task.get("tests") or []
        seconds = float(task.get("seconds") or SECONDS)
        order = {
            "secret": secret,
            "program": f"{setup}\n{program}",
            "setup": setup,
            "check": check,
            "function": function,
            "inputs": [test["input"] for test in tests],
            "seconds": seconds,
        }
        stdin = json.dumps(order).encode("utf-8", "surrogatepass")
        total_seconds = max(TOTAL_SECONDS, 2 * seconds)
        limits = Limits(
            seconds=total_seconds, cpu_seconds=int(total_seconds), output_bytes=OUTPUT_BYTES
        )
        try:
            result = await run_program(["-I", "-c", _DRIVER], stdin, limits)
        except OSError as error:
            return Score(None, None, f"the sandbox: {error}", "sandbox")
        greeting, *lines = result.stdout.split(b"\n")
        if greeting != secret.encode():
            tail = (result.stderr[-200:] or greeting[:50]).decode("utf-8", "replace")
            return Score(None, None, f"the sandbox did not start: {tail}", "sandbox")
        if check is None:
            tolerance = float(task.get("tolerance") or 0)
            same = functools.partial(same_result, tolerance=tolerance) if function else same_output
            return _score_outputs(lines, tests, same)
        if lines[:1] == [f"{secret} passed".encode()]:
            return Score(1.0, None, "every check holds")
        return Score(0.0, None, f"fails: {b''.join(lines[:1]).decode('utf-8', 'replace')[:200]}")


async def run_program(options: Sequence[str], stdin: bytes, limits: Limits) -> SandboxResult:
    """Run the sandbox's Python with command-line options."""
    argv = [check_sandbox(), *options]
    return await run_sandboxed(argv, stdin=stdin, limits=limits)


def find_program(answer: str, function: str | None) -> str | None:
    """Find the program in an answer; None where there is none.

    It is the last fenced block that defines the function, else the last block marked as Python,
    else the last block without a mark; without any fence, an answer that is Python as a whole.
    """
    if len(answer) > LONGEST:
        return None
    fences = list(_FENCE.finditer(answer))
    if not fences:
        try:
            ast.parse(answer)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None
        return answer
    blocks: list[tuple[str, bool]] = []  # code, is it marked as Python?
    opening: re.Match[str] | None = None
    for fence in fences:
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]) and not fence[2]:
            language = opening[2].lower()
            if language in _LANGUAGES:
                block = textwrap.dedent(answer[opening.end() : fence.start()].strip("\r\n"))
                blocks.append((block, bool(language)))
            opening = None
    candidates = [block for block, marked in blocks if marked] or [block for block, _ in blocks]
    if function is not None:
        keyword = r"(?:async[ \t]+def|def|class)"
        definition = re.compile(rf"^[ \t]*{keyword}[ \t]+{re.escape(function)}\b", re.M)
        candidates = [block for block, _ in blocks if definition.search(block)] or candidates
    return candidates[-1] if candidates else None


def _score_outputs(
    lines: Sequence[bytes], tests: Sequence[Mapping[str, Any]], same: Callable[[Any, Any], bool]
) -> Score:
    """Score the driver's lines, the JSON of one output each, against the outputs of the tests."""
    for number, test in enumerate(tests, 1):
        test_label = f"test {number} of {len(tests)}"
        try:
            result: dict[str, Any] = json.loads(lines[number - 1])
        except (LookupError, ValueError, RecursionError):
            return Score(0.0, None, f"{test_label}: no result")
        if "output" not in result:
            return Score(0.0, None, f"{test_label}: {str(result.get('problem'))[:100]}")
        if not same(test["output"], result["output"]):
            return Score(0.0, str(result["output"])[:200], f"{test_label}: another result")
    return Score(1.0, None, f"{len(tests)} tests pass")


def same_result(expected: Any, actual: Any, *, tolerance: float) -> bool:
    """Compare two values as `same_value` does, but numbers with decimals to the tolerance."""
    if isinstance(expected, list) and isinstance(actual, list):
        expected_items = cast(list[Any], expected)
        actual_items = cast(list[Any], actual)
        same = functools.partial(same_result, tolerance=tolerance)
        return len(expected_items) == len(actual_items) and all(
            map(same, expected_items, actual_items)
        )
    if same_value(expected, actual):
        return True
    if isinstance(expected, bool) or isinstance(actual, bool):
        return False
    if not isinstance(expected, int | float) or not isinstance(actual, int | float):
        return False
    if isinstance(expected, int) and isinstance(actual, int):
        return False
    try:
        return math.isclose(expected, actual, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # beyond a float's range
        return False


def same_output(expected: str, actual: Any) -> bool:
    """Compare two outputs line by line, up to white space.

    A number with decimals may have other decimals, to a relative 1e-9.
    """
    if not isinstance(actual, str):
        return False
    expected_lines = [line.split() for line in expected.rstrip().split("\n")]
    actual_lines = [line.split() for line in actual.rstrip().split("\n")]
    if len(expected_lines) != len(actual_lines):
        return False
    for expected_tokens, actual_tokens in zip(expected_lines, actual_lines, strict=True):
        if len(expected_tokens) != len(actual_tokens):
            return False
        if not all(map(_same_token, expected_tokens, actual_tokens)):
            return False
    return True


def _same_token(expected: str, actual: str) -> bool:
    if expected == actual:
        return True
    if "." not in expected or not re.fullmatch(r"[-+]?\d*\.?\d*(?:e[-+]?\d+)?", actual[:60], re.I):
        return False
    try:
        return same_value(float(expected), float(actual))
    except ValueError:
        return False
