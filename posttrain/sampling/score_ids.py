"""Log-probabilities of given token ids, a few sequences of like length at a time.

    score_ids(model, prompts=[(1, 9)], completions=[(17, 5, 2)])  →  [(-0.3, -1.2, -0.01)]

Only the positions that predict a completion are projected onto the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from transformers import PreTrainedModel

from posttrain.sampling.decode_batch import logits_of_last
from posttrain.sampling.decode_choose import log_probability
from posttrain.sampling.engine import Ids

# logits and positions of one forward pass; fp32 logits of 2²⁷ take half a gibibyte
_LOGITS = 1 << 27
_POSITIONS = 1 << 14


@torch.inference_mode()
def score_ids(
    model: PreTrainedModel,
    prompts: Sequence[Ids],
    completions: Sequence[Ids],
    *,
    stop: Callable[[], bool] = bool,
) -> list[tuple[float, ...]]:
    """Nats, at temperature 1, of each completion id given all ids before it.

    Args:
        model: in eval mode.
        prompts: at least one id each.
        completions: one for each prompt; may be empty.
        stop: asked before every pass; True raises `InterruptedError`.
    """
    assert len(prompts) == len(completions), "one completion a prompt"
    assert all(prompts), "a prompt has at least one token"
    found: list[tuple[float, ...]] = [()] * len(prompts)
    order = [k for k in range(len(prompts)) if completions[k]]
    order.sort(key=lambda k: (len(completions[k]), len(prompts[k])))
    vocabulary = model.config.get_text_config().vocab_size
    for batch in _batches(order, prompts, completions, vocabulary):
        if stop():
            raise InterruptedError
        pairs = [(prompts[k], completions[k]) for k in batch]
        for k, nats in zip(batch, _score_batch(model, pairs), strict=True):
            found[k] = nats
    return found


def _batches(
    order: Sequence[int], prompts: Sequence[Ids], completions: Sequence[Ids], vocabulary: int
) -> Iterator[list[int]]:
    batch: list[int] = []
    width = longest = 0
    for k in order:
        grown = max(width, len(prompts[k]) + len(completions[k]))
        new_longest = max(longest, len(completions[k]))
        rows = len(batch) + 1
        too_large = rows * grown > _POSITIONS or rows * new_longest * vocabulary > _LOGITS
        if batch and too_large:
            yield batch
            batch, grown = [], len(prompts[k]) + len(completions[k])
            new_longest = len(completions[k])
        batch.append(k)
        width, longest = grown, new_longest
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel, pairs: Sequence[tuple[Ids, Ids]]
) -> Iterator[tuple[float, ...]]:
    """One forward pass, right-aligned: what every row needs is in the last columns."""
    width = max(len(prompt) + len(completion) for prompt, completion in pairs)
    longest = max(len(completion) for _, completion in pairs)
    device = model.device
    pads = [width - len(prompt) - len(completion) for prompt, completion in pairs]
    ids = torch.tensor(
        [[0] * pad + [*p, *c] for pad, (p, c) in zip(pads, pairs, strict=True)], device=device
    )
    mask = torch.arange(width, device=device) >= torch.tensor(pads, device=device)[:, None]
    out = model(
        input_ids=ids,
        attention_mask=mask if any(pads) else None,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
        **logits_of_last(model, longest + 1),
    )
    nats = log_probability(out.logits[:, -longest - 1 : -1].float(), ids[:, -longest:])
    for row, (_, completion) in zip(nats.tolist(), pairs, strict=True):
        yield tuple(row[longest - len(completion) :])
