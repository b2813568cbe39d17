"""Conversations whose every part holds a word of its own: `left_out` names what TRL's templates lose.

`transformers` renders each user turn through its last message; a part whose word is missing there is
lost. `left_out` knows nothing of these words.
"""

from __future__ import annotations

from typing import Any

from posttrain.chat import ChatTemplate, left_out, nemotron_3_nano_template
from posttrain.chat.template import trl_templates
from posttrain.records import Example, Message, ToolCall, json_text, make_example
from tests.chat.reference import hf_text
from tests.chat.test_samples import VARIABLES

# roles with what their message holds; those whose name begins with "tools" declare two
SHAPES = {
    "plain": "user assistant+text",
    "system": "system user assistant+text user assistant+text",
    "reasoning": "user assistant+reasoning+text",
    "reasoning, turns": "system user assistant+reasoning+text user assistant+reasoning+text",
    "reasoning, first turn": "user assistant+reasoning+text user assistant+text",
    "tools": "user assistant+text",
    "tools, system": "system user assistant+text",
    "tools, call": "user assistant+call tool assistant+text",
    "tools, call last": "user assistant+call",
    "tools, text beside a call": "user assistant+text+call tool assistant+text",
    "tools, text beside a last call": "system user assistant+text+call",
    "tools, parallel": "user assistant+call+call tool tool assistant+text",
    "tools, parallel, text": "system user assistant+text+call+call tool tool assistant+text",
    "tools, reasoning, call": "user assistant+reasoning+call tool assistant+reasoning+text",
    "tools, reasoning, call alone": "user assistant+reasoning+call tool assistant+text",
    "tools, reasoning, text, call": "user assistant+reasoning+text+call tool assistant+text",
    "tools, reasoning, parallel": "user assistant+reasoning+call+call tool tool assistant+text",
    "tools, steps": "user assistant+reasoning+call tool assistant+reasoning+call tool assistant+reasoning+text",
    "tools, turns": "system user assistant+call tool assistant+text user assistant+text+call tool assistant+text",
    "tools, turns, reasoning": "system user assistant+reasoning+call tool assistant+reasoning+text user assistant+reasoning+call tool assistant+reasoning+text",
    "call without tools": "user assistant+call tool assistant+text",
    "text beside a call without tools": "user assistant+text+call tool assistant+text",
}
STRIDE = 6  # every sixth template: all take ten seconds


class Conversation:
    """Conversation of a shape, with the message that each word belongs to (None: the tools)."""

    def __init__(self, shape: str) -> None:
        self.words: dict[str, int | None] = {}
        messages: list[Message] = []
        pending: list[ToolCall] = []
        for k, part in enumerate(SHAPES[shape].split()):
            role: Any
            role, *features = part.split("+")
            if role == "tool":
                call = pending.pop(0)
                message = Message(role, self.text(k), tool_call_id=call.id, name=call.name)
            elif role == "assistant":
                calls = tuple(self.call(k, n) for n in range(features.count("call")))
                pending += calls
                text = self.text(k) if "text" in features else ""
                reasoning = self.text(k) if "reasoning" in features else None
                message = Message(role, text, reasoning=reasoning, tool_calls=calls)
            else:
                message = Message(role, self.text(k))
            messages.append(message)
        tools = json_text([self.tool(), self.tool()]) if shape.startswith("tools") else None
        self.example: Example = make_example(messages, tools=tools, source="x", dialect="openai")

    def word(self, message: int | None) -> str:
        """A word that occurs nowhere else."""
        word = f"zq{len(self.words):03d}x"
        self.words[word] = message
        return word

    def text(self, message: int | None) -> str:
        """A word with what templates escape or trim around it."""
        return f' Look: "{self.word(message)}" <b>&\n{{"é": [1, "\\n"]}}\n'

    def call(self, message: int, number: int) -> ToolCall:
        """Nine alphanumeric characters: the strictest form of call id that templates insist on."""
        arguments = {
            self.word(message): self.text(message),
            "deep": {"list": [1, self.word(message), None, True]},
        }
        identity = f"call{message:02d}{number:03d}"
        return ToolCall(self.word(message), json_text(arguments), id=identity)

    def tool(self) -> dict[str, Any]:
        inner = {self.word(None): {"type": "string", "description": self.word(None)}}
        choices = [self.word(None), "other"]
        properties = {
            self.word(None): {"type": "string", "description": self.word(None), "enum": choices},
            "options": {"type": "object", "description": "Options.", "properties": inner},
        }
        parameters = {"type": "object", "properties": properties, "required": ["options"]}
        function = {"name": self.word(None), "description": self.word(None)}
        return {"type": "function", "function": function | {"parameters": parameters}}

    def lost_words(self, source: str) -> list[str]:
        """Words that are missing from the end of their own user turn.

        A conversation in which nobody reasons is trained as one text, and looked at as one.
        """
        messages = list(self.example.messages)
        reasons = any(message.reasons for message in messages)
        users = [k for k, message in enumerate(messages) if message.role == "user"]
        stops = [*users[1:], len(messages)] if reasons else [len(messages)]
        tools = self.example.tools
        texts = {
            stop: hf_text(source, messages[:stop], tools, enable_thinking=reasons, **VARIABLES)
            for stop in stops
        }
        lost: list[str] = []
        for word, message in self.words.items():
            # the first sequence that the message is in
            sequence_end = next(stop for stop in stops if stop > (message or 0))
            if word not in texts[sequence_end]:
                lost.append(word)
        return lost


def test_what_a_template_loses_is_named_and_nothing_else():
    special = nemotron_3_nano_template().special_tokens
    conversations = {shape: Conversation(shape) for shape in SHAPES}
    outcomes: set[bool] = set()
    for name, source in [*trl_templates().items()][::STRIDE]:
        template = ChatTemplate(source, name=name, variables=VARIABLES, special_tokens=special)
        for shape, conversation in conversations.items():
            try:
                lost = conversation.lost_words(source)
            except Exception:  # noqa: BLE001, S112 - a template refuses in whatever way it likes
                continue
            named = left_out(conversation.example, template)
            assert (named is not None) == bool(lost), (name, shape, lost, named)
            outcomes.add(bool(lost))
    assert outcomes == {True, False}
