"""Chat templates, which know where in their output each message lies.

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
# no message can hold a mark by accident or on purpose: it is random in every process
_MARK_OPEN = f"\x00{secrets.token_hex(8)}"
_MARK_CLOSE = "\x01"
# errors that a template raises in Python when it meets an unexpected value, or when it is itself
# at fault (a macro that calls itself, a text a terabyte long)
_FAILURES = (
    TypeError,
    AttributeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class RenderedLayout(NamedTuple):
    """Rendered text and the positions of messages in it, in characters.

    Attributes:
        text: the rendered text.
        starts: offset of each message, `None` for one that the template wrote outside its loop (a
            system message in a preamble); `None` when messages could not be located.
        generation: spans of the template's `{% generation %}` blocks.
    """

    text: str
    starts: tuple[int | None, ...] | None
    generation: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """A compiled chat template, compared by identity so that its profile can be cached.

    Args:
        source: the Jinja source.
        name: name of the template in messages to the user.
        variables: variables of every render: special tokens (`bos_token`, …) and fixed kwargs.
        special_tokens: texts that the tokenizer always splits at; text is cut for tokenising only
            where one begins, and at generation boundaries.
    """

    source: str
    name: str = "template"
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    special_tokens: tuple[str, ...] = ()
    # derived from the fields above, once
    has_message_loop: bool = field(init=False)
    _render: Any = field(init=False, repr=False, compare=False)
    _special: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            render, has_message_loop = compile_template(self.source)
        # SyntaxError: Jinja writes Python, whose compiler has limits of its own
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError) as error:
            raise RenderError(f"{self.name}: not a usable chat template: {error}") from error
        object.__setattr__(self, "_render", render)
        object.__setattr__(self, "has_message_loop", has_message_loop)
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"  # without tokens: no match
        object.__setattr__(self, "_special", re.compile(pattern))

    @property
    def digest(self) -> str:
        """SHA-256 of the source, as hexadecimal digits."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def reads_clock(self) -> bool:
        """True if the template may write today's date, which would change bytes daily."""
        return "strftime_now" in self.source and "date_string" not in self.variables

    def special_at(self, text: str, position: int) -> bool:
        """Check that a special token begins at this position, so that cutting there is exact."""
        return self._special.match(text, position) is not None

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render messages as `tokenizer.apply_chat_template(..., tokenize=False)`, byte for byte.

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
        """Render once for the text and the offset of every message; arguments as of `text`."""
        # copies, since marks go by identity
        messages = [dict(message) for message in messages]
        mark_of = {id(message): _mark(str(i)) for i, message in enumerate(messages)}

        def mark(item: object) -> str:
            # the template marks messages, and the ends of generation blocks by their names
            default = _mark(item) if isinstance(item, str) else ""
            return mark_of.get(id(item), default)

        options[MARK] = mark
        return _read_marks(self.text(messages, **options), len(messages))


def _mark(name: str) -> str:
    """Text of the mark with this name."""
    return f"{_MARK_OPEN}{name}{_MARK_CLOSE}"


def _read_marks(marked: str, count: int) -> RenderedLayout:
    """Take the marks of `count` messages out of a text, and note where they stood in it."""
    text_before, *marked_pieces = marked.split(_MARK_OPEN)
    pieces = [text_before]
    position = len(text_before)
    starts: dict[int, int] = {}
    last_message = -1
    generation: list[tuple[int, int]] = []
    generation_start = 0
    in_order = True
    for marked_piece in marked_pieces:
        name, _, piece = marked_piece.partition(_MARK_CLOSE)
        if name.isdecimal() and int(name) > last_message:
            last_message = int(name)
            starts[last_message] = position
        elif name == GENERATION_START:
            generation_start = position
        elif name == GENERATION_END:
            generation.append((generation_start, position))
        else:
            # messages out of order, or a loop over something else
            in_order = False
        pieces.append(piece)
        position += len(piece)
    # only leading messages may be missing from the loop
    complete = [*starts] == [*range(count)][-len(starts) :]
    offsets = None
    if in_order and complete:
        offsets = tuple(starts.get(k) for k in range(count))
    return RenderedLayout("".join(pieces), offsets, tuple(generation))


# templates that this project ships, beside this file
OWN_TEMPLATES = ("hermes", "chatml")
TRL_PREFIX = "trl:"
# names that a recipe may set in place of a Jinja file
TEMPLATE_NAMES = ("own", "nemotron_3_nano", *OWN_TEMPLATES, f"{TRL_PREFIX}FAMILY")


def trl_templates() -> dict[str, str]:
    """Read the chat templates of the installed TRL: name → source.

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


def trl_families() -> list[str]:
    """Names by which a recipe may set a template of the installed TRL; none without TRL."""
    try:
        names = trl_templates()
    except RenderError:
        return []
    # the training variants write other text than inference does, so none is offered
    return [f"{TRL_PREFIX}{name}" for name in names if not name.endswith("_training")]


def packaged_template_source(choice: str) -> str | None:
    """Read the source of a template that is named without a file: one of ours, or `trl:FAMILY`.

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
        offered = trl_families()
        similar = difflib.get_close_matches(choice, offered, n=3)
        hint = f": {', '.join(offered)}"
        if similar:
            hint = f"; did you mean {' or '.join(similar)}?"
        raise RenderError(f"the installed TRL has no chat template {family!r}{hint}")
    return families[family]


def nemotron_3_nano_template(
    *, variables: Mapping[str, Any] | None = None, special_tokens: Sequence[str] | None = None
) -> ChatTemplate:
    """Load Nemotron 3 Nano's chat template from the installed TRL, pinned by digest.

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
