"""Base class of agentic families: a fixture from a seed, tools on its files, a checked end state.

Nothing that a checker knows is ever in a sandbox: a row carries only the seed of its fixture and a
digest, and the model's code runs in a further sandbox, whose results are compared here.
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
from posttrain.records import Message, Score
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
# calls, one per turn, and perhaps a text at the end (see `script`)
ScriptedRun = Sequence[Call | str]
_CHECK_LIMITS = Limits(seconds=20, cpu_seconds=10, output_bytes=1 << 20)
_LARGEST_ANSWER = 100_000  # bytes of a file with an answer
# The directory comes last on the path, so that no file in it replaces the standard library. The
# results are JSON, which is compared outside the sandbox.
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
    """The final state does not solve the task; the message says why."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A scripted run; `fails` is the failure mode that decides it, None if it passes."""

    script: Script
    fails: str | None


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a run.

    Attributes:
        order: paths in the order of their first write since they were last empty or absent.
    """

    initial: Files
    files: Files
    order: tuple[str, ...]

    def unchanged(self, *paths: str) -> None:
        """Raise Wrong where a file, or any file of a directory, was changed."""
        changed = changed_paths(self.initial, self.files)
        for protected in paths:
            if any(path == protected or path.startswith(f"{protected}/") for path in changed):
                raise Wrong(f"{protected} was changed")

    def text(self, path: str) -> str:
        """Text of a file. Raises Wrong where it is missing, too large or no text."""
        content = self.files.get(path)
        if content is None:
            raise Wrong(f"{path} is missing")
        if len(content) > _LARGEST_ANSWER:
            raise Wrong(f"{path} is too large")
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise Wrong(f"{path} is no text") from None

    def answer(self, path: str, /, *, exactly: bool = False, **expected: Any) -> None:
        """Raise Wrong where a file is not a JSON object with these fields.

        `exactly`: also where it has further ones.
        """
        fields = self.object(path)
        if not expected.keys() <= fields.keys() or (exactly and fields.keys() != expected.keys()):
            raise Wrong(f"{path}: its fields are {', '.join(sorted(fields))[:200]}")
        for name, value in expected.items():
            if not same_value(value, fields[name]):
                raise Wrong(f"{path}: {name} is {str(fields[name])[:80]!r}")

    def object(self, path: str) -> dict[str, Any]:
        """JSON object in a file. Raises Wrong where there is none."""
        try:
            value = load_json(self.text(path))
        except ValueError as error:
            raise Wrong(f"{path} is no JSON: {str(error)[:100]}") from None
        if not isinstance(value, dict):
            raise Wrong(f"{path} is no JSON object")
        return cast(dict[str, Any], value)

    async def computes(self, expected: Sequence[tuple[str, str, list[Any], Any]]) -> None:
        """Call functions of the final `.py` files in a sandbox and compare their results.

        Args:
            expected: (module, function, arguments, result) of each call.

        Raises:
            Wrong: a result differs, or there is none.
            OSError: the sandbox did not start.
        """
        code = {path: data for path, data in self.files.items() if path.endswith(".py")}
        calls = [(module, name, list(arguments)) for module, name, arguments, _ in expected]
        stdin = marshal.dumps((code, calls))
        result = await run_program([*ISOLATED, _CALLS], stdin, _CHECK_LIMITS)
        greeting, _, output = result.stdout.partition(b"\n")
        if greeting != b"started" and result.limit is None:
            raise OSError(f"the check did not start: {result.stderr[-200:]!r}")
        try:
            value: Any = load_json(output)
        except ValueError:
            raise Wrong(f"the code gives no results (limit {result.limit})") from None
        results = cast(list[Any], value) if isinstance(value, list) else []
        if len(results) != len(expected):
            raise Wrong("the code gives other results than were called for")
        for (module, name, arguments, right_value), call_result in zip(
            expected, results, strict=True
        ):
            call = f"{module}.{name}{tuple(arguments)!r:.100}"
            if not isinstance(call_result, dict) or "value" not in call_result:
                raise Wrong(f"{call} raises")
            if not same_value(right_value, cast(dict[str, Any], call_result)["value"]):
                raise Wrong(f"{call} is another value")


Check = Callable[[Final], Awaitable[None]]  # raises Wrong where the task is not solved


def answers(
    path: str, expected: Mapping[str, Any], *, unchanged: Sequence[str], exactly: bool = False
) -> Check:
    """Check that a file is an object with these fields, and that other files are unchanged."""

    async def check(final: Final) -> None:
        final.unchanged(*unchanged)
        final.answer(path, exactly=exactly, **expected)

    return check


@dataclass(frozen=True, slots=True)
class Fixture:
    """A task with its files, its check, and scripted runs by name.

    Attributes:
        files: path → text.
        oracle: run that solves the task.
        wrong: runs that end with a wrong answer.
        unfinished: runs that give up before the end.
        prose_answers: runs that give the right answer in a message and not in a file.
        deliverables: files that a run has to write; () for any change.
        tables: SQL that makes the database `DATABASE`; "" for none.
        first_error: error that the first valid call gets.
        in_prose: pattern of a last message with the right answer. Without a file that is wrong, but
            not counted as given up. "" where no message answers the task.
    """

    task: str
    files: Mapping[str, str]
    check: Check
    oracle: ScriptedRun
    wrong: Mapping[str, ScriptedRun]
    unfinished: Mapping[str, ScriptedRun] = field(default_factory=dict[str, "ScriptedRun"])
    prose_answers: Mapping[str, ScriptedRun] = field(default_factory=dict[str, "ScriptedRun"])
    deliverables: tuple[str, ...] = ()
    tools: tuple[str, ...] = BASIC
    tables: str = ""
    first_error: str | None = None
    variant: str = ""
    in_prose: str = ""

    @property
    def digest(self) -> str:
        """Digest of everything that a model can see of the task."""
        visible = [self.task, dict(self.files), self.tables, self.first_error, self.tools]
        return digest_of(visible)[:16]

    def initial(self) -> dict[str, bytes]:
        """The files at the start of a run, with the database."""
        files = {path: text.encode() for path, text in self.files.items()}
        if self.tables:
            with sqlite3.connect(":memory:") as connection:
                connection.executescript(self.tables)
                files[DATABASE] = connection.serialize()
        return files


class Family(RLVREnvironment):
    """A family of agentic tasks. A subclass has `name` and `build`."""

    def build(self, rng: random.Random) -> Fixture:
        """Draw the fixture of a task."""
        raise NotImplementedError

    def fixture(self, prompt: Prompt) -> Fixture:
        """Fixture of a prompt, drawn again from its key."""
        return _draw_fixture(type(self), metadata_of(prompt)["fixture"])

    def row(self, seed: int, number: int) -> dict[str, Any]:
        key = f"{seed}/{number}"
        fixture = _draw_fixture(type(self), key)
        return {
            "messages": [
                {"role": "system", "content": SYSTEM.format(name=fixture.digest[:8])},
                {"role": "user", "content": fixture.task},
            ],
            "tools": [Tool(name, *TOOLS[name], str).schema() for name in fixture.tools],
            "metadata": {
                "fixture": key,
                "digest": fixture.digest,
                "family": self.name,
                "variant": fixture.variant,
            },
        }

    def malformed(self, prompt: Prompt) -> str | None:
        if prompt.tools is None:
            return "no tools"
        same_digest = self.fixture(prompt).digest == metadata_of(prompt)["digest"]
        return None if same_digest else "another version made this task: generate the rows again"

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
            message = completion.steps[-1].parsed.answer
            in_prose = fixture.in_prose and re.search(fixture.in_prose, message, re.IGNORECASE)
            answer = message[:200] if in_prose else None
            return Score(0.0, answer, f"not there at the end: {', '.join(state['missing'])}")
        initial = fixture.initial()
        final = Final(initial, final_files(initial, state), _write_order(state["calls"]))
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
        """Scripted runs of a task, by name, with the failure mode of each."""
        fixture = self.fixture(prompt)
        list_files: Call = ("list_files", {"path": "."})
        list_recursively: Call = ("list_files", {"path": ".", "recursive": True})
        path = next(iter(fixture.files))
        pages = [("read_file", {"path": path, "first_line": n, "lines": 1}) for n in range(1, 21)]
        runs_by_failure: dict[str | None, Mapping[str, ScriptedRun]] = {
            None: {"oracle": fixture.oracle},
            "gave_up_mid_plan": {"no_op": (), "out_of_turns": pages, **fixture.unfinished},
            "tool_call_hallucinated": {
                "unknown_tool": (list_files, ("open_editor", {"path": "."})),
                "invented_argument": (list_recursively,),
            },
            "tool_call_redundancy": {"repeats": (list_files,) * 4},
            "wrong_answer": {**fixture.wrong, **fixture.prose_answers},
        }
        policies: dict[str, Policy] = {}
        for failure, runs in runs_by_failure.items():
            for name, run in runs.items():
                policies[name] = Policy(script(*run), failure)
        return policies


def _write_order(calls: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Paths in the order in which calls wrote them, see `Final.order`."""
    order: dict[str, None] = {}
    for call in calls:
        for path in call["changed"]:
            if path in call["emptied"]:
                order.pop(path, None)
            else:
                order.setdefault(path)
    return tuple(order)


@functools.lru_cache(maxsize=256)  # a task is opened and scored once for each of its rollouts
def _draw_fixture(family: type[Family], key: str) -> Fixture:
    """Draw the fixture of a key, "seed/number"; it is the same one at any time."""
    return family().build(random.Random(f"agentic/{family.name}/{key}"))


# -- scripted runs -------------------------------------------------------------------------------


def script(*parts: Call | str) -> Script:
    """A run with one call per turn, and a message at its end: the last part if that is a text."""
    messages: list[Message] = []
    for part in parts:
        if not isinstance(part, str):
            messages += calls(part)
    text = parts[-1] if parts and isinstance(parts[-1], str) else "Done."
    return (*messages, *says(text))
