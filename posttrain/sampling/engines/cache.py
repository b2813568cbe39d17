"""A key-value cache whose rows can be picked, repeated and joined, aligned at their right end.

Columns to the left of a short row are masked padding. The cache of transformers copies everything
at every token; here columns are written in place, into buffers with spare room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionLayer

# Spare columns of a buffer, at least _MIN_SPARE and an eighth of its columns: enough that copying
# is rare, few enough to waste little memory.
_MIN_SPARE = 64
_SPARE_DIVISOR = 8


class RoomyLayer(DynamicLayer):
    """Keys and values `[batch, heads, columns, head_dim]` in buffers with spare columns."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0
        self._buffers: list[torch.Tensor] = []  # keys and values, after the first update

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new columns; return views of all columns written."""
        new = (key_states, value_states)
        end = self.used + key_states.shape[-2]
        if not self._buffers or end > self._buffers[0].shape[-2]:
            rows, heads = key_states.shape[:2]
            grown = [s.new_empty(rows, heads, _with_room(end), s.shape[-1]) for s in new]
            for larger, old in zip(grown, self._buffers, strict=False):
                larger[:, :, : self.used] = old[:, :, : self.used]
            self._buffers = grown
        for buffer, states in zip(self._buffers, new, strict=True):
            buffer[:, :, self.used : end] = states
        return self._show(self._buffers, end)

    def _show(self, buffers: list[torch.Tensor], end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Take these buffers, of which `end` columns are used; return views of those."""
        self._buffers = buffers
        self.used = end
        self.is_initialized = True
        keys, values = [buffer[:, :, :end] for buffer in buffers]
        self.keys = keys
        self.values = values
        return keys, values

    def get_seq_length(self) -> int:
        """Number of columns written."""
        return self.used

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Pick rows by index; a row may be picked several times."""
        self._show([buffer[beam_idx] for buffer in self._buffers], self.used)

    def shrink(self, count: int, *, gaps: torch.Tensor, fillers: torch.Tensor) -> None:
        """Move rows `fillers` into rows `gaps`, then keep the first `count` rows."""
        for buffer in self._buffers:
            buffer[gaps, :, : self.used] = buffer[fillers, :, : self.used]
        self._show([buffer[:count] for buffer in self._buffers], self.used)

    @classmethod
    def joined(
        cls, parts: Sequence[tuple[RoomyLayer, torch.Tensor, int]], width: int
    ) -> RoomyLayer:
        """Layer of rows of several layers, one below the other, aligned at the right end.

        Args:
            parts: layers, each with the rows to take and the number of columns to take of them.
        """
        layer = cls()
        rows = sum(len(indices) for _, indices, _ in parts)
        buffers = [
            b.new_empty(rows, b.shape[1], _with_room(width), b.shape[3])
            for b in parts[0][0]._buffers
        ]
        start = 0
        for part, indices, columns in parts:
            end = start + len(indices)
            for buffer, states in zip(buffers, part._buffers, strict=True):
                # padding is masked, but a weight of zero times whatever memory held could be NaN
                buffer[start:end, :, : width - columns] = 0
                rightmost = states[indices, :, part.used - columns : part.used]
                buffer[start:end, :, width - columns : width] = rightmost
            start = end
        layer._show(buffers, width)
        return layer


def _with_room(columns: int) -> int:
    return columns + max(_MIN_SPARE, columns // _SPARE_DIVISOR)


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for this model, its plain attention layers with room to grow."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def joinable(cache: DynamicCache) -> bool:
    """True where rows of different lengths can be joined.

    Sliding-window and other layers count columns in their own ways: their rows can only be picked.
    """
    known = (RoomyLayer, LinearAttentionLayer, DummyLayer)
    return all(type(layer) in known for layer in cache.layers)


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Rows of one cache in this order, perhaps repeated; the last `width` columns of each."""

    cache: DynamicCache
    rows: torch.Tensor
    width: int


def assemble(parts: Sequence[CacheRows]) -> DynamicCache:
    """Join the rows of all parts into one cache, as wide as the widest part.

    The caches of the parts must not be used afterwards.
    """
    first = parts[0].cache
    if not joinable(first):
        assert len(parts) == 1, "these layers' rows cannot be joined"
        first.reorder_cache(parts[0].rows)  # pyright: ignore[reportArgumentType]  # any int tensor
        return first
    width = max(part.width for part in parts)
    for k, layer in enumerate(first.layers):
        layer_parts: Any = [(part.cache.layers[k], part.rows, part.width) for part in parts]
        if isinstance(layer, RoomyLayer):
            first.layers[k] = RoomyLayer.joined(layer_parts, width)
        elif isinstance(layer, LinearAttentionLayer):
            # recurrent states have no columns: padding never entered them
            for states in ("conv_states", "recurrent_states"):
                for i, state in getattr(layer, states).items():
                    if state is not None:
                        picked = [getattr(part, states)[i][rows] for part, rows, _ in layer_parts]
                        getattr(layer, states)[i] = torch.cat(picked)
    return first


def keep_rows(cache: DynamicCache, stay: Sequence[int], device: torch.device) -> list[int]:
    """Shrink a cache to the rows `stay`; return their numbers in their new order.

    The last rows move into the gaps, so that only as many rows are copied as have gone.
    """
    count = len(stay)
    gaps = sorted(set(range(count)).difference(stay))
    fillers = [k for k in stay if k >= count]
    order = list(range(count))
    for gap, k in zip(gaps, fillers, strict=True):
        order[gap] = k
    index = torch.tensor(order, device=device)
    gap_index = torch.tensor(gaps, device=device, dtype=torch.long)
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.shrink(count, gaps=gap_index, fillers=index[gaps])
        else:
            layer.reorder_cache(index)  # pyright: ignore[reportArgumentType]  # any int tensor
    return order
