"""Chat templates, which know where in their output each message lies.

layout = nemotron_3_nano_template().layout([{"role": "user", "content": "Hi"}], tools=None)
layout.text, layout.starts    ("<|im_start|>system\\n<|im_end|>\\n<|im_start|>user\\nHi…", (32,))

    {% for message in messages %}   →   {% for message in messages %}{{ message | __mark__ }}

The environment mirrors `transformers.utils.chat_template_utils`. The sandbox keeps a template from
Python's insides, from files and from changing what it is given; it does not bound time.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.visitor import NodeTransformer

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
# name of the filter, and of the variable that holds the function of marks
MARK = "__mark__"
GENERATION_START = "generation-start"
GENERATION_END = "generation-end"


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


# -- the sandbox, and the marks that find messages in a template's output --------------------------


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Filter `tojson` of chat templates: plain JSON, where Jinja's filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class _Generation(Extension):
    """Tag `{% generation %}…{% endgeneration %}` that writes its body between two marks."""

    tags = {"generation"}  # noqa: RUF012 - the shape jinja2.ext.Extension asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [
            _mark_output(nodes.Const(GENERATION_START), lineno),
            *body,
            _mark_output(nodes.Const(GENERATION_END), lineno),
        ]


class _Namespace(jinja2.utils.Namespace):
    """`namespace()` that refuses underscore names, whose setting the sandbox does not see."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} is not allowed")
        super().__setitem__(name, value)


_DICT_ATTRIBUTES = frozenset(dir(dict))

# formatting reaches Python's insides, so it stays with Jinja's own checks
_STR_METHODS = frozenset(n for n in dir(str) if not n.startswith("_")) - {"format", "format_map"}

_LOOP_ATTRIBUTES = frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with shortcuts for the commonest look-ups of chat templates."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look an attribute up, else an item; undefined when there is neither or it is unsafe."""
        kind = cast(object, type(obj))
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            if attribute in obj:
                return obj[attribute]
            return self.undefined(obj=obj, name=attribute)
        if kind is str and attribute in _STR_METHODS:
            return getattr(obj, attribute)
        if kind is LoopContext and attribute in _LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        if kind is _Namespace and not attribute.startswith("_"):
            # it has only the attributes that the template set
            value = getattr(obj, attribute, self)
            if value is not self:
                return value
        return super().getattr(obj, attribute)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call an object; `namespace`, with which most templates begin, skips the checks."""
        if obj is not _Namespace:
            return super().call(context, obj, *args, **kwargs)
        for jinja_argument in ("_loop_vars", "_block_vars"):
            kwargs.pop(jinja_argument, None)
        return _Namespace(*args, **kwargs)


@jinja2.pass_context  # which also keeps Jinja from writing a mark as it compiles
def _write_mark(context: jinja2.runtime.Context, item: object) -> str:
    """Write the mark of an item in this render, "" where it has none."""
    mark_of: Callable[[object], str] | None = context.parent.get(MARK)
    return "" if mark_of is None else mark_of(item)


def _environment() -> SandboxedEnvironment:
    """Make the sandbox with the filters and functions that chat templates use."""
    env = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    untyped = cast(Any, env)  # jinja2 annotates its tables too narrowly
    untyped.filters |= {"tojson": _tojson, MARK: _write_mark}
    untyped.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _Namespace,
    }
    return env


def _mark_output(argument: nodes.Expr, lineno: int) -> nodes.Output:
    """Node that writes the mark of the argument's value."""
    # a filter is looked up once a render; a call would pass the sandbox's checks each time
    mark = nodes.Filter(argument, MARK, [], [], None, None)
    output = nodes.Output([mark])
    for node in (output, mark, argument):
        node.set_lineno(lineno)
    return output


class _LoopMarker(NodeTransformer):
    """Transformer that adds a mark to every loop that runs over the messages and writes text."""

    def __init__(self, aliases: frozenset[str]) -> None:
        self.aliases = aliases
        self.loops_marked = 0

    def visit_For(self, node: nodes.For) -> nodes.Node:
        over_messages = any(n.name in self.aliases for n in _names(node.iter))
        if not over_messages or not isinstance(node.target, nodes.Name) or not _writes(node):
            return self.generic_visit(node)
        self.loops_marked += 1
        node.body.insert(0, _mark_output(nodes.Name(node.target.name, "load"), node.lineno))
        return node


def _names(node: nodes.Node) -> list[nodes.Name]:
    names = list(node.find_all(nodes.Name))
    return [*names, node] if isinstance(node, nodes.Name) else names


def _writes(loop: nodes.For) -> bool:
    """Check that the loop's body writes more than white space."""
    for output in loop.find_all(nodes.Output):
        for part in output.nodes:
            if not isinstance(part, nodes.TemplateData) or part.data.strip():
                return True
    return False


def _message_aliases(tree: nodes.Template) -> frozenset[str]:
    """Names of the messages: `messages` and every variable that is assigned a slice or copy."""
    aliases = {"messages"}
    for assign in tree.find_all(nodes.Assign):
        target = assign.target
        source = assign.node
        if isinstance(source, nodes.Getitem):
            if not isinstance(source.arg, nodes.Slice):
                # one message is no list of messages
                continue
            source = source.node
        is_alias = isinstance(source, nodes.Name) and source.name in aliases
        if isinstance(target, nodes.Name) and is_alias:
            aliases.add(target.name)
    return frozenset(aliases)


Renderer = Callable[..., str]


# a stage loads its template more than once, and to compile one takes longer than to render hundreds
# of chats; a compiled template keeps nothing from one render to the next. A refusal tries TRL's 72
# templates in turn: with room for fewer, each would be compiled anew every time
@functools.lru_cache(maxsize=128)
def compile_template(source: str) -> tuple[Renderer, bool]:
    """Compile a template into a function of its variables, with marks in its message loop.

    The variable `__mark__` is a function from a message to what its turn of the loop begins with.

    Returns:
        The function, and true if exactly one message loop was there to mark.

    Raises:
        jinja2.TemplateSyntaxError: the source is no Jinja.
    """
    env = _environment()
    tree = env.parse(source)
    marker = _LoopMarker(_message_aliases(tree))
    marked = cast(nodes.Template, marker.visit(tree))
    # jinja2 compiles a tree as readily as a source text; only its annotation says `str`
    code: Any = env.compile(cast(Any, marked))
    # a plain dict: every render copies it, and Jinja's chain of dicts copies item by item
    template = jinja2.Template.from_code(env, code, dict(cast(Any, env).globals))
    return template.render, marker.loops_marked == 1
