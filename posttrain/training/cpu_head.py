"""An LM head for CPU that projects trained positions only, where TRL's scores every one: a third of
a tiny model's step. It gives the same numbers (`log_probs`, `entropy`, `is_top1`, `label_mask`), a
chunk at a time where logits are many (16K tokens × 100K ids: 6 GiB a copy).
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from trl.trainer.utils import FusedCausalLMOutput

from posttrain.tokens.encode import IGNORED

# logits held at once; backward computes a chunk's logits again when there are several chunks
CHUNK_LOGITS = 1 << 24

# models that scale or cap their logits keep TRL's head, which knows how
_SCALED = (
    "final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier",
    "logits_scaling",
)  # fmt: skip


def use_cpu_head(model: PreTrainedModel, *, temperature: float = 1.0) -> bool:
    """Put the head on a model that TRL has patched; False where TRL's own must stay. The logits are
    divided by the temperature."""
    config = model.config.get_text_config()
    if any(getattr(config, name, None) is not None for name in _SCALED):
        return False
    earlier = model.forward

    @functools.wraps(type(model).forward)
    def forward(
        self: PreTrainedModel,
        *args: Any,
        fused_lm_head: bool = False,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if not fused_lm_head or labels is None or kwargs.get("output_router_logits"):
            return earlier(*args, fused_lm_head=fused_lm_head, labels=labels, **kwargs)
        kwargs["use_cache"] = False
        hidden = self.base_model(*args, **kwargs).last_hidden_state[:, :-1]
        head = self.get_output_embeddings()
        return score_trained(hidden, labels[:, 1:], head, temperature=temperature)

    model.forward = types.MethodType(forward, model)
    return True


def score_trained(
    hidden: torch.Tensor, targets: torch.Tensor, lm_head: Any, *, temperature: float = 1.0
) -> FusedCausalLMOutput:
    """Scores of the targets that are trained; zero elsewhere.

    Args:
        hidden: [rows, columns, width], the state that predicts each target.
        targets: int64 [rows, columns], -100 where nothing is trained.
    """
    mask = targets != IGNORED
    chosen, entropy, top = score_rows(hidden[mask], targets[mask], lm_head, temperature)

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    return FusedCausalLMOutput(
        loss=-chosen.sum() / mask.sum().clamp(min=1),
        log_probs=spread(chosen),
        entropy=spread(entropy),
        is_top1=spread(top),
        label_mask=mask,
    )


def score_rows(
    hidden: torch.Tensor, wanted: torch.Tensor, lm_head: Any, temperature: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """As `_score`, a chunk at a time where there are many."""
    # from the configured size: a sharded weight may be empty here
    size = max(1, CHUNK_LOGITS // lm_head.out_features)
    if len(wanted) <= size:
        return _score(hidden, wanted, lm_head, temperature)
    parts = [
        checkpoint(
            _score, *chunk, lm_head, temperature, use_reentrant=False, preserve_rng_state=False
        )
        for chunk in zip(hidden.split(size), wanted.split(size), strict=True)
    ]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _score(
    hidden: torch.Tensor, wanted: torch.Tensor, lm_head: Any, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability of each wanted id, entropy, and whether it is the likeliest: each [n]."""
    logits = lm_head(hidden).float()
    scores = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
    chosen = scores.gather(-1, wanted[:, None]).squeeze(-1)
    with torch.no_grad():
        entropy = -(scores.exp() * scores).sum(-1)
        top = scores.argmax(-1) == wanted
    return chosen, entropy, top
