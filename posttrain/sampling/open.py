"""Opening of samplers: a recipe's `backend:` block and a checkpoint → a sampler.

Models and vLLM are imported only where a backend of their kind is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from posttrain.chat import ChatTemplate
from posttrain.config.backend import (
    BackendConfig,
    ChatBackend,
    CompletionsBackend,
    Rendering,
    ScriptedBackend,
    Server,
    TransformersBackend,
    VllmBackend,
)
from posttrain.config.grpo import LoraServer
from posttrain.errors import ConfigError
from posttrain.models.room import positions_of, prompt_lengths
from posttrain.rollouts import Prompt
from posttrain.runs import MANIFEST, Parent, parent_of, read_artifact
from posttrain.sampling.engines.http import Client
from posttrain.sampling.render import RenderedSampler, StepReader, TurnFormat
from posttrain.sampling.sampler import Sampler
from posttrain.tokens.renderer import PromptRenderer, chat_template_of
from posttrain.tokens.tokenizer import Encoder, encoder_of, largest_id, load_any_tokenizer


@asynccontextmanager
async def opened_sampler(
    backend: BackendConfig,
    *,
    checkpoint: str | None,
    parts: bool = True,
    scripted: Callable[[str], Sampler] | None = None,
) -> AsyncIterator[Sampler]:
    """Open the sampler of a recipe for the block; a server's connections are closed at its end.

    Args:
        checkpoint: directory or hub id of the model; a server can do without.
        parts: False where reasoning and answer need not be counted apart (`ChatSampler`).
        scripted: function from the name of a scripted policy to its sampler; None where the stage
            has no such policies.

    Raises:
        ConfigError: the backend lacks a package or a file, or model and template do not fit.
        DataError: a checkpoint without a tokenizer.
    """
    if isinstance(backend, ScriptedBackend):
        if scripted is None:
            raise ConfigError("backend.kind scripted is for the evaluation of agentic tasks alone")
        yield scripted(backend.policy)
        return
    client = Client(backend) if isinstance(backend, Server) else None
    try:
        if isinstance(backend, ChatBackend):
            from posttrain.sampling.engines.chat import ChatSampler

            assert client is not None
            count: Callable[[str], int] | None = None
            reader: StepReader | None = None
            if checkpoint is not None and parts:
                encoder, reader = _load_served_checkpoint(checkpoint)
                count = partial(_count_tokens, encoder)
            yield ChatSampler(client, backend, count=count, parts=parts, reader=reader)
        else:
            yield _open_rendered_sampler(backend, checkpoint, client)
    finally:
        if client is not None:
            await client.close()


def _count_tokens(encoder: Encoder, text: str) -> int:
    """Number of tokens of a text."""
    return len(encoder.encode([text])[0])


def _load_served_checkpoint(path: str) -> tuple[Encoder, StepReader | None]:
    """Load encoder and reader of the checkpoint that a server serves.

    Returns:
        The encoder, and the reader of the server's token ids; None where the checkpoint has no
        template, or one without an end of turn.
    """
    from posttrain.models.inference import generation_stops

    tokenizer = load_any_tokenizer(path)
    encoder = encoder_of(tokenizer)
    if not isinstance(tokenizer.chat_template, str):
        return encoder, None
    template = chat_template_of(tokenizer, choice="own", key="backend.chat_template")
    stop_ids = list(generation_stops(path))
    if isinstance(tokenizer.eos_token_id, int):
        stop_ids.append(tokenizer.eos_token_id)
    try:
        return encoder, StepReader(TurnFormat(template, encoder, stop_ids))
    except ConfigError:
        return encoder, None


def _open_rendered_sampler(
    backend: TransformersBackend | VllmBackend | CompletionsBackend,
    checkpoint: str | None,
    client: Client | None,
) -> Sampler:
    """Open a sampler that renders here. `client`: that of a server, None in process."""
    from posttrain.models.inference import generation_stops, load_for_inference, weights_digest

    path = checkpoint
    if isinstance(backend, CompletionsBackend):
        path = backend.tokenizer or checkpoint
    assert path is not None, "checked by the recipe"
    template, encoder, vocabulary = rendering_of(backend, path)
    model = None
    if isinstance(backend, TransformersBackend):
        from posttrain.sampling.engines.transformers import TransformersEngine

        model = load_for_inference(
            path,
            dtype=backend.dtype,
            device=backend.device,
            attention=backend.attention,
            vocabulary=vocabulary,
            simulate=True,
        )
        weights = weights_digest(path)
        engine = TransformersEngine(model, weights=weights, batch_size=backend.batch_size)
    elif isinstance(backend, VllmBackend):
        from posttrain.sampling.engines.vllm import open_vllm

        engine = open_vllm(backend, checkpoint=Path(path), weights=weights_digest(path))
    else:
        from posttrain.sampling.engines.vllm import CompletionsEngine

        assert client is not None
        # without the address, which may change while a run goes on; the model may not
        identity = {"backend": "completions", "weights": backend.model}
        engine = CompletionsEngine(client, model=backend.model, identity=identity)
    stop_ids = generation_stops(path, model)
    return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stop_ids)


def rendering_of(
    backend: Rendering,
    path: str,
    *,
    revision: str | None = None,
    key: str = "backend.chat_template",
) -> tuple[ChatTemplate, Encoder, int]:
    """Load chat template and tokenizer of a backend.

    Args:
        path: directory or hub id of the tokenizer.
        revision: revision of a hub id.
        key: recipe key of the template, for messages.

    Returns:
        The template, the encoder, and the number of ids in use (largest id + 1).

    Raises:
        ConfigError: a template that reads a clock, or another one than the checkpoint was trained
            with.
    """
    tokenizer = load_any_tokenizer(path, revision=revision)
    template = chat_template_of(
        tokenizer,
        choice=backend.chat_template,
        variables=dict(backend.template_variables),
        key=key,
    )
    if template.reads_clock:
        raise ConfigError(
            f"chat template {template.name} writes today's date, so that samples would change from "
            'day to day: set backend.template_variables: {date_string: "26 Jul 2024"}'
        )
    if (Path(path) / MANIFEST).is_file():
        trained_digest = read_artifact(path, verify=False).template_digest
        if trained_digest not in (None, template.digest):
            raise ConfigError(
                f"{path} was trained with chat template {trained_digest[:12]}, "
                f"backend.chat_template gives {template.name} ({template.digest[:12]}): "
                "its prompts would look otherwise than in training"
            )
    return template, encoder_of(tokenizer), largest_id(tokenizer) + 1


def check_context(
    backend: BackendConfig,
    checkpoint: str | None,
    prompts: Sequence[Prompt],
    renderer: PromptRenderer | None,
    *,
    max_tokens: int,
) -> str | None:
    """Compare completions behind the longest of these prompts with the context of their model.

    A server would answer with an error, so they are refused. In process the context ends them.

    Args:
        renderer: renderer of the checkpoint; None where the checkpoint is not known, and prompts
            count as empty.

    Returns:
        Where the context ends completions in process, in words; None where it ends none.

    Raises:
        ConfigError: as `refuse_beyond_context`, or the checkpoint's config cannot be read.
    """
    longest_prompt = 0
    if renderer is not None and prompts:
        encoder = encoder_of(renderer.tokenizer)
        longest_prompt = max(prompt_lengths(prompts, renderer.template, encoder))
    if isinstance(backend, Server):
        refuse_beyond_context(backend, longest_prompt=longest_prompt, max_tokens=max_tokens)
        return None
    if isinstance(backend, ScriptedBackend) or checkpoint is None:
        return None
    context = positions_of(checkpoint)
    if longest_prompt + max_tokens <= context:
        return None
    return (
        f"sampling.max_tokens {max_tokens:,}: behind the longest prompt ({longest_prompt:,} "
        f"tokens) completions end after {max(context - longest_prompt, 0):,}, for the model has "
        f"{context:,} positions"
    )


def refuse_beyond_context(server: Server, *, longest_prompt: int, max_tokens: int) -> None:
    """Refuse completions that do not fit a server's context behind the longest prompt.

    A server that does not answer, or does not tell its context, refuses nothing here.

    Raises:
        ConfigError: a completion of `max_tokens` does not fit behind the longest prompt.
    """
    context = asyncio.run(_ask_context(server))
    if context is not None and longest_prompt + max_tokens > context:
        prompt = f" behind a prompt of {longest_prompt:,} tokens" if longest_prompt else ""
        raise ConfigError(
            f"sampling.max_tokens {max_tokens:,}{prompt} does not fit the {context:,} tokens that "
            f"{server.addresses} allows {server.model}: set sampling.max_tokens to at most "
            f"{max(context - longest_prompt, 0):,}, or serve with a larger --max-model-len"
        )


async def _ask_context(server: Server) -> int | None:
    """Ask a server for the greatest length of a sequence, in tokens; None where it tells none."""
    client = Client(server)
    try:
        models = await client.models()
    finally:
        await client.close()
    # an adapter is loaded later, and has the context of the model that is served already
    any_model = isinstance(server, LoraServer)
    lengths: list[int] = []
    for model in models:
        length = model.get("max_model_len")
        if (any_model or model.get("id") == server.model) and isinstance(length, int):
            lengths.append(length)
    return min(lengths, default=None)


def checkpoint_parents(paths: Iterable[str | None], *, out: Path) -> list[Parent]:
    """Parents of a run: the checkpoints that are artifacts. Their files are verified."""
    return [
        parent_of(path, relative_to=out, manifest=read_artifact(path, kind="checkpoint"))
        for path in paths
        if path is not None and (Path(path) / MANIFEST).is_file()
    ]
