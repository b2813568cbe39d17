"""When the health guard warns, when it stops, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.config.grpo import GuardConfig, Limit
from posttrain.errors import TrainingError
from posttrain.training.rl.metrics import check_health


def rows(**series: list[float]) -> list[dict[str, Any]]:
    count = len(next(iter(series.values())))
    return [
        {"step": n + 1} | {key: values[n] for key, values in series.items()} for n in range(count)
    ]


def look(
    limit: Limit, name: str, values: list[float], key: str | None = None, *, last: bool = False
) -> list[str]:
    config = GuardConfig.model_validate({"window": 2, name: limit})
    return check_health(rows(**{key or name: values}), config, last=last)


def test_a_window_that_is_not_full_says_nothing_before_the_end():
    limit = Limit(warn=0.3, stop=0.9)
    assert look(limit, "truncated", [1.0]) == []
    assert look(limit, "truncated", [0.2], last=True) == []
    assert look(limit, "truncated", [0.5], last=True)
    with pytest.raises(TrainingError, match="step 1: truncated is 1 "):
        look(limit, "truncated", [1.0], last=True)


def test_it_warns_and_stops_by_the_mean_of_the_last_batches():
    limit = Limit(warn=0.3, stop=0.9)
    assert look(limit, "truncated", [1.0, 0.0, 0.5]) == []
    [warning] = look(limit, "truncated", [0.0, 0.2, 0.5])
    assert warning.startswith("truncated is 0.35 over the last 2 batches (warns at 0.3): ")
    with pytest.raises(TrainingError, match=r"step 3: truncated is 0.95 .*guard.truncated.stop"):
        look(limit, "truncated", [0.0, 0.9, 1.0])


def test_entropy_is_held_against_the_first_batches():
    limit = Limit(warn=0.5, stop=0.1)
    assert look(limit, "entropy", [2.0, 2.0]) == []
    assert look(limit, "entropy", [2.0, 2.0, 1.5]) == []
    [warning] = look(limit, "entropy", [2.0, 2.0, 0.9, 0.9])
    assert "entropy is 0.45 of what it was in the first ones" in warning
    with pytest.raises(TrainingError, match="stopped exploring"):
        look(limit, "entropy", [2.0, 2.0, 0.1, 0.1])


def test_length_is_a_multiple_of_the_first():
    limit = Limit(warn=2, stop=5)
    assert look(limit, "length", [10, 10, 15, 20], "completion_tokens") == []
    assert look(limit, "length", [10, 10, 20, 30], "completion_tokens")
    with pytest.raises(TrainingError, match="grow without end"):
        look(limit, "length", [10, 10, 50, 60], "completion_tokens")


@pytest.mark.parametrize("name", ["zero_variance", "unscored", "masked"])
def test_every_other_sign_is_looked_at(name: str):
    key = {"masked": "masked_completions"}.get(name, name)
    with pytest.raises(TrainingError, match=f"guard.{name}.stop: null"):
        look(Limit(stop=0.5), name, [0.6, 0.6], key)


def test_a_figure_that_is_missing_is_no_sign():
    assert check_health([{"step": 1, "rollouts": 8}], GuardConfig(window=1)) == []
