"""Many prompts continued together by one transformers model: prefill, decode, make room, go on.
Rows that have ended leave the batch, and waiting prompts take their places.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from posttrain.errors import DataError
from posttrain.sampling.engines.cache import CacheRows, assemble, joinable, keep_rows, new_cache
from posttrain.sampling.engines.choose import RowParameters, choose, uniforms
from posttrain.sampling.sampler import Budget, EngineOutput, EngineRequest, OnOutput, Progress

# waiting prompts join when at most this share of a batch is still going
_REFILL = 1 / 2
# ended rows leave when they are this share of a batch
_ENDED = 1 / 16
_REPORT_STEPS = 8
# prompt positions in one forward pass, padding included: bounds memory
PREFILL = 8192
# numbers in a layer's widest activation of such a pass on a processor: beyond its caches every
# step of a layer waits for memory, and short passes of prompts of like lengths hold little padding
_CACHED_ACTIVATIONS = 1 << 21


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    requests: Sequence[EngineRequest],
    *,
    batch_size: int,
    progress: Progress = None,
    on_done: OnOutput | None = None,
    on_step: Callable[[Sequence[DecodedRow]], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> list[EngineOutput]:
    """Continue every prompt; the same requests in the same order give the same outputs.

    Args:
        model: in eval mode.
        batch_size: rows at a time.
        progress: called every few steps.
        on_done: called with a request's number and output when it ends.
        on_step: called with the batch's rows after each step.
        stop: called at every step; True ends everything.

    Returns:
        An output a request; a prompt that leaves no room in the model's context has an `error`.

    Raises:
        InterruptedError: `stop` returned True.
        DataError: the model's logits are not finite.
    """
    rows = [DecodedRow(request, _token_limit(model, request)) for request in requests]
    waiting = _order([k for k, row in enumerate(rows) if not row.done], requests)
    batch = DecodeBatch(model)
    reported = steps = 0
    places = {id(row): k for k, row in enumerate(rows)}  # of those not handed over

    def hand_over(ended: Iterable[DecodedRow]) -> None:
        if on_done is not None:
            for row in ended:
                if row.done and id(row) in places:
                    on_done(places.pop(id(row)), row.output())

    hand_over(rows)
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
        if on_step is not None:
            on_step(batch.rows)
        hand_over(batch.rows)
        steps += 1
        if progress and (steps % _REPORT_STEPS == 0 or not batch.going):
            progress(batch.written - reported)
            reported = batch.written
    return [row.output() for row in rows]


def _token_limit(model: PreTrainedModel, request: EngineRequest) -> int:
    """New tokens a request may have: its own limit, or what the model's context leaves."""
    assert request.ids, "a prompt has at least one token"
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = request.parameters.max_tokens
    return limit if context is None else min(limit, context - len(request.ids))


def prefill_positions(model: PreTrainedModel) -> int:
    """Prompt positions of one forward pass, at most."""
    if model.device.type != "cpu":
        return PREFILL
    config = model.config.get_text_config()
    widest = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return min(PREFILL, _CACHED_ACTIVATIONS // widest)


def _order(indices: Sequence[int], requests: Sequence[EngineRequest]) -> list[int]:
    """Short prompts first, equal ones together: little padding, and one prefill for a group."""
    first: dict[tuple[int, ...], int] = {}
    for k in indices:
        first.setdefault(requests[k].ids, k)
    return sorted(indices, key=lambda k: (len(requests[k].ids), first[requests[k].ids], k))


@dataclass(slots=True)
class DecodedRow:
    """A request and what came of it so far; `limit` bounds its new ids."""

    request: EngineRequest
    limit: int
    ids: list[int] = field(default_factory=list[int])
    logps: list[float] = field(default_factory=list[float])
    done: bool = False
    stopped: bool = False
    forced: tuple[int, int] | None = None
    # ids still to be put in, last one first
    _pending: list[int] = field(default_factory=list[int])
    # where the reasoning that is counted began; None: it has not
    _counted_from: int | None = None
    _budget: Budget | None = None  # until the reasoning is closed

    def __post_init__(self) -> None:
        self._budget = self.request.budget
        if self._budget is not None and self._budget.open_id is None:
            self._counted_from = 0
        self.done = self.limit <= 0

    def take(self, token: int, logp: float) -> int:
        """Append the sampled id, or the forced one that is due instead; returns what it was."""
        forced = bool(self._pending)
        if forced:
            token, logp = self._pending.pop(), 0.0
        self.ids.append(token)
        self.logps.append(logp)
        self.done = len(self.ids) >= self.limit
        if not forced and token in self.request.stop_ids:
            self.done = self.stopped = True
        elif not forced and self._budget is not None:
            self._count(token, self._budget)
        return token

    def _count(self, token: int, budget: Budget) -> None:
        start = len(self.ids)
        if self._counted_from is None:  # the model has not opened its reasoning yet
            self._counted_from = start if token == budget.open_id else None
        elif token == budget.close_id:
            self._budget = None
        elif start - self._counted_from == budget.tokens:
            closing = list(budget.closing(self.ids[self._counted_from :]))
            self.forced = (start, min(start + len(closing), self.limit))
            self._pending, self._budget = closing[::-1], None

    def output(self) -> EngineOutput:
        """The finished completion, or why there is none."""
        assert self.done
        if self.limit <= 0 < self.request.parameters.max_tokens:
            prompt = len(self.request.ids)
            error = f"a prompt of {prompt} tokens leaves no room in the model's context"
            return EngineOutput((), "length", error=error)
        start, end = self.forced or (0, 0)
        return EngineOutput(
            ids=tuple(self.ids),
            finish="stop" if self.stopped else "length",
            logps=tuple(self.logps) if self.request.parameters.logps else None,
            forced=self.forced if end > start else None,
        )


# rows on their way into a batch: where they lie in a cache, their next logits, and they themselves
_Piece = tuple[CacheRows, torch.Tensor, list["DecodedRow"]]


class DecodeBatch:
    """Rows that go forward at the same time, aligned at their right end: one column is one step."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.rows: list[DecodedRow] = []
        self.written = 0
        self._cache = new_cache(model)
        self._logits = torch.empty(0)
        self._width = 0
        # projects the last position alone, where the model can
        known = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._lay_out()

    @property
    def going(self) -> int:
        """Rows that have not ended."""
        return sum(not row.done for row in self.rows)

    @property
    def may_join(self) -> bool:
        """Whether other rows can be put beside those that are still going."""
        return not self.going or joinable(self._cache)

    def let_go(self) -> None:
        """Drop the rows that have ended; at least one goes on."""
        stay = [k for k, row in enumerate(self.rows) if not row.done]
        order = keep_rows(self._cache, stay, self.model.device)
        self.rows = [self.rows[k] for k in order]
        self._logits = self._logits[order]
        self._lay_out()

    def admit(self, new: Sequence[DecodedRow]) -> None:
        """Let the ended rows go, and prefill new ones behind those that stay."""
        stay = [k for k, row in enumerate(self.rows) if not row.done]
        pieces = [self._staying(stay)] if stay else []
        pieces += [self._prefilled(group) for group in self._groups(new)]
        parts, logits, rows = zip(*pieces, strict=True)
        self.rows = [*itertools.chain(*rows)]
        self._logits = torch.cat(logits)
        self._width = max(part.width for part in parts)
        self._cache = assemble(parts)
        self._lay_out()

    def _staying(self, stay: list[int]) -> _Piece:
        unused = min(self._pads[k] for k in stay) if joinable(self._cache) else 0
        index = torch.tensor(stay, device=self.model.device)
        part = CacheRows(self._cache, index, self._width - unused)
        return part, self._logits[index], [self.rows[k] for k in stay]

    def _groups(self, new: Sequence[DecodedRow]) -> Iterator[list[DecodedRow]]:
        """Rows whose distinct prompts fit one forward pass; all in one where rows cannot join."""
        one_pass = not joinable(new_cache(self.model))
        most = prefill_positions(self.model)
        group: list[DecodedRow] = []
        lengths: dict[tuple[int, ...], int] = {}  # of the distinct prompts
        for row in new:
            own = {row.request.ids: len(row.request.ids)}
            wider = lengths | own
            if group and len(wider) * max(wider.values()) > most and not one_pass:
                yield group
                group, wider = [], own
            group.append(row)
            lengths = wider
        if group:
            yield group

    def _prefilled(self, group: list[DecodedRow]) -> _Piece:
        prompts = list(dict.fromkeys(row.request.ids for row in group))
        width = max(len(ids) for ids in prompts)
        device = self.model.device
        # any id will do as padding: it is masked
        ids = torch.tensor([(0,) * (width - len(p)) + p for p in prompts], device=device)
        mask = _mask([width - len(p) for p in prompts], width, device)
        positions = torch.arange(width, device=device).expand(len(prompts), -1)
        if mask is not None:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = new_cache(self.model)
        logits = self._forward(ids, mask, positions, cache)
        place = {prompt: k for k, prompt in enumerate(prompts)}
        index = torch.tensor([place[row.request.ids] for row in group], device=device)
        return CacheRows(cache, index, width), logits[index], group

    def _lay_out(self) -> None:
        """Note what the rows keep until others join or leave."""
        device = self.model.device
        # masked columns on each row's left; the mask has spare columns of ones for those to come
        self._pads = [self._width - len(row.request.ids) - len(row.ids) for row in self.rows]
        longest = max((row.limit - len(row.ids) for row in self.rows), default=0)
        self._mask = _mask(self._pads, self._width + longest, device)
        self._parameters = RowParameters.of([row.request.parameters for row in self.rows], device)
        self._seeds = np.array([row.request.seed for row in self.rows], dtype=np.uint64)

    def step(self) -> None:
        """Write one token in every row, and run the model for the next unless all have ended."""
        tokens = self._write()
        if not self.going:
            return
        device = self.model.device
        self._width += 1
        self._logits = self._forward(
            torch.tensor(tokens, device=device)[:, None],
            None if self._mask is None else self._mask[:, : self._width],
            torch.tensor([self._width - 1 - pad for pad in self._pads], device=device)[:, None],
            self._cache,
        )

    def _write(self) -> list[int]:
        """Choose each row's token and let it take it; ended rows repeat one that counts not."""
        positions = np.array([len(row.ids) for row in self.rows])
        chosen, logps = choose(self._logits, self._parameters, uniforms(self._seeds, positions))
        tokens: list[int] = chosen.tolist()
        nats: list[float] = [0.0] * len(tokens) if logps is None else logps.tolist()
        if max(tokens) >= self._logits.shape[-1]:
            raise DataError("the model's logits are not finite: its weights or dtype are at fault")
        for k, row in enumerate(self.rows):
            if not row.done:
                tokens[k] = row.take(tokens[k], nats[k])
                self.written += 1
        return tokens

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: Any, cache: DynamicCache
    ) -> torch.Tensor:
        """Logits `[rows, vocabulary]` behind the last column."""
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        )
        return out.logits[:, -1].float()


def _mask(pads: Sequence[int], width: int, device: torch.device) -> torch.Tensor | None:
    """True behind each row's padding; None where no row is padded."""
    if not any(pads):
        return None
    columns = torch.arange(width, device=device)
    return columns >= torch.tensor(pads, device=device)[:, None]
