"""Choose the next token of every row of logits, by inverse transform sampling.

A row has parameters and random numbers of its own. Each number depends on the row's seed and the
position alone, so that a sample does not depend on the rest of its batch, up to floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from posttrain.rollouts import Parameters

Seeds = npt.NDArray[np.uint64]
# ids of the vocabulary whose probabilities are added up at once
_BLOCK = 256
# increment of SplitMix64: 2^64 / golden ratio, made odd
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Seeds, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Random number in [0, 1) for each seed and position, by SplitMix64's finaliser over both."""
    # the arithmetic is modulo 2^64
    with np.errstate(over="ignore"):
        steps = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mixed = _mix(_mix(seeds) + steps)
    # 52 bits: the product with a total can then not round up to the total
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(z: Seeds) -> Seeds:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class RowParameters:
    """Sampling parameters of a batch as tensors `[rows]`, None where no row needs them."""

    greedy: torch.Tensor
    any_greedy: bool
    all_greedy: bool
    temperature: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    logps: bool

    @classmethod
    def of(cls, rows: Sequence[Parameters], device: torch.device) -> RowParameters:
        """Collect the parameters of all rows; a greedy row ignores the others."""

        def tensor(name: str, unset: float) -> torch.Tensor | None:
            values = [getattr(p, name) if p.temperature else unset for p in rows]
            return torch.tensor(values, device=device) if set(values) != {unset} else None

        greedy = [p.temperature == 0 for p in rows]
        return cls(
            greedy=torch.tensor(greedy, device=device),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            temperature=tensor("temperature", 1.0),
            top_k=tensor("top_k", 0),
            top_p=tensor("top_p", 1.0),
            logps=any(p.logps for p in rows),
        )


def choose(
    logits: torch.Tensor, parameters: RowParameters, numbers: npt.NDArray[np.float64]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Next token of each row, and its log-probability if any row requests it.

    Args:
        logits: `[rows, vocabulary]`, float.
        numbers: random number in [0, 1) of each row.

    Returns:
        Token ids `[rows]`, and nats `[rows]` under the distribution sampled from, for greedy rows
        under the model's own. An id equal to the vocabulary size marks logits that are not finite.
    """
    if parameters.all_greedy:
        tokens = _mark_broken(logits, logits.argmax(-1))
        return tokens, log_probability(logits, tokens) if parameters.logps else None
    scaled = logits if parameters.temperature is None else logits / parameters.temperature[:, None]
    scaled = _filter_top_k_and_p(scaled, parameters)
    tokens = _inverse_transform(torch.softmax(scaled, -1), numbers)
    if parameters.any_greedy:
        tokens = torch.where(parameters.greedy, logits.argmax(-1), tokens)
    tokens = _mark_broken(logits, tokens)
    return tokens, log_probability(scaled, tokens) if parameters.logps else None


def _inverse_transform(
    probabilities: torch.Tensor, numbers: npt.NDArray[np.float64]
) -> torch.Tensor:
    """Id at which the running sum of each row of `[rows, vocabulary]` first exceeds its number."""
    # running sums over a large vocabulary cost as much as a layer of a small model: find the block
    # first, then the id in it
    vocabulary = probabilities.shape[-1]
    padding = -vocabulary % _BLOCK
    blocks = torch.nn.functional.pad(probabilities, (0, padding)).unflatten(-1, (-1, _BLOCK))
    block_ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    thresholds = torch.from_numpy(numbers).to(probabilities.device)[:, None] * block_ends[:, -1:]
    block = torch.searchsorted(block_ends, thresholds, right=True)
    # searchsorted puts NaN behind every sum
    block = block.clamp(max=blocks.shape[1] - 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    before = torch.where(block > 0, block_ends.gather(-1, (block - 1).clamp(min=0)), 0.0)
    ends = before + inside.cumsum(-1, dtype=torch.float64)
    # the two ways to sum may differ in the last bit: never go beyond the last possible token
    last_possible = _BLOCK - 1 - (inside.flip(-1) > 0).int().argmax(-1, keepdim=True)
    offset = torch.minimum(torch.searchsorted(ends, thresholds, right=True), last_possible)
    return (block * _BLOCK + offset)[:, 0]


def _mark_broken(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Replace the tokens of rows whose logits are NaN by the vocabulary size."""
    # a NaN anywhere in a model ends in all of a row's logits: looking at the first is enough
    return torch.where(logits[:, 0].isnan(), logits.shape[-1], tokens)


def log_probability(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Nats of one token in each row of logits `[…, vocabulary]`, without a copy of the logits."""
    safe = tokens.clamp(max=logits.shape[-1] - 1)
    return logits.gather(-1, safe[..., None])[..., 0] - logits.logsumexp(-1)


def _filter_top_k_and_p(scaled: torch.Tensor, parameters: RowParameters) -> torch.Tensor:
    """Set logits outside top-k, then outside top-p, to -inf, in the order of transformers."""
    if parameters.top_k is not None:
        largest = int(parameters.top_k.max())
        best = scaled.topk(min(largest, scaled.shape[-1])).values
        threshold = best.gather(-1, (parameters.top_k.clamp(1, best.shape[-1]) - 1)[:, None])
        scaled = scaled.masked_fill(
            (scaled < threshold) & (parameters.top_k > 0)[:, None], -torch.inf
        )
    if parameters.top_p is not None:
        ordered, order = scaled.sort(-1, descending=True)
        before = torch.softmax(ordered, -1).cumsum(-1, dtype=torch.float64).roll(1, -1)
        before[:, 0] = -1.0  # the likeliest token always stays
        top_p = parameters.top_p[:, None]
        excluded = torch.zeros_like(scaled, dtype=torch.bool)
        excluded.scatter_(-1, order, (before >= top_p) & (top_p < 1))
        scaled = scaled.masked_fill(excluded, -torch.inf)
    return scaled
