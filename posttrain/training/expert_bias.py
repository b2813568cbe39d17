"""The score-correction bias of sigmoid routers, moved after every step towards even loads.

    b_e += rate · sign(mean load − load of expert e)

DeepSeek-V3 (arXiv 2412.19437), section 2.1.2: balance without a loss term. Nemotron 3 Nano keeps
it on in RL while the routers' weights are frozen (its section 3.2). Loads are the tokens that each
expert was chosen for in the training passes of the whole batch, padding left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from posttrain.models.experts import find_routers, uses_sigmoid

BIAS = "e_score_correction_bias"


def freeze_routers(model: nn.Module, *, freeze: bool) -> int:
    """Take the routers' parameters out of training, if so; returns how many routers there are."""
    routers = find_routers(model)
    for router in routers.values():
        for parameter in router.parameters():
            parameter.requires_grad_(parameter.requires_grad and not freeze)
    return len(routers)


class ExpertBias:
    """Counts the experts' loads in forward passes, and moves the biases.

    Args:
        model: without routers that have such a bias, nothing is ever counted.
        rate: of one step.
    """

    def __init__(self, model: nn.Module, *, rate: float) -> None:
        self.rate = rate
        found = find_routers(model) if rate else {}
        self.routers: list[Any] = [one for one in found.values() if uses_sigmoid(one)]
        self._mask: torch.Tensor | None = None
        self._loads = [torch.zeros_like(one.get_buffer(BIAS)) for one in self.routers]
        for number, router in enumerate(self.routers):
            router.register_forward_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        def hook(_router: nn.Module, _inputs: Any, output: Any) -> None:
            # recomputation under gradient checkpointing runs in backward, outside `counting`
            if self._mask is None:
                return
            chosen: torch.Tensor = output[2]
            loads = self._loads[number] = self._loads[number].to(chosen.device)
            real = chosen[self._mask.to(chosen.device)].flatten()
            loads.index_add_(0, real, torch.ones_like(real, dtype=loads.dtype))

        return hook

    @contextlib.contextmanager
    def counting(self, attention_mask: torch.Tensor) -> Iterator[None]:
        """Count every router that runs inside the block; the mask is `[rows, columns]`."""
        self._mask = attention_mask.bool().flatten() if self.routers else None
        try:
            yield
        finally:
            self._mask = None

    @torch.no_grad()
    def move(self, accelerator: Any) -> dict[str, float]:
        """Move the biases by the loads of all processes, and start to count anew.

        Returns:
            `max_violation`: mean over layers of max load / mean load − 1; {} without routers.
        """
        violations: list[float] = []
        for router, loads in zip(self.routers, self._loads, strict=True):
            total = accelerator.reduce(loads.double(), "sum")
            mean = total.mean()
            bias = router.get_buffer(BIAS)
            bias += (self.rate * torch.sign(mean - total)).to(bias)
            violations.append(float(total.max() / mean.clamp(min=1) - 1))
            loads.zero_()
        return {"max_violation": sum(violations) / len(violations)} if violations else {}
