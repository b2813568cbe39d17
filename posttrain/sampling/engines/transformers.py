"""A transformers model in this process as an engine.

    engine = TransformersEngine(model, weights="9c1e…", batch_size=256)
    await engine.generate([EngineRequest(ids=(1, 9, 4), …)])

The work runs in one thread beside the event loop, a call at a time, so that tools and progress go
on meanwhile; a cancelled call ends at its next step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from posttrain.errors import ConfigError
from posttrain.sampling.engines.choose import log_probability
from posttrain.sampling.engines.decode import decode, logits_of_last
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids

T = TypeVar("T")


class TransformersEngine:
    """Continues and scores token ids with a causal language model of transformers.

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
        loop = asyncio.get_running_loop()

        def report(tokens: int) -> None:
            if progress is not None:
                loop.call_soon_threadsafe(progress, tokens)

        def run(stop: Callable[[], bool]) -> list[EngineOutput]:
            return decode(
                self.model, requests, batch_size=self.batch_size, progress=report, stop=stop
            )

        return await self._in_thread(run)

    async def score(
        self, prompts: Sequence[Ids], completions: Sequence[Ids]
    ) -> list[tuple[float, ...]]:
        """As `Engine.score`.

        Raises:
            ConfigError: the GPU's memory does not hold the sequences.
        """
        return await self._in_thread(
            lambda stop: score_ids(self.model, prompts, completions, stop=stop)
        )

    async def _in_thread(self, run: Callable[[Callable[[], bool]], T]) -> T:
        cancelled = threading.Event()

        def locked() -> T:
            with self._lock:
                return run(cancelled.is_set)

        try:
            return await asyncio.to_thread(locked)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU's memory does not hold batches of {self.batch_size}: set "
                f"backend.batch_size lower ({error})"
            ) from error


# logits and positions of one forward pass; fp32 logits of 2²⁷ take half a gibibyte
_LOGITS = 1 << 27
_POSITIONS = 1 << 14


@torch.inference_mode()
def score_ids(
    model: PreTrainedModel,
    prompts: Sequence[Ids],
    completions: Sequence[Ids],
    *,
    stop: Callable[[], bool] = bool,
) -> list[tuple[float, ...]]:
    """Nats, at temperature 1, of each completion id given all ids before it.

    Args:
        model: in eval mode.
        prompts: at least one id each.
        completions: one for each prompt; may be empty.
        stop: asked before every pass; True raises `InterruptedError`.
    """
    assert len(prompts) == len(completions), "one completion a prompt"
    assert all(prompts), "a prompt has at least one token"
    scores: list[tuple[float, ...]] = [()] * len(prompts)
    order = [k for k in range(len(prompts)) if completions[k]]
    order.sort(key=lambda k: (len(completions[k]), len(prompts[k])))
    vocabulary = model.config.get_text_config().vocab_size
    for batch in _batches(order, prompts, completions, vocabulary):
        if stop():
            raise InterruptedError
        pairs = [(prompts[k], completions[k]) for k in batch]
        for k, nats in zip(batch, _score_batch(model, pairs), strict=True):
            scores[k] = nats
    return scores


def _batches(
    order: Sequence[int], prompts: Sequence[Ids], completions: Sequence[Ids], vocabulary: int
) -> Iterator[list[int]]:
    batch: list[int] = []
    width = 0
    for k in order:  # completions get longer
        own, rows = len(prompts[k]) + len(completions[k]), len(batch) + 1
        too_wide = rows * max(width, own) > _POSITIONS
        if batch and (too_wide or rows * len(completions[k]) * vocabulary > _LOGITS):
            yield batch
            batch, width = [], 0
        batch.append(k)
        width = max(width, own)
    if batch:
        yield batch


def _score_batch(
    model: PreTrainedModel, pairs: Sequence[tuple[Ids, Ids]]
) -> Iterator[tuple[float, ...]]:
    """One forward pass, right-aligned: what every row needs is in the last columns."""
    width = max(len(prompt) + len(completion) for prompt, completion in pairs)
    longest = max(len(completion) for _, completion in pairs)
    device = model.device
    pads = [width - len(prompt) - len(completion) for prompt, completion in pairs]
    ids = torch.tensor(
        [[0] * pad + [*p, *c] for pad, (p, c) in zip(pads, pairs, strict=True)], device=device
    )
    mask = torch.arange(width, device=device) >= torch.tensor(pads, device=device)[:, None]
    out = model(
        input_ids=ids,
        attention_mask=mask if any(pads) else None,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
        **logits_of_last(model, longest + 1),
    )
    nats = log_probability(out.logits[:, -longest - 1 : -1].float(), ids[:, -longest:])
    for row, (_, completion) in zip(nats.tolist(), pairs, strict=True):
        yield tuple(row[longest - len(completion) :])
