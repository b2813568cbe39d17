"""The terminal of a conversation: lines in, text with folded reasoning out.

What a model or a tool wrote loses its control characters before it is printed: none of it may move
the cursor, retitle the window or pass for a prompt.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.console import Console

from posttrain.chat.parse import CALL_OPEN
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.jsontext import printable
from posttrain.rollouts import Step
from posttrain.sampling.engines.chat import Kind

_TAG_TEXTS: dict[Kind, tuple[str, ...]] = {"reasoning": (CLOSE,), "answer": (OPEN, CALL_OPEN)}
_TAGS = {kind: re.compile("|".join(map(re.escape, tags))) for kind, tags in _TAG_TEXTS.items()}


class TagSplitter:
    """Splits a stream of text into reasoning and answer at its tags, and hides calls.

    Args:
        emit: called with (kind, text), never with a tag or a part of one.
    """

    def __init__(self, emit: Callable[[Kind, str], None]) -> None:
        self._emit = emit
        self.begin(opened=False)

    def begin(self, *, opened: bool) -> None:
        """A new step; `opened`: the prompt ended inside reasoning."""
        self._kind: Kind = "reasoning" if opened else "answer"
        self._pending, self._calls, self._blank = "", False, True
        self.fresh = True  # nothing has come since

    def feed(self, text: str) -> None:
        """Take some text; what may be the beginning of a tag waits."""
        self.fresh = False
        text, at = self._pending + text, 0
        while not self._calls:
            match = _TAGS[self._kind].search(text, at)
            if match is None:
                end = len(text) - _overlap(text[at:], _TAG_TEXTS[self._kind])
                self._give(text[at:end])
                self._pending = text[end:]
                return
            self._give(text[at : match.start()])
            at = match.end()
            if match[0] == CALL_OPEN:
                self._calls = True  # calls are shown when they have been read
            elif match[0] == OPEN and not self._blank:
                self._give(OPEN)  # in the middle of an answer it is text
            else:
                self._kind = "answer" if match[0] == CLOSE else "reasoning"
                self._blank = True
        self._pending = ""

    def end(self) -> None:
        """Give what waited."""
        self._give(self._pending)
        self._pending = ""

    def _give(self, text: str) -> None:
        # templates put line ends behind tags; they are layout
        text = text.lstrip("\n") if self._blank else text
        if text:
            self._blank = False
            self._emit(self._kind, text)


def _overlap(text: str, tags: Sequence[str]) -> int:
    """Characters at the end of a text that begin a tag."""
    most = min(len(text), max(map(len, tags)) - 1)
    return next((n for n in range(most, 0, -1) if any(t.startswith(text[-n:]) for t in tags)), 0)


class Terminal:
    """Shows a conversation and reads `lines`: a terminal is asked with a prompt; those of anything
    else are repeated, so that the output reads as a conversation."""

    def __init__(self, console: Console, lines: TextIO) -> None:
        self.console, self._lines = console, lines
        self.shows_reasoning = self.always = False
        self.splitter = TagSplitter(self.show)
        self._trace = ""
        self._in_reasoning = self._open = False

    # ---- the view of a step ----

    def begin(self) -> None:
        self._trace, self._in_reasoning = "", False
        self.splitter.begin(opened=False)

    def show(self, kind: Kind, text: str) -> None:
        """Print a piece, or keep it where reasoning is folded."""
        if kind == "answer" and self._in_reasoning:
            self._close_reasoning()
        self._in_reasoning = kind == "reasoning"
        if self._in_reasoning:
            self._trace += text
            if not self.shows_reasoning:
                return
        self._write(text, style="dim" if self._in_reasoning else "")

    def end(self, step: Step) -> None:
        self.splitter.end()
        if self._in_reasoning:
            self._close_reasoning()
        self._end_line()
        for call in step.parsed.tool_calls:
            self.note(f"→ {call.name}({call.arguments})")
        for problem in step.parsed.problems:
            self.note(f"[{problem}]")
        if step.finish == "length":
            self.note("[cut at --max-tokens]")

    def note(self, text: str) -> None:
        """A line that no model wrote as its answer."""
        self._end_line()
        self._write(f"{text}\n", style="dim")
        self._open = False

    def _close_reasoning(self) -> None:
        self._in_reasoning = False
        if self.shows_reasoning:
            self._end_line()
        else:
            self.note(f"[reasoning, {len(self._trace.split())} words]")

    def _write(self, text: str, *, style: str) -> None:
        self.console.print(
            printable(text), end="", style=style, markup=False, highlight=False, soft_wrap=True
        )
        self._open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._open:
            self.console.print()
        self._open = False

    # ---- what the user types ----

    def read(self, prompt: str) -> str | None:
        """A line; None at the end of the input."""
        if self._lines.isatty():
            try:
                return input(prompt)
            except EOFError:
                self.console.print()
                return None
        line = self._lines.readline()
        if not line:
            return None
        self._write(prompt + line.rstrip("\n") + "\n", style="")
        return line.rstrip("\n")

    def ask(self, name: str, arguments: str) -> bool:
        """Ask the person whether a call may run; `a` allows this one and all that follow."""
        if self.always:
            return True
        with _interruptible():
            try:
                answer = self.read(f"run {printable(name)}? [y]es, [N]o, [a]lways ") or ""
            except KeyboardInterrupt:
                self.console.print()
                return False
        answer = answer.strip().lower()
        self.always = answer in ("a", "always")
        return self.always or answer in ("y", "yes")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read inside of an event loop, whose own handler only marks the task."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def open_terminal() -> Terminal:
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives `input` editing and a history
    return Terminal(Console(emoji=False, width=None if sys.stdout.isatty() else 100), sys.stdin)
