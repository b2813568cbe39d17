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
        # keys and values; none before the first update
        self._buffers: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new columns. Returns views of all columns written."""
        new_states = (key_states, value_states)
        end = self.used + key_states.shape[-2]
        if not self._buffers or end > self._buffers[0].shape[-2]:
            rows, heads = key_states.shape[:2]
            columns = _with_room(end)
            larger_buffers: list[torch.Tensor] = []
            for states in new_states:
                larger_buffers.append(states.new_empty(rows, heads, columns, states.shape[-1]))
            # not strict: there are no buffers before the first update
            for larger_buffer, buffer in zip(larger_buffers, self._buffers, strict=False):
                larger_buffer[:, :, : self.used] = buffer[:, :, : self.used]
            self._buffers = larger_buffers
        for buffer, states in zip(self._buffers, new_states, strict=True):
            buffer[:, :, self.used : end] = states
        return self._show(self._buffers, end)

    def _show(self, buffers: list[torch.Tensor], end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Use these buffers, of which `end` columns are written. Returns views of those columns."""
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
        """Make a layer of rows of several layers, one below the other, aligned at the right end.

        Args:
            parts: layers, each with the rows to take and the number of columns to take of them.
        """
        layer = cls()
        rows = sum(len(indices) for _, indices, _ in parts)
        buffers: list[torch.Tensor] = []
        for states in parts[0][0]._buffers:
            heads = states.shape[1]
            buffers.append(states.new_empty(rows, heads, _with_room(width), states.shape[3]))
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
    """Columns of a buffer that holds these and some to spare."""
    return columns + max(_MIN_SPARE, columns // _SPARE_DIVISOR)


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """Make an empty cache for a model, its plain attention layers with room to grow."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def joinable(cache: DynamicCache) -> bool:
    """Check whether rows of different lengths can be joined.

    Sliding-window and other layers count columns in their own ways: their rows can only be picked.
    """
    joinable_types = (RoomyLayer, LinearAttentionLayer, DummyLayer)
    return all(type(layer) in joinable_types for layer in cache.layers)


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Rows to take from one cache.

    Attributes:
        rows: Indices of the rows, in their new order; an index may be repeated.
        width: Number of columns to take, from the right end.
    """

    cache: DynamicCache
    rows: torch.Tensor
    width: int


def assemble(parts: Sequence[CacheRows]) -> DynamicCache:
    """Join the rows of all parts into one cache, as wide as the widest part.

    The caches of the parts must not be used afterwards.
    """
    # the first cache becomes the joined one
    cache = parts[0].cache
    if not joinable(cache):
        assert len(parts) == 1, "these layers' rows cannot be joined"
        cache.reorder_cache(parts[0].rows)  # pyright: ignore[reportArgumentType]  # any int tensor
        return cache
    width = max(part.width for part in parts)
    for number, layer in enumerate(cache.layers):
        layer_parts: Any = [(part.cache.layers[number], part.rows, part.width) for part in parts]
        if isinstance(layer, RoomyLayer):
            cache.layers[number] = RoomyLayer.joined(layer_parts, width)
        elif isinstance(layer, LinearAttentionLayer):
            # recurrent states have no columns: padding never entered them
            for name in ("conv_states", "recurrent_states"):
                for key, state in getattr(layer, name).items():
                    if state is not None:
                        picked = [getattr(part, name)[key][rows] for part, rows, _ in layer_parts]
                        getattr(layer, name)[key] = torch.cat(picked)
    return cache


def keep_rows(cache: DynamicCache, rows: Sequence[int], device: torch.device) -> list[int]:
    """Shrink a cache to the given rows. Returns their numbers in their new order.

    The last rows move into the gaps, so that no more rows are copied than were dropped.
    """
    count = len(rows)
    gaps = sorted(set(range(count)).difference(rows))
    fillers = [row for row in rows if row >= count]
    order = list(range(count))
    for gap, filler in zip(gaps, fillers, strict=True):
        order[gap] = filler
    index = torch.tensor(order, device=device)
    gap_index = torch.tensor(gaps, device=device, dtype=torch.long)
    for layer in cache.layers:
        if isinstance(layer, RoomyLayer):
            layer.shrink(count, gaps=gap_index, fillers=index[gaps])
        else:
            layer.reorder_cache(index)  # pyright: ignore[reportArgumentType]  # any int tensor
    return order
