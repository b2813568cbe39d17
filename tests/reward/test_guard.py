"""The guard: whatever a verifier or grader does, its completion is unscored and the others are not."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest

from posttrain import time_limits
from posttrain.errors import ConfigError, JudgeError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from reward.environments.base import RLVREnvironment, Script, admit, says
from reward.graders.base import Attempt
from reward.guard import GuardedGrader, checked_score, guarded
from reward.rlvr import Domain, GraderVerifier, RoutedReward, Verifier
from tests.reward.environments.scoring import verify

PROMPT = Prompt("p", "p", "made", (), source="s")
RIGHT = Score(1.0, "x", "right")


class Stops(BaseException):
    """Neither an Exception nor an end of the process."""


def sleeps() -> Any:
    time.sleep(3600)


def loops() -> Any:
    while True:
        try:
            sum(range(1000))
        except Exception:  # noqa: BLE001, S112 - a verifier that swallows what it can
            continue


def matches() -> Any:
    return re.match("(a+)+$", "a" * 60 + "b")


def swallows() -> Any:
    """Goes on once after it was stopped."""
    try:
        loops()
    except BaseException:  # noqa: BLE001 - the worst of verifiers
        loops()


def multiplies() -> Any:
    return 7 ** (7**12)


def raises(error: BaseException) -> Any:
    def call() -> Any:
        raise error

    return call


HANGS = {"sleep": sleeps, "loop": loops, "pattern": matches, "swallow": swallows, "int": multiplies}
RAISED: list[BaseException] = [
    TypeError("a bug"),
    MemoryError(),
    SystemExit(3),
    RecursionError(),
    StopAsyncIteration(),
    asyncio.CancelledError(),
    Stops(),
    AssertionError("no"),
]
RUBBISH: list[Any] = [
    True, 1, None, "1.0", [RIGHT], Score(True, None, ""), Score(float("inf"), None, ""),
    Score(float("nan"), None, ""), Score(1e300, None, ""), Score(-0.5, None, ""),
    Score("1", None, ""), Score(1.0, None, None),  # pyright: ignore[reportArgumentType]  # rubbish
]  # fmt: skip


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "STEP_SECONDS", 0.2)
    monkeypatch.setattr(time_limits, "_REPEAT_SECONDS", 0.05)


def score_of(call: Any) -> Score:
    return asyncio.run(guarded("mine", call))


@pytest.mark.parametrize("kind", HANGS)
def test_code_that_hangs_between_two_awaits_is_stopped(kind: str):
    async def verify() -> Any:
        await asyncio.sleep(0)
        return HANGS[kind]()

    score = score_of(verify)
    assert (score.value, score.failure) == (None, "timeout")
    assert score.explanation.startswith("mine: hangs")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_one_that_waits_for_ever_is_given_up_and_others_go_on():
    async def waits() -> Any:
        await asyncio.Event().wait()

    async def all_of_them() -> list[Score]:
        calls = [waits, lambda: RIGHT, waits, lambda: RIGHT]
        return await asyncio.gather(*(guarded("m", call, seconds=0.05) for call in calls))

    scores = asyncio.run(all_of_them())
    assert [score.failure for score in scores] == ["timeout", None, "timeout", None]
    assert scores[0].explanation == "m: no result within 0.05 s"


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_is_raised_is_unscored_with_its_name(error: BaseException):
    score = score_of(raises(error))
    assert (score.value, score.failure) == (None, "verifier_error")
    assert score.explanation.startswith(f"mine: {type(error).__name__}")


def test_what_is_about_the_machine_the_user_or_a_judge_keeps_its_meaning():
    for error in (ConfigError("no sandbox here"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            score_of(raises(error))
    assert score_of(raises(JudgeError("gone"))).failure == "service"
    assert score_of(raises(TimeoutError("its own"))).explanation == "mine: its own"


@pytest.mark.parametrize("result", RUBBISH, ids=repr)
def test_rubbish_is_no_score(result: Any):
    score = score_of(lambda: result)
    assert (score.value, score.failure) == (None, "verifier_error")
    assert score.explanation.startswith("mine: ")


def test_a_cancelled_verification_is_cancelled_and_another_alarm_keeps_its_turn():
    async def cancelled() -> None:
        task = asyncio.ensure_future(guarded("m", lambda: asyncio.sleep(3600)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    signal.setitimer(signal.ITIMER_REAL, 3000)
    try:
        assert score_of(lambda: RIGHT) == RIGHT
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 2000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_scores_in_order_are_what_they_were():
    assert checked_score("m", Score(0, None, "")).value == 0
    assert checked_score("m", Score(None, None, "", "sandbox")).failure == "sandbox"


# ---- graders ----


class Faulty:
    """Does what the completion's answer says of a dictionary of faults."""

    name = "faulty"

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        return [None] * len(prompts)

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        return [self._grade(attempt.completion.index) for attempt in attempts]

    def _grade(self, index: int) -> Any:
        match index:
            case 1:
                time.sleep(3600)
            case 2:
                raise SystemExit(2)
            case 3:
                return True
            case 4:
                return Score(1e300, None, "")
        return RIGHT


def completions(*indices: int) -> tuple[Completion, ...]:
    return tuple(Completion("p", index, (), "stop") for index in indices)


FAILURES = [None, "timeout", "verifier_error", "verifier_error", "verifier_error", None]


def test_one_attempt_of_a_batch_that_fails_leaves_the_others_their_scores():
    attempts = [Attempt(PROMPT, completion) for completion in completions(*range(6))]
    scores = GuardedGrader("faulty", Faulty(), seconds=0.05).grade(attempts)
    assert [score.failure for score in scores] == FAILURES
    assert all(s.explanation.startswith("faulty: ") for s in scores if s.failure)

    class Few(Faulty):
        def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
            return [RIGHT]  # whatever is wanted

    assert GuardedGrader("few", Few()).grade(attempts[:3]) == [RIGHT] * 3


class Passes:
    """Its `passes` fails, or what it verifies is rubbish."""

    async def verify(self, prompt: Prompt, completion: Completion) -> Any:
        return RIGHT if completion.index else True

    def passes(self, score: Score) -> bool:
        raise OSError("disk")


@pytest.mark.parametrize(
    ("verifier", "indices", "failures"),
    [
        (GraderVerifier("faulty", Faulty()), range(6), FAILURES),
        (Passes(), range(2), ["verifier_error"] * 2),
    ],
)
def test_a_reward_of_failing_verifiers_counts_them_and_names_the_verifier(
    verifier: Verifier, indices: Sequence[int], failures: list[str | None]
):
    reward = RoutedReward(lambda _: verifier, domains={"d": Domain(("s",), 0.5, 0.2)})
    [given] = asyncio.run(reward.reward([Group(PROMPT, completions(*indices))], seed=0))
    assert [value is None for value in given.rewards] == [f is not None for f in failures]
    assert [failure.reason for failure in given.failures] == [f for f in failures if f]
    name = getattr(verifier, "name", "Passes")
    assert all(failure.text.startswith(f"{name}: ") for failure in given.failures)


# ---- environments ----


class Hanging(RLVREnvironment):
    name = "hanging"

    def gold(self, prompt: Prompt) -> Script | None:
        return sleeps() if prompt.gold == "sleep" else says("right")

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [raises(SystemExit(1))()] if prompt.gold == "exit" else []

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        if completion.answer == "hang":
            loops()
        return RIGHT


class Exits(RLVREnvironment):
    name = "exits"

    def check(self, prompt: Prompt, completion: Completion) -> Any:
        if completion.answer == "exit":
            raise SystemExit(0)
        return {"true": Score(True, None, ""), "big": Score(1e300, None, "")}.get(
            completion.answer, completion.answer
        )


def test_environments_are_guarded_wherever_they_run():
    environment = Hanging()
    prompt = environment.prompt({"question": "?"})
    scores = verify(environment, prompt, "hang", "right")
    assert [score.failure for score in scores] == ["timeout", None]
    inside = Exits()
    scores = verify(inside, inside.prompt({"question": "?"}), "exit", "true", "big", "text")
    assert [score.failure for score in scores] == ["verifier_error"] * 4


def test_rows_whose_gold_hangs_or_raises_are_dropped_alone():
    rows = [{"environment": "hanging", "question": g, "gold": g} for g in ("sleep", "exit", "a")]
    admitted = asyncio.run(admit(iter(rows), {"hanging": Hanging()}))
    assert [prompt.gold for prompt in admitted.prompts] == ["a"]
    assert [why.split(": ")[:2] for _, why in admitted.dropped] == [
        ["gold_unscored", "timeout"],
        ["gold_unscored", "verifier_error"],
    ]


@pytest.mark.parametrize("reward", [1e300, float("inf"), float("nan"), -2e6])
def test_a_reward_without_bounds_is_named_as_one(reward: float):
    with pytest.raises(ValueError, match="of rollout 1 is no number"):
        GroupRewards((0.0, reward))
