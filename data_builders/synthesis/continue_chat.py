"""Chats → the same chats with more turns; a model writes the user's, another the assistant's.

The paper extends LMSYS and WildChat conversations so, by one model in both parts; numbers of turns
and prompts are not published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_builders.filters.repetition import find_repetition
from data_builders.synthesis.steps import (
    Ask,
    Asks,
    Discard,
    Keep,
    Move,
    Round,
    Seed,
    chat_message,
    filled,
    first_refusal,
)
from posttrain.config.filters import RepetitionFilter
from posttrain.config.synthesize import ContinueChat
from posttrain.environments.base import Environment
from posttrain.records import Example, Message
from posttrain.rollouts import Prompt
from reward.judge.quoting import quoted
from reward.judge.verdict import last_object

USER, JUDGE = "user_turn", "judge_continuation"


class ChatContinuation:
    """The kind `continue_chat`; the content of its seeds is an `Example`.

    Args:
        judged: whether a model judges the added turns before they are kept.
    """

    def __init__(self, config: ContinueChat, templates: Mapping[str, str], *, judged: bool) -> None:
        self.templates = templates
        self._config = config
        self._judged = judged

    def moves(self, seeds: Sequence[tuple[Seed, Sequence[Round]]]) -> list[Move]:
        """User and assistant in turn, then the judge."""
        return [self._move(seed, seed.content, rounds) for seed, rounds in seeds]

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """None: chats with tools are dropped."""
        return None

    def _move(self, seed: Seed, example: Example, rounds: Sequence[Round]) -> Move:
        if example.tools is not None or any(message.tool_calls for message in example.messages):
            return Discard("has_tools", "turns with tools are made by the kind tool_conversation")
        added: list[Message] = []
        for number, answers in enumerate(rounds[: 2 * self._config.turns]):
            if (problem := first_refusal(answers) or self._unfit(answers[0].text)) is not None:
                return problem
            if number % 2 == 0:
                added.append(Message("user", answers[0].text))
            else:
                [completion] = answers[0].completions
                added += completion.messages
        messages = (*example.messages, *added)
        if len(rounds) < 2 * self._config.turns:
            return self._next(seed, messages, len(rounds))
        if self._judged and len(rounds) == 2 * self._config.turns:
            return Asks((self._judging(seed, messages, first_added=len(example.messages)),))
        if self._judged:
            [verdict] = rounds[-1]
            if (problem := first_refusal([verdict])) is not None:
                return Discard(f"judge_{problem.reason}", problem.detail)
            label = (last_object(verdict.text) or {}).get("consistent")
            if not isinstance(label, bool):
                return Discard("judge_unreadable", verdict.text[-200:])
            if not label:
                return Discard("judge_refuses", verdict.text[-200:])
        return Keep(({"messages": [chat_message(message) for message in messages]},))

    def _unfit(self, text: str) -> Discard | None:
        if len(text) > self._config.longest:
            return Discard("too_long", f"{len(text):,} characters")
        if (loop := find_repetition(text, RepetitionFilter())) is not None:
            return Discard("repetition", text[loop.start : loop.start + 200])
        return None

    def _next(self, seed: Seed, messages: Sequence[Message], number: int) -> Asks:
        if number % 2 == 1:
            prompt_id = f"{seed.id}/assistant-{number}"
            return Asks((Ask("generator", _prompt(prompt_id, "generator", messages)),))
        text = filled(self.templates[USER], conversation=transcript(messages))
        request = [Message("user", text)]
        return Asks((Ask("user", _prompt(f"{seed.id}/user-{number}", "user", request)),))

    def _judging(self, seed: Seed, messages: Sequence[Message], *, first_added: int) -> Ask:
        text = filled(
            self.templates[JUDGE],
            conversation=transcript(messages[:first_added]),
            continuation=transcript(messages[first_added:]),
        )
        return Ask("judge", _prompt(f"{seed.id}/judge", "judge", [Message("user", text)]))


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as quoted text, a paragraph a turn; no text can forge a turn or a frame."""
    turns: list[str] = []
    for message in messages:
        lines = quoted(message.content).splitlines() or [""]
        turns.append("\n".join([f"{message.role}:", *(f"  {line}" for line in lines)]))
    return "\n".join(turns)


def _prompt(prompt_id: str, setting: str, messages: Sequence[Message]) -> Prompt:
    return Prompt(id=prompt_id, task=prompt_id, setting=setting, messages=tuple(messages))
