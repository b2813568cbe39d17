"""Rollouts: what ends a completion, what comes between steps, and that batches are lockstep."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from posttrain import time_limits
from posttrain.errors import ConfigError
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Completion, Parameters, Prompt, RolloutLimits
from posttrain.sampling.rollout import Task, roll_out
from posttrain.sampling.sampler import Generation, Request, seed_of
from tests.sampling.scripted import END, Adder, Script, Scripted, call, ids_of, question

LIMITS = RolloutLimits(Parameters(max_tokens=400), max_turns=4)


def run(
    script: Script | Scripted,
    prompts: list[Prompt],
    *,
    limits: RolloutLimits = LIMITS,
    batched: bool = True,
    opened: list[Adder] | None = None,
    environment: Callable[[], Adder] = Adder,
    at_once: int | None = None,
) -> tuple[list[Completion], Scripted]:
    """One completion a prompt."""
    sampler = script if isinstance(script, Scripted) else Scripted(script, batched=batched)
    environments = [] if opened is None else opened

    def open_environment(prompt: Prompt) -> Adder | None:
        if prompt.environment is None:
            return None
        environments.append(environment())
        return environments[-1]

    tasks = [Task(prompt, index=0, seed=3) for prompt in prompts]
    made = roll_out(
        tasks, sampler, open_environment=open_environment, limits=limits, at_once=at_once
    )
    return asyncio.run(made), sampler


def add_then_answer(request: Request, rng: random.Random) -> str:
    """Call once, then say what came back."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"It is {last.content}.{END}"
    number = last.content.split("+")[0]
    return f"Let me see.\n{call('add', a=number, b=number)}{END}"


@pytest.mark.parametrize("batched", [True, False])
def test_call_result_answer(batched: bool):
    environments: list[Adder] = []
    (done,), sampler = run(add_then_answer, [question(21)], batched=batched, opened=environments)
    assert [requests[0].seed for requests in sampler.calls] == [
        seed_of(3, "sum-21/with_tools/off", 0, step) for step in (0, 1)
    ]
    assert (done.finish, done.answer, len(done.steps)) == ("stop", "It is 42.", 2)
    first, second = done.steps
    assert first.results == (Message("tool", "42", tool_call_id="call00000", name="add"),)
    assert first.results_ids == ids_of("[tool]42[assistant]")
    assert second.results_ids == ()
    assert done.prompt_ids == ids_of("[user]21+21?[assistant]")
    ids, sampled = done.sampled()
    assert ids == (*ids_of(first.text), *first.results_ids, *ids_of(second.text))
    assert sampled.count(False) == len(first.results_ids)
    assert done.state == '{"sums": [42]}'
    assert [e.closed for e in environments] == [1]
    assert sampler.calls[1][0].messages == (*question(21).messages, *done.messages[:2])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n",
        "<tool_call>\nadd 1 and 1\n</tool_call>",
        call("add", a=1, b=1) + "\n<tool_call>\nand\n</tool_call>",
    ],
)
def test_a_broken_call_ends_the_completion_with_its_text(text: str):
    environments: list[Adder] = []
    (done,), _ = run(lambda *_: text + END, [question()], opened=environments)
    assert (done.finish, len(done.steps)) == ("stop", 1)
    assert environments[0].sums == []
    assert "<tool_call>" in done.answer


def test_calls_of_a_step_run_in_order_and_errors_are_results():
    texts = iter(
        [
            call("add", a=1, b=2) + "\n" + call("multiply", a=1) + "\n" + call("add", a=3, b=4),
            "done",
        ]
    )
    (done,), _ = run(lambda *_: next(texts) + END, [question()])
    assert [m.content for m in done.steps[0].results] == ["3", "error: no tool multiply", "7"]
    assert [m.tool_call_id for m in done.steps[0].results] == [c.id for c in done.tool_calls]
    assert len({c.id for c in done.tool_calls}) == 3
    # ids avoid those of the prompt
    earlier = (
        Message("assistant", tool_calls=(ToolCall("add", "{}", "call00001"),)),
        Message("tool", "2", tool_call_id="call00001", name="add"),
        Message("user", "5+5?"),
    )
    (done,), _ = run(add_then_answer, [question(messages=earlier)])
    assert [c.id for c in done.tool_calls] == ["call00002"]


class Asking(Adder):
    """Has a user, who wants another sum until there are two."""

    async def respond(self, answer: str) -> str | None:
        return "5+5?" if len(self.sums) < 2 else None


@pytest.mark.parametrize("batched", [True, False])
def test_a_user_goes_on_until_there_is_nothing_more_to_write(batched: bool):
    (done,), sampler = run(
        add_then_answer, [question(21)], batched=batched, environment=Asking,
        limits=replace(LIMITS, max_turns=9),
    )  # fmt: skip
    turn = ["assistant", "tool", "assistant"]
    assert [m.role for m in done.messages] == [*turn, "user", *turn]
    assert (done.finish, done.answer, done.state) == ("stop", "It is 10.", '{"sums": [42, 10]}')
    # the user's turn is carried as ids and never trained on
    assert done.steps[1].results_ids == ids_of("[user]5+5?[assistant]")
    ids, sampled = done.sampled()
    trained = bytes(i for i, own in zip(ids, sampled, strict=True) if own).decode()
    assert trained == "".join(step.text for step in done.steps)
    assert sampler.calls[2][0].messages[-1] == Message("user", "5+5?")


ADD, NO = call("add", a=1, b=1) + END, "no" + END


@pytest.mark.parametrize(
    ("environment", "script", "limits", "finish", "steps"),
    [
        (Asking, lambda *_: NO, {"max_turns": 3}, "turn_limit", 3),
        (Asking, lambda *_: NO, {"max_turns": 9, "max_tokens": 2 * len(NO)}, "token_limit", 2),
        (Adder, lambda *_: ADD, {"max_turns": 3}, "turn_limit", 3),
        # nothing is left for a second step: the call is not run
        (Adder, lambda *_: ADD, {"max_tokens": len(ADD)}, "token_limit", 1),
        (Adder, lambda r, _: ADD if r.continues is None else "x" * 50 + END,
         {"max_tokens": len(ADD) + 5}, "token_limit", 2),
        (Adder, lambda *_: "x" * 50 + END, {"parameters": Parameters(max_tokens=10)}, "length", 1),
    ],
)  # fmt: skip
def test_what_bounds_a_completion(environment, script, limits, finish, steps):
    opened: list[Adder] = []
    (done,), sampler = run(
        script, [question()], limits=replace(LIMITS, **limits), environment=environment,
        opened=opened,
    )  # fmt: skip
    assert (done.finish, len(done.steps), done.steps[-1].results) == (finish, steps, ())
    # the last step's call is one that nobody would read
    assert opened[0].sums == ([2] * (steps - 1) if environment is Adder else [])
    bounds = [request.parameters.max_tokens for (request,) in sampler.calls]
    assert all(len(s.ids or ()) <= n for s, n in zip(done.steps, bounds, strict=True))


class Rerendering(Scripted):
    """A server that writes the history anew, in other ids than were sampled."""

    async def sample(self, requests, *, progress=None):
        found = await super().sample(requests, progress=progress)
        again = requests[0].continues is not None
        return [replace(g, prompt_ids=(0, *(g.prompt_ids or ()))) if again else g for g in found]


def test_ids_that_do_not_continue_are_not_kept():
    (done,), _ = run(Rerendering(add_then_answer), [question(1)])
    assert done.prompt_ids is None
    assert [step.ids for step in done.steps] == [None, None]
    assert done.answer == "It is 2."


class Counting(Scripted):
    flying = most = 0

    async def sample(self, requests, *, progress=None):
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0)
        self.flying -= 1
        return await super().sample(requests, progress=progress)


def test_a_server_has_so_many_rollouts_at_once_and_a_batch_all_that_are_live():
    asked = [question(n) for n in range(20)]
    made, sampler = run(Counting(add_then_answer, batched=False), asked, at_once=5)
    assert [c.prompt_id for c in made] == [prompt.id for prompt in asked]
    assert sampler.most == 5
    _, sampler = run(lambda r, g: add_then_answer(r, g) if "2+2" not in str(r) else NO, asked[:4])
    made = [[r.messages[0].content for r in batch] for batch in sampler.calls]
    assert made == [["0+0?", "1+1?", "2+2?", "3+3?"], ["0+0?", "1+1?", "3+3?"]]


class Stops(BaseException):
    """Neither an Exception nor an end of the process."""


def faulty(raised: BaseException) -> Callable[..., Any]:
    def fault(*_: Any) -> Any:
        raise raised

    return fault


async def for_ever(*_: Any) -> Any:
    await asyncio.Event().wait()


def loops(*_: Any) -> Any:
    while True:
        sum(range(1000))


def returns(value: Any) -> Callable[..., Any]:
    async def given(*_: Any) -> Any:
        return value

    return given


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "waits": (for_ever, "TimeoutError: no result within 0.05 s"),
    "loops": (loops, "TimeoutError: hangs, stopped after 0.05 s"),
    "bug": (faulty(RuntimeError("a bug")), "RuntimeError: a bug"),
    "memory": (faulty(MemoryError()), "MemoryError: "),
    "exit": (faulty(SystemExit(3)), "SystemExit: 3"),
    "cancels": (faulty(asyncio.CancelledError()), "CancelledError: "),
    "stops": (faulty(Stops("now")), "Stops: now"),
    "bytes": (returns(b"42"), "returned bytes, not text"),
    "object": (returns({"a": 1}), "returned dict, not text"),
}
SHORT = replace(LIMITS, environment_seconds=0.05)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", FAULTS)
def test_an_environment_that_fails_fails_its_completion_alone(name: str, batched: bool):
    fault, why = FAULTS[name]
    environments: list[Adder] = []

    def environment() -> Adder:
        adder = Adder()
        if len(environments) == 2:
            adder.call = fault
        return adder

    done, _ = run(
        add_then_answer, [question(n) for n in range(4)], batched=batched, opened=environments,
        environment=environment, limits=SHORT,
    )  # fmt: skip
    assert [c.finish for c in done] == ["stop", "stop", "failed", "stop"]
    assert done[2].error == f"tool add: {why}"
    assert [e.closed for e in environments] == [1] * 4


@pytest.mark.parametrize("name", FAULTS)
def test_a_user_that_fails_fails_the_completion(name: str):
    fault, why = FAULTS[name]

    class Caller(Adder):
        async def respond(self, answer: str) -> str | None:
            result = fault(answer)
            return await result

    (done,), _ = run(lambda *_: f"Hello.{END}", [question()], environment=Caller, limits=SHORT)
    assert (done.finish, done.error) == ("failed", f"the user: {why}")


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (lambda: "{", "JSONDecodeError"),
        (lambda: "[1]", "no object in JSON"),
        (lambda: None, "TypeError"),
        (faulty(SystemExit(1)), "SystemExit: 1"),
        (loops, "TimeoutError: hangs"),
    ],
)
def test_an_environment_without_a_state_fails_the_completion(
    snapshot: Any, why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time_limits, "STEP_SECONDS", 0.05)
    environment = Adder()
    environment.snapshot = snapshot
    (done,), _ = run(add_then_answer, [question(2)], environment=lambda: environment)
    assert (done.finish, done.state, len(done.steps)) == ("failed", None, 2)
    assert (done.error or "").startswith("the final state: ")
    assert why in (done.error or "")


@pytest.mark.parametrize("batched", [True, False])
def test_an_environment_that_does_not_open_or_close_keeps_no_other_waiting(batched: bool):
    class Ajar(Adder):
        async def close(self) -> None:
            raise OSError("no such folder")

    opened = iter([Ajar, Ajar, faulty(SystemExit(2)), Adder])
    asked = [question(n) for n in range(4)]
    done, _ = run(add_then_answer, asked, batched=batched, environment=lambda: next(opened)())
    assert [c.finish for c in done] == ["stop", "stop", "failed", "stop"]
    assert done[2].error == "open: SystemExit: 2"


def test_what_this_machine_cannot_run_ends_the_stage():
    environment = Adder()
    environment.call = faulty(ConfigError("no sandbox here"))
    with pytest.raises(ConfigError, match="no sandbox here"):
        run(add_then_answer, [question()], environment=lambda: environment)


class Gone(Scripted):
    """A sampler with a fault of ours, at its second call."""

    async def sample(self, requests: Sequence[Request], **_: Any) -> list[Generation]:
        if len(self.calls) == 1:
            raise RuntimeError("a bug")
        return await super().sample(requests)


@pytest.mark.parametrize("batched", [True, False])
def test_a_fault_of_ours_is_raised_and_every_environment_closed(batched: bool):
    environments: list[Adder] = []
    sampler = Gone(add_then_answer, batched=batched)
    with pytest.raises(RuntimeError, match="a bug"):
        run(sampler, [question(n) for n in range(4)], opened=environments)
    assert environments
    assert [e.closed for e in environments] == [1] * len(environments)


@pytest.mark.parametrize("undeclared", [{"tools": None}, {"environment": None}])
def test_a_call_that_nothing_runs_ends_the_completion(undeclared: dict[str, None]):
    (done,), _ = run(add_then_answer, [question(2, **undeclared)])
    assert (done.finish, len(done.tool_calls)) == ("stop", 1)
    assert (len(done.steps), done.steps[0].results, done.state) == (1, (), None)


class Busy(Adder):
    """Counts the environments at work, and `Counting` the requests in flight."""

    working = most = 0

    async def call(self, name, arguments):
        Busy.working += 1
        Busy.most = max(Busy.most, Busy.working)
        for _ in range(3):
            await asyncio.sleep(0)
        Busy.working -= 1
        return await super().call(name, arguments)


@pytest.mark.parametrize("batched", [True, False])
def test_so_many_rollouts_run_tools_at_once(batched: bool):
    Busy.most = 0
    done, _ = run(
        add_then_answer, [question(n) for n in range(12)], batched=batched, environment=Busy,
        limits=replace(LIMITS, tools_at_once=3),
    )  # fmt: skip
    assert (Busy.most, {c.finish for c in done}) == (3, {"stop"})
