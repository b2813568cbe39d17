"""The judge over a sampler: votes, retries, failures, and what two judges make of one match."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from posttrain.errors import ConfigError, JudgeError
from posttrain.group_rewards import Failure
from posttrain.runs import Counts, Run
from posttrain.sampling.sampler import Generation, Request
from reward.judge.judge import GenRmJudge, JudgeSampler, judge_sampler
from reward.judge.prompt import verdict_text
from reward.judge.verdict import Verdict
from reward.judge.votes import (
    Comparison,
    Judgement,
    Vote,
    average_votes,
    failures_of,
    refuse_failures,
)
from tests.reward.judge.judging import (
    answers_of,
    babble,
    config,
    fair,
    judge_of,
    matches,
    numbered,
    said,
)
from tests.sampling.scripted import END, Scripted

LONG_PROMPT = "x" * 100_000


def judged(judge: GenRmJudge, requests: Sequence[Comparison], *, seed: int = 1) -> list[Judgement]:
    return asyncio.run(judge.judge(requests, seed=seed))


def verdicts(judgements: Sequence[Judgement]) -> list[Verdict | None]:
    return [judgement.verdict for judgement in judgements]


@pytest.mark.parametrize("batched", [True, False])
def test_every_match_gets_its_own_verdict_in_order(batched: bool):
    sampler = Scripted(fair, batched=batched)
    judge = judge_of(sampler)
    found = judged(judge, matches(("123", "1"), ("1", "1234"), ("12", "34")))
    assert verdicts(found) == [Verdict(3, 1, 2), Verdict(1, 4, 5), Verdict(2, 2, 3.5)]
    # all at once: one call of a model in this process, one a question of a server
    assert [len(call) for call in sampler.calls] == ([3] if batched else [1, 1, 1])
    assert judge.ledger.calls == judge.ledger.matches == 3
    assert judge.ledger.prompt_tokens > judge.ledger.completion_tokens > 0
    assert (judge.ledger.failed, judge.ledger.retries, judge.ledger.cached) == (0, 0, 0)


@pytest.mark.parametrize("batched", [True, False])
def test_what_cannot_be_read_is_asked_again_with_another_seed(batched: bool):
    seen: list[int] = []

    def third_time(request: Request, rng: random.Random) -> str:
        if answers_of(request)[0] == "12":
            seen.append(request.seed)
            return fair(request, rng) if len(seen) == 3 else babble(request, rng)
        return fair(request, rng)

    judge = judge_of(Scripted(third_time, batched=batched))
    found = judged(judge, matches(("12", "1"), ("123", "1")))
    assert verdicts(found) == [Verdict(2, 1, 2), Verdict(3, 1, 2)]
    assert [j.votes[0].calls for j in found] == [3, 1]
    assert len(set(seen)) == 3
    assert (judge.ledger.calls, judge.ledger.retries) == (4, 2)
    [once] = judged(judge_of(fair), matches(("12", "1")))
    assert found[0].votes[0].prompt_tokens == 3 * once.votes[0].prompt_tokens


def test_reasoning_is_no_verdict_and_a_cut_judgement_is_none_either():
    forged = verdict_text(Verdict(5, 1, 1))
    [found] = judged(judge_of(lambda r, _: f"Maybe {forged}?{said(r)}"), matches(("1", "12")))
    assert found.verdict == Verdict(1, 2, 5)
    for script, limit in (
        (lambda request, _: f"Maybe {forged}", 500),  # never stops thinking
        (lambda request, _: said(request).removesuffix(END) + " " * 500, 200),
    ):
        judge = judge_of(script, sampling={"max_tokens": limit}, retries=0)
        [found] = judged(judge, matches(("1", "12")))
        assert (found.verdict, found.reason) == (None, f"ran to judge.sampling.max_tokens {limit}")


def test_a_prompt_beyond_the_limit_is_not_asked():
    sampler = Scripted(fair)
    judge = judge_of(sampler, max_characters=1000)
    found = judged(judge, matches((LONG_PROMPT, "1"), ("12", "1")))
    assert verdicts(found) == [None, Verdict(2, 1, 2)]
    assert found[0].reason == "longer than judge.max_characters 1,000"
    assert [len(call) for call in sampler.calls] == [1]


def test_matches_asked_alike_are_asked_once():
    sampler = Scripted(fair)
    found = judged(judge_of(sampler), matches(("12", "1"), ("1", "12"), ("12", "1")))
    assert [len(call) for call in sampler.calls] == [2]
    assert verdicts(found)[0] == verdicts(found)[2]
    assert [j.votes[0].calls for j in found] == [1, 1, 0]
    assert [j.votes[0].cached for j in found] == [False, False, True]


def noisy(request: Request, rng: random.Random) -> str:
    verdict = Verdict(rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 6))
    return babble(request, rng) if rng.random() < 0.3 else f"</think>{verdict_text(verdict)}{END}"


def test_order_and_company_change_no_verdict(monkeypatch: pytest.MonkeyPatch):
    requests = numbered(40)
    whole = dict(zip(requests, verdicts(judged(judge_of(noisy, retries=1), requests)), strict=True))
    assert None in whole.values()
    order = requests[::-1]
    for batched, chunk in ((True, 3), (False, 1024)):
        monkeypatch.setattr("reward.judge.judge.CHUNK", chunk)
        judge = judge_of(Scripted(noisy, batched=batched), retries=1)
        found = verdicts(judged(judge, order)) + verdicts(judged(judge, requests[:7]))
        assert found == [whole[match] for match in order + requests[:7]]
    other = verdicts(judged(judge_of(noisy, retries=1), requests, seed=2))
    assert other != list(whole.values())


def test_votes_are_averaged_over_those_that_gave_a_verdict():
    def sometimes(request: Request, rng: random.Random) -> str:
        readable = answers_of(request)[0] == "12"
        generous = f"</think>{verdict_text(Verdict(5, 4, 1))}{END}"
        return generous if readable else babble(request, rng)

    found = judged(judge_of(fair, sometimes), matches(("12", "1"), ("123", "1")))
    assert verdicts(found) == [Verdict(3.5, 2.5, 1.5), Verdict(3, 1, 2)]
    assert [vote.verdict for vote in found[1].votes] == [Verdict(3, 1, 2), None]
    assert average_votes([Vote(None, reason="a"), Vote(None, reason="b")]).reason == "a"


def test_no_more_is_written_than_can_be_sent():
    under_way: list[int] = []

    class Counting(Scripted):
        async def sample(
            self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
        ) -> list[Generation]:
            under_way.append(1)
            try:
                assert len(under_way) <= 3
                await asyncio.sleep(0)
                return await super().sample(requests)
            finally:
                under_way.pop()

    seat = JudgeSampler(Counting(fair, batched=False), "compact", concurrency=3)
    found = judged(GenRmJudge([seat], config()), numbered(20))
    assert verdicts(found) == verdicts(judged(judge_of(fair), numbered(20)))


def test_too_many_failures_stop_with_counts_and_an_example():
    good, bad = (
        Judgement(Verdict(1, 1, 3), ()),
        average_votes([Vote(None, reason="no", text="Hm.")]),
    )
    assert failures_of([good, bad, good]) == (Failure("no", "Hm."),)
    refuse_failures(10, [Failure("no", "Hm.")] * 2, max_failure_rate=0.2)
    refuse_failures(0, [], max_failure_rate=0.0)
    said = r"3 of 10 .*\(30\.0%\).*allows 20\.0%; most often \(3\): no; it answered.*'Hm\.'"
    with pytest.raises(JudgeError, match=said):
        refuse_failures(10, [Failure("no", "Hm.")] * 3, max_failure_rate=0.2)


def test_a_recipe_seats_its_models(tmp_path: Path):
    model = config().models[0]
    seat = judge_sampler(model, Scripted(fair), template=None)
    assert (seat.layout, seat.concurrency) == ("compact", 32)
    judge = Run.open(tmp_path / "judge", kind="checkpoint", config={})
    judge.finish(counts=Counts(0, 0), files={}, stats={"layout": "compact"})
    changed = {"checkpoint": str(tmp_path / "judge"), "layout": "roles"}
    with pytest.raises(ConfigError, match="in the layout compact, and is asked in roles"):
        judge_sampler(model.model_copy(update=changed), Scripted(fair), template=None)
    auto = model.model_copy(update={"layout": "auto", "thinking": False})
    seat = judge_sampler(auto, Scripted(fair), template="{{ messages }}")
    assert (seat.layout, seat.thinking) == ("message", False)
