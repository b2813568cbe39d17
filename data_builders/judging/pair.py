"""A preference over two responses, and the readers of its parts from rows of any dialect.

Responses are final answers: reasoning is not shown to a judge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_builders.dialects import RowProblem, read_answer, read_prompt, request
from data_builders.dialects.messages import with_system
from data_builders.dialects.reading import Reading, Row
from data_builders.filters.structure import first_empty
from posttrain.jsontext import load_json
from posttrain.records import Message, json_text, message_to_row
from reward.judge.verdict import Gold


@dataclass(frozen=True, slots=True)
class Frame:
    """Texts around the two responses, for a row that is a judging prompt already."""

    before: str
    between: str
    after: str

    def around(self, response_1: str, response_2: str) -> str:
        """Judging prompt with two responses."""
        return f"{self.before}{response_1}{self.between}{response_2}{self.after}"


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two responses to one conversation, with the gold judgement.

    Attributes:
        history: conversation up to the user's turn that is answered; () if `frame` holds it.
        principle: criterion to judge by, if the row names one.
        frame: texts around the responses, if the row is a judging prompt itself.
        has_order: False if the row has no order of its own (chosen and rejected).
    """

    history: tuple[Message, ...]
    response_1: str
    response_2: str
    gold: Gold
    principle: str | None = None
    frame: Frame | None = None
    has_order: bool = True

    def swapped(self) -> PreferencePair:
        """Same pair with its responses in the other order."""
        gold = self.gold.swapped()
        return replace(self, response_1=self.response_2, response_2=self.response_1, gold=gold)

    @property
    def question(self) -> str:
        """Digest of the question that the responses answer; pairs of one question share it."""
        # a frame states the question before its responses
        framed_question = self.frame and self.frame.before
        messages = [message_to_row(message) for message in self.history]
        return _digest([messages, framed_question])

    @property
    def key(self) -> str:
        """Digest of question, principle and responses in either order."""
        responses = sorted((self.response_1, self.response_2))
        return _digest([self.question, self.principle, *responses])


def _digest(value: object) -> str:
    # surrogatepass: half surrogates are refused later, with the reason bad_unicode
    text = json_text(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


# marks around the responses in the prompts of Nemotron-RLHF-GenRM-v1
_MARKS = (
    ("[The Begin of Response 1]", "[The End of Response 1]"),
    ("[The Begin of Response 2]", "[The End of Response 2]"),
)


def frame_of(messages: Sequence[Message], location: str) -> tuple[Frame, str, str]:
    """Split a judging prompt into the texts around its responses, and the two responses.

    Raises:
        RowProblem: `unsplit_prompt`, not one user turn with each mark once in their order.
    """
    if len(messages) != 1 or messages[0].role != "user":
        raise RowProblem("unsplit_prompt", location, "a judging prompt is one user turn")
    prompt = messages[0].content
    texts: list[str] = []  # text before each response
    responses: list[str] = []
    unread = prompt
    for begin_mark, end_mark in _MARKS:
        for mark in (begin_mark, end_mark):
            count = prompt.count(mark)
            if count != 1:
                raise RowProblem("unsplit_prompt", location, f"{mark} stands {count} times")
        before, _, marked = unread.partition(begin_mark)
        response, found_mark, behind = marked.partition(end_mark)
        if not found_mark:
            raise RowProblem(
                "unsplit_prompt", location, "the marks of the responses are out of order"
            )
        # white space around a response belongs to the frame
        start = len(response) - len(response.lstrip())
        end = start + len(response.strip())
        texts.append(before + begin_mark + response[:start])
        responses.append(response[start:end])
        unread = response[end:] + end_mark + behind
    frame = Frame(before=texts[0], between=texts[1], after=unread)
    return frame, responses[0], responses[1]


CONTEXT_KEYS = (
    "context",
    "history",
    "messages",
    "conversations",
    "conversation",
    "prompt",
    "question",
)
RESPONSE_KEYS = (
    ("response_1", "response_2"),
    ("response1", "response2"),
    ("response_a", "response_b"),
    ("output_1", "output_2"),
    ("output1", "output2"),
)


_TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")


def marked_turns(prompt: Any) -> Any:
    """Split a text of several marked turns (HelpSteer2) into messages; return others unchanged.

    The marks are those of NeMo-Aligner (`examples/nlp/data/steerlm/common.py`).

    Raises:
        RowProblem: the marks do not separate alternating turns of a user and an assistant.
    """
    if not isinstance(prompt, str) or "<extra_id_" not in prompt:
        return prompt
    # the split alternates texts and the roles of the marks between them
    parts = _TURN.split(prompt)
    texts = parts[::2]
    roles = ["user", *(role.lower() for role in parts[1::2])]
    expected_roles = [("user", "assistant")[index % 2] for index in range(len(roles))]
    if roles != expected_roles or any("<extra_id_" in text for text in texts):
        raise RowProblem("malformed_message", "prompt", "turns marked in another way")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def history_of(row: Row, reading: Reading) -> tuple[Message, ...]:
    """Read the conversation that both responses answer, without reasoning. Raises RowProblem."""
    for key in CONTEXT_KEYS:
        if row.get(key) is not None:
            return plain_history(
                with_system(row, read_prompt(marked_turns(row[key]), reading, key))
            )
    if row.get("instruction") is not None:
        return plain_history(with_system(row, (Message("user", request(row)),)))
    raise RowProblem("unrecognised", ", ".join(map(str, row)), "no conversation is there")


def plain_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Remove the reasoning from a history.

    Raises:
        RowProblem: its last turn is no question, or a user's turn is empty.
    """
    if not messages or messages[-1].role not in ("user", "tool"):
        raise RowProblem("nothing_to_answer", "the conversation", "it does not end on a question")
    if not messages[-1].content.strip():
        raise RowProblem("nothing_to_answer", "the conversation", "its last turn is empty")
    if (empty := first_empty(messages, "user")) is not None:
        raise RowProblem("empty_user_turn", f"message {empty}", "a user turn without text")
    return tuple(replace(message, reasoning=None) for message in messages)


def responses_of(row: Row, reading: Reading) -> tuple[str, str]:
    """Read the two responses of a row, without reasoning. Raises RowProblem."""
    for keys in RESPONSE_KEYS:
        if all(row.get(key) is not None for key in keys):
            responses = [final_answer(read_answer(row[key], reading, key), key) for key in keys]
            return responses[0], responses[1]
    raise RowProblem("unrecognised", ", ".join(map(str, row)), "no two responses are there")


def shared_messages(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Count the equal messages at the start of two conversations, without trailing answers."""
    count = 0
    for first_message, second_message in zip(first, second, strict=False):
        if first_message != second_message:
            break
        count += 1
    # an equal answer at the end belongs to the two responses, not to their prompt
    while count and first[count - 1].role == "assistant":
        count -= 1
    return count


def final_answer(turns: Sequence[Message], location: str) -> str:
    """Answer of a response of one turn, with its calls as JSON. Raises RowProblem."""
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowProblem("several_turns", location, "a response of more than one assistant turn")
    # in the form in which `reward.judge.prompt.shown_answer` shows the calls of a completion
    parts = [turns[0].content]
    for call in turns[0].tool_calls:
        parts.append(json_text({"call": call.name, "arguments": call.arguments}))
    return "\n".join(part for part in parts if part)


def turns_of(value: Any) -> list[str] | None:
    """Texts of a list of turns or of its JSON text; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = load_json(value)
        except ValueError:
            return None
    turns: list[Any] = value if isinstance(value, list) else []
    return turns if turns and all(isinstance(turn, str) for turn in turns) else None


def interleaved(questions: Sequence[str], answers: Sequence[str] | None) -> tuple[Message, ...]:
    """Conversation of alternating questions and answers. Raises RowProblem if one is missing."""
    if answers is None or len(questions) != len(answers):
        raise RowProblem("malformed_message", "the responses", "not an answer to every turn")
    messages: list[Message] = []
    for question, answer in zip(questions, answers, strict=True):
        messages += [Message("user", question), Message("assistant", answer)]
    return tuple(messages)
