"""Many prompts continued together by one transformers model: prefill, decode, make room, go on.

    decode(model, [EngineRequest(ids=(1, 9, 4), …)], batch_size=256)
    → [EngineOutput(ids=(17, 5, 2), finish="stop")]

Rows that have ended leave the batch, and waiting prompts take their places, so that no batch lasts
as long as its longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from posttrain.sampling.decode_batch import Batch
from posttrain.sampling.decode_row import Row
from posttrain.sampling.engine import EngineOutput, EngineRequest

# waiting prompts join when at most this share of a batch is still going
_REFILL = 1 / 2
# ended rows leave when they are this share of a batch
_ENDED = 1 / 16
_REPORT_STEPS = 8


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    requests: Sequence[EngineRequest],
    *,
    batch_size: int,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> list[EngineOutput]:
    """Continue every prompt; the same requests in the same order give the same outputs.

    Args:
        model: in eval mode.
        requests: prompts of at least one id each.
        batch_size: rows at a time.
        progress: told how many new tokens there are, every few steps.
        stop: asked at every step; True ends everything.

    Returns:
        An output a request; a prompt that leaves no room in the model's context has an `error`.

    Raises:
        InterruptedError: `stop` said so.
        DataError: the model's logits are not finite.
    """
    rows = [Row(request, _limit(model, request)) for request in requests]
    waiting = _order([k for k, row in enumerate(rows) if not row.done], requests)
    batch = Batch(model)
    told = steps = 0
    while waiting or batch.going:
        if stop():
            raise InterruptedError
        going = batch.going
        if waiting and going <= _REFILL * batch_size and batch.may_join:
            room = batch_size - going
            batch.admit([rows[k] for k in waiting[:room]])
            waiting = waiting[room:]
        elif len(batch.rows) - going >= max(1, _ENDED * len(batch.rows)):
            batch.let_go()
        batch.step()
        steps += 1
        if progress and (steps % _REPORT_STEPS == 0 or not batch.going):
            progress(batch.written - told)
            told = batch.written
    return [_output(row) for row in rows]


def _limit(model: PreTrainedModel, request: EngineRequest) -> int:
    """New tokens a request may have: its own limit, or what the model's context leaves."""
    assert request.ids, "a prompt has at least one token"
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = request.parameters.max_tokens
    return limit if context is None else min(limit, context - len(request.ids))


def _order(indices: Sequence[int], requests: Sequence[EngineRequest]) -> list[int]:
    """Short prompts first, equal ones together: little padding, and one prefill for a group."""
    first: dict[tuple[int, ...], int] = {}
    for k in indices:
        first.setdefault(requests[k].ids, k)
    return sorted(indices, key=lambda k: (len(requests[k].ids), first[requests[k].ids], k))


def _output(row: Row) -> EngineOutput:
    request = row.request
    if row.limit <= 0 < request.parameters.max_tokens:
        error = f"a prompt of {len(request.ids)} tokens leaves no room in the model's context"
        return EngineOutput((), "length", error=error)
    return row.output()
