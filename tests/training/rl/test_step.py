"""Which prompts are drawn, who makes them, and which layouts are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError
from posttrain.training.rl.step import accumulation, local_positions, rows_drawn
from tests.training.rl.policy import make_recipe


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5))
def test_permutations_follow_one_another(count: int, per_step: int, seed: int):
    steps = -(-2 * count // per_step)
    rows = [
        row
        for step in range(steps)
        for row in rows_drawn(count=count, per_step=per_step, step=step, seed=seed)
    ]
    assert sorted(rows[:count]) == list(range(count))
    assert sorted(rows[count : 2 * count]) == list(range(count))


def recipe(prompts: int = 8, num_iterations: int = 1) -> GroupTraining:
    keys = {"prompts_per_step": prompts, "loss": {"num_iterations": num_iterations}}
    return make_recipe(Path("policy"), Path("out"), **keys)


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_every_position_is_rolled_out_once_and_the_same_number_for_each_update(
    size: int, num_iterations: int, processes: int
):
    prompts = size * num_iterations * processes
    made = recipe(prompts, num_iterations)
    own = [local_positions(made, processes=processes, process=k) for k in range(processes)]
    assert sorted(at for mine in own for at in mine) == list(range(prompts))
    update = size * processes
    for mine in own:
        assert [sum(at // update == k for at in mine) for k in range(num_iterations)] == (
            [size] * num_iterations
        )


def fitted(*, processes: int = 1, num_iterations: int = 1, micro: int = 4) -> int:
    return accumulation(recipe(8, num_iterations), micro=micro, processes=processes)


def test_micro_batches_follow_from_the_rest():
    assert fitted() == 8
    assert fitted(processes=2) == 4
    assert fitted(processes=2, num_iterations=2) == 2


def test_layouts_that_do_not_fit_are_refused_with_those_that_do():
    for sizes, match in (
        ({"processes": 3}, r"would split a group.* to 6, 9, or start 1, 2, 4, 8 pr"),
        ({"num_iterations": 3}, r"× 3 updates would split .* to 6, 9"),
        ({"processes": 16}, r"prompts_per_step to 16, or start 1, 2, 4, 8"),
        ({"micro": 5}, r"32 rollouts .*_size 5; it may be 1, 2, 4, 8, 16, 32"),
    ):
        with pytest.raises(ConfigError, match=match):
            fitted(**sizes)
