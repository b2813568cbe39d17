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
    """Advantages of groups of rewards.

    Args:
        rewards: (groups, generations), nan (or None) for an unscored rollout. It is in nobody's
            mean or deviation, as if it were not there.

    Returns:
        (groups, generations), finite. 0.0 for an unscored rollout, which the loss must leave out,
        and for the only scored one of its group. With two scored there is no deviation.

    Raises:
        ValueError: another shape, or an infinite reward.
    """
    given = np.asarray(rewards, dtype=np.float64)
    if given.ndim != 2:
        raise ValueError(f"rewards must be groups × generations, got the shape {given.shape}")
    if np.isinf(given).any():
        raise ValueError("a reward is infinite; an unscored one is nan")
    scored = ~np.isnan(given)
    values = np.where(scored, given, 0.0)
    # (group, i, j): whether j is one of i's others
    others = scored[:, None, :] & ~np.eye(given.shape[1], dtype=bool)
    count = others.sum(axis=2)
    baseline = np.where(others, values[:, None, :], 0.0).sum(axis=2) / np.maximum(count, 1)
    off = np.where(others, values[:, None, :] - baseline[:, :, None], 0.0)
    deviation = np.sqrt((off**2).sum(axis=2) / np.maximum(count - 1, 1))
    scale = np.abs(values).max(axis=1, initial=0.0)[:, None]
    spread = np.where(deviation > NEGLIGIBLE * scale, deviation, 0.0)
    plain = values - baseline
    # what is left of equal rewards after rounding is no difference either
    alike = (spread == 0) & (np.abs(plain) <= NEGLIGIBLE * scale)
    divided = np.where(spread > 0, plain / (spread + EPSILON), np.where(alike, 0.0, plain))
    return np.where(scored & (count > 0), divided, 0.0)
