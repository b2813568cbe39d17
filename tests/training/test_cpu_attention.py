"""Attention over sequences in one row on a CPU against the library's own, masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)

from posttrain.models.load import CPU_VARLEN
from posttrain.training.cpu_attention import use_cpu_varlen
from posttrain.training.document_masking import choose_document_masking, make_collator
from tests.training.test_document_masking import packs
from tests.training.tiny import attention_model, hybrid_model

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip


def windowed_qwen3() -> PreTrainedModel:
    """One layer looks at five tokens, the other at all."""
    set_seed(0)
    kinds = ["sliding_attention", "full_attention"]
    return Qwen3ForCausalLM(
        Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=5, layer_types=kinds)
    )


def windowed_gemma3() -> PreTrainedModel:
    set_seed(0)
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=5, layer_types=kinds))


def loss_and_gradients(model: Any, layout: str) -> tuple[float, list[torch.Tensor]]:
    batch = make_collator(layout, 0)(packs())
    labels = batch["labels"]
    model.zero_grad()
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    logits = model(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
    loss.backward()
    return loss.item(), [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("make", [attention_model, windowed_qwen3, windowed_gemma3])
def test_losses_and_gradients_are_those_of_masked_rows(make: Callable[[], PreTrainedModel]):
    model = make()
    model.set_attn_implementation("sdpa")
    masked, masked_gradients = loss_and_gradients(model, "block_diagonal")
    assert use_cpu_varlen(model)
    assert choose_document_masking("auto", model) == "varlen"
    loss, gradients = loss_and_gradients(model, "varlen")
    assert loss == pytest.approx(masked, abs=1e-6)
    for ours, theirs in zip(gradients, masked_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [attention_model, windowed_qwen3])
def test_padded_rows_and_generation_are_as_before(make: Callable[[], PreTrainedModel]):
    model: Any = make().eval()
    model.set_attn_implementation("sdpa")
    ids = torch.randint(3, 64, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    plain = model(**inputs).logits[mask.bool()]
    sampled = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    assert use_cpu_varlen(model)
    torch.testing.assert_close(model(**inputs).logits[mask.bool()], plain)
    assert torch.equal(model.generate(**inputs, max_new_tokens=6, do_sample=False), sampled)


def test_other_attention_and_recurrent_layers_stay(tmp_path):
    eager = attention_model()
    eager.set_attn_implementation("eager")
    assert not use_cpu_varlen(eager)
    assert eager.config._attn_implementation == "eager"
    assert not use_cpu_varlen(hybrid_model())
    # plain transformers knows nothing of the name
    model = attention_model()
    assert use_cpu_varlen(model)
    model.save_pretrained(str(tmp_path))
    assert CPU_VARLEN not in (tmp_path / "config.json").read_text()
