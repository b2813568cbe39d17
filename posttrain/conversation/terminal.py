"""The terminal of a conversation: lines in, text with folded reasoning out.

Text of a model or a tool loses its control characters before it is printed: none of it may move the
cursor, retitle the window or pass for a prompt.
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

# tags that may follow in reasoning and in an answer
_TAG_TEXTS: dict[Kind, tuple[str, ...]] = {"reasoning": (CLOSE,), "answer": (OPEN, CALL_OPEN)}
_TAGS = {kind: re.compile("|".join(map(re.escape, tags))) for kind, tags in _TAG_TEXTS.items()}


class TagSplitter:
    """Splits a stream of text into reasoning and answer at its tags, and hides calls.

    Args:
        emit: called with (kind, text), without the tags that split.
    """

    def __init__(self, emit: Callable[[Kind, str], None]) -> None:
        self._emit = emit
        self.begin(in_reasoning=False)

    def begin(self, *, in_reasoning: bool) -> None:
        """Begin a step, whose prompt may have ended inside reasoning."""
        self._kind: Kind = "reasoning" if in_reasoning else "answer"
        self._pending = ""  # the beginning of a tag, perhaps
        self._in_calls = False
        self._at_start = True  # of the reasoning or the answer: only line ends so far
        self.has_text = False  # true once the step has got a text

    def feed(self, text: str) -> None:
        """Split a piece of text; its end is kept back while it may begin a tag."""
        self.has_text = True
        text = self._pending + text
        start = 0
        while not self._in_calls:
            match = _TAGS[self._kind].search(text, start)
            if match is None:
                end = len(text) - _tag_prefix_length(text[start:], _TAG_TEXTS[self._kind])
                self._emit_text(text[start:end])
                self._pending = text[end:]
                return
            self._emit_text(text[start : match.start()])
            start = match.end()
            if match[0] == CALL_OPEN:
                self._in_calls = True  # calls are shown once they have been parsed
            elif match[0] == OPEN and not self._at_start:
                self._emit_text(OPEN)  # in the middle of an answer it is text
            else:
                self._kind = "answer" if match[0] == CLOSE else "reasoning"
                self._at_start = True
        self._pending = ""

    def end(self) -> None:
        """Emit the text that was kept back."""
        self._emit_text(self._pending)
        self._pending = ""

    def _emit_text(self, text: str) -> None:
        """Emit text of the current kind, without line ends where that kind begins."""
        # templates put line ends behind tags; they are layout
        text = text.lstrip("\n") if self._at_start else text
        if text:
            self._at_start = False
            self._emit(self._kind, text)


def _tag_prefix_length(text: str, tags: Sequence[str]) -> int:
    """Number of characters at the end of a text that begin a tag."""
    longest = min(len(text), max(map(len, tags)) - 1)
    for length in range(longest, 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0


class Terminal:
    """The view of a conversation, and the input of its user.

    Args:
        lines: input. A terminal gets a prompt; lines of anything else, as a file, are printed
            again, so that the output reads as a conversation.

    Attributes:
        shows_reasoning: false: of reasoning only the number of words is shown.
        always: true once the user has allowed all calls.
        splitter: splitter of the stream of the step that is shown.
    """

    def __init__(self, console: Console, lines: TextIO) -> None:
        self.console = console
        self._lines = lines
        self.shows_reasoning = False
        self.always = False
        self.splitter = TagSplitter(self.show)
        self._reasoning = ""
        self._in_reasoning = False
        self._line_is_open = False  # true after a text that did not end its line

    # ---- the view of a step ----

    def begin(self) -> None:
        """Begin the view of a step."""
        self._reasoning = ""
        self._in_reasoning = False
        self.splitter.begin(in_reasoning=False)

    def show(self, kind: Kind, text: str) -> None:
        """Print a piece of text; folded reasoning is only kept."""
        if kind == "answer" and self._in_reasoning:
            self._close_reasoning()
        self._in_reasoning = kind == "reasoning"
        if self._in_reasoning:
            self._reasoning += text
            if not self.shows_reasoning:
                return
        style = "dim" if self._in_reasoning else ""
        self._write(text, style=style)

    def end(self, step: Step) -> None:
        """End the view of a step with its calls and problems."""
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
        """Print a dimmed line that is not part of an answer."""
        self._end_line()
        self._write(f"{text}\n", style="dim")
        self._line_is_open = False

    def _close_reasoning(self) -> None:
        self._in_reasoning = False
        if self.shows_reasoning:
            self._end_line()
        else:
            self.note(f"[reasoning, {len(self._reasoning.split())} words]")

    def _write(self, text: str, *, style: str) -> None:
        self.console.print(
            printable(text), end="", style=style, markup=False, highlight=False, soft_wrap=True
        )
        self._line_is_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._line_is_open:
            self.console.print()
        self._line_is_open = False

    # ---- what the user types ----

    def read(self, prompt: str) -> str | None:
        """Read a line, printed again unless it is typed; None at the end of the input."""
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

    def ask(self, name: str) -> bool:
        """Ask whether a tool may be called; `a` allows this call and all that follow."""
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
    """Open the terminal of this process."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives `input` editing and a history
    # a file gets a fixed width
    width = None if sys.stdout.isatty() else 100
    return Terminal(Console(emoji=False, width=width), sys.stdin)
