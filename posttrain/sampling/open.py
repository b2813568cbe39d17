"""A recipe's `backend:` block and a checkpoint → a sampler. Models and vLLM are imported only where
their kind is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
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
from posttrain.models.room import prompt_lengths
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
    """The sampler of a recipe; a server's connections are given back at the end.

    Args:
        checkpoint: directory or hub id of the model; a server may do without.
        parts: as of `ChatSampler`.
        scripted: the sampler of a policy by its name, where the stage has such.

    Raises:
        ConfigError: what the kind needs is not there, or does not fit together.
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
            count = reader = None
            if checkpoint is not None and parts:
                encoder, reader = _served_checkpoint(checkpoint)
                count = lambda text: len(encoder.encode([text])[0])  # noqa: E731 - one line says it
            yield ChatSampler(client, backend, count=count, parts=parts, reader=reader)
        else:
            yield _rendered_sampler(backend, checkpoint, client)
    finally:
        if client is not None:
            await client.close()


def _served_checkpoint(path: str) -> tuple[Encoder, StepReader | None]:
    """The tokenizer of a checkpoint that a server renders for, and what reads its answers; None
    where it carries no template, or one without an end of turn."""
    from posttrain.models.inference import generation_stops

    tokenizer = load_any_tokenizer(path)
    encoder = encoder_of(tokenizer)
    if not isinstance(tokenizer.chat_template, str):
        return encoder, None
    template = chat_template_of(tokenizer, choice="own", key="backend.chat_template")
    stops = list(generation_stops(path))
    if isinstance(tokenizer.eos_token_id, int):
        stops.append(tokenizer.eos_token_id)
    try:
        return encoder, StepReader(TurnFormat(template, encoder, stops))
    except ConfigError:
        return encoder, None


def _rendered_sampler(
    backend: TransformersBackend | VllmBackend | CompletionsBackend,
    checkpoint: str | None,
    client: Client | None,
) -> Sampler:
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
        # where a server listens may change while a run goes on; what it serves may not
        identity = {"backend": "completions", "weights": backend.model}
        engine = CompletionsEngine(client, model=backend.model, identity=identity)
    stops = generation_stops(path, model)
    return RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)


def rendering_of(
    backend: Rendering,
    path: str,
    *,
    revision: str | None = None,
    key: str = "backend.chat_template",
) -> tuple[ChatTemplate, Encoder, int]:
    """Template and tokenizer, and how many ids it uses.

    Args:
        path: a directory or a hub id; `revision` is of the latter.
        key: where the recipe names the template, for messages.

    Raises:
        ConfigError: a template that reads a clock, or not the one a checkpoint was trained with.
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
        trained = read_artifact(path, verify=False).template_digest
        if trained not in (None, template.digest):
            raise ConfigError(
                f"{path} was trained with chat template {trained[:12]}, backend.chat_template "
                f"gives {template.name} ({template.digest[:12]}): its prompts would look otherwise "
                "than in training"
            )
    return template, encoder_of(tokenizer), largest_id(tokenizer) + 1


def refuse_prompts_beyond_context(
    backend: BackendConfig,
    prompts: Sequence[Prompt],
    renderer: PromptRenderer | None,
    *,
    max_tokens: int,
) -> None:
    """As `refuse_beyond_context`, where the backend is a server. `renderer` is of what it serves;
    None where that is not known, and prompts have no length here."""
    if not isinstance(backend, Server):
        return
    longest = 0
    if renderer is not None and prompts:
        encoder = encoder_of(renderer.tokenizer)
        longest = max(prompt_lengths(prompts, renderer.template, encoder))
    refuse_beyond_context(backend, longest_prompt=longest, max_tokens=max_tokens)


def refuse_beyond_context(server: Server, *, longest_prompt: int, max_tokens: int) -> None:
    """Ask a server how long its sequences may be; one that does not say or answer is not asked
    further.

    Raises:
        ConfigError: a completion of `max_tokens` does not fit behind the longest prompt.
    """
    context = asyncio.run(_context_of(server))
    if context is not None and longest_prompt + max_tokens > context:
        prompt = f" behind a prompt of {longest_prompt:,} tokens" if longest_prompt else ""
        raise ConfigError(
            f"sampling.max_tokens {max_tokens:,}{prompt} does not fit the {context:,} tokens that "
            f"{server.addresses} allows {server.model}: set sampling.max_tokens to at most "
            f"{max(context - longest_prompt, 0):,}, or serve with a larger --max-model-len"
        )


async def _context_of(server: Server) -> int | None:
    client = Client(server)
    try:
        models = await client.models()
    finally:
        await client.close()
    # adapters are loaded later, and are as long as what they are loaded onto
    every = isinstance(server, LoraServer)
    stated = [model for model in models if every or model.get("id") == server.model]
    lengths = [model.get("max_model_len") for model in stated]
    return min((length for length in lengths if isinstance(length, int)), default=None)


def checkpoint_parents(paths: Iterable[str | None], *, out: Path) -> list[Parent]:
    """The lineage of the checkpoints that are artifacts; their files are verified."""
    return [
        parent_of(path, relative_to=out, manifest=read_artifact(path, kind="checkpoint"))
        for path in paths
        if path is not None and (Path(path) / MANIFEST).is_file()
    ]
