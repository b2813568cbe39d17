"""A transformers model in this process as an `Engine`.

The model runs in a thread beside the event loop, so that tools and progress continue meanwhile. A
cancelled call ends with its thread, at the model's next step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from posttrain.errors import ConfigError
from posttrain.models.simulated import is_simulated
from posttrain.sampling.engines.decode import DecodedRow, decode
from posttrain.sampling.sampler import (
    EngineOutput,
    EngineRequest,
    Ids,
    OnOutput,
    Progress,
    ScoreOutput,
    ScoreRequest,
)

T = TypeVar("T")
Decode = Callable[[Ids], str]
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# rows × columns of a scored batch: bounds the memory of its activations and logits
_SCORED_POSITIONS = 1 << 13
# scored where a process has less to score than another
_IDLE_REQUEST = ScoreRequest((0, 0), (False, True))
# most tokens of one character; more are broken bytes
_MAX_CHARACTER_TOKENS = 8


class TransformersEngine:
    """Continues token ids with a causal language model of transformers.

    Args:
        model: model with a `DynamicCache`; it is put in eval mode.
        weights: digest or name that identifies the weights.
    """

    batched = True

    def __init__(self, model: PreTrainedModel, *, weights: str, batch_size: int = 256) -> None:
        self.model = model.eval()
        self.batch_size = batch_size
        self._lock = threading.Lock()
        # batch size, device and attention kernel are left out: they change rounding alone
        self.identity: Mapping[str, Any] = {
            "backend": "transformers",
            "weights": weights,
            "dtype": str(model.dtype).removeprefix("torch."),
        }
        if is_simulated(model):
            self.identity = {**self.identity, "simulated": "ModelOpt"}

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        """Continue all prompts (`Engine.generate`), with the errors of `generate_each`."""
        return await self.generate_each(requests, progress=progress)

    async def generate_each(
        self,
        requests: Sequence[EngineRequest],
        *,
        on_done: OnOutput | None = None,
        progress: Progress = None,
    ) -> list[EngineOutput]:
        """Continue prompts one by one (`IncrementalEngine.generate_each`).

        Callbacks run in the event loop's thread.

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
                on_done=on_done,
            )
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU's memory does not hold batches of {self.batch_size}: set "
                f"backend.batch_size lower ({error})"
            ) from error

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Score all requests (`Scorer.score`)."""
        return await score_in_thread(self.model, requests, around=lambda: self._lock)


def score_ids(
    model: PreTrainedModel,
    requests: Sequence[ScoreRequest],
    *,
    stop: Callable[[], bool] = bool,
    passes: Callable[[int], int] = int,
) -> list[ScoreOutput]:
    """Log-probabilities of the masked ids of each request, by one forward pass a batch.

    Equal weights give equal numbers for equal `requests`: batches depend on their lengths alone.

    Args:
        passes: number of batches → number of forward passes, with some that score nothing; for a
            model that all processes must call equally often.

    Raises:
        InterruptedError: `stop` returned True before a batch.
    """
    longest_first = sorted(range(len(requests)), key=lambda k: (-len(requests[k].ids), k))
    batches: list[list[int]] = []
    start = 0
    while start < len(longest_first):
        columns = len(requests[longest_first[start]].ids)
        rows = longest_first[start : start + max(1, _SCORED_POSITIONS // columns)]
        start += len(rows)
        batches.append(rows)
    outputs: dict[int, ScoreOutput] = {}
    idle_passes = passes(len(batches)) - len(batches)
    for rows in batches:
        if stop():
            raise InterruptedError
        columns = len(requests[rows[0]].ids)
        logps = _score_batch(model, [requests[row] for row in rows], columns)
        outputs |= dict(zip(rows, logps, strict=True))
    for _ in range(idle_passes):
        _score_batch(model, [_IDLE_REQUEST], len(_IDLE_REQUEST.ids))
    return [outputs[k] for k in range(len(requests))]


@torch.no_grad()
def _score_batch(
    model: PreTrainedModel, requests: Sequence[ScoreRequest], columns: int
) -> list[ScoreOutput]:
    """Scores of one batch, padded on the right to `columns`."""
    ids_B_T = torch.zeros(len(requests), columns, dtype=torch.long)
    attended_B_T = torch.zeros_like(ids_B_T)
    for row, request in enumerate(requests):
        ids_B_T[row, : len(request.ids)] = torch.tensor(request.ids)
        attended_B_T[row, : len(request.ids)] = 1
    ids_B_T = ids_B_T.to(model.device)
    # logits of the prompts would take most of the memory: keep those from the first scored id on
    first_scored = min(
        request.mask.index(True) if any(request.mask) else columns for request in requests
    )
    n_logits = columns - min(first_scored, columns - 1) + 1
    output: Any = model(
        input_ids=ids_B_T,
        attention_mask=attended_B_T.to(model.device),
        use_cache=False,
        logits_to_keep=n_logits,
    )
    logits_B_K_V = output.logits[:, -n_logits:]
    outputs: list[ScoreOutput] = []
    for row, request in enumerate(requests):
        scored = [column for column, flag in enumerate(request.mask) if flag]
        # the logits at a column are those of the next id
        predicting = [column - 1 - (columns - n_logits) for column in scored]
        logps_S_V = logits_B_K_V[row, predicting].float().log_softmax(-1)
        logps_S = logps_S_V.gather(-1, ids_B_T[row, scored][:, None])[:, 0]
        outputs.append(ScoreOutput(tuple(logps_S.tolist())))
    return outputs


async def score_in_thread(
    model: PreTrainedModel,
    requests: Sequence[ScoreRequest],
    *,
    around: Callable[[], AbstractContextManager[Any]],
    passes: Callable[[int], int] = int,
) -> list[ScoreOutput]:
    """Run `score_ids` inside `around`, in a thread beside the event loop."""

    def run(stop: Callable[[], bool]) -> list[ScoreOutput]:
        with around():
            return score_ids(model, requests, stop=stop, passes=passes)

    return await _run_in_thread(model, run)


async def _run_in_thread(model: PreTrainedModel, run: Callable[[Callable[[], bool]], T]) -> T:
    """Run a call of a model in a thread; when cancelled, have it stop and wait for its end."""
    cancelled = threading.Event()

    def run_on_device() -> T:
        if model.device.type == "cuda":
            # a new thread has the first GPU as its device
            torch.cuda.set_device(model.device)
        return run(cancelled.is_set)

    running = asyncio.ensure_future(asyncio.to_thread(run_on_device))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait((running,))
        # read here, or asyncio prints its traceback as that of an exception that nobody saw
        if not running.cancelled():
            running.exception()
        raise


async def decode_in_thread(
    model: PreTrainedModel,
    requests: Sequence[EngineRequest],
    *,
    batch_size: int,
    around: Callable[[], AbstractContextManager[Any]],
    progress: Progress = None,
    on_done: OnOutput | None = None,
    on_step: Callable[[Sequence[DecodedRow]], None] | None = None,
) -> list[EngineOutput]:
    """Run `decode` inside `around`, in a thread beside the event loop.

    `progress` and `on_done` are called in the thread of the event loop, `on_step` in the other.
    """
    loop = asyncio.get_running_loop()

    def in_loop(callback: Callable[..., None] | None) -> Callable[..., Any] | None:
        return callback and (lambda *args: loop.call_soon_threadsafe(callback, *args))

    def run(stop: Callable[[], bool]) -> list[EngineOutput]:
        with around():
            return decode(
                model,
                requests,
                batch_size=batch_size,
                progress=in_loop(progress),
                on_done=in_loop(on_done),
                on_step=on_step,
                stop=stop,
            )

    return await _run_in_thread(model, run)


class StreamingEngine(TransformersEngine):
    """A `TransformersEngine` of one request at a time, which shows its text while it is generated.

    Args:
        decode: token ids → text, special tokens kept.
        show: called in the event loop with (prompt ids, new text) at every token that completes
            some text, the stop token excepted.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        weights: str,
        decode: Decode,
        show: Callable[[Ids, str], None],
    ) -> None:
        super().__init__(model, weights=weights, batch_size=1)
        self._decode = decode
        self._show = show

    async def generate_each(
        self,
        requests: Sequence[EngineRequest],
        *,
        on_done: OnOutput | None = None,
        progress: Progress = None,
    ) -> list[EngineOutput]:
        """Generate for one request at most. Raises DataError where logits are not finite."""
        loop = asyncio.get_running_loop()
        pieces = TextPieces(self._decode)

        def show(rows: Sequence[DecodedRow]) -> None:
            [row] = rows
            text = ""
            if not row.stopped:
                text += pieces.add(row.ids[-1])
            if row.done:
                text += pieces.end()
            if text:
                loop.call_soon_threadsafe(self._show, row.request.ids, text)

        return await decode_in_thread(
            self.model,
            requests,
            batch_size=1,
            around=nullcontext,
            on_step=show,
            progress=progress,
            on_done=on_done,
        )


class TextPieces:
    """Splits a text into the pieces that its token ids complete, one by one.

    A tokenizer may write a token differently at the beginning of a text (SentencePiece drops a
    blank), and a character may take several tokens: new text is what decoding the last few tokens
    gives beyond decoding those before the new ones.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # number of ids whose text was returned
        self._shown = 0

    def add(self, token: int) -> str:
        """Add a token, and return the text that it completes; "" inside a character."""
        self._ids.append(token)
        may_be_part = len(self._ids) - self._shown < _MAX_CHARACTER_TOKENS
        if may_be_part and self._decode(self._ids).endswith(_REPLACEMENT):
            return ""
        return self.end()

    def end(self) -> str:
        """Return the remaining text, with the bytes of an incomplete character."""
        shown_text = self._decode(self._ids[: self._shown])
        text = self._decode(self._ids)
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        return text[len(shown_text) :]
