"""What every agentic family is: a fixture from a seed, tools on its files, a checked end state.
What a checker knows is never in a sandbox: a row carries the seed of its fixture and a digest, and
the model's code runs in a further sandbox, whose results are compared here.
"""

from __future__ import annotations

import functools
import json
import marshal
import random
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from posttrain.environments.base import Environment, Tool
from posttrain.environments.sandbox import Limits
from posttrain.hashing import digest_of
from posttrain.jsontext import load_json
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.agentic.workspace import (
    BASIC,
    ISOLATED,
    TOOLS,
    Call,
    Files,
    Workspace,
    changed_paths,
    final_files,
)
from reward.environments.base import RLVREnvironment, Script, calls, same_value, says
from reward.environments.code import run_program

SYSTEM = (
    "You work in the directory of project {name} with the tools below. What counts is the state of "
    "the files when you end: write results to the files that the task names."
)
DATABASE = "data.db"
# calls, each a turn of its own, and perhaps a text at the end: see `script`
ScriptedRun = Sequence[Call | str]
_CHECK_LIMITS = Limits(seconds=20, cpu_seconds=10, output_bytes=1 << 20)
_LARGEST_ANSWER = 100_000  # bytes of a file that holds an answer
# The directory comes last on the path: no file in it stands in for the standard library. The
# results are JSON that is compared outside
_CALLS = """
import importlib, json, marshal, os, sys
files, calls = marshal.loads(sys.stdin.buffer.read())
for path, data in files.items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
out.write(b"started\\n")
out.flush()
sys.path.append(os.getcwd())
results = []
for module, name, arguments in calls:
    try:
        value = getattr(importlib.import_module(module), name)(*arguments)
        results.append(json.dumps({"value": value}))
    except BaseException as error:
        results.append(json.dumps({"problem": type(error).__name__}))
out.write(("[" + ",".join(results) + "]").encode())
out.flush()
os._exit(0)
"""


class Wrong(Exception):
    """The final state does not solve the task; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A scripted run. `fails`: the failure mode that decides it; None: it passes."""

    script: Script
    fails: str | None


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a run; `order`: paths as calls first wrote them since they were last empty or not
    there, within one call as written."""

    initial: Files
    files: Files
    order: tuple[str, ...]

    def unchanged(self, *paths: str) -> None:
        """Raises Wrong where a file is not what it was, or a directory's files are not."""
        changed = changed_paths(self.initial, self.files)
        for path in paths:
            if any(one == path or one.startswith(f"{path}/") for one in changed):
                raise Wrong(f"{path} was changed")

    def text(self, path: str) -> str:
        content = self.files.get(path)
        if content is None or len(content) > _LARGEST_ANSWER:
            raise Wrong(f"{path} is missing" if content is None else f"{path} is too large")
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise Wrong(f"{path} is no text") from None

    def answer(self, path: str, /, *, exactly: bool = False, **expected: Any) -> None:
        """Raises Wrong where a file does not hold a JSON object with these fields; `exactly`: the
        task says that there are no others."""
        given = self.object(path)
        if not expected.keys() <= given.keys() or (exactly and given.keys() != expected.keys()):
            raise Wrong(f"{path}: its fields are {', '.join(sorted(given))[:200]}")
        for name, value in expected.items():
            if not same_value(value, given[name]):
                raise Wrong(f"{path}: {name} is {str(given[name])[:80]!r}")

    def object(self, path: str) -> dict[str, Any]:
        try:
            given = load_json(self.text(path))
        except ValueError as error:
            raise Wrong(f"{path} is no JSON: {str(error)[:100]}") from None
        if not isinstance(given, dict):
            raise Wrong(f"{path} is no JSON object")
        return cast(dict[str, Any], given)

    async def computes(self, expected: Sequence[tuple[str, str, list[Any], Any]]) -> None:
        """Call functions of the final `.py` files (module, name, arguments) and compare results.
        Raises Wrong: a result differs, or there is none; OSError: the sandbox did not start."""
        code = {p: data for p, data in self.files.items() if p.endswith(".py")}
        order = marshal.dumps((code, [(m, n, list(a)) for m, n, a, _ in expected]))
        result = await run_program([*ISOLATED, _CALLS], order, _CHECK_LIMITS)
        started, _, rest = result.stdout.partition(b"\n")
        if started != b"started" and result.limit is None:
            raise OSError(f"the check did not start: {result.stderr[-200:]!r}")
        try:
            given: Any = load_json(rest)
        except ValueError:
            raise Wrong(f"the code gives no results (limit {result.limit})") from None
        results = cast(list[dict[str, Any]], given) if isinstance(given, list) else []
        if len(results) != len(expected):
            raise Wrong("the code gives other results than were called for")
        for (module, name, arguments, value), one in zip(expected, results, strict=True):
            if not isinstance(one, dict) or "value" not in one:  # pyright: ignore[reportUnnecessaryIsInstance] - the code's
                raise Wrong(f"{module}.{name}{tuple(arguments)!r:.100} raises")
            if not same_value(value, one["value"]):
                raise Wrong(f"{module}.{name}{tuple(arguments)!r:.100} is another value")


Check = Callable[[Final], Awaitable[None]]  # raises Wrong where the task is not solved


def answers(
    path: str, expected: Mapping[str, Any], *, unchanged: Sequence[str], exactly: bool = False
) -> Check:
    """A check that a file holds an object with these fields and that others are as they were."""

    async def check(final: Final) -> None:
        final.unchanged(*unchanged)
        final.answer(path, exactly=exactly, **expected)

    return check


@dataclass(frozen=True, slots=True)
class Fixture:
    """One task: texts by path, a run that solves it, and by name runs that end with a wrong answer
    (`wrong`), with a right one in words alone (`told`), or give up before their end (`unfinished`).

    Attributes:
        deliverables: files that a run has to write; () means any change.
        tables: SQL that makes the database `DATABASE`; "" makes none.
        first_error: the error that the first sound call gets.
        in_prose: matches a last message that has the right answer and yet no file, which is wrong,
            and not given up; "" where words alone answer nothing.
    """

    task: str
    files: Mapping[str, str]
    check: Check
    oracle: ScriptedRun
    wrong: Mapping[str, ScriptedRun]
    unfinished: Mapping[str, ScriptedRun] = field(default_factory=dict[str, "ScriptedRun"])
    told: Mapping[str, ScriptedRun] = field(default_factory=dict[str, "ScriptedRun"])
    deliverables: tuple[str, ...] = ()
    tools: tuple[str, ...] = BASIC
    tables: str = ""
    first_error: str | None = None
    variant: str = ""
    in_prose: str = ""

    @property
    def digest(self) -> str:
        seen = [self.task, dict(self.files), self.tables, self.first_error, self.tools]
        return digest_of(seen)[:16]

    def initial(self) -> dict[str, bytes]:
        files = {path: text.encode() for path, text in self.files.items()}
        if self.tables:
            with sqlite3.connect(":memory:") as connection:
                connection.executescript(self.tables)
                files[DATABASE] = connection.serialize()
        return files


class Family(RLVREnvironment):
    """A family. A subclass has `name` and `build`, the fixture of a seed."""

    def build(self, rng: random.Random) -> Fixture:
        raise NotImplementedError

    def fixture(self, prompt: Prompt) -> Fixture:
        return _built(type(self), metadata_of(prompt)["fixture"])

    def row(self, seed: int, number: int) -> dict[str, Any]:
        key = f"{seed}/{number}"
        fixture = _built(type(self), key)
        return {
            "messages": [
                {"role": "system", "content": SYSTEM.format(name=fixture.digest[:8])},
                {"role": "user", "content": fixture.task},
            ],
            "tools": [Tool(name, *TOOLS[name], str).schema() for name in fixture.tools],
            "metadata": {
                "fixture": key, "digest": fixture.digest, "family": self.name,
                "variant": fixture.variant,
            },
        }  # fmt: skip

    def malformed(self, prompt: Prompt) -> str | None:
        if prompt.tools is None:
            return "no tools"
        same = self.fixture(prompt).digest == metadata_of(prompt)["digest"]
        return None if same else "another version made this task: generate the rows again"

    def open(self, prompt: Prompt) -> Environment:
        fixture = self.fixture(prompt)
        return Workspace(
            fixture.initial(),
            tools=fixture.tools,
            deliverables=fixture.deliverables,
            first_error=fixture.first_error,
        )

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        state = json.loads(completion.state or "{}")
        if state["infrastructure"] is not None:
            return Score(None, None, state["infrastructure"], "sandbox")
        fixture = self.fixture(prompt)
        if state["missing"]:
            last = completion.steps[-1].parsed.answer
            told = fixture.in_prose and re.search(fixture.in_prose, last, re.IGNORECASE)
            answer = last[:200] if told else None
            return Score(0.0, answer, f"not there at the end: {', '.join(state['missing'])}")
        initial = fixture.initial()
        final = Final(initial, final_files(initial, state), _written(state["calls"]))
        try:
            await fixture.check(final)
        except Wrong as wrong:
            return Score(0.0, None, str(wrong))
        except OSError as error:
            return Score(None, None, f"the sandbox: {error}", "sandbox")
        return Score(1.0, None, "every check holds")

    def gold(self, prompt: Prompt) -> Script:
        return script(*self.fixture(prompt).oracle)

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("Done.")]

    def policies(self, prompt: Prompt) -> dict[str, Policy]:
        fixture, look = self.fixture(prompt), ("list_files", {"path": "."})
        path = next(iter(fixture.files))
        pages = [("read_file", {"path": path, "first_line": n, "lines": 1}) for n in range(1, 21)]
        deep = ("list_files", {"path": ".", "recursive": True})
        runs: dict[str | None, Mapping[str, ScriptedRun]] = {
            None: {"oracle": fixture.oracle},
            "gave_up_mid_plan": {"no_op": (), "out_of_turns": pages, **fixture.unfinished},
            "tool_call_hallucinated": {
                "unknown_tool": (look, ("open_editor", {"path": "."})),
                "invented_argument": (deep,),
            },
            "tool_call_redundancy": {"repeats": (look,) * 4},
            "wrong_answer": {**fixture.wrong, **fixture.told},
        }
        return {
            name: Policy(script(*run), fails)
            for fails, own in runs.items()
            for name, run in own.items()
        }


def _written(calls: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """As `Final.order`."""
    order: dict[str, None] = {}
    for call in calls:
        for path in call["changed"]:
            if path in call["emptied"]:
                order.pop(path, None)
            else:
                order.setdefault(path)
    return tuple(order)


@functools.lru_cache(maxsize=256)
def _built(kind: type[Family], key: str) -> Fixture:
    return kind().build(random.Random(f"agentic/{kind.name}/{key}"))


# -- scripted runs -------------------------------------------------------------------------------


def script(*parts: Call | str) -> Script:
    """A run with one call a turn, and an answer at its end: the last part if that is a text."""
    made = [part for part in parts if not isinstance(part, str)]
    text = parts[-1] if parts and isinstance(parts[-1], str) else "Done."
    return (*(message for call in made for message in calls(call)), *says(text))
