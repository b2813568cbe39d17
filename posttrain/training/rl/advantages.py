"""Advantages inside a group of rollouts: each reward against the mean and spread of the *others*.

    leave_one_out_advantages([[1.0, 0.0, 0.0, 0.0]])   # groups × generations
        == [[1.0, -0.5773…, -0.5773…, -0.5773…]]      # the odd one: its others do not differ

    b_i = mean of r_j,  s_i² = (mean of r_j² − b_i²) · n / (n − 1),  j ≠ i, n of them
    A_i = r_i − b_i, divided by s_i + 1e-6 where s_i > 0

The formula is that of NVIDIA's NeMo RL. There it is computed in fp32 and in one pass: where the
others are equal the difference of two squares can leave a rest near 1e-3 in place of 0, and one odd
reward in 16 then gets an advantage of hundreds. Here: float64, the squares of deviations, and a
spread below 1e-6 of the group's largest reward counts as none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EPSILON = 1e-6  # added to the deviation, as in the reference
NEGLIGIBLE = 1e-6  # of the group's largest |reward|: a smaller deviation is rounding


def leave_one_out_advantages(
    rewards: npt.ArrayLike | Sequence[Sequence[float | None]],
) -> npt.NDArray[np.float64]:
    """Advantage of each rollout over the others of its group.

    Args:
        rewards: (groups, generations), nan (or None) for an unscored rollout, which is in nobody's
            mean or deviation.

    Returns:
        (groups, generations), finite. 0.0 for an unscored rollout, which the loss must leave out,
        and for the only scored one of its group. With two scored there is no deviation.

    Raises:
        ValueError: another shape, or an infinite reward.
    """
    rewards_G_N = np.asarray(rewards, dtype=np.float64)
    if rewards_G_N.ndim != 2:
        raise ValueError(f"rewards must be groups × generations, got the shape {rewards_G_N.shape}")
    if np.isinf(rewards_G_N).any():
        raise ValueError("a reward is infinite; an unscored one is nan")
    scored_G_N = ~np.isnan(rewards_G_N)
    values_G_N = np.where(scored_G_N, rewards_G_N, 0.0)
    values_G_1_N = values_G_N[:, None, :]
    # [g, i, j]: whether rollout j is in the baseline of rollout i
    peers_G_N_N = scored_G_N[:, None, :] & ~np.eye(rewards_G_N.shape[1], dtype=bool)
    count_G_N = peers_G_N_N.sum(axis=2)
    total_G_N = np.where(peers_G_N_N, values_G_1_N, 0.0).sum(axis=2)
    baseline_G_N = total_G_N / np.maximum(count_G_N, 1)
    # squares of deviations, not a difference of squares: see above
    off_G_N_N = np.where(peers_G_N_N, values_G_1_N - baseline_G_N[:, :, None], 0.0)
    deviation_G_N = np.sqrt((off_G_N_N**2).sum(axis=2) / np.maximum(count_G_N - 1, 1))
    scale_G_1 = np.abs(values_G_N).max(axis=1, initial=0.0)[:, None]
    spread_G_N = np.where(deviation_G_N > NEGLIGIBLE * scale_G_1, deviation_G_N, 0.0)
    difference_G_N = values_G_N - baseline_G_N
    # equal rewards differ from their mean by a rounding error, which is no difference either
    equal_G_N = (spread_G_N == 0) & (np.abs(difference_G_N) <= NEGLIGIBLE * scale_G_1)
    advantages_G_N = np.where(equal_G_N, 0.0, difference_G_N)
    divided_G_N = difference_G_N / (spread_G_N + EPSILON)
    advantages_G_N = np.where(spread_G_N > 0, divided_G_N, advantages_G_N)
    return np.where(scored_G_N & (count_G_N > 0), advantages_G_N, 0.0)
