"""What `rlvr_study.py` does to models and looks up in them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import torch

from posttrain.models.inference import load_for_inference
from posttrain.models.load import find_routers
from posttrain.training.rl.policy import InProcess
from posttrain.training.rl.trainer import GroupTrainer


def rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Each to the nearest of 2^bits − 1 values around 0, whose scale is the output channel's."""
    scale = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


class RoundedRollouts(InProcess):
    """Samples from linear layers of so many bits, as a server does that quantises each batch's
    weights; training has its own. Embeddings and the head stay as they are."""

    def __init__(self, trainer: GroupTrainer, bits: int) -> None:
        super().__init__(trainer)
        self.bits = bits

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        head = self.model.get_output_embeddings()
        layers = [m for m in self.model.modules() if isinstance(m, torch.nn.Linear) and m != head]
        own = [layer.weight.data for layer in layers]
        with super().current(step):
            for layer, weight in zip(layers, own, strict=True):
                layer.weight.data = rounded(weight, self.bits)
            try:
                yield
            finally:
                for layer, weight in zip(layers, own, strict=True):
                    layer.weight.data = weight


@functools.cache
def chosen_experts(checkpoint: Path, texts: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """Of each token in each layer, `[tokens × layers, K]`, in ascending order."""
    model = load_for_inference(
        str(checkpoint), dtype="float32", device="cpu", attention="auto", vocabulary=0
    )
    chosen = list[torch.Tensor]()
    for router in find_routers(model).values():
        router.register_forward_hook(lambda *seen: chosen.append(seen[2][2].sort(-1).values))
    with torch.no_grad():
        for ids in texts:
            model(torch.tensor([ids]), use_cache=False)
    return torch.cat(chosen)
