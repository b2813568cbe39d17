"""When the signs in a run's figures warn, when they stop it, and what they say."""

from __future__ import annotations

import pytest

from posttrain.config.grpo import GrpoLossConfig, GuardConfig, Limit
from posttrain.errors import TrainingError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.training.rl import metrics
from posttrain.training.rl.batch import ScoredGroup, with_advantages
from posttrain.training.rl.metrics import (
    batch_metrics,
    check_health,
    domain_stats,
    domain_table,
    group_stats,
    run_stats,
    step_line,
    verifier_seconds,
    why_untrained,
)
from tests.training.rl.test_batch import PROMPT, completion, step


@pytest.fixture(autouse=True)
def windows_of_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WINDOW", 2)


def look(limit: Limit, name: str, values: list[float], *, at_end: bool = False) -> list[str]:
    key = {"masked": "masked_completions", "length": "completion_tokens"}.get(name, name)
    config = GuardConfig.model_validate({name: limit})
    rows = [{"step": n + 1, key: value} for n, value in enumerate(values)]
    return check_health(rows, config, at_end=at_end)


def test_a_window_that_is_not_full_says_nothing_before_the_end():
    limit = Limit(warn=0.3, stop=0.9)
    assert look(limit, "truncated", [1.0]) == []
    assert look(limit, "truncated", [0.2], at_end=True) == []
    assert look(limit, "truncated", [0.5], at_end=True)
    with pytest.raises(TrainingError, match="step 1: truncated is 1 "):
        look(limit, "truncated", [1.0], at_end=True)


@pytest.mark.parametrize(
    ("name", "limit", "quiet", "warned", "stopped"),
    [
        # the mean of the last two batches
        ("truncated", Limit(warn=0.3, stop=0.9), [1.0, 0.0, 0.5], [0.0, 0.2, 0.5], [0.0, 0.9, 1.0]),
        ("zero_variance", Limit(warn=0.3, stop=0.9), [0.2, 0.2], [0.4, 0.4], [1.0, 1.0]),
        ("unscored", Limit(warn=0.3, stop=0.9), [0.2, 0.2], [0.4, 0.4], [1.0, 1.0]),
        ("masked", Limit(warn=0.3, stop=0.9), [0.2, 0.2], [0.4, 0.4], [1.0, 1.0]),
        # against the first two, which alone say nothing
        ("entropy", Limit(warn=0.5, stop=0.1), [2, 2, 1.5], [2, 2, 0.9, 0.9], [2, 2, 0.1, 0.1]),
        ("entropy", Limit(warn=0.5, stop=0.1), [2, 0.1], [2, 2, 0.9, 0.9], [2, 2, 0.1, 0.1]),
        ("length", Limit(warn=2, stop=5), [10, 10, 15, 20], [10, 10, 20, 30], [10, 10, 50, 60]),
        ("length", Limit(warn=1, stop=5), [10, 10], [10, 10, 10], [10, 10, 50, 60]),
    ],
)
def test_each_sign_warns_and_stops(
    name: str, limit: Limit, quiet: list[float], warned: list[float], stopped: list[float]
):
    assert look(limit, name, quiet) == []
    [warning] = look(limit, name, warned)
    assert warning.startswith(name.replace("_", " "))
    assert ("of what it was in the first ones" in warning) == (name in ("entropy", "length"))
    with pytest.raises(TrainingError, match=rf"step {len(stopped)}: .*guard\.{name}\.stop: null"):
        look(limit, name, stopped)


def test_a_figure_that_is_missing_is_no_sign():
    rows = [{"step": step, "rollouts": 8} for step in (1, 2)]
    assert check_health(rows, GuardConfig()) == []


def test_the_line_of_a_step_speaks_of_what_was_unscored_if_anything_was():
    row = {"rollouts": 8, "reward": 0.5, "reward_std": 0.1, "truncated": 0.0, "unscored": 0.0}
    assert step_line(row) == "reward 0.500 ±0.10  truncated 0%"
    assert step_line(row | {"unscored": 0.25}) == "reward 0.500 ±0.10  truncated 0%  unscored 25%"
    assert step_line({"loss": 0.1}) is None


def scored_in(domain: str, *lengths: int, rewards: tuple[float | None, ...], seconds=()):
    """A group whose completions have so many tokens, at position 0 of a batch."""
    completions = tuple(completion(k, step((10,) * n)) for k, n in enumerate(lengths))
    passes = tuple(None if reward is None else float(reward > 0) for reward in rewards)
    group_rewards = GroupRewards(rewards, {"pass": passes}, domain=domain, seconds=seconds)
    group = Group(PROMPT, completions)
    [scored] = with_advantages([0], [group], [group_rewards], GrpoLossConfig())
    assert isinstance(scored, ScoredGroup)
    return group_stats(scored, overlong="mask")


def test_the_figures_of_a_domain_are_those_of_its_own_groups():
    """Its share of the loss is of the tokens trained in the whole batch, others' included."""
    row = batch_metrics(
        [
            scored_in("code", 1, 2, rewards=(1.0, 0.0)),
            scored_in("math", 4, 4, rewards=(0.5, 0.5)),
            scored_in("math", 3, 6, rewards=(None, 1.5)),
        ]
    )
    code = {"reward": 0.5, "pass_rate": 0.5, "unscored": 0.0, "zero_variance": 0.0}
    # of one group all rewards are equal, the other has a single one
    math = {"reward": 2.5 / 3, "pass_rate": 1.0, "unscored": 0.25, "zero_variance": 1.0}
    for domain, figures in (("code", code), ("math", math)):
        for name, value in figures.items():
            assert row[f"domain/{domain}/{name}"] == pytest.approx(value), (domain, name)
    assert row["domain/code/loss_share"] + row["domain/math/loss_share"] == pytest.approx(1)
    trained = {"code": 1 + 2, "math": 4 + 4 + 6}
    assert row["domain/code/loss_share"] == pytest.approx(trained["code"] / sum(trained.values()))


def test_a_batch_without_domains_has_no_figures_of_any():
    row = batch_metrics([scored_in("", 1, 2, rewards=(1.0, 0.0))])
    assert [key for key in row if key.startswith("domain/")] == []


def test_the_seconds_of_a_verification_are_told_by_domain_as_median_and_95th_percentile():
    groups = [
        scored_in("code", 1, 1, rewards=(1.0, 0.0), seconds=(9.0, *range(1, 11))),
        scored_in("code", 1, 1, rewards=(1.0, 0.0), seconds=(*range(11, 20), 100.0, 200.0)),
        scored_in("math", 1, 1, rewards=(1.0, 0.0), seconds=(0.123456,)),
        scored_in("words", 1, 1, rewards=(1.0, 0.0)),
    ]
    # of 22 sorted seconds the 11th and the 21st; a domain without any is left out
    assert verifier_seconds(groups) == {
        "code": {"p50": 10.0, "p95": 100.0},
        "math": {"p50": 0.1235, "p95": 0.1235},
    }


def test_a_run_without_a_trained_token_names_what_kept_rollouts_out():
    rows = [{"unscored": 0.25, "truncated": 0.75}, {"unscored": 0.25, "truncated": 0.25}]
    masked = why_untrained(rows, overlong="mask")
    assert "50% of the rollouts were truncated" in masked
    assert "25% of the rollouts were unscored" in masked
    # where truncated ones are trained they are no cause
    assert "truncated" not in why_untrained(rows, overlong="train").partition(":")[0]
    assert "25% of the rollouts were unscored" in why_untrained(rows, overlong="train")
    assert why_untrained([{"unscored": 0.0}], overlong="mask") == ""


def test_the_card_shows_each_domain_from_the_first_batches_to_the_last():
    rows = [
        {"domain/math/reward": 0.25, "domain/math/truncated": 0.5, "domain/code/reward": 1.0},
        {"domain/math/reward": 0.75, "domain/math/truncated": 0.0},
    ]
    stats = domain_stats(rows, averaged=1)
    assert stats["math"]["first"] == {"reward": 0.25, "truncated": 0.5}
    assert stats["math"]["last"] == {"reward": 0.75, "truncated": 0.0}
    empty, head, _, code, math = domain_table(stats)
    assert empty == ""
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert columns == ["domain", "reward", "pass rate", "truncated", "unscored", "loss share"]
    # a domain that is missing at one end has no change to show
    assert code == "| code | – | – | – | – | – |"
    assert math == "| math | 0.250 → 0.750 | – | 0.500 → 0.000 | – | – |"


def test_a_runs_figures_are_means_of_its_ends_that_do_not_overlap_and_sums_of_its_counts():
    rows = [{"reward": float(k), "count/judge_calls": 2.0} for k in range(12)]
    stats = run_stats(rows)
    assert stats["averaged"] == 5
    assert (stats["first"]["reward"], stats["last"]["reward"]) == (2.0, 9.0)
    assert stats["counts"] == {"judge_calls": 24.0}
    short = run_stats(rows[:3])
    assert short["averaged"] == 1
    assert (short["first"]["reward"], short["last"]["reward"]) == (0.0, 2.0)
