"""An LM head for CPUs that projects trained positions only.

TRL's head scores all positions, which takes a third of a tiny model's step. This one returns the
same fields (`log_probs`, `entropy`, `is_top1`, `label_mask`), and computes them in chunks where
there are many logits: those of 16K tokens × 100K ids would take 6 GiB a copy.
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

# keys of models that scale or cap their logits: they keep TRL's head, which does that
_LOGIT_SCALES = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


def use_cpu_head(model: PreTrainedModel, *, temperature: float = 1.0) -> bool:
    """Replace the head of a model that TRL has patched.

    Args:
        temperature: divisor of the logits.

    Returns:
        False where TRL's head has to stay, because the model scales or caps its logits.
    """
    if changes_logits(model):
        return False
    trl_forward = model.forward

    @functools.wraps(type(model).forward)
    def forward(
        self: PreTrainedModel,
        *args: Any,
        fused_lm_head: bool = False,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if not fused_lm_head or labels is None or kwargs.get("output_router_logits"):
            return trl_forward(*args, fused_lm_head=fused_lm_head, labels=labels, **kwargs)
        kwargs["use_cache"] = False
        hidden = self.base_model(*args, **kwargs).last_hidden_state[:, :-1]
        head = self.get_output_embeddings()
        return score_trained(hidden, labels[:, 1:], head, temperature=temperature)

    model.forward = types.MethodType(forward, model)
    return True


def changes_logits(model: PreTrainedModel) -> bool:
    """Tell whether a model scales or caps the logits that its head gives."""
    config = model.config.get_text_config()
    return any(getattr(config, name, None) is not None for name in _LOGIT_SCALES)


def score_trained(
    hidden: torch.Tensor, targets: torch.Tensor, lm_head: Any, *, temperature: float = 1.0
) -> FusedCausalLMOutput:
    """Score the trained targets; all fields are 0 elsewhere.

    Args:
        hidden: `[rows, columns, width]`, the state that predicts each target.
        targets: int64 `[rows, columns]`, -100 where nothing is trained.
    """
    mask = targets != IGNORED
    log_probs, entropy, is_top1 = score_rows(hidden[mask], targets[mask], lm_head, temperature)

    def spread(values: torch.Tensor) -> torch.Tensor:
        """Put the values of trained positions back in place, `[rows, columns]`."""
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    return FusedCausalLMOutput(
        loss=-log_probs.sum() / mask.sum().clamp(min=1),
        log_probs=spread(log_probs),
        entropy=spread(entropy),
        is_top1=spread(is_top1),
        label_mask=mask,
    )


def score_rows(
    hidden: torch.Tensor, targets: torch.Tensor, lm_head: Any, temperature: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """Log-probability, entropy and top-1 flag of each target, `[n]` each, computed in chunks.

    Args:
        hidden: `[n, width]`, the state that predicts each target.
        targets: int64 `[n]`.
    """
    # by the configured size, because a sharded weight may be empty here
    chunk_rows = max(1, CHUNK_LOGITS // lm_head.out_features)
    if len(targets) <= chunk_rows:
        return _score(hidden, targets, lm_head, temperature)
    chunks: list[tuple[torch.Tensor, ...]] = []
    for chunk in zip(hidden.split(chunk_rows), targets.split(chunk_rows), strict=True):
        scores = checkpoint(
            _score, *chunk, lm_head, temperature, use_reentrant=False, preserve_rng_state=False
        )
        chunks.append(scores)
    return tuple(torch.cat(field) for field in zip(*chunks, strict=True))


def _score(
    hidden: torch.Tensor, targets: torch.Tensor, lm_head: Any, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probability, entropy and top-1 flag of each target, `[n]` each."""
    logits = lm_head(hidden).float()
    scores = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
    log_probs = scores.gather(-1, targets[:, None]).squeeze(-1)
    with torch.no_grad():
        entropy = -(scores.exp() * scores).sum(-1)
        is_top1 = scores.argmax(-1) == targets
    return log_probs, entropy, is_top1
