"""The Python tool: what a program prints, how it fails, what it may not keep."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from posttrain.environments.base import open_toolkit
from posttrain.environments.python import python_tool
from posttrain.environments.sandbox import Limits

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")

PROGRAMS = {
    "6 * 7": "42",
    "print(1)\n'text'": "1\n'text'",
    "None": "(no output)",
    "x = 1": "(no output)",
    "import sys\nprint('a')\nprint('b', file=sys.stderr)\nsys.argv, __name__": "a\nb\n(['program.py'], '__main__')",
    "input()": "error: exit code 1",
    "exit(3)": "error: exit code 3",
    "raise SystemExit": "(no output)",
    "x =": "error: exit code 1",
    "'\ud800'": "error: exit code 1",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nA(3)": "A(x=3)",
    "from multiprocessing import Pool\ndef f(x): return x * x\nwith Pool(2) as p: print(p.map(f, [2, 3]))": "[4, 9]",
    "x = bytearray(10**9)": "error: exit code 1",
}


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    async def run() -> dict[str, str]:
        tool = python_tool(Limits(seconds=60))
        calls = [tool.call({"code": program}) for program in PROGRAMS]
        return dict(zip(PROGRAMS, await asyncio.gather(*calls), strict=True))

    return asyncio.run(run())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: repr(p)[:40])
def test_results(program: str, results: dict[str, str]):
    expected = PROGRAMS[program]
    if expected.startswith("error: exit code"):
        assert results[program].split("\n")[0] == expected
    else:
        assert results[program] == expected


def test_a_traceback_shows_the_program_and_not_what_runs_it():
    result = asyncio.run(python_tool().call({"code": "def f(x):\n    return 1 / x\nf(0)"}))
    assert result.startswith("error: exit code 1\nTraceback (most recent call last):\n")
    assert 'File "program.py", line 2, in f\n    return 1 / x' in result
    assert result.endswith("ZeroDivisionError: division by zero")
    assert result.count("File") == 2


def test_nothing_lasts_from_call_to_call():
    async def twice() -> list[str]:
        tool = python_tool()
        keep = (
            "import os\nx = 5\nopen('kept', 'w').write('x')\nopen('/dev/shm/kept', 'w').write('x')"
        )
        look = "import os\n('x' in globals(), os.listdir('.'), os.listdir('/dev/shm'))"
        return [await tool.call({"code": keep}), await tool.call({"code": look})]

    assert asyncio.run(twice()) == ["1", "(False, ['program.py'], [])"]


@pytest.mark.parametrize(
    ("limits", "code", "result"),
    [
        (Limits(seconds=60, cpu_seconds=1), "while True: pass", "error: stopped after 1 s of processor time"),
        (Limits(seconds=1), "import time\nprint('so far')\ntime.sleep(60)", "error: stopped after 1 s\nso far"),
        (Limits(output_bytes=9), "while True: print('x' * 9)", "error: stopped: more than 9 bytes of output\nxxxxxxxxx"),
        (Limits(files=100), "for k in range(9999): open(str(k), 'w')\nimport time; time.sleep(60)", "error: stopped: more than 100 files"),
    ],
)  # fmt: skip
def test_limits_are_told(limits: Limits, code: str, result: str):
    assert asyncio.run(python_tool(limits).call({"code": code})) == result


def test_the_same_program_prints_the_same():
    code = "print({str(k) for k in range(50)}, hash('a'))"
    box = open_toolkit("calculator+python")
    # in two event loops: one tool serves both
    first, second = (asyncio.run(box.call("python", {"code": code})) for _ in range(2))
    assert first == second
    assert not first.startswith("error:")
