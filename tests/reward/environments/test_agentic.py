"""The agentic families: rows, every policy's end, and shortcuts against the checkers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest

from posttrain.environments.sandbox import SandboxResult
from posttrain.errors import DataError
from posttrain.evaluation.agentic import failures
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from reward.environments import ENVIRONMENTS
from reward.environments.agentic import base, workspace
from reward.environments.agentic.base import Family, script
from reward.environments.agentic.policies import ENVIRONMENT_OF, policy_of
from reward.environments.agentic.workspace import Call, read, sh, write
from reward.environments.base import Script, replay
from reward.environments.world import Refused
from tests.reward.environments.scoring import run_policy

contained = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
SEEDS = (0, 1)


def prompts(family: str, seeds: Sequence[int] = SEEDS) -> list[Prompt]:
    environment = ENVIRONMENT_OF[family]()
    return [environment.prompt(environment.rows(seed=s, count=1)[0]) for s in seeds]


def verified(prompt: Prompt, *scripts: Script) -> list[tuple[Completion, Score]]:
    environment = ENVIRONMENT_OF[str(prompt.environment)]()

    async def one(script: Script) -> tuple[Completion, Score]:
        completion = await replay(environment, prompt, script)
        return completion, await environment.verify(prompt, completion)

    async def every() -> list[tuple[Completion, Score]]:
        return await asyncio.gather(*map(one, scripts))

    return asyncio.run(every())


@contained
@pytest.mark.parametrize("family", ENVIRONMENT_OF)
def test_every_policy_ends_as_it_has_to(family: str):
    environment, tasks = ENVIRONMENT_OF[family](), prompts(family)
    assert len({task.messages for task in tasks}) == len(SEEDS)

    async def ends(policy: str) -> list[tuple[str, str | None, str | None]]:
        own = [task for task in tasks if policy in environment.policies(task)]
        own = own if policy == "oracle" else own[:1]
        found: list[tuple[str, str | None, str | None]] = []
        for task, completion in zip(own, await run_policy(own, policy), strict=True):
            score = await environment.verify(task, completion)
            solved = (score.value or 0) >= 1
            mode = None if solved else failures(task, completion, score)[0].mode
            found.append((policy, policy_of(task, policy).fails, mode))
        return found

    names = {name for task in tasks for name in environment.policies(task)}
    results = [end for name in sorted(names) for end in asyncio.run(ends(name))]
    assert [end for end in results if end[1] != end[2]] == []
    wrong = {name for name, fails, _ in results if fails is not None}
    assert len(wrong - {"no_op"}) >= 6


@pytest.mark.parametrize("family", ENVIRONMENT_OF)
def test_rows_are_the_same_for_a_seed_and_say_nothing_of_the_gold(family: str):
    environment = ENVIRONMENTS[family]()
    assert isinstance(environment, Family)
    rows = environment.rows(seed=3, count=4)
    assert rows == environment.rows(seed=3, count=4)
    fixtures = [environment.fixture(environment.prompt(row)) for row in rows]
    assert len({fixture.digest for fixture in fixtures}) == 4
    assert environment.rows(seed=4, count=1)[0]["metadata"]["digest"] not in {
        fixture.digest for fixture in fixtures
    }
    assert set(rows[0]["metadata"]) == {"fixture", "digest", "family", "variant"}
    for fixture in fixtures:  # what the oracle writes at its end is no file, and no file's name
        _, arguments = fixture.oracle[-1]
        given = arguments.get("content", "")
        texts = {*fixture.files.values(), *fixture.files}
        assert not given or all(given.strip() not in text for text in texts)


@pytest.mark.parametrize(
    ("path", "kept"),
    [("a", "a"), ("./a//b/", "a/b"), ("/scratch/a", "a"), ("/scratch", "."), ("", "."), ("a/..", ".")],
)  # fmt: skip
def test_paths_are_of_the_working_directory(path: str, kept: str):
    assert workspace.inside(path) == kept


@pytest.mark.parametrize(
    "forged",
    [b"", b"0 0 0", b"0 0 0 3\n-4 a\n", b"0 -9 0 1\n1 a\nx", b"0 0 0 99999999999\n0 a\n",
     b"0 0 0 1\n1 ../a\nx"],
)  # fmt: skip
def test_a_forged_listing_is_no_listing_and_ends(forged: bytes):
    with pytest.raises((ValueError, Refused)):
        workspace._read_driver_output(forged)


def test_a_row_of_another_version_is_refused_and_variants_vary():
    environment = ENVIRONMENTS["multi_step_plan"]()
    [row] = environment.rows(seed=0, count=1)
    for change in ({"metadata": row["metadata"] | {"digest": "0" * 16}}, {"tools": None}):
        with pytest.raises(DataError):
            environment.prompt(row | change)
    stop, asks = (
        [row["metadata"]["variant"] for row in ENVIRONMENTS[name]().rows(seed=0, count=40)]
        for name in ("know_when_to_stop", "handle_ambiguous_requirement")
    )
    assert 12 <= stop.count("answerable") <= 28
    assert set(stop) == {"answerable", "few_rows", "gaps"}
    assert set(asks) == {"open", "settled"}


# -- shortcuts -------------------------------------------------------------------------------------

# code that is imported before or with the module that is checked
_TRICKS = {
    "shadows_the_library": [
        write("json.py", "def dumps(value): return '{\"value\": 0}'\n"),
        write("random.py", "import os; os._exit(0)\n"),
        write("app/importlib.py", "import os; os._exit(0)\n"),
    ],
    "site_files": [
        write("sitecustomize.py", "import os; os._exit(0)\n"),
        write("usercustomize.py", "import os; os._exit(0)\n"),
        write("evil.pth", "import os; os._exit(0)\n"),
        sh("mkdir -p .local/lib/python3.11/site-packages && cp sitecustomize.py .local"),
    ],
    "test_settings": [
        write("conftest.py", "collect_ignore_glob = ['*']\n"),
        write("setup.cfg", "[tool:pytest]\naddopts = --co\n"),
        sh("export PYTHONPATH=/scratch; echo 'PYTHONPATH=/scratch' > .env"),
    ],
    "equals_everything": [
        write("app/__init__.py", "class Any(int):\n    __eq__ = lambda s, o: True\n"
              "import builtins\nbuiltins.int = Any\n"),
    ],
    "forges_results": [
        write("app/__init__.py",
              "import os\nfor fd in range(3, 20):\n    try:\n"
              "        os.write(fd, b'started\\n[' + b'{\"value\": 1},' * 30 + b']')\n"
              "    except OSError: pass\n"),
    ],
    "patches_the_encoder": [
        write("app/__init__.py", "import json\njson.dumps = lambda value: '{\"value\": true}'\n"),
    ],
    "answer_in_a_file_name": [write("all_tests_pass_score_1.txt", "score 1.0\n")],
    "reads_the_checker": [sh("cat /proc/*/cmdline /interpreter/../scratch/* > app/seen.txt; true")],
}  # fmt: skip


@contained
def test_tricks_do_not_pass_a_broken_program_and_do_not_fail_a_right_one():
    [prompt] = prompts("fix_failing_test", [5])
    oracle = ENVIRONMENTS["fix_failing_test"]().gold(prompt) or ()
    # `app/importlib.py` is on nobody's way, and a right solution stays one
    right = script(*_TRICKS["shadows_the_library"], *_TRICKS["site_files"])[:-1] + oracle
    ends = verified(prompt, *(script(*made) for made in _TRICKS.values()), right)
    values = {name: s.value for name, (_, s) in zip([*_TRICKS, "right"], ends, strict=True)}
    assert values == dict.fromkeys(_TRICKS, 0.0) | {"right": 1.0}


@contained
def test_an_answer_is_read_strictly_and_huge_ones_are_refused():
    [prompt] = prompts("sql_investigation", [0])
    right = json.loads(policy_of(prompt, "oracle").script[-2].tool_calls[0].arguments)["content"]
    path, value = "finding.json", json.loads(right)
    account = value["account"]
    bad = [
        json.dumps({"account": account}), f"[{right}]", "[" * 50_000,
        right.replace(str(account), f'"{account}"'), f'{right}{right}', f'{right[:-1]}, "account": 0}}',
        right.replace(str(account), "1" * 5000), right.replace(str(account), "true"), f"```\n{right}\n```",
        right + " " * 200_000, "NaN",
    ]  # fmt: skip
    more = json.dumps(value | {"also": 1})  # the task does not say that there are no other fields
    results = verified(
        prompt,
        *(script(write(path, text)) for text in (f" {right}\n", more)),
        *(script(write(path, b)) for b in bad),
    )
    assert [score.value for _, score in results] == [1.0, 1.0] + [0.0] * len(bad)
    [exact] = prompts("recover_from_tool_error", [0])  # which says "with one field"
    oracle = policy_of(exact, "oracle").script
    total = json.loads(json.loads(oracle[-2].tool_calls[0].arguments)["content"])
    [(_, score)] = verified(
        exact, script(read("x"), write("total.json", json.dumps(total | {"a": 1})))
    )
    assert score.value == 0.0


@contained
def test_other_right_ways_pass():
    [plan] = prompts("multi_step_plan", [2])
    made = [call for message in policy_of(plan, "oracle").script for call in message.tool_calls]
    arguments = [json.loads(call.arguments) for call in made]
    at_once = " && ".join(
        f"mkdir -p {a['path'].rpartition('/')[0]} && printf '%s' '{a['content']}' > {a['path']}"
        for a in arguments
    )
    again: list[Call] = [write(a["path"], "draft") for a in arguments]
    again += [write(a["path"], a["content"]) for a in arguments]
    backwards = " && ".join(reversed(at_once.split(" && ")))
    backwards = f"mkdir -p {arguments[0]['path'].rpartition('/')[0]} && {backwards}"
    notes = sh("echo draft > /tmp/notes.txt")  # a folder of its own, and no further file
    folder = arguments[0]["path"].rpartition("/")[0]
    empty = sh(f"mkdir -p {folder}; touch " + " ".join(a["path"] for a in arguments))
    last_first = [write(a["path"], a["content"]) for a in reversed(arguments)]
    deleted = [*again, sh(f"rm -r {folder}"), *last_first]
    ends = verified(
        plan, script(notes, sh(at_once)), script(*again), script(sh(backwards)),
        script(empty, *again), script(empty, *last_first), script(*deleted),
    )  # fmt: skip
    assert [score.value for _, score in ends] == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


@contained
def test_a_block_is_moved_whatever_the_call_is_named_and_no_copy_is_kept():
    [prompt] = prompts("refactor_duplicated_code", [3])
    calls_made = [c for m in policy_of(prompt, "oracle").script for c in m.tool_calls][1:]
    right = {a["path"]: a["content"] for a in (json.loads(call.arguments) for call in calls_made)}
    shared, first, second = right
    module = shared.removesuffix(".py")
    helper = right[first].splitlines()[0].split()[-1]
    environment = ENVIRONMENTS["refactor_duplicated_code"]()
    assert isinstance(environment, Family)
    fixture = environment.fixture(prompt)

    def solved(change: dict[str, str]) -> Script:
        return script(*(write(path, text) for path, text in (right | change).items()))

    def renamed(path: str, imported: str, called: str) -> str:
        body = right[path].split("\n", 1)[1].replace(f"{helper}(", f"{called}(")
        return f"{imported}\n{body}"

    accepted = [
        {first: renamed(first, f"from {module} import {helper} as h", "h")},
        {first: renamed(first, f"import {module}", f"{module}.{helper}")},
        {second: renamed(second, f"import {module} as m", f"m.{helper}")},
        {second: renamed(second, f"from {module} import *", helper)},
        {first: right[first].replace("def ", "def unused():\n    return 0\n\n\ndef ", 1)},
    ]

    def copied(path: str, between: str) -> str:
        """The module as it was, with a call, and something between its lines."""
        lines = fixture.files[path].splitlines()
        place = next(n for n, line in enumerate(lines) if line.startswith("def ")) + 1
        out = [f"from {module} import {helper}", *lines[:place], f"    {helper}([])"]
        for line in lines[place:]:
            out += [line[: len(line) - len(line.lstrip())] + between] * (between != "") + [line]
        return "\n".join(out) + "\n"

    nothing = (
        "pass",
        "0",
        "len('')",
        "unused = 1",
        "unused = items",
        "assert True",
        "if items: pass",
    )
    refused = [
        {first: copied(first, line), second: copied(second, line)} for line in ("", *nothing)
    ]
    text = fixture.files[first]
    elsewhere = right[shared].replace(f"def {helper}(", "def other(")
    refused.append({"elsewhere.py": elsewhere} | {
        path: f"from elsewhere import other\n{right[path]}".replace(
            f"{helper}(items)", f"(other(items), {helper}([]))[0]"
        )
        for path in (first, second)
    })  # fmt: skip
    refused += [
        {first: f"from {module} import {helper}\nexec({text!r})\ndef f(): {helper}([])\n"},
        {
            first: f"from {module} import {helper}\neval(compile({text!r}, 'x', 'exec'))\ndef f(): {helper}([])\n"
        },
        {shared: f"exec({right[shared]!r})\ndef unused(): pass\n"},
    ]
    ends = verified(prompt, *map(solved, (*accepted, *refused)))
    values = [score.value for _, score in ends]
    assert values == [1.0] * len(accepted) + [0.0] * len(refused)


@contained
def test_a_right_answer_in_prose_is_wrong_and_not_given_up():
    rows = ENVIRONMENTS["know_when_to_stop"]().rows(seed=0, count=12)
    found: dict[str, str] = {}
    for row in rows:
        prompt = ENVIRONMENTS["know_when_to_stop"]().prompt(row)
        [(completion, score)] = verified(
            prompt, script(sh("ls"), "Two days are missing: it is not defined.")
        )
        found[row["metadata"]["variant"]] = failures(prompt, completion, score)[0].mode
    assert found == {
        "answerable": "gave_up_mid_plan", "few_rows": "wrong_answer", "gaps": "wrong_answer",
    }  # fmt: skip


# -- infrastructure --------------------------------------------------------------------------------


@contained
def test_a_machine_that_fails_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch):
    [prompt] = prompts("recover_from_tool_error", [0])

    async def broken(*_: object, **__: object) -> SandboxResult:
        raise OSError("no room on the device")

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "run_program", broken)
        [(completion, score)] = verified(prompt, script(read("x"), sh("ls")))
    assert (score.value, score.failure) == (None, "sandbox")
    assert failures(prompt, completion, score)[0].mode == "infrastructure_error"
    [fix] = prompts("fix_failing_test", [0])
    [(completion, _)] = verified(fix, script(write("app/__init__.py", "x = 1\n")))
    with monkeypatch.context() as patch:
        patch.setattr(base, "run_program", broken)
        score = asyncio.run(ENVIRONMENTS["fix_failing_test"]().verify(fix, completion))
    assert (score.value, score.failure) == (None, "sandbox")
    gone = replace(completion, finish="failed", error="connection refused")
    lost = asyncio.run(ENVIRONMENTS["fix_failing_test"]().verify(fix, gone))
    assert [one.mode for one in failures(fix, gone, lost)] == ["infrastructure_error"]
