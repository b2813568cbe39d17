"""Profile of a template: the way to split its output, established once on probe conversations."""

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

# special tokens that look as if they frame messages
_FRAME = re.compile(r"<\|.*>|<.*\|>|<｜.*｜>|</?s>|\[/?(?!THINK)[A-Z_]+\]")
# markup that texts may hold
_TAG = re.compile(r"</?(think|tool_call|tool_response|tools)>")

Mode = Literal["single-pass", "prefix", "generation-tags"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Way to split a template's output.

    Attributes:
        name: name of the template.
        digest: SHA-256 of its source.
        mode: method of locating messages in rendered text.
        composable: true if a user turn rendered alone gives the same text as at the end of its
            conversation, so that each message is rendered at most twice.
        prompts: generation prompts.
        tags: markup that the template writes or reads; a conversation that holds some is rendered
            turn by turn.
        control_tokens: special tokens that frame messages.
        every_turn: true if each turn is a sequence, since later turns change how it is written.
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
        """Describe in one line for the log how text is split and what the mask leaves out."""
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
    """Check that the template knows reasoning: it writes a trace, or its prompt switches one."""
    trace = "a trace to find"
    question = [message_to_template(Message("user", "q"))]
    answer = message_to_template(Message("assistant", "a", reasoning=trace))
    with contextlib.suppress(RenderError):
        if trace in template.text([*question, answer], enable_thinking=True):
            return True
    prompts: set[str] = set()
    for switch in THINKING_SWITCHES:
        with contextlib.suppress(RenderError):
            prompts.add(template.text(question, add_generation_prompt=True, **switch))
    return len(prompts) > 1 or any(prompt.rstrip().endswith(OPEN) for prompt in prompts)


@functools.lru_cache(maxsize=64)
def turn_ends(template: ChatTemplate) -> tuple[str, ...]:
    """List the special tokens that the template writes behind an assistant's text, in order.

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
    answer_end = text.rindex(answer) + len(answer) if answer in text else len(text)
    longest_first = sorted(template.special_tokens, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
    return tuple(re.findall(pattern, text[answer_end:]))


def _history_differs(template: ChatTemplate) -> bool:
    """Check if an answer without reasoning is written differently once another turn follows."""
    turns = (Message("user", "q0"), Message("assistant", "a0")) * 2
    rows = [message_to_template(message) for message in turns]
    no_prompts = Prompts((), ())
    try:
        locate_prefix(template, rows[:2], (1,), no_prompts, enable_thinking=False)
    except RenderError:
        # prefixes tell nothing about this template
        return False
    try:
        locate_prefix(template, rows, (1, 3), no_prompts, enable_thinking=False)
    except RenderError:
        return True
    return False


def _generation_prompts(template: ChatTemplate) -> Prompts:
    """Find the generation prompts after a user's and after a tool's message."""
    question: list[Row] = [{"role": "user", "content": "q"}]
    call = Message("assistant", tool_calls=(ToolCall("f", id="call00000"),))
    result = Message("tool", "r", tool_call_id="call00000", name="f")
    with_result: list[Row] = [*question, message_to_template(call), message_to_template(result)]
    after_user = _prompts_after(template, question)
    if not after_user and _answers_at_once(template, question):
        return Prompts(("",), ("",))
    after_tool = _prompts_after(template, with_result)
    return Prompts(after_user, after_tool or after_user)


def _answers_at_once(template: ChatTemplate, question: Sequence[Row]) -> bool:
    """Check that the assistant's text, and an end after it, come right behind the question."""
    try:
        prompt = template.text(question, add_generation_prompt=True)
        conversation = template.text([*question, {"role": "assistant", "content": "a0"}])
    except RenderError:
        return False
    answer = conversation[len(prompt) :].strip()
    return conversation.startswith(prompt) and answer.startswith("a0") and answer != "a0"


def _prompts_after(template: ChatTemplate, messages: Sequence[Row]) -> tuple[str, ...]:
    """Collect what the template appends for generation, over all switches, longest first."""
    prompts: set[str] = set()
    for switch in THINKING_SWITCHES:
        try:
            unprompted = template.text(messages, **switch)
            prompted = template.text(messages, add_generation_prompt=True, **switch)
        except RenderError:
            continue
        if prompted != unprompted and prompted.startswith(unprompted):
            prompts.add(prompted[len(unprompted) :])
    return tuple(sorted(prompts, key=lambda p: (-len(p), p)))


def _choose_mode(template: ChatTemplate, prompts: Prompts, every_turn: bool) -> Mode:
    """Choose the quickest way of locating messages that is right on every probe.

    Prefix rendering is the reference: a template where it works on some probe may be split in a
    single pass if both agree on all of these.
    """
    prefix_works = False
    single_pass_works = template.has_message_loop
    refusal = ""
    for probe in PROBES:
        rows, options = _as_rows(probe)
        trained = sequences(probe, every_turn=every_turn)[-1].trained
        try:
            reference = locate_prefix(template, rows, trained, prompts, **options)
        except RenderError as error:
            # the error of the first probe, which is the simplest
            refusal = refusal or str(error)
            continue
        prefix_works = True
        if single_pass_works:
            try:
                quick = locate_single_pass(template, rows, trained, prompts, **options)
                same_text = quick.text == reference.text
                single_pass_works = same_text and quick.spans == reference.spans
            except RenderError:
                single_pass_works = False
    if prefix_works:
        return "single-pass" if single_pass_works else "prefix"
    if re.search(r"\{%-?\s*generation\s*-?%\}", template.source):
        rows, options = _as_rows(PROBES[0])
        locate_generation_tags(template, rows, (1,), prompts, **options)
        return "generation-tags"
    raise RenderError(f"{template.name}: no loss mask can be determined: {refusal}")


def _is_composable(template: ChatTemplate, every_turn: bool) -> bool:
    """Check that history and turn, rendered apart, join to what rendering both together gives."""
    for probe in PROBES:
        rows, options = _as_rows(probe)
        without_tools: dict[str, Any] = {**options, "tools": None}
        for sequence in sequences(probe, every_turn=every_turn)[:-1]:
            try:
                whole_layout = template.layout(rows, **options)
                turn_layout = template.layout(rows[sequence.first : sequence.stop], **without_tools)
                reference = template.text(rows[: sequence.stop], **options)
            except RenderError:
                break
            if whole_layout.starts is None or turn_layout.starts is None:
                return False
            history_end = whole_layout.starts[sequence.first + 1]
            answer_start = turn_layout.starts[1]
            if history_end is None or answer_start is None:
                return False
            if whole_layout.text[:history_end] + turn_layout.text[answer_start:] != reference:
                return False
    return True


def _as_rows(probe: Sequence[Message]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Convert a probe to rows and options of a render; a probe that calls declares the tool."""
    rows = [message_to_template(message) for message in probe]
    tools = tools_to_template(_TOOLS) if any(m.tool_calls for m in probe) else None
    return rows, {"tools": tools, "enable_thinking": any(m.reasons for m in probe)}


def _tag_pattern(source: str) -> re.Pattern[str]:
    """Build a pattern of the markup (`</think>`, `[INST]`) that the template writes or reads."""
    tags = set(re.findall(r"</?\|?[A-Za-z_][\w .:-]*\|?>|\[/?[A-Z_]+\]", source))
    return re.compile("|".join(re.escape(tag) for tag in sorted(tags)) or "(?!)")


def framing_tokens(template: ChatTemplate) -> re.Pattern[str]:
    """Build a pattern of special tokens that frame messages: text with one forges a boundary."""
    # conversations without reasoning and tools
    plain_text = ""
    for probe in PROBES[:3]:
        rows, options = _as_rows(probe)
        with contextlib.suppress(RenderError):
            plain_text += template.text(rows, **options)
    frames: list[str] = []
    for token in sorted(template.special_tokens):
        if _TAG.fullmatch(token):
            continue
        looks_like_frame = token in template.source and _FRAME.fullmatch(token)
        if token in plain_text or looks_like_frame:
            frames.append(token)
    return re.compile("|".join(map(re.escape, frames)) or "(?!)")


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
    return Message("assistant", text, reasoning=reasoning, tool_calls=(_call(word),))


def _call(word: str, number: int = 0) -> ToolCall:
    # nine alphanumeric characters: the strictest form of call id that templates insist on
    return ToolCall("look_up", f'{{"word":"{word}"}}', id=f"call0000{number}")


def _result(text: str, number: int = 0) -> Message:
    return Message("tool", text, tool_call_id=f"call0000{number}", name="look_up")


_SYSTEM = Message("system", "Be brief.")

# Shapes that templates treat differently (a system message, earlier reasoning, tool loops, parallel
# results, white space at the edges). Some templates refuse some of them.
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
    (
        _SYSTEM,
        _user("q0"),
        _calls("w", "let me see"),
        _result("found"),
        _says("a0"),
        _user("q1"),
        _calls("v"),
        _result("lost"),
        _calls("u"),
        _result("found"),
        _says("a1"),
    ),
    (
        _user("q0"),
        _calls("w", "", "r0"),
        _result("found"),
        _says("a0", "r00"),
        _user("q1"),
        _calls("v", "so", "r1"),
        _result("lost"),
        _calls("u"),
        _result("found"),
        _says("a1", "r11"),
        _user("q2"),
        _says("a2", "r2"),
    ),
    (
        _user("q0"),
        Message("assistant", "", reasoning="two", tool_calls=(_call("a"), _call("b", 1))),
        _result("A"),
        _result("B", 1),
        _says("a0", "done"),
        _user("q1"),
        _says("a1", "r1"),
    ),
)


def variants_hint(template: ChatTemplate) -> str:
    """Suggest templates of the installed TRL that give the same prompt as a refused one and work.

    Returns:
        A sentence to append to an error; "" if there are none.
    """
    question: list[Row] = [{"role": "user", "content": "q"}]
    working: list[str] = []
    for name, source in trl_templates().items():
        variant = replace(template, source=source, name=name)
        with contextlib.suppress(RenderError):
            prompt = template.text(question, add_generation_prompt=True)
            same_prompt = variant.text(question, add_generation_prompt=True) == prompt
            if same_prompt and profile_of(variant):
                working.append(f"{name}.jinja")
    if not working:
        return ""
    return (
        f". Of the installed TRL's chat_templates {' and '.join(working)} give the "
        "same prompt and can be split: name the file as chat_template"
    )
