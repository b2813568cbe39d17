"""Rows that go forward together, with their cache and the logits of the token each writes next.

    batch = Batch(model)
    batch.admit([Row(request, limit=64)])   # prefill
    batch.step()                            # a token for every row

Equal prompts are prefilled once. Rows are aligned at their right end, so one column is one step.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from posttrain.errors import DataError
from posttrain.sampling.decode_cache import Part, assemble, joinable, keep_rows, new_cache
from posttrain.sampling.decode_choose import How, Seeds, choose, uniforms
from posttrain.sampling.decode_row import Row

# prompt positions in one forward pass, padding included: bounds memory, and suits a CPU's caches
PREFILL = 8192
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows on their way into a batch: where they lie in a cache, and their next logits."""

    part: Part
    logits: torch.Tensor
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a batch's rows keep until others join or leave.

    `pads` are the masked columns on each row's left, `width` the columns at the start; `mask` has
    spare columns of ones for those to come, and is None where no row is padded.
    """

    pads: list[int]
    width: int
    mask: torch.Tensor | None
    how: How
    seeds: Seeds


class Batch:
    """A batch that is empty at first."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.rows: list[Row] = []
        self.written = 0
        self._cache: DynamicCache | None = None
        self._logits: torch.Tensor | None = None
        self._layout: _Layout | None = None
        self._width = 0
        self._last_only = logits_of_last(model, 1)

    @property
    def going(self) -> int:
        """Rows that have not ended."""
        return sum(not row.done for row in self.rows)

    @property
    def may_join(self) -> bool:
        """Whether other rows can be put beside those that are still going."""
        return self._cache is None or not self.going or joinable(self._cache)

    def let_go(self) -> None:
        """Drop the rows that have ended; at least one goes on."""
        assert self._cache is not None
        assert self._logits is not None
        stay = [k for k, row in enumerate(self.rows) if not row.done]
        order = keep_rows(self._cache, stay, self.model.device)
        self.rows = [self.rows[k] for k in order]
        self._logits = self._logits[order]
        self._layout = self._laid_out()

    def admit(self, new: Sequence[Row]) -> None:
        """Let the ended rows go, and prefill new ones behind those that stay."""
        stay = [k for k, row in enumerate(self.rows) if not row.done]
        pieces = [self._staying(stay)] if stay else []
        pieces += [self._prefilled(group) for group in self._groups(new)]
        self.rows = [row for piece in pieces for row in piece.rows]
        self._logits = torch.cat([piece.logits for piece in pieces])
        self._width = max(piece.part.width for piece in pieces)
        self._cache = assemble([piece.part for piece in pieces])
        self._layout = self._laid_out()

    def _staying(self, stay: list[int]) -> _Piece:
        assert self._cache is not None
        assert self._layout is not None
        assert self._logits is not None
        unused = min(self._layout.pads[k] for k in stay) if joinable(self._cache) else 0
        index = torch.tensor(stay, device=self.model.device)
        part = Part(self._cache, index, self._width - unused)
        return _Piece(part, self._logits[index], [self.rows[k] for k in stay])

    def _groups(self, new: Sequence[Row]) -> Iterator[list[Row]]:
        """Rows whose distinct prompts fit one forward pass; all in one where rows cannot join."""
        together = bool(new) and not joinable(new_cache(self.model))
        group: list[Row] = []
        distinct: set[Ids] = set()
        longest = 0
        for row in new:
            ids = row.request.ids
            size = len(distinct | {ids}) * max(longest, len(ids))
            if group and size > PREFILL and not together:
                yield group
                group, distinct, longest = [], set(), 0
            group.append(row)
            distinct.add(ids)
            longest = max(longest, len(ids))
        if group:
            yield group

    def _prefilled(self, group: list[Row]) -> _Piece:
        prompts = list(dict.fromkeys(row.request.ids for row in group))
        width = max(len(ids) for ids in prompts)
        device = self.model.device
        # any id will do as padding: it is masked
        ids = torch.tensor([(0,) * (width - len(p)) + p for p in prompts], device=device)
        padded = any(len(p) < width for p in prompts)
        mask = _mask([width - len(p) for p in prompts], width, device) if padded else None
        positions = torch.arange(width, device=device).expand(len(prompts), -1)
        if mask is not None:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = new_cache(self.model)
        logits = self._forward(ids, mask, positions, cache)
        place = {prompt: k for k, prompt in enumerate(prompts)}
        index = torch.tensor([place[row.request.ids] for row in group], device=device)
        return _Piece(Part(cache, index, width), logits[index], group)

    def _laid_out(self) -> _Layout:
        pads = [self._width - len(row.request.ids) - len(row.ids) for row in self.rows]
        device = self.model.device
        longest = max(row.limit - len(row.ids) for row in self.rows)
        return _Layout(
            pads=pads,
            width=self._width,
            mask=_mask(pads, self._width + longest, device) if any(pads) else None,
            how=How.of([row.request.parameters for row in self.rows], device),
            seeds=np.array([row.request.seed for row in self.rows], dtype=np.uint64),
        )

    def step(self) -> None:
        """Write one token in every row, and run the model for the next unless all have ended."""
        assert self._layout is not None
        assert self._cache is not None
        tokens = self._write()
        if not self.going:
            return
        device = self.model.device
        self._width += 1
        mask = self._layout.mask
        self._logits = self._forward(
            torch.tensor(tokens, device=device)[:, None],
            None if mask is None else mask[:, : self._width],
            torch.tensor([self._width - 1 - pad for pad in self._layout.pads], device=device)[
                :, None
            ],
            self._cache,
        )

    def _write(self) -> list[int]:
        """Choose each row's token and let it take it; ended rows repeat one that counts not."""
        assert self._layout is not None
        assert self._logits is not None
        how = self._layout.how
        positions = np.array([len(row.ids) for row in self.rows])
        chosen, logps = choose(self._logits, how, uniforms(self._layout.seeds, positions))
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


def logits_of_last(model: PreTrainedModel, count: int) -> dict[str, int]:
    """What to call a model with so that it projects the last positions only, where it can."""
    known = inspect.signature(model.forward).parameters
    return {"logits_to_keep": count} if "logits_to_keep" in known else {}


def _mask(pads: Sequence[int], width: int, device: torch.device) -> torch.Tensor:
    columns = torch.arange(width, device=device)
    return columns >= torch.tensor(pads, device=device)[:, None]
