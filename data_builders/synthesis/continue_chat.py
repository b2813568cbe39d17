"""Chats → the same chats with more turns; a model writes the user's, another the assistant's.

The paper extends LMSYS and WildChat conversations so, by one model in both parts; numbers of turns
and prompts are not published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from data_builders.filters.repetition import find_repetition
from data_builders.synthesis.seeds import chat_seeds
from data_builders.synthesis.steps import (
    Ask,
    Discarded,
    Keep,
    Making,
    Seed,
    SeedSet,
    SynthesisKind,
    ask_one,
    ask_text,
    chat_row,
    prompt_of,
    transcript,
)
from posttrain.config.filters import RepetitionFilter
from posttrain.config.synthesize import ContinueChat
from posttrain.records import Example, Message

_MAX_CHARACTERS = 20_000  # of an added turn; ours


class ChatContinuation(SynthesisKind):
    """The kind `continue_chat`; the content of its seeds is an `Example`."""

    config: ContinueChat

    def seeds(self, work: Path) -> SeedSet:
        return chat_seeds(self.config.sources)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        return {"user": self.config.turns, "generator": self.config.turns, "judge": 1}

    def make(self, seed: Seed) -> Making:
        """Let user and assistant take turns, then ask the judge."""
        example: Example = seed.content
        if example.tools is not None or any(message.tool_calls for message in example.messages):
            raise Discarded("has_tools", "the kind tool_conversation makes turns with tools")
        messages = list(example.messages)
        for turn in range(self.config.turns):
            text = self.text("user_turn", conversation=transcript(messages))
            words = yield from ask_text(Ask("user", prompt_of(seed, f"user-{turn}", text)))
            self._refuse_unfit(words, messages)
            messages.append(Message("user", words))
            request = Ask("generator", prompt_of(seed, f"assistant-{turn}", messages))
            completion = yield from ask_one(request)
            self._refuse_unfit(completion.answer.strip(), messages)
            messages += completion.messages
        added = transcript(messages[len(example.messages) :])
        judge_checks = yield from self.agreed(
            seed,
            "consistent",
            template="judge_continuation",
            detail=added[-200:],
            conversation=transcript(example.messages),
            continuation=added,
        )
        return Keep((chat_row(messages),), checks=("length", "repetition", *judge_checks))

    def _refuse_unfit(self, text: str, messages: Sequence[Message]) -> None:
        """Raise Discarded for a turn that is too long, or repeats itself or an earlier one."""
        if len(text) > _MAX_CHARACTERS:
            raise Discarded("too_long", f"{len(text):,} characters")
        if (loop := find_repetition(text, RepetitionFilter())) is not None:
            raise Discarded("repetition", text[loop.start : loop.start + 200])
        if any(message.content.strip() == text for message in messages):
            raise Discarded("repetition", text[:200])
