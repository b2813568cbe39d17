"""What a conversation talks to: a checkpoint in this process, or a server, both streaming."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from posttrain.chat.reasoning import OPEN
from posttrain.config.backend import ChatBackend
from posttrain.conversation.terminal import Terminal
from posttrain.sampling.engines.chat import Kind, StreamingChatSampler
from posttrain.sampling.engines.http import Client
from posttrain.sampling.sampler import Ids, Sampler

_TAIL = 16  # tokens at the end of a prompt that show whether it opens the reasoning
SAMPLING = ("temperature", "top_p", "top_k")


def open_checkpoint(
    path: str, terminal: Terminal, *, chat_template: str
) -> tuple[Sampler, dict[str, Any]]:
    """The sampler of a folder or hub id, and the sampling parameters of its generation config.

    Raises:
        ConfigError: something is not there or does not fit.
    """
    # imported here: a server needs neither torch nor a tokenizer
    from transformers.utils.logging import disable_progress_bar

    from posttrain.models.chat_template import chat_template_of
    from posttrain.models.inference import generation_stops, load_for_inference, weights_digest
    from posttrain.sampling.engines.transformers import StreamingEngine
    from posttrain.sampling.render import RenderedSampler
    from posttrain.tokens.tokenizer import encoder_of, largest_id, load_any_tokenizer

    disable_progress_bar()
    tokenizer = load_any_tokenizer(path)
    template = chat_template_of(tokenizer, choice=chat_template)
    encoder = encoder_of(tokenizer)
    vocabulary = largest_id(tokenizer) + 1
    model = load_for_inference(
        path, dtype="auto", device="auto", attention="auto", vocabulary=vocabulary
    )

    def show(prompt: Ids, text: str) -> None:
        if terminal.splitter.fresh:
            tail = encoder.decode(prompt[-_TAIL:]).rstrip()
            terminal.splitter.begin(opened=tail.endswith(OPEN))
        terminal.splitter.feed(text)

    weights = weights_digest(path, model)
    engine = StreamingEngine(model, weights=weights, decode=encoder.decode, show=show)
    stops = generation_stops(path, model)
    named: dict[str, Any] = model.generation_config.to_diff_dict()
    defaults = {name: named[name] for name in SAMPLING if named.get(name) is not None}
    sampler = RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)
    return sampler, defaults


def open_server(
    client: Client, backend: ChatBackend, *, sent: Collection[str], terminal: Terminal
) -> Sampler:
    """The sampler of a server; of sampling, only what the user gave is `sent`."""

    def show(kind: Kind, text: str) -> None:
        if kind == "answer":
            terminal.splitter.feed(text)  # a server without parsers leaves tags and calls in it
        else:
            terminal.show(kind, text)

    left = [name for name in SAMPLING if name not in sent]
    return StreamingChatSampler(client, backend, show=show, left_to_server=left)
