"""A tokenizer with its chat template: for prompts, for training data, for data to audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate, nemotron_3_nano_template, profile_of, render
from posttrain.chat.template import TEMPLATE_NAMES, packaged_template_source
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
from posttrain.errors import ConfigError
from posttrain.records import json_text
from posttrain.revisions import loaded_commit
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.tokens.marks import marks_of
from posttrain.tokens.pad import describe_choice, training_tokens
from posttrain.tokens.supervision import Marks
from posttrain.tokens.tokenizer import (
    TURN_END,
    Encoder,
    SpecialTokens,
    encoder_of,
    largest_id,
    load_any_tokenizer,
    saved_stops,
    special_ids,
    special_tokens,
)


def chat_template_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    choice: str = "nemotron_3_nano",
    variables: dict[str, Any] | None = None,
    key: str = "chat_template",
) -> ChatTemplate:
    """The template a recipe names, bound to a tokenizer's special tokens.

    Args:
        tokenizer: gives the special tokens, and its own template for `own`.
        choice: `own` (the tokenizer's), `nemotron_3_nano` (the installed TRL's, pinned), `hermes`
            or `chatml` (ours), `trl:FAMILY` (the installed TRL's), or the path of a Jinja file.
        variables: fixed template variables, e.g. `{"date_string": "26 Jul 2024"}`.
        key: where the recipe names its choice, for messages.

    Raises:
        ConfigError: `own` without a template, or a file that is not there.
        RenderError: the template does not compile, is not the pinned one, or TRL lacks it.
    """
    shared: dict[str, Any] = {**tokenizer.special_tokens_map, **(variables or {})}
    splits = exact_split_tokens(tokenizer)
    if choice == "nemotron_3_nano":
        return nemotron_3_nano_template(variables=shared, special_tokens=splits)
    if choice == "own":
        source = tokenizer.chat_template
        if not isinstance(source, str):
            raise missing_template(tokenizer.name_or_path, key=key)
        return ChatTemplate(source, name="own", variables=shared, special_tokens=splits)
    packaged = packaged_template_source(choice)
    if packaged is not None:
        return ChatTemplate(packaged, name=choice, variables=shared, special_tokens=splits)
    path = Path(choice)
    if not path.is_file():
        hint = nearest(choice, TEMPLATE_NAMES)
        raise ConfigError(f"{key} {choice!r} is neither a file nor the name of a template{hint}")
    source = path.read_text(encoding="utf-8")
    return ChatTemplate(source, name=path.name, variables=shared, special_tokens=splits)


def exact_split_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Added tokens the tokenizer always splits at, whatever stands around them."""
    exact = (
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    )
    return tuple(sorted(exact))


@dataclass(frozen=True)
class PromptRenderer:
    """A tokenizer with the chat template it renders with."""

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    special: SpecialTokens

    def text(self, prompt: Prompt) -> str:
        """Render the prompt that the model continues."""
        return prompt_text(prompt, self.template)

    def save(self, folder: Path) -> list[str]:
        """Write the tokenizer with this template; returns the names of the files."""
        self.tokenizer.chat_template = self.template.source
        written = self.tokenizer.save_pretrained(folder)
        return sorted(str(Path(path).relative_to(folder)) for path in written)

    def stats(self) -> dict[str, Any]:
        """For a manifest."""
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
    """A prompt that the server renders, as it is sent."""
    row = prompt_to_row(prompt)
    return "\n".join(f"{key}: {json_text(row[key])}" for key in ("messages", "tools", "thinking"))


def renderer_of(backend: BackendConfig, checkpoint: str | None) -> PromptRenderer | None:
    """The renderer of a recipe's backend; `None` where a server renders and no chat template is
    known here.

    Raises:
        ConfigError: a tokenizer or template that is not there, or vLLM is not installed.
        DataError: a checkpoint without a tokenizer.
    """
    if isinstance(backend, VllmBackend):
        refuse_missing_vllm()  # a dry run, too, is refused where the real run would be
    path = checkpoint
    if isinstance(backend, CompletionsBackend) and backend.tokenizer is not None:
        path = backend.tokenizer
    if path is None:
        return None
    tokenizer = load_any_tokenizer(path)
    if not isinstance(backend, Rendering) and not isinstance(tokenizer.chat_template, str):
        return None  # the tokenizer only counts
    rendering = backend if isinstance(backend, Rendering) else Rendering()
    return _renderer(tokenizer, rendering, key="backend.chat_template")


def _renderer(
    tokenizer: PreTrainedTokenizerBase,
    named: Rendering | TokenizerConfig,
    *,
    key: str,
) -> PromptRenderer:
    variables = dict(named.template_variables)
    template = chat_template_of(tokenizer, choice=named.chat_template, variables=variables, key=key)
    return PromptRenderer(tokenizer, template, special_tokens(tokenizer, template=template))


@dataclass(frozen=True)
class DataRenderer(PromptRenderer):
    """What makes tokens in the data stage; `chosen_pad` says why the pad is another than the
    tokenizer's own, `commit` which one of the hub its files are of."""

    encoder: Encoder
    marks: Marks
    chosen_pad: str | None = None
    commit: str | None = None

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, nothing added."""
        return self.encoder.arrays(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token."""
        return self.encoder.offsets(text)

    @property
    def special_texts(self) -> Mapping[int, str]:
        """The tokenizer's special tokens by id."""
        return {number: text for text, number in special_ids(self.tokenizer).items()}


def load_renderer(config: TokenizerConfig) -> PromptRenderer:
    """The tokenizer and template that a data recipe names, with the pad that it names.

    Raises:
        ConfigError: a tokenizer, token or template that is not there or cannot be used.
    """
    tokenizer = load_any_tokenizer(config.path, revision=config.revision)
    loaded = _renderer(tokenizer, config, key="tokenizer.chat_template")
    return loaded if config.pad_token is None else _with_pad(loaded, config)


def _with_pad(loaded: PromptRenderer, config: TokenizerConfig) -> PromptRenderer:
    special = training_tokens(
        loaded.tokenizer,
        end_token=None,
        pad_token=config.pad_token,
        key="tokenizer.pad_token",
        template=loaded.template,
        stops=saved_stops(config.path),
    )
    return replace(loaded, special=special)


def load_data_renderer(config: SftTokenizer, probes: Sequence[str] = ()) -> DataRenderer:
    """Load a renderer with the library that makes the ids, and a pad to train with.

    Args:
        probes: texts on which a quicker library must give the tokenizer's own ids.
    """
    loaded = load_renderer(config)
    pad_before = loaded.tokenizer.pad_token
    if config.pad_token is None:
        loaded = _with_pad(loaded, config)
    encoder = encoder_of(loaded.tokenizer, backend=config.backend, probes=probes)
    local = Path(config.path).is_dir()
    marks = marks_of(
        encoder.encode,
        special=special_ids(loaded.tokenizer),
        stop_ids=loaded.special.stop_ids,
        pad_id=loaded.special.pad_id,
        template=loaded.template,
    )
    return DataRenderer(
        loaded.tokenizer,
        loaded.template,
        loaded.special,
        encoder,
        marks,
        chosen_pad=describe_choice(pad_before, loaded.special),
        commit=None if local else loaded_commit(config.path, revision=config.revision),
    )


@dataclass(frozen=True, slots=True)
class AuditTokens:
    """Tokens of a data set, for the audit; `special` maps texts to ids."""

    encoder: Encoder
    special: Mapping[str, int]
    stop_ids: tuple[int, ...]
    pad_id: int | None
    largest_id: int
    template: ChatTemplate | None


def audit_tokens(recipe: AuditConfig, *, first: Path) -> AuditTokens:
    """Load the tokenizer that the recipe names, or else the one in the data's first path.

    Raises:
        ConfigError: there is none, or it lacks a stop token that the recipe names.
    """
    named = recipe.tokenizer
    if named is None:
        if not (first / "tokenizer").is_dir():
            raise ConfigError(f"{first} carries no tokenizer: name it with tokenizer.path=…")
        named = AuditTokenizer(path=str(first / "tokenizer"))
    tokenizer = load_any_tokenizer(named.path, revision=named.revision)
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in named.stop_tokens if token not in vocabulary]
    if missing:
        raise ConfigError(f"tokenizer.stop_tokens: {missing[0]!r} is not in the vocabulary")
    stops = {vocabulary[token] for token in named.stop_tokens}
    stops |= {vocabulary[TURN_END]} if TURN_END in vocabulary else set[int]()
    if tokenizer.eos_token is not None:
        stops.add(vocabulary[str(tokenizer.eos_token)])
    if not stops:
        raise ConfigError("this tokenizer has no eos token: name tokenizer.stop_tokens")
    unknown = named.chat_template == "own" and not isinstance(tokenizer.chat_template, str)
    return AuditTokens(
        encoder=encoder_of(tokenizer),
        special=special_ids(tokenizer),
        stop_ids=tuple(sorted(stops)),
        pad_id=None if tokenizer.pad_token is None else vocabulary[str(tokenizer.pad_token)],
        largest_id=largest_id(tokenizer),
        template=None if unknown else chat_template_of(tokenizer, choice=named.chat_template),
    )
