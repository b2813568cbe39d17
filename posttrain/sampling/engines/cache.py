"""A key-value cache whose rows can be picked, repeated and put side by side, aligned at their right
end: columns to the left of a short row are masked padding. transformers' own copies everything at
every token; here columns are written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionLayer

# columns of spare room: enough that copying is rare, little enough to waste no memory
_SPARE, _SPARE_SHARE = 64, 8


class RoomyLayer(DynamicLayer):
    """Keys and values `[batch, heads, columns, head_dim]` in buffers with spare columns."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0
        self._buffers: list[torch.Tensor] = []  # keys and values, once there are any

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new columns; returns views of all of them."""
        end, new = self.used + key_states.shape[-2], (key_states, value_states)
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
        self._buffers, self.used, self.is_initialized = buffers, end, True
        self.keys, self.values = keys, values = [buffer[:, :, :end] for buffer in buffers]
        return keys, values

    def get_seq_length(self) -> int:
        """Columns written."""
        return self.used

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Pick rows by index, a row as often as it is named."""
        self._show([buffer[beam_idx] for buffer in self._buffers], self.used)

    def keep(self, count: int, *, into: torch.Tensor, out_of: torch.Tensor) -> None:
        """The first `count` rows, after rows `out_of` have taken the places of rows `into`."""
        for buffer in self._buffers:
            buffer[into, :, : self.used] = buffer[out_of, :, : self.used]
        self._show([buffer[:count] for buffer in self._buffers], self.used)

    @classmethod
    def joined(
        cls, parts: Sequence[tuple[RoomyLayer, torch.Tensor, int]], width: int
    ) -> RoomyLayer:
        """The rightmost columns of chosen rows of several layers, one below the other."""
        layer, rows = cls(), sum(len(chosen) for _, chosen, _ in parts)
        buffers = [
            b.new_empty(rows, b.shape[1], _with_room(width), b.shape[3])
            for b in parts[0][0]._buffers
        ]
        start = 0
        for part, chosen, kept in parts:
            end = start + len(chosen)
            for buffer, states in zip(buffers, part._buffers, strict=True):
                # padding is masked, but a weight of zero times whatever memory held could be NaN
                buffer[start:end, :, : width - kept] = 0
                rightmost = states[chosen, :, part.used - kept : part.used]
                buffer[start:end, :, width - kept : width] = rightmost
            start = end
        layer._show(buffers, width)
        return layer


def _with_room(columns: int) -> int:
    return columns + max(_SPARE, columns // _SPARE_SHARE)


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for this model, its plain attention layers with room to grow."""
    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer() if type(one) is DynamicLayer else one for one in cache.layers]
    return cache


def joinable(cache: DynamicCache) -> bool:
    """Whether rows of different lengths can be put side by side; sliding-window and other layers
    count columns in their own ways, so that their rows are only picked."""
    return all(type(one) in (RoomyLayer, LinearAttentionLayer, DummyLayer) for one in cache.layers)


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Rows of one cache, in this order, a row as often as it is named; `width` columns of each."""

    cache: DynamicCache
    rows: torch.Tensor
    width: int


def assemble(parts: Sequence[CacheRows]) -> DynamicCache:
    """One cache of all parts' rows, as wide as the widest; it takes the parts over."""
    first = parts[0].cache
    if not joinable(first):
        assert len(parts) == 1, "these layers' rows cannot be put side by side"
        first.reorder_cache(parts[0].rows)  # pyright: ignore[reportArgumentType]  # any int tensor
        return first
    width = max(part.width for part in parts)
    for k, layer in enumerate(first.layers):
        same: Any = [(part.cache.layers[k], part.rows, part.width) for part in parts]
        if isinstance(layer, RoomyLayer):
            first.layers[k] = RoomyLayer.joined(same, width)
        elif isinstance(layer, LinearAttentionLayer):
            # recurrent states have no columns: padding never entered them
            for states in ("conv_states", "recurrent_states"):
                for i, state in getattr(layer, states).items():
                    if state is not None:
                        chosen = [getattr(part, states)[i][rows] for part, rows, _ in same]
                        getattr(layer, states)[i] = torch.cat(chosen)
    return first


def keep_rows(cache: DynamicCache, stay: Sequence[int], device: torch.device) -> list[int]:
    """Shrink a cache to some of its rows; returns which row now lies where. Only as many rows are
    copied as have gone: the last ones move into the gaps."""
    count, kept = len(stay), set(stay)
    gaps = [k for k in range(count) if k not in kept]
    order = list(range(count))
    for gap, k in zip(gaps, [k for k in stay if k >= count], strict=True):
        order[gap] = k
    index = torch.tensor(order, device=device)
    into = torch.tensor(gaps, device=device, dtype=torch.long)
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.keep(count, into=into, out_of=index[gaps])
        else:
            layer.reorder_cache(index)  # pyright: ignore[reportArgumentType]  # any int tensor
    return order
