"""Weights stored for decoding: other strides, the same model."""

from __future__ import annotations

import torch

from posttrain.models.inference import transpose_large_weights
from posttrain.models.load import build_model
from tests.models.tiny import TINY_ATTENTION


def test_large_weights_are_stored_by_column_and_nothing_else_changes():
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 2304, "vocab_size": 2304}
    config = {**TINY_ATTENTION, **sizes, "tie_word_embeddings": True}
    model = build_model({**config, "num_hidden_layers": 1}).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        before = model(ids).logits
        transpose_large_weights(model)
        after = model(ids).logits
    layer = model.model.layers[0]
    assert layer.mlp.up_proj.weight.stride() == (1, 2304)
    assert layer.mlp.up_proj.weight.shape == (2304, 128)
    assert layer.self_attn.q_proj.weight.is_contiguous(), "small ones stay"
    assert model.get_input_embeddings().weight.is_contiguous(), "an embedding stays"
    assert torch.allclose(before, after, atol=1e-5)
