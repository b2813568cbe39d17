"""When the signs in a run's figures warn, when they stop it, and what they say."""

from __future__ import annotations

import pytest

from posttrain.config.grpo import GuardConfig, Limit
from posttrain.errors import TrainingError
from posttrain.training.rl.metrics import check_health, step_line


def look(limit: Limit, name: str, values: list[float], *, last: bool = False) -> list[str]:
    key = {"masked": "masked_completions", "length": "completion_tokens"}.get(name, name)
    config = GuardConfig.model_validate({"window": 2, name: limit})
    rows = [{"step": n + 1, key: value} for n, value in enumerate(values)]
    return check_health(rows, config, last=last)


def test_a_window_that_is_not_full_says_nothing_before_the_end():
    limit = Limit(warn=0.3, stop=0.9)
    assert look(limit, "truncated", [1.0]) == []
    assert look(limit, "truncated", [0.2], last=True) == []
    assert look(limit, "truncated", [0.5], last=True)
    with pytest.raises(TrainingError, match="step 1: truncated is 1 "):
        look(limit, "truncated", [1.0], last=True)


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
    assert check_health([{"step": 1, "rollouts": 8}], GuardConfig(window=1)) == []


def test_the_line_of_a_step_speaks_of_what_was_unscored_if_anything_was():
    row = {"rollouts": 8, "reward": 0.5, "reward_std": 0.1, "truncated": 0.0, "unscored": 0.0}
    assert step_line(row) == "reward 0.500 ±0.10  truncated 0%"
    assert step_line(row | {"unscored": 0.25}) == "reward 0.500 ±0.10  truncated 0%  unscored 25%"
    assert step_line({"loss": 0.1}) is None
