"""Rounded rollouts and chosen experts for `rlvr_study.py`."""

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
    """Weights rounded to 2^bits − 1 values around 0, with a scale for each output channel."""
    scale = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


class RoundedRollouts(InProcess):
    """Rollouts sampled from linear layers of few bits, as a server that quantises weights does.

    Training keeps its own weights; embeddings and the head stay as they are.
    """

    def __init__(self, trainer: GroupTrainer, bits: int) -> None:
        super().__init__(trainer)
        self.bits = bits

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        head = self.model.get_output_embeddings()
        modules = self.model.modules()
        layers = [m for m in modules if isinstance(m, torch.nn.Linear) and m != head]
        trained_weights = [layer.weight.data for layer in layers]
        with super().current(step):
            for layer, weight in zip(layers, trained_weights, strict=True):
                layer.weight.data = rounded(weight, self.bits)
            try:
                yield
            finally:
                for layer, weight in zip(layers, trained_weights, strict=True):
                    layer.weight.data = weight


@functools.cache
def chosen_experts(checkpoint: Path, texts: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """Experts chosen for each token in each layer, `[tokens × layers, K]`, in ascending order."""
    model = load_for_inference(
        str(checkpoint), dtype="float32", device="cpu", attention="auto", vocabulary=0
    )
    chosen: list[torch.Tensor] = []

    def keep_choice(router: torch.nn.Module, inputs: object, outputs: tuple[torch.Tensor, ...]):
        chosen.append(outputs[2].sort(-1).values)

    for router in find_routers(model).values():
        router.register_forward_hook(keep_choice)
    with torch.no_grad():
        for ids in texts:
            model(torch.tensor([ids]), use_cache=False)
    return torch.cat(chosen)
