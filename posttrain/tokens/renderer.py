"""Tokenizer and chat template together: for prompts, for training data, for data to audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate, nemotron_3_nano_template, profile_of, render
from posttrain.chat.template import TEMPLATE_NAMES, packaged_template_source, trl_families
from posttrain.config.audit import AuditConfig, AuditTokenizer
from posttrain.config.backend import (
    BackendConfig,
    CompletionsBackend,
    Rendering,
    VllmBackend,
    refuse_missing_vllm,
)
from posttrain.config.build_sft import SftTokenizer, TokenizerConfig
from posttrain.config.load import nearest
from posttrain.config.paths import missing_template
from posttrain.errors import ConfigError, RenderError
from posttrain.records import json_text
from posttrain.revisions import loaded_commit
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.tokens.supervision import Marks, marks_of
from posttrain.tokens.tokenizer import (
    TURN_END,
    Backend,
    Encoder,
    SpecialTokens,
    describe_choice,
    encoder_of,
    largest_id,
    load_any_tokenizer,
    saved_stops,
    special_ids,
    special_tokens,
    training_tokens,
)


def chat_template_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    choice: str = "nemotron_3_nano",
    variables: dict[str, Any] | None = None,
    key: str = "chat_template",
) -> ChatTemplate:
    """Load the template that a recipe names, bound to a tokenizer's special tokens.

    Args:
        tokenizer: source of the special tokens, and of the template for `own`.
        choice: `own` (the tokenizer's), `nemotron_3_nano` (the installed TRL's, pinned), `hermes`
            or `chatml` (ours), `trl:FAMILY` (the installed TRL's), or the path of a Jinja file.
        variables: fixed template variables, e.g. `{"date_string": "26 Jul 2024"}`.
        key: recipe key of the choice, for messages.

    Raises:
        ConfigError: `own` without a template, or a file that is not there.
        RenderError: the template does not compile, is not the pinned one, or TRL lacks it.
    """
    shared: dict[str, Any] = {**tokenizer.special_tokens_map, **(variables or {})}
    split_tokens = exact_split_tokens(tokenizer)
    if choice == "nemotron_3_nano":
        return nemotron_3_nano_template(variables=shared, special_tokens=split_tokens)
    if choice == "own":
        source = tokenizer.chat_template
        if not isinstance(source, str):
            raise missing_template(tokenizer.name_or_path, key=key)
        return ChatTemplate(source, name="own", variables=shared, special_tokens=split_tokens)
    try:
        packaged = packaged_template_source(choice)
    except RenderError as error:  # no such family
        raise RenderError(f"{key} {choice!r}: {error}") from error
    if packaged is not None:
        return ChatTemplate(packaged, name=choice, variables=shared, special_tokens=split_tokens)
    path = Path(choice)
    if not path.is_file():
        names = [*TEMPLATE_NAMES, *trl_families()]
        hint = nearest(choice, names, or_list=False) or nearest(choice, TEMPLATE_NAMES)
        raise ConfigError(f"{key} {choice!r} is neither a file nor the name of a template{hint}")
    source = path.read_text(encoding="utf-8")
    return ChatTemplate(source, name=path.name, variables=shared, special_tokens=split_tokens)


def exact_split_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Added tokens at which the tokenizer splits in every context, sorted."""
    texts: list[str] = []
    for token in tokenizer.added_tokens_decoder.values():
        if not (token.lstrip or token.rstrip or token.single_word or token.normalized):
            texts.append(token.content)
    return tuple(sorted(texts))


@dataclass(frozen=True)
class PromptRenderer:
    """Renderer of prompts: a tokenizer, a chat template, and the end and pad of turns."""

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    special: SpecialTokens

    def text(self, prompt: Prompt) -> str:
        """Render the prompt that the model continues."""
        return prompt_text(prompt, self.template)

    def save(self, folder: Path) -> list[str]:
        """Write the tokenizer with this template. Returns the names of the files."""
        self.tokenizer.chat_template = self.template.source
        paths = self.tokenizer.save_pretrained(folder)
        return sorted(str(Path(path).relative_to(folder)) for path in paths)

    def stats(self) -> dict[str, Any]:
        """Entries about template and tokenizer for a manifest."""
        return {
            "template": {
                "name": self.template.name,
                "describe": profile_of(self.template).describe(),
            },
            "tokenizer": {
                "digest": encoder_of(self.tokenizer).digest,
                "end": self.special.end_token,
                "pad": self.special.pad_token,
                "stop_ids": list(self.special.stop_ids),
            },
        }


def prompt_text(prompt: Prompt, template: ChatTemplate) -> str:
    """Render the prompt that a model continues."""
    return render(
        prompt.messages,
        template,
        tools=prompt.tools,
        add_generation_prompt=True,
        enable_thinking=prompt.thinking,
    )


def message_text(prompt: Prompt) -> str:
    """Text of a prompt that a server renders: the fields that are sent, one a line."""
    row = prompt_to_row(prompt)
    return "\n".join(f"{key}: {json_text(row[key])}" for key in ("messages", "tools", "thinking"))


def renderer_of(backend: BackendConfig, checkpoint: str | None) -> PromptRenderer | None:
    """Load the renderer of a recipe's backend.

    Returns:
        The renderer; None where a server renders and no chat template is known here.

    Raises:
        ConfigError: a tokenizer or template that is not there, or vLLM is not installed.
        DataError: a checkpoint without a tokenizer.
    """
    if isinstance(backend, VllmBackend):
        # a dry run too is refused where the real run would be
        refuse_missing_vllm()
    path = checkpoint
    if isinstance(backend, CompletionsBackend) and backend.tokenizer is not None:
        path = backend.tokenizer
    if path is None:
        return None
    tokenizer = load_any_tokenizer(path)
    if not isinstance(backend, Rendering) and not isinstance(tokenizer.chat_template, str):
        # the tokenizer can only count
        return None
    rendering = backend if isinstance(backend, Rendering) else Rendering()
    return _make_renderer(tokenizer, rendering, key="backend.chat_template")


def _make_renderer(
    tokenizer: PreTrainedTokenizerBase,
    rendering: Rendering | TokenizerConfig,
    *,
    key: str,
) -> PromptRenderer:
    """Make a renderer with the template that a block of the recipe names; `key`: that of it."""
    template = chat_template_of(
        tokenizer,
        choice=rendering.chat_template,
        variables=dict(rendering.template_variables),
        key=key,
    )
    return PromptRenderer(tokenizer, template, special_tokens(tokenizer, template=template))


@dataclass(frozen=True)
class DataRenderer(PromptRenderer):
    """Renderer and encoder of the data stage.

    Attributes:
        encoder: Encoder of texts.
        marks: Tokens by which the audit reads sequences.
        chosen_pad: Sentence about a pad that is not the tokenizer's; None where it is.
        commit: Commit on the hub that the tokenizer's files come from; None for a directory.
    """

    encoder: Encoder
    marks: Marks
    chosen_pad: str | None = None
    commit: str | None = None

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, (n,) int32, nothing added."""
        return self.encoder.arrays(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character span `(start, end)` of each token."""
        return self.encoder.offsets(text)

    @property
    def special_texts(self) -> Mapping[int, str]:
        """Special tokens of the tokenizer, id → text."""
        return {number: text for text, number in special_ids(self.tokenizer).items()}


def load_renderer(config: TokenizerConfig) -> PromptRenderer:
    """Load the tokenizer and template that a data recipe names, and the pad if it names one.

    Raises:
        ConfigError: a tokenizer, token or template that is not there or cannot be used.
    """
    tokenizer = load_any_tokenizer(config.path, revision=config.revision)
    renderer = _make_renderer(tokenizer, config, key="tokenizer.chat_template")
    return renderer if config.pad_token is None else _with_training_pad(renderer, config)


def _with_training_pad(renderer: PromptRenderer, config: TokenizerConfig) -> PromptRenderer:
    """Replace a renderer's pad by one to train with, the recipe's if it names one."""
    special = training_tokens(
        renderer.tokenizer,
        end_token=None,
        pad_token=config.pad_token,
        key="tokenizer.pad_token",
        template=renderer.template,
        stops=saved_stops(config.path),
    )
    return replace(renderer, special=special)


def load_data_renderer(
    config: SftTokenizer, probes: Sequence[str] = (), *, backend: Backend = "auto"
) -> DataRenderer:
    """Load a renderer with the library that makes the ids, and a pad to train with.

    Args:
        backend: as in `encoder_of`.
        probes: texts on which a faster library must give the tokenizer's ids.
    """
    renderer = load_renderer(config)
    tokenizer_pad = renderer.tokenizer.pad_token
    if config.pad_token is None:
        renderer = _with_training_pad(renderer, config)
    encoder = encoder_of(renderer.tokenizer, backend=backend, probes=probes)
    marks = marks_of(
        encoder.encode,
        special=special_ids(renderer.tokenizer),
        stop_ids=renderer.special.stop_ids,
        pad_id=renderer.special.pad_id,
        template=renderer.template,
    )
    commit = None
    if not Path(config.path).is_dir():
        commit = loaded_commit(config.path, revision=config.revision)
    return DataRenderer(
        renderer.tokenizer,
        renderer.template,
        renderer.special,
        encoder,
        marks,
        chosen_pad=describe_choice(tokenizer_pad, renderer.special),
        commit=commit,
    )


@dataclass(frozen=True, slots=True)
class AuditTokens:
    """Tokens of a data set, for the audit.

    Attributes:
        encoder: Encoder of texts.
        special: Special tokens of the tokenizer, text → id.
        stop_ids: Ids that end a turn.
        pad_id: Id of the pad; None where the tokenizer has none.
        largest_id: Largest id in use.
        template: Chat template; None where none is known.
    """

    encoder: Encoder
    special: Mapping[str, int]
    stop_ids: tuple[int, ...]
    pad_id: int | None
    largest_id: int
    template: ChatTemplate | None


def audit_tokens(recipe: AuditConfig, *, first: Path) -> AuditTokens:
    """Load the tokenizer that the recipe names, or else the one of the data.

    Args:
        first: first path of the data.

    Raises:
        ConfigError: there is none, or it lacks a stop token that the recipe names.
    """
    config = recipe.tokenizer
    if config is None:
        if not (first / "tokenizer").is_dir():
            raise ConfigError(f"{first} carries no tokenizer: name it with tokenizer.path=…")
        config = AuditTokenizer(path=str(first / "tokenizer"))
    tokenizer = load_any_tokenizer(config.path, revision=config.revision)
    vocabulary = tokenizer.get_vocab()
    missing_tokens = [token for token in config.stop_tokens if token not in vocabulary]
    if missing_tokens:
        raise ConfigError(f"tokenizer.stop_tokens: {missing_tokens[0]!r} is not in the vocabulary")
    stop_ids = {vocabulary[token] for token in config.stop_tokens}
    if TURN_END in vocabulary:
        stop_ids.add(vocabulary[TURN_END])
    if tokenizer.eos_token is not None:
        stop_ids.add(vocabulary[str(tokenizer.eos_token)])
    if not stop_ids:
        raise ConfigError("this tokenizer has no eos token: name tokenizer.stop_tokens")
    template: ChatTemplate | None = None
    if config.chat_template != "own" or isinstance(tokenizer.chat_template, str):
        template = chat_template_of(tokenizer, choice=config.chat_template)
    return AuditTokens(
        encoder=encoder_of(tokenizer),
        special=special_ids(tokenizer),
        stop_ids=tuple(sorted(stop_ids)),
        pad_id=None if tokenizer.pad_token is None else vocabulary[str(tokenizer.pad_token)],
        largest_id=largest_id(tokenizer),
        template=template,
    )
