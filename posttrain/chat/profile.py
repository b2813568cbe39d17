"""What has been established about a template by trying it, once, on probe conversations."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from posttrain.chat.locate import (
    THINKING_SWITCHES,
    Prompts,
    Row,
    locate_generation_tags,
    locate_prefix,
    locate_single_pass,
    sequences,
)
from posttrain.chat.reasoning import OPEN
from posttrain.chat.template import ChatTemplate, trl_templates
from posttrain.errors import ConfigError, RenderError
from posttrain.records import Message, ToolCall, message_to_template, tools_to_template

_FRAME = re.compile(r"<\|.*>|<.*\|>|<｜.*｜>|</?s>|\[/?(?!THINK)[A-Z_]+\]")
_TAG = re.compile(r"</?(think|tool_call|tool_response|tools)>")  # markup that texts may hold

Mode = Literal["single-pass", "prefix", "generation-tags"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How to split a template's output.

    `composable`: a user turn rendered alone gives the same text as at the end of its conversation,
    so each message is rendered at most twice; a conversation with `tags` in it is rendered turn by
    turn. `every_turn`: each turn is a sequence, since others behind it change how it is written.
    """

    name: str
    digest: str
    mode: Mode
    composable: bool
    prompts: Prompts
    tags: re.Pattern[str]
    control_tokens: re.Pattern[str]
    every_turn: bool = False

    def describe(self) -> str:
        """One line for the log: how text is split and what the mask leaves out."""
        method = {
            "single-pass": "split in a single pass",
            "prefix": "cannot be split at messages, falling back to exact prefix rendering",
            "generation-tags": "no generation prompt, mask from its {% generation %} blocks",
        }[self.mode]
        mask = "" if self.mode == "generation-tags" else "; generation prompt untrained"
        if self.prompts.empty:
            mask = "; the generation prompt is empty"
        split = "; every turn a sequence of its own" if self.every_turn else ""
        return f"{self.name} (sha256 {self.digest[:12]}): {method}{mask}{split}"


@functools.lru_cache(maxsize=64)
def profile_of(template: ChatTemplate) -> Profile:
    """Establish how to split this template.

    Raises:
        RenderError: it refuses every probe, or no way of determining a mask works, with the reason.
    """
    prompts = _generation_prompts(template)
    every_turn = _history_differs(template)
    mode = _choose_mode(template, prompts, every_turn)
    return Profile(
        name=template.name,
        digest=template.digest,
        mode=mode,
        composable=mode == "single-pass" and _is_composable(template, every_turn),
        prompts=prompts,
        tags=_tag_pattern(template.source),
        control_tokens=framing_tokens(template),
        every_turn=every_turn,
    )


@functools.lru_cache(maxsize=64)
def writes_reasoning(template: ChatTemplate) -> bool:
    """Whether the template knows reasoning: it writes a trace, or its prompt switches one."""
    trace = "a trace to find"
    answered = (Message("user", "q"), Message("assistant", "a", reasoning=trace))
    question = [message_to_template(answered[0])]
    with contextlib.suppress(RenderError):
        rows = [message_to_template(message) for message in answered]
        if trace in template.text(rows, enable_thinking=True):
            return True
    prompts: set[str] = set()
    for switch in THINKING_SWITCHES:
        with contextlib.suppress(RenderError):
            prompts.add(template.text(question, add_generation_prompt=True, **switch))
    return len(prompts) > 1 or any(prompt.rstrip().endswith(OPEN) for prompt in prompts)


@functools.lru_cache(maxsize=64)
def turn_ends(template: ChatTemplate) -> tuple[str, ...]:
    """The special tokens that the template writes behind an assistant's words, in their order.

    Raises:
        ConfigError: it cannot write a plain answer.
    """
    answer = "a0"
    messages = (Message("user", "q0"), Message("assistant", answer))
    try:
        text = template.text(
            [message_to_template(message) for message in messages], enable_thinking=False
        )
    except RenderError as error:
        raise ConfigError(f"{template.name} cannot write a plain answer: {error}") from error
    behind = text.rindex(answer) + len(answer) if answer in text else len(text)
    longest_first = sorted(template.special_tokens, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
    return tuple(re.findall(pattern, text[behind:]))


def _history_differs(template: ChatTemplate) -> bool:
    """Whether an answer without reasoning is written differently once another turn follows."""
    turns = (Message("user", "q0"), Message("assistant", "a0")) * 2
    rows = [message_to_template(message) for message in turns]
    none = Prompts((), ())
    try:
        locate_prefix(template, rows[:2], (1,), none, enable_thinking=False)
    except RenderError:
        return False  # prefixes tell nothing about this template
    try:
        locate_prefix(template, rows, (1, 3), none, enable_thinking=False)
    except RenderError:
        return True
    return False


def _generation_prompts(template: ChatTemplate) -> Prompts:
    question: list[Row] = [{"role": "user", "content": "q"}]
    call = Message("assistant", tool_calls=(ToolCall("f", id="call00000"),))
    result = Message("tool", "r", tool_call_id="call00000", name="f")
    looked_up: list[Row] = [*question, message_to_template(call), message_to_template(result)]
    after_user = _prompts_after(template, question)
    if not after_user and _answers_at_once(template, question):
        return Prompts(("",), ("",))
    after_tool = _prompts_after(template, looked_up)
    return Prompts(after_user, after_tool or after_user)


def _answers_at_once(template: ChatTemplate, question: Sequence[Row]) -> bool:
    """Whether the assistant's words, and an end after them, come right behind the question."""
    try:
        prompt = template.text(question, add_generation_prompt=True)
        answered = template.text([*question, {"role": "assistant", "content": "a0"}])
    except RenderError:
        return False
    words = answered[len(prompt) :].strip()
    return answered.startswith(prompt) and words.startswith("a0") and words != "a0"


def _prompts_after(template: ChatTemplate, messages: Sequence[Row]) -> tuple[str, ...]:
    prompts: set[str] = set()
    for switch in THINKING_SWITCHES:
        try:
            bare = template.text(messages, **switch)
            prompted = template.text(messages, add_generation_prompt=True, **switch)
        except RenderError:
            continue
        if prompted != bare and prompted.startswith(bare):
            prompts.add(prompted[len(bare) :])
    return tuple(sorted(prompts, key=lambda p: (-len(p), p)))


def _choose_mode(template: ChatTemplate, prompts: Prompts, every_turn: bool) -> Mode:
    agreed, single_pass, refusal = False, template.has_message_loop, ""
    for probe in PROBES:
        rows, options = _as_rows(probe)
        wanted = sequences(probe, every_turn=every_turn)[-1].trained
        try:
            truth = locate_prefix(template, rows, wanted, prompts, **options)
        except RenderError as error:
            refusal = refusal or str(error)  # the simplest probe tells most
            continue
        agreed = True
        if single_pass:
            try:
                quick = locate_single_pass(template, rows, wanted, prompts, **options)
                single_pass = quick.text == truth.text and quick.spans == truth.spans
            except RenderError:
                single_pass = False
    if agreed:
        return "single-pass" if single_pass else "prefix"
    if re.search(r"\{%-?\s*generation\s*-?%\}", template.source):
        rows, options = _as_rows(PROBES[0])
        locate_generation_tags(template, rows, (1,), prompts, **options)
        return "generation-tags"
    raise RenderError(f"{template.name}: no loss mask can be determined: {refusal}")


def _is_composable(template: ChatTemplate, every_turn: bool) -> bool:
    """Whether history and a turn of two renders are what rendering both together gives."""
    for probe in PROBES:
        rows, options = _as_rows(probe)
        without_tools: dict[str, Any] = {**options, "tools": None}
        for sequence in sequences(probe, every_turn=every_turn)[:-1]:
            own = slice(sequence.first, sequence.stop)
            try:
                whole = template.layout(rows, **options)
                alone = template.layout(rows[own], **without_tools)
                truth = template.text(rows[: sequence.stop], **options)
            except RenderError:
                break
            if whole.starts is None or alone.starts is None:
                return False
            cut, resume = whole.starts[sequence.first + 1], alone.starts[1]
            if None in (cut, resume) or whole.text[:cut] + alone.text[resume:] != truth:
                return False
    return True


def _as_rows(probe: Sequence[Message]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A probe as templates take it, and the options; one that calls declares the tool."""
    rows = [message_to_template(message) for message in probe]
    tools = tools_to_template(_TOOLS) if any(m.tool_calls for m in probe) else None
    return rows, {"tools": tools, "enable_thinking": any(m.reasons for m in probe)}


def _tag_pattern(source: str) -> re.Pattern[str]:
    """Matches any markup such as `</think>` or `[INST]` that the template writes or reads."""
    tags = set(re.findall(r"</?\|?[A-Za-z_][\w .:-]*\|?>|\[/?[A-Z_]+\]", source))
    return re.compile("|".join(re.escape(tag) for tag in sorted(tags)) or "(?!)")


def framing_tokens(template: ChatTemplate) -> re.Pattern[str]:
    """Matches special tokens that frame messages: text containing one would forge a boundary."""
    plain = ""  # what is written around conversations without reasoning and tools
    for probe in PROBES[:3]:
        rows, options = _as_rows(probe)
        with contextlib.suppress(RenderError):
            plain += template.text(rows, **options)
    frames = sorted(
        token
        for token in template.special_tokens
        if not _TAG.fullmatch(token)
        and (token in plain or (token in template.source and _FRAME.fullmatch(token)))
    )
    return re.compile("|".join(re.escape(token) for token in frames) or "(?!)")


_TOOLS = (
    '[{"type":"function","function":{"name":"look_up","description":"Look a word up.","parameters":'
    '{"type":"object","properties":{"word":{"type":"string","description":"the word"}},'
    '"required":["word"]}}}]'
)


def _user(text: str) -> Message:
    return Message("user", text)


def _says(text: str, reasoning: str | None = None) -> Message:
    return Message("assistant", text, reasoning=reasoning)


def _calls(word: str, text: str = "", reasoning: str | None = None) -> Message:
    # nine alphanumeric characters: the strictest form of call id that templates insist on
    call = ToolCall("look_up", f'{{"word":"{word}"}}', id="call00000")
    return Message("assistant", text, reasoning=reasoning, tool_calls=(call,))


def _result(text: str, number: int = 0) -> Message:
    return Message("tool", text, tool_call_id=f"call0000{number}", name="look_up")


_SYSTEM = Message("system", "Be brief.")

# each stands for a shape that templates treat apart (a system message, earlier reasoning, tool
# loops, parallel results, white space at the edges), and some templates refuse
PROBES: tuple[tuple[Message, ...], ...] = (
    (_user("q0"), _says("a0")),
    (_user("q0"), _says("a0"), _user("q1"), _says("a1"), _user("q2"), _says("a2")),
    (_SYSTEM, _user("q0"), _says("a0"), _user("q1"), _says("a1")),
    (_user(" q0\n"), _says("\n a0 \n"), _user("\nq1"), _says(" a1")),
    (_user("q0"), _says("a0", "r0")),
    (_SYSTEM, _user("q0"), _says("a0", "r0\n\nr00"), _user("q1"), _says("a1", "r1")),
    (_user("q"), _says("a0", "r0"), _user("q1"), _says("a1"), _user("q2"), _says("a2", "r")),
    (_user("q0"), _says("a0", " r0\n"), _user("q1"), _says("\na1", "\n r1 ")),
    (_user("q0"), _says("a0"), _user("q1"), _says("a1", "r1"), _user("q2"), _says("a2")),
    (_user("q0"), _calls("w"), _result("found"), _says("a0")),
    (_SYSTEM, _user("q0"), _calls("w", "let me see"), _result("found"), _says("a0"),
     _user("q1"), _calls("v"), _result("lost"), _calls("u"), _result("found"), _says("a1")),
    (_user("q0"), _calls("w", "", "r0"), _result("found"), _says("a0", "r00"),
     _user("q1"), _calls("v", "so", "r1"), _result("lost"), _calls("u"), _result("found"),
     _says("a1", "r11"), _user("q2"), _says("a2", "r2")),
    (_user("q0"),
     Message("assistant", "", reasoning="two", tool_calls=(
         ToolCall("look_up", '{"word":"a"}', id="call00000"),
         ToolCall("look_up", '{"word":"b"}', id="call00001"))),
     _result("A"), _result("B", 1), _says("a0", "done"), _user("q1"), _says("a1", "r1")),
)  # fmt: skip


def variants_hint(template: ChatTemplate) -> str:
    """For a refused template: those of the installed TRL that give the same prompt and work."""
    question: list[Row] = [{"role": "user", "content": "q"}]
    working: list[str] = []
    for name, source in trl_templates().items():
        other = replace(template, source=source, name=name)
        with contextlib.suppress(RenderError):
            prompts = [t.text(question, add_generation_prompt=True) for t in (template, other)]
            if prompts[0] == prompts[1] and profile_of(other):
                working.append(f"{name}.jinja")
    if not working:
        return ""
    return (
        f". Of the installed TRL's chat_templates {' and '.join(working)} give the "
        "same prompt and can be split: name the file as chat_template"
    )
