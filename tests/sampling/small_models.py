"""Tiny random models, a byte-level tokenizer with chat tokens, and the slow truth to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from posttrain.models.load import build_model
from tests.models.tiny import TINY_ATTENTION, TINY_HYBRID

CHAT_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>")
# sliding: its window is shorter than the prompts; both sorts of layer
SLIDING = {
    **TINY_ATTENTION,
    "num_hidden_layers": 2,
    "use_sliding_window": True,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "attention": TINY_ATTENTION,
    "hybrid": TINY_HYBRID,
    "sliding": SLIDING,
}


def small_model(name: str, *, vocabulary: int = 256, spread: float = 0.1) -> PreTrainedModel:
    """A random model, spread out so that rounding does not decide between nearly equal logits.

    Not wider: transformers clamps a Mamba layer's small time steps in a full pass and not when it
    decodes, so that with wilder weights the two differ.
    """
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "pad_token_id": 0, "eos_token_id": 2}
    return build_model({**CONFIGS[name], **sizes, "initializer_range": spread}).eval()


def byte_tokenizer(
    extra: Sequence[str] = (*CHAT_TOKENS, *HEADERS), *, pad: str | None = "<|pad|>"
) -> PreTrainedTokenizerFast:
    """A token a byte, and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: k for k, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=pad)
    tokenizer.add_special_tokens({"additional_special_tokens": list(extra)})
    return tokenizer


def plain_greedy(
    model: PreTrainedModel, prompt: Sequence[int], *, stops: Sequence[int], limit: int
) -> tuple[int, ...]:
    """transformers' own generate, one prompt at a time."""
    config = GenerationConfig(
        do_sample=False, max_new_tokens=limit, eos_token_id=list(stops), pad_token_id=0
    )
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return tuple(out[0, len(prompt) :].tolist())


@torch.no_grad()
def full_logps(
    model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int]
) -> torch.Tensor:
    """`[completion, vocabulary]` nats from one forward pass without cache or padding."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(ids, use_cache=False).logits[0].float()
    return logits[len(prompt) - 1 : -1].log_softmax(-1)
