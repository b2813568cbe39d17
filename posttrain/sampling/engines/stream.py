"""One prompt continued by a model in this process, its text shown while it is written.

    engine = StreamingEngine(model, weights="9c1e…", decode=encoder.decode, show=print)
    await engine.generate([EngineRequest(ids=(1, 9, 4), …)])

The tokens are those of `TransformersEngine` with the same seed. A cancelled call ends at its next
token.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from posttrain.sampling.engines.decode import DecodeBatch, DecodedRow, token_limit
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids

Decode = Callable[[Ids], str]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 8  # tokens that one character may take; more of them are broken bytes


class StreamingEngine:
    """An `Engine` for one request at a time.

    Args:
        model: in eval mode.
        weights: what identifies its weights.
        decode: token ids → text, special tokens kept.
        show: called in the event loop with (prompt ids, new text) at every token that completes
            some text; never with the stop token's.
    """

    batched = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        weights: str,
        decode: Decode,
        show: Callable[[Ids, str], None],
    ) -> None:
        self.model = model.eval()
        self._decode, self._show = decode, show
        self.identity: Mapping[str, Any] = {"backend": "transformers", "weights": weights}

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """As `Engine.generate`, of one request.

        Raises:
            DataError: the model's logits are not finite.
        """
        if not requests:  # a conversation that could not be rendered
            return []
        [request] = requests
        loop, cancelled = asyncio.get_running_loop(), threading.Event()

        @torch.inference_mode()
        def run() -> EngineOutput:
            row = DecodedRow(request, token_limit(self.model, request))
            pieces, batch = TextPieces(self._decode), DecodeBatch(self.model)
            if not row.done:
                batch.admit([row])
            while batch.going and not cancelled.is_set():
                batch.step()
                text = pieces.end() if row.stopped else pieces.add(row.ids[-1])
                if text:
                    loop.call_soon_threadsafe(self._show, request.ids, text)
            if not row.stopped and (text := pieces.end()):
                loop.call_soon_threadsafe(self._show, request.ids, text)
            row.done = True
            return row.output()

        try:
            return [await asyncio.to_thread(run)]
        except asyncio.CancelledError:
            cancelled.set()
            raise


class TextPieces:
    """Token ids one by one → the text that each completes.

    A tokenizer may write a token differently at the beginning of a text (SentencePiece drops a
    blank), and a character may take several tokens: new text is what decoding the last few tokens
    gives beyond decoding those before the new ones.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0  # ids whose text has been given

    def add(self, token: int) -> str:
        """The text that this token completes; "" inside of a character."""
        self._ids.append(token)
        before, text = self._texts()
        waits = text.endswith(_UNFINISHED) and len(self._ids) - self._shown < _LONGEST_CHARACTER
        return "" if waits else self._take(before, text)

    def end(self) -> str:
        """What is left: the bytes of a character that was never completed."""
        return self._take(*self._texts())

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[: self._shown]), self._decode(self._ids)

    def _take(self, before: str, text: str) -> str:
        self._ids = self._ids[self._shown :]
        self._shown = len(self._ids)
        return text[len(before) :]
