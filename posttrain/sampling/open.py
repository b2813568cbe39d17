"""A recipe's `backend:` block and a checkpoint → a sampler.

    sampler = open_sampler(recipe.backend, checkpoint="runs/tiny/sft")
    sampler.identity  → {"backend": "transformers", "weights": "9c1e…", "template": "ab78…", …}

Models and vLLM are imported only where their kind is opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from posttrain.artifacts import MANIFEST, read_artifact
from posttrain.chat import ChatTemplate
from posttrain.config.backend import (
    BackendConfig,
    ChatBackend,
    CompletionsBackend,
    Rendering,
    Server,
    TransformersBackend,
    VllmBackend,
)
from posttrain.errors import ConfigError
from posttrain.models.chat_template import chat_template_of
from posttrain.models.encoding import Encoder, encoder_of, load_any_tokenizer
from posttrain.models.tokenizer import largest_id
from posttrain.sampling.http_client import Client, ClientSettings
from posttrain.sampling.protocol import Sampler
from posttrain.sampling.rendered import RenderedSampler


@asynccontextmanager
async def opened_sampler(
    backend: BackendConfig, *, checkpoint: str | None, parts: bool = True
) -> AsyncIterator[Sampler]:
    """As `open_sampler`; a server's connections are given back at the end."""
    client = _client(backend) if isinstance(backend, Server) else None
    try:
        yield open_sampler(backend, checkpoint=checkpoint, client=client, parts=parts)
    finally:
        if client is not None:
            await client.close()


def open_sampler(
    backend: BackendConfig,
    *,
    checkpoint: str | None,
    client: Client | None = None,
    parts: bool = True,
) -> Sampler:
    """The sampler of a recipe.

    Args:
        backend: which kind, and its fields.
        checkpoint: directory or hub id of the model; a server may do without.
        client: how a server is reached; None opens one that nobody closes.
        parts: as of `ChatSampler`; other kinds always tell reasoning from answer.

    Raises:
        ConfigError: what the kind needs is not there, or does not fit together.
        DataError: a checkpoint without a tokenizer.
    """
    if isinstance(backend, TransformersBackend):
        return _open_transformers(backend, _needed(backend.kind, checkpoint))
    if isinstance(backend, VllmBackend):
        return _open_vllm(backend, _needed(backend.kind, checkpoint))
    if isinstance(backend, CompletionsBackend):
        return _open_completions(backend, checkpoint, client or _client(backend))
    return _open_chat(backend, checkpoint, client or _client(backend), parts)


def _needed(kind: str, checkpoint: str | None) -> str:
    if checkpoint is None:
        raise ConfigError(f"backend.kind {kind} needs a checkpoint: a directory or a hub id")
    return checkpoint


def _open_transformers(backend: TransformersBackend, checkpoint: str) -> Sampler:
    from posttrain.models.inference import generation_stops, load_for_inference, weights_digest
    from posttrain.sampling.transformers_engine import TransformersEngine

    template, encoder, vocabulary = rendering_of(backend, checkpoint)
    model = load_for_inference(
        checkpoint,
        dtype=backend.dtype,
        device=backend.device,
        attention=backend.attention,
        vocabulary=vocabulary,
    )
    engine = TransformersEngine(
        model, weights=weights_digest(checkpoint, model), batch_size=backend.batch_size
    )
    stops = generation_stops(checkpoint, model)
    return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)


def _open_vllm(backend: VllmBackend, checkpoint: str) -> Sampler:
    from posttrain.models.inference import generation_stops, weights_digest
    from posttrain.sampling.vllm_engine import open_vllm

    template, encoder, _ = rendering_of(backend, checkpoint)
    identity = {
        "backend": "vllm",
        "weights": weights_digest(checkpoint),
        "dtype": backend.dtype,
    }
    engine = open_vllm(backend, checkpoint=Path(checkpoint), identity=identity)
    stops = generation_stops(checkpoint)
    return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)


def _open_completions(
    backend: CompletionsBackend, checkpoint: str | None, client: Client
) -> Sampler:
    from posttrain.models.inference import generation_stops
    from posttrain.sampling.completions_engine import CompletionsEngine

    tokenizer = _needed(backend.kind, backend.tokenizer or checkpoint)
    template, encoder, _ = rendering_of(backend, tokenizer)
    engine = CompletionsEngine(
        client,
        model=backend.model,
        # where a server listens may change while a run goes on; what it serves may not
        identity={"backend": "completions", "weights": backend.model},
    )
    stops = generation_stops(tokenizer)
    return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)


def _open_chat(
    backend: ChatBackend, checkpoint: str | None, client: Client, parts: bool
) -> Sampler:
    from posttrain.sampling.chat_sampler import ChatSampler

    count: Callable[[str], int] | None = None
    if checkpoint is not None and parts:
        encoder = encoder_of(load_any_tokenizer(checkpoint))

        def counted(text: str) -> int:
            return len(encoder.encode([text])[0])

        count = counted
    return ChatSampler(
        client,
        model=backend.model,
        identity={"backend": "chat", "weights": backend.model},
        count=count,
        parts=parts,
    )


def _client(backend: Server) -> Client:
    settings = ClientSettings(
        concurrency=backend.concurrency,
        timeout=backend.timeout,
        retries=backend.retries,
        api_key_env=backend.api_key_env,
    )
    return Client(backend.url, settings)


def rendering_of(
    backend: Rendering, path: str, *, revision: str | None = None
) -> tuple[ChatTemplate, Encoder, int]:
    """Template and tokenizer, and how many ids it uses.

    Args:
        path: a directory or a hub id; `revision` is of the latter.

    Raises:
        ConfigError: a template that reads a clock, or not the one a checkpoint was trained with.
    """
    tokenizer = load_any_tokenizer(path, revision=revision)
    template = chat_template_of(
        tokenizer, choice=backend.chat_template, variables=dict(backend.template_variables)
    )
    if template.reads_clock:
        raise ConfigError(
            f"chat template {template.name} writes today's date, so that samples would change from "
            'day to day: set backend.template_variables: {date_string: "26 Jul 2024"}'
        )
    _check_template(template, Path(path))
    return template, encoder_of(tokenizer), largest_id(tokenizer) + 1


def _check_template(template: ChatTemplate, folder: Path) -> None:
    """A checkpoint of ours knows which template it was trained with."""
    if not (folder / MANIFEST).is_file():
        return
    trained = read_artifact(folder, verify=False).template_digest
    if trained is not None and trained != template.digest:
        raise ConfigError(
            f"{folder} was trained with chat template {trained[:12]}, backend.chat_template gives "
            f"{template.name} ({template.digest[:12]}): its prompts would look otherwise than in "
            "training"
        )
