"""Sandboxed Jinja in which chat templates run, and the marks that find messages in its output.

    {% for message in messages %}   →   {% for message in messages %}{{ message | __mark__ }}

The environment mirrors `transformers.utils.chat_template_utils`. The sandbox keeps a template from
Python's insides, from files and from changing what it is given; it does not bound time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.visitor import NodeTransformer

# name of the filter, and of the variable that holds the function of marks
MARK = "__mark__"
GENERATION_START = "generation-start"
GENERATION_END = "generation-end"


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
            _mark(nodes.Const(GENERATION_START), lineno),
            *body,
            _mark(nodes.Const(GENERATION_END), lineno),
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


def _mark(argument: nodes.Expr, lineno: int) -> nodes.Output:
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
        node.body.insert(0, _mark(nodes.Name(node.target.name, "load"), node.lineno))
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
