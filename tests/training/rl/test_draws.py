"""Refills and difficulty pools alone: domains, nearness, bounds, and what steps before decide."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.load import validate
from posttrain.config.rlvr import RlvrConfig
from posttrain.errors import DataError
from posttrain.training.rl.curriculum import Draw
from posttrain.training.rl.draws import DrawnGroup, PromptDraws, pool_of
from tests.training.rl.policy import raw_recipe

N = 4
POOLS = {
    "m": {f"m{k}": k % N for k in range(24)},
    "c": {f"c{k}": k % N for k in range(8)},
}


def make_draws(out: Path, *, max_epochs: int = 1, order: str = "gaussian") -> PromptDraws:
    raw = raw_recipe(
        Path("policy"), out, pass_rates=str(out), curriculum={"order": order}, seed=5,
        domains={"m": {"ratio": 3}, "c": {"ratio": 1}}, dynamic_sampling={},
        prompts_per_step=4, max_epochs=max_epochs,
    )  # fmt: skip
    return PromptDraws(validate(raw, RlvrConfig, where="test"), POOLS, n=N, steps=3)


def outcome(at: int, draw: Draw, passes: int, *, attempt: int = 0) -> DrawnGroup:
    return DrawnGroup(at, attempt, draw.prompt_id, draw.domain, draw.reason, passes, N, False)


@pytest.mark.parametrize("max_epochs", [1, 2])
def test_a_refill_is_of_the_domain_near_in_pass_rate_and_as_often_as_may_be(
    tmp_path: Path, max_epochs: int
):
    draws = make_draws(tmp_path, max_epochs=max_epochs)
    times = Counter(d.prompt_id for step in draws._planned for d in step)
    first = draws.draw(0)
    taken = {draw.prompt_id for draw in first}

    def free(domain: str) -> list[str]:
        return [k for k in POOLS[domain] if k not in taken and times[k] < max_epochs]

    refills: list[Draw | None] = []
    for _ in range(12):
        refills = draws.refill(first)
        for dropped, refill in zip(first, refills, strict=True):
            if refill is None:
                continue
            assert refill.domain == dropped.domain
            assert refill.prompt_id in free(dropped.domain)
            own = free(dropped.domain)
            distances = sorted(abs(POOLS[dropped.domain][k] - dropped.bucket) for k in own)
            # another of the same round may have had the nearest
            assert abs(refill.bucket - dropped.bucket) <= distances[min(3, len(own) - 1)]
        given = [refill.prompt_id for refill in refills if refill is not None]
        assert len(set(given)) == len(given)
        taken.update(given)
        times.update(given)
    assert refills == [None] * 4
    assert not free("m")
    assert not free("c")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, N), min_size=24, max_size=24))
def test_pools_move_with_what_training_shows_and_resume_takes_it_up(
    tmp_path_factory: pytest.TempPathFactory, passes: list[int]
):
    out = tmp_path_factory.mktemp("draws")
    draws, given = make_draws(out, order="difficulty_pools", max_epochs=2), iter(passes)
    rates = {name: k / N for own in POOLS.values() for name, k in own.items()}
    steps: list[list[Draw]] = []
    for step in range(3):
        drawn = draws.draw(step)
        assert Counter(draw.domain for draw in drawn) == {"m": 3, "c": 1}
        assert len({draw.prompt_id for draw in drawn}) == 4
        for draw in drawn:
            if draw.reason != "leftover":
                assert draw.reason == pool_of(rates[draw.prompt_id])
        found = [outcome(at, draw, next(given)) for at, draw in enumerate(drawn)]
        rates |= {group.prompt_id: group.passes / N for group in found}
        draws.record(found, main=True)
        steps.append(drawn)
    again = make_draws(out, order="difficulty_pools", max_epochs=2)
    assert again.draw(2) == again.draw(2) == steps[2]
    assert again.draw(1) == steps[1]
    # a step that is made again takes its lines, and those of later ones, away
    again.record([outcome(0, draw, 0) for draw in steps[1]], main=True)
    assert len((out / "draws.jsonl").read_text().splitlines()) == 2
    with pytest.raises(DataError, match="has 2 steps of the 9"):
        again._restore(9)


def test_pools_are_recorded_without_dynamic_sampling_and_a_plan_that_none_changes_is_not(
    tmp_path: Path,
):
    """A step's draws follow from the passes of those before it, also when the run goes on."""

    def draws_of(name: str, **curriculum: Any) -> PromptDraws:
        raw = raw_recipe(
            Path("policy"), tmp_path / name, pass_rates=str(tmp_path), curriculum=curriculum,
            domains={"m": {"ratio": 3}, "c": {"ratio": 1}}, prompts_per_step=4, max_epochs=2,
        )  # fmt: skip
        (tmp_path / name).mkdir(exist_ok=True)
        return PromptDraws(validate(raw, RlvrConfig, where="test"), POOLS, n=N, steps=3)

    def run(draws: PromptDraws) -> list[list[Draw]]:
        steps: list[list[Draw]] = []
        for step in range(3):
            steps.append(draws.draw(step))
            found = [outcome(at, draw, passes=at % 2 * N) for at, draw in enumerate(steps[-1])]
            draws.record(found, main=True)
        return steps

    steps = run(draws_of("pools", order="difficulty_pools"))
    assert len((tmp_path / "pools" / "draws.jsonl").read_text().splitlines()) == 3
    assert draws_of("pools", order="difficulty_pools").draw(2) == steps[2]
    planned = run(draws_of("planned", order="gaussian"))
    assert not (tmp_path / "planned" / "draws.jsonl").exists()
    assert draws_of("planned", order="gaussian").draw(2) == planned[2]
