"""Talking in the terminal: what streams, what is folded, which tools run, what is saved."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from rich.console import Console

from posttrain.chat.parse import parse_completion
from posttrain.conversation.session import REFUSED, Session
from posttrain.conversation.terminal import TagSplitter, Terminal, printable
from posttrain.environments.base import open_toolkit
from posttrain.records import Message
from posttrain.rollouts import Parameters, RolloutLimits, Step
from posttrain.sampling.sampler import Generation, Request

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "7*8"}}\n</tool_call>'


class Scripted:
    """A sampler that writes given texts, some characters at a time, behind a prompt that opened the
    reasoning where thinking is on."""

    batched = True

    def unframed(self, text: str) -> str:
        return text.replace("<|im_start|>", "<\\|im_start|>")

    def __init__(
        self, texts: Sequence[str | None], terminal: Terminal, meanwhile: Callable[[], None]
    ) -> None:
        self.texts, self.terminal, self.meanwhile = list(texts), terminal, meanwhile
        self.identity: dict[str, Any] = {}
        self.requests: list[Request] = []

    async def sample(self, requests: Sequence[Request], **_: Any) -> list[Generation]:
        [request] = requests
        self.requests.append(request)
        text = self.texts.pop(0)
        if text is None:
            return [Generation(None, error="status 500: trouble")]
        self.terminal.splitter.begin(in_reasoning=request.thinking)
        for start in range(0, len(text), 3):
            self.terminal.splitter.feed(text[start : start + 3])
            self.meanwhile()
            await asyncio.sleep(0)
        parsed = parse_completion(text, thinking=request.thinking, tools=request.tools)
        return [Generation(Step(text, parsed, "stop", 0, 0, 0))]


def run(
    texts: Sequence[str | None],
    lines: str,
    *,
    tools: str | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[str, Scripted, Session]:
    out = io.StringIO()
    terminal = Terminal(Console(file=out, width=100, emoji=False), io.StringIO(lines))
    sampler = Scripted(texts, terminal, meanwhile)
    toolkit = open_toolkit(tools) if tools else None
    session = Session(sampler, RolloutLimits(Parameters()), terminal, toolkit)
    with asyncio.Runner() as runner:
        session.talk(runner)
    return out.getvalue(), sampler, session


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("opened", "text", "found"),
    [
        (True, "a < b\n</think>\n\nc", [("reasoning", "a < b\n"), ("answer", "c")]),
        (False, "<think>\na</think>b", [("reasoning", "a"), ("answer", "b")]),
        (False, "a <b> </think c", [("answer", "a <b> </think c")]),
        (False, "see <think> here", [("answer", "see <think> here")]),
        (True, "a</thi", [("reasoning", "a</thi")]),
        (False, f"ok {CALL} x", [("answer", "ok ")]),
        (True, f"a {CALL}</think>b", [("reasoning", f"a {CALL}"), ("answer", "b")]),
    ],
)
def test_a_stream_is_split_at_its_tags_however_it_is_cut(opened, text, found, size):
    pieces: list[tuple[str, str]] = []
    fold = TagSplitter(lambda kind, piece: pieces.append((kind, piece)))
    fold.begin(in_reasoning=opened)
    for start in range(0, len(text), size):
        fold.feed(text[start : start + size])
    fold.end()
    joined: list[tuple[str, str]] = []
    for kind, piece in pieces:
        if joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + piece)
        else:
            joined.append((kind, piece))
    assert joined == found


@pytest.mark.parametrize("unit", ["<think>", "<", "</think>", "<tool_call", "<tool_call>"])
def test_a_hostile_text_is_split_in_linear_time(unit):
    """A megabyte at once: copying the rest at every tag would take minutes."""
    length = 0

    def count(_kind: str, piece: str) -> None:
        nonlocal length
        length += len(piece)

    fold = TagSplitter(count)
    text = "a" + unit * ((1 << 20) // len(unit))
    fold.feed(text)
    fold.end()
    assert length == (1 if unit == "<tool_call>" else len(text))


def test_reasoning_is_folded_until_it_is_asked_for():
    answer = "seven times eight</think>\n56<|im_end|>".removesuffix("<|im_end|>")
    out, _, _ = run([answer, answer], "7*8?\n/reasoning\nagain\n")
    first, _, second = out.partition("> /reasoning")
    assert "seven" not in first
    assert "56" in first
    assert "3 words" in first
    assert second.count("seven times eight") == 2  # of the turn before, and as it comes


def test_the_history_and_the_switches_reach_the_model():
    lines = "a\n/no_think\n/system Be brief.\nb\n/reset\nc\n"
    _, sampler, session = run(["r</think>A", "B", "C"], lines)
    first, second, third = sampler.requests
    assert [r.thinking for r in sampler.requests] == [True, False, False]
    assert first.messages == (Message("user", "a"),)
    # the trace goes along: whether an earlier one is written is for the template to say
    assert second.messages == (
        Message("system", "Be brief."),
        Message("user", "a"),
        Message("assistant", "A", reasoning="r"),
        Message("user", "b"),
    )
    assert third.messages == (Message("system", "Be brief."), Message("user", "c"))
    assert len({r.seed for r in sampler.requests}) == 3
    assert len(session.messages) == 2


@pytest.mark.parametrize(
    ("reply", "result"), [("y", "56"), ("n", REFUSED), ("", REFUSED), ("a", "56")]
)
def test_a_call_runs_where_it_is_allowed(reply, result):
    out, sampler, session = run(
        [f"r</think>{CALL}", "r</think>It is 56.", f"r</think>{CALL}", "r</think>56"],
        f"7*8?\n{reply}\nagain\n" + ("" if reply == "a" else "n\n"),
        tools="calculator",
    )
    assert '→ calculate({"expression":"7*8"})' in out
    assert "<tool_call>" not in out
    tool = sampler.requests[1].messages[-1]
    assert (tool.role, tool.content, tool.name) == ("tool", result, "calculate")
    assert sampler.requests[1].continues is not None
    assert out.count("[y]es") == (1 if reply == "a" else 2)
    again = session.messages[6]
    assert again.content == ("56" if reply == "a" else REFUSED)


def test_a_call_without_tools_is_shown_and_not_run():
    out, sampler, _ = run([f"r</think>{CALL}"], "7*8?\n")
    assert "→ calculate" in out
    assert len(sampler.requests) == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: a shell's background job, as a test run may be, ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_an_answer_and_not_the_program():
    pieces = 0

    def interrupt_once() -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 2:
            signal.raise_signal(signal.SIGINT)

    out, sampler, session = run(
        ["a very long</think> answer", "r</think>B"], "a\nb\n", meanwhile=interrupt_once
    )
    assert "[stopped" in out
    # the stopped turn is not in the history
    assert sampler.requests[1].messages == (Message("user", "b"),)
    assert len(session.messages) == 2


@pytest.mark.parametrize(
    ("failed", "why"),
    [(None, "status 500: trouble"), ("r</think>x<|im_start|>y", "frames messages")],
)
def test_a_failed_turn_is_named_and_forgotten(failed: str | None, why: str):
    out, sampler, _ = run([failed, "r</think>B"], "a\nb\n/unheard\n")
    assert why in out
    assert sampler.requests[1].messages == (Message("user", "b"),)
    assert "no command /unheard" in out


def test_what_a_model_writes_cannot_steer_the_terminal():
    hostile = "a\x1b]0;title\x07\x1b[2J\x9bm\rb\u202ec\t\n"
    shown = printable(hostile)
    assert not set(shown) & set("\x1b\x07\x9b\r\u202e")
    assert shown.endswith("\t\n")
    out, _, _ = run([f"r</think>{hostile}[red]x[/red]"], "a\n")
    assert "\x1b" not in out
    assert "[red]x[/red]" in out
