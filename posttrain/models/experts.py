"""Finding the expert routers of a model, whatever its family.

find_routers(nemotron)  → {"model.layers.1.mixer.gate": NemotronHTopkRouter, …}
"""

from __future__ import annotations

from torch import nn


def find_routers(model: nn.Module) -> dict[str, nn.Module]:
    """The top-k routers of a model by name: a 2-D weight, `top_k`, and a count of experts."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "top_k")
        and hasattr(module, "num_experts")
        and getattr(getattr(module, "weight", None), "ndim", 0) > 0
    }


def uses_sigmoid(router: nn.Module) -> bool:
    """Routers with a score-correction bias score with a sigmoid (DeepSeek-V3, NemotronH, GLM-4)."""
    return hasattr(router, "e_score_correction_bias")
