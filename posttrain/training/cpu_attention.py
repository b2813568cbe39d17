"""Varlen attention for a CPU, as flash-attention does on a GPU.

Packed sequences lie in one row without padding, and attention runs on each alone. A mask over the
row would cost its length squared, and rows of equal width would leave a fifth of their positions
empty. The contract is that of transformers' flash-attention: sequences begin where positions
restart, and each layer passes its sliding window.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from posttrain.models.load import CPU_VARLEN, recurrent_layers

# layer types whose mask follows from positions and `sliding_window` alone
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}


def use_cpu_varlen(model: PreTrainedModel) -> bool:
    """Switch a model to this attention. Returns False where the model keeps its own."""
    config: Any = model.config.get_text_config()
    layer_types = set(getattr(config, "layer_types", None) or ())
    if (
        config._attn_implementation != "sdpa"
        or not model._supports_flash_attn
        or recurrent_layers(model)
        or layer_types - _PLAIN_LAYERS
        or getattr(config, "use_bidirectional_attention", None)
    ):
        return False
    model.set_attn_implementation(CPU_VARLEN)
    return True


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of `[rows, heads, columns, width]` tensors → `[rows, columns, heads, width]`."""
    if attention_mask is not None or query.shape[2] != key.shape[2]:
        # padded rows, or new tokens behind a cache
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    lengths = [query.shape[2]]
    if position_ids is not None and query.shape[0] == 1:
        lengths = _sequence_lengths(position_ids[0])
    outputs: list[torch.Tensor] = []
    parts = zip(
        query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True
    )
    for query_part, key_part, value_part in parts:
        mask = _window_mask(query_part.shape[2], sliding_window)
        attended = sdpa_attention_forward(module, query_part, key_part, value_part, mask, **kwargs)
        outputs.append(attended[0])
    return torch.cat(outputs, dim=1), None


def _sequence_lengths(positions: torch.Tensor) -> list[int]:
    """Lengths of the sequences of a row, each of which begins where positions do not continue."""
    starts = torch.nonzero(positions.diff() != 1).flatten() + 1
    bounds = [0, *starts.tolist(), len(positions)]
    return [end - start for start, end in itertools.pairwise(bounds)]


def _window_mask(length: int, window: int | None) -> torch.Tensor | None:
    """Mask of a layer's sliding window; None where plain causal attention gives the same."""
    if window is None or length <= window:
        return None
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return causal.triu(1 - window)


def _mask(
    *, q_length: int, kv_length: int, attention_mask: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor | None:
    """Mask for `_attention`: None where it needs none, else that of SDPA."""
    if attention_mask is None and q_length == kv_length:
        return None
    return sdpa_mask(
        q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, **kwargs
    )


AttentionInterface.register(CPU_VARLEN, _attention)
AttentionMaskInterface.register(CPU_VARLEN, _mask)
