"""Which prompts are drawn, who makes them, and which layouts are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import ConfigError
from posttrain.training.rl.step import accumulation, rows_drawn, share


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


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_every_position_is_rolled_out_once_and_in_the_same_update(
    size: int, num_iterations: int, processes: int
):
    per_step = size * num_iterations * processes
    shares = [
        share(
            per_step=per_step, num_iterations=num_iterations, processes=processes, process=process
        )
        for process in range(processes)
    ]
    joined = [[at for mine in shares for at in mine[update]] for update in range(num_iterations)]
    alone = share(per_step=per_step, num_iterations=num_iterations, processes=1, process=0)
    assert joined == alone
    assert [at for part in alone for at in part] == list(range(per_step))


def fitted(**sizes: int) -> int:
    given_sizes = {
        "per_step": 8,
        "num_generations": 4,
        "num_iterations": 1,
        "micro": 4,
        "processes": 1,
    }
    return accumulation(**(given_sizes | sizes))


def test_micro_batches_follow_from_the_rest():
    assert fitted() == 8
    assert fitted(processes=2) == 4
    assert fitted(processes=2, num_iterations=2) == 2


def test_a_split_group_is_refused_with_the_sizes_that_fit():
    with pytest.raises(ConfigError, match=r"would split a group.* to 6, 9, or start 1, 2, 4, 8 pr"):
        fitted(processes=3)
    with pytest.raises(ConfigError, match=r"× 3 updates would split .* to 6, 9"):
        fitted(num_iterations=3)
    with pytest.raises(ConfigError, match=r"prompts_per_step to 16, or start 1, 2, 4, 8"):
        fitted(processes=16)


def test_micro_batches_that_do_not_fit_are_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"32 rollouts .*_size 5; it may be 1, 2, 4, 8, 16, 32"):
        fitted(micro=5)
