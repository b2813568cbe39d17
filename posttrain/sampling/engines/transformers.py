"""A transformers model in this process as an engine.

    engine = TransformersEngine(model, weights="9c1e…", batch_size=256)
    await engine.generate([EngineRequest(ids=(1, 9, 4), …)])

The work runs in one thread beside the event loop, a call at a time, so that tools and progress go
on meanwhile; a cancelled call ends at its next step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import PreTrainedModel

from posttrain.errors import ConfigError
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.sampler import EngineOutput, EngineRequest


class TransformersEngine:
    """Continues token ids with a causal language model of transformers.

    Args:
        model: any that keeps a `DynamicCache`; it is put in eval mode.
        weights: what identifies its weights.
        batch_size: prompts decoded together.
    """

    batched = True

    def __init__(self, model: PreTrainedModel, *, weights: str, batch_size: int = 256) -> None:
        self.model = model.eval()
        self.batch_size = batch_size
        self._weights = weights
        self._lock = threading.Lock()

    @property
    def identity(self) -> Mapping[str, Any]:
        """What changes samples; batch size, device and attention kernel change their rounding."""
        return {
            "backend": "transformers",
            "weights": self._weights,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """As `Engine.generate`; `progress` is called in the event loop's thread.

        Raises:
            ConfigError: the GPU's memory does not hold `batch_size` such prompts.
            DataError: the model's logits are not finite.
        """
        try:
            return await decode_in_thread(
                self.model,
                requests,
                batch_size=self.batch_size,
                around=lambda: self._lock,
                progress=progress,
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU's memory does not hold batches of {self.batch_size}: set "
                f"backend.batch_size lower ({error})"
            ) from error


async def decode_in_thread(
    model: PreTrainedModel,
    requests: Sequence[EngineRequest],
    *,
    batch_size: int,
    around: Callable[[], AbstractContextManager[Any]],
    progress: Callable[[int], None] | None = None,
    on_done: Callable[[int, EngineOutput], None] | None = None,
) -> list[EngineOutput]:
    """As `decode`, beside the event loop, in whose thread `progress` and `on_done` are called.

    Args:
        around: what the thread enters while it decodes.
    """
    loop, cancelled = asyncio.get_running_loop(), threading.Event()

    def report(tokens: int) -> None:
        if progress is not None:
            loop.call_soon_threadsafe(progress, tokens)

    def hand_over(number: int, output: EngineOutput) -> None:
        if on_done is not None:
            loop.call_soon_threadsafe(on_done, number, output)

    def run() -> list[EngineOutput]:
        if model.device.type == "cuda":
            torch.cuda.set_device(model.device)  # a thread begins with the first
        with around():
            return decode(
                model,
                requests,
                batch_size=batch_size,
                progress=report,
                on_done=hand_over,
                stop=cancelled.is_set,
            )

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        cancelled.set()
        raise
