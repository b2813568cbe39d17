"""A chat template that knows where in its output each message lies.

layout = nemotron_3_nano_template().layout([{"role": "user", "content": "Hi"}], tools=None)
layout.text, layout.starts    ("<|im_start|>system\\n<|im_end|>\\n<|im_start|>user\\nHi…", (32,))
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from posttrain.chat.jinja import GENERATION_END, GENERATION_START, MARK, compile_template
from posttrain.errors import RenderError

NEMOTRON_3_NANO_SHA256 = "ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862"
# no message can hold a mark by accident or on purpose: this is drawn anew in every process
_OPEN, _CLOSE = f"\x00{secrets.token_hex(8)}", "\x01"
# what a template can fail with inside Python when it meets a value that it did not expect, or when
# it is itself at fault (a macro that calls itself, a text a terabyte long)
_FAILURES = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RecursionError,
             MemoryError)  # fmt: skip


class RenderedLayout(NamedTuple):
    """Rendered text and where things lie in it, in characters.

    `starts[k]` is where message k begins, `None` when the template wrote it outside its loop (a
    system message in a preamble); `starts` is `None` when messages could not be located.
    """

    text: str
    starts: tuple[int | None, ...] | None
    generation: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """A compiled chat template. Compared by identity, so that what is learnt of it can be cached.

    Args:
        source: the Jinja source.
        name: what to call it in messages to the user.
        variables: passed to every render: special tokens (`bos_token`, …) and fixed kwargs.
        special_tokens: texts the tokenizer always splits at; text is cut for tokenising only where
            one begins, and at generation boundaries.
    """

    source: str
    name: str = "template"
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    special_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            render, marked = compile_template(self.source)
        # SyntaxError: Jinja writes Python, whose compiler has limits of its own
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError) as error:
            raise RenderError(f"{self.name}: not a usable chat template: {error}") from error
        # derived from the fields above, computed once
        object.__setattr__(self, "_render", render)
        object.__setattr__(self, "has_message_loop", marked)
        pattern = "|".join(re.escape(t) for t in sorted(self.special_tokens, key=len, reverse=True))
        object.__setattr__(self, "_special", re.compile(pattern or "(?!)"))

    has_message_loop: bool = field(init=False)
    _render: Any = field(init=False, repr=False, compare=False)
    _special: re.Pattern[str] = field(init=False, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """sha256 of the source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def reads_clock(self) -> bool:
        """Whether the template may write today's date, which would change bytes from day to day."""
        return "strftime_now" in self.source and "date_string" not in self.variables

    def special_at(self, text: str, position: int) -> bool:
        """Whether a special token begins at this position, so that cutting there is exact."""
        return self._special.match(text, position) is not None

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """What `tokenizer.apply_chat_template(..., tokenize=False)` returns, byte for byte.

        Raises:
            RenderError: the template refused the conversation.
        """
        try:
            return self._render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self.variables, **kwargs},
            )
        except jinja2.TemplateError as error:
            raise RenderError(f"{self.name} refuses this conversation: {error}") from error
        except _FAILURES as error:
            raise RenderError(f"{self.name} cannot render this conversation: {error!r}") from error

    def layout(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> RenderedLayout:
        """One render, of what `text` takes: the text and the offset of every message."""
        messages = [dict(message) for message in messages]  # marks go by identity
        marks = {id(message): f"{_OPEN}{i}{_CLOSE}" for i, message in enumerate(messages)}

        def mark(item: object) -> str:
            named = f"{_OPEN}{item}{_CLOSE}" if isinstance(item, str) else ""
            return marks.get(id(item), named)

        options[MARK] = mark
        return _read_marks(self.text(messages, **options), len(messages))


def _read_marks(marked: str, count: int) -> RenderedLayout:
    head, *marks = marked.split(_OPEN)
    pieces, position, last, opened, located = [head], len(head), -1, 0, True
    starts: dict[int, int] = {}
    generation: list[tuple[int, int]] = []
    for mark in marks:
        name, _, piece = mark.partition(_CLOSE)
        if name.isdecimal() and int(name) > last:
            last = int(name)
            starts[last] = position
        elif name == GENERATION_START:
            opened = position
        elif name == GENERATION_END:
            generation.append((opened, position))
        else:  # out of order, or a loop over something else than messages
            located = False
        pieces.append(piece)
        position += len(piece)
    # only leading messages may be missing from the loop
    located = located and [*starts] == [*range(count)][-len(starts) :]
    order = tuple(starts.get(k) for k in range(count)) if located else None
    return RenderedLayout("".join(pieces), order, tuple(generation))


# templates of our own, beside this file
OWN_TEMPLATES = ("hermes", "chatml")
TRL_PREFIX = "trl:"
# what a recipe may name in place of a Jinja file
TEMPLATE_NAMES = ("own", "nemotron_3_nano", *OWN_TEMPLATES, f"{TRL_PREFIX}FAMILY")


def trl_templates() -> dict[str, str]:
    """Names and sources of the chat templates of the installed TRL.

    Raises:
        RenderError: TRL is not installed.
    """
    spec = importlib.util.find_spec("trl")  # finds the package without importing torch
    if spec is None or spec.origin is None:
        raise RenderError(
            "the chat templates of model families, Nemotron 3 Nano's among them, ship with TRL: "
            "pip install 'posttrain[train]'"
        )
    folder = Path(spec.origin).parent / "chat_templates"
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}


def packaged_template_source(choice: str) -> str | None:
    """Source of a template that is named without a file: one of ours, or `trl:FAMILY`.

    Returns:
        None where the choice is no such name.

    Raises:
        RenderError: TRL is not installed, or has no such family.
    """
    if choice in OWN_TEMPLATES:
        return (Path(__file__).parent / "templates" / f"{choice}.jinja").read_text("utf-8")
    if not choice.startswith(TRL_PREFIX):
        return None
    family = choice.removeprefix(TRL_PREFIX)
    families = trl_templates()
    if family not in families:
        # the training variants write other text than inference does, so none is offered
        offered = [name for name in families if not name.endswith("_training")]
        near = difflib.get_close_matches(family, offered, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else f": {', '.join(offered)}"
        raise RenderError(f"the installed TRL has no chat template {family!r}{hint}")
    return families[family]


def nemotron_3_nano_template(
    *, variables: Mapping[str, Any] | None = None, special_tokens: Sequence[str] | None = None
) -> ChatTemplate:
    """Nemotron 3 Nano's chat template, as the installed TRL carries it, pinned by digest.

    Raises:
        RenderError: TRL is not installed, or its copy is not the one this project was tested with.
    """
    source = trl_templates()["nemotron_3_nano"]
    digest = hashlib.sha256(source.encode()).hexdigest()
    if digest != NEMOTRON_3_NANO_SHA256:
        raise RenderError(
            f"TRL's nemotron_3_nano.jinja has digest {digest[:12]}…, tested was "
            f"{NEMOTRON_3_NANO_SHA256[:12]}…; install the pinned TRL or pass a file"
        )
    return ChatTemplate(
        source,
        name="nemotron_3_nano",
        variables=variables or {},
        special_tokens=tuple(special_tokens or ("<|im_start|>", "<|im_end|>")),
    )
