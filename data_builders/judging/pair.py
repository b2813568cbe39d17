"""One preference over two responses, whatever its row looked like.

Responses are final answers: reasoning is not shown to a judge.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_builders.dialects import RowProblem
from data_builders.dialects.messages import with_system
from data_builders.dialects.reading import Reading, Row
from data_builders.dialects.texts import read_answer, read_prompt, request
from data_builders.filters.structure import first_empty
from posttrain.jsontext import load_json
from posttrain.records import Message, json_text, message_to_row
from reward.judge.verdict import Gold


@dataclass(frozen=True, slots=True)
class Frame:
    """A judging prompt that a row brought ready: the texts around its two responses."""

    before: str
    between: str
    after: str

    def around(self, response_1: str, response_2: str) -> str:
        return f"{self.before}{response_1}{self.between}{response_2}{self.after}"


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two responses to one conversation and what is held of them.

    Attributes:
        history: up to and including the user's turn that is answered; () where `frame` has it.
        principle: what to judge by, where the row says so.
        frame: set where the row is a judging prompt itself.
        sided: False where the row has no order of its own (chosen and rejected).
    """

    history: tuple[Message, ...]
    response_1: str
    response_2: str
    gold: Gold
    principle: str | None = None
    frame: Frame | None = None
    sided: bool = True

    def swapped(self) -> PreferencePair:
        """The same pair in the other order."""
        gold = self.gold.swapped()
        return replace(self, response_1=self.response_2, response_2=self.response_1, gold=gold)

    @property
    def question(self) -> str:
        """Digest of what the responses answer: pairs of one question share it."""
        # only what stands before the responses can hold the question
        before = self.frame and self.frame.before
        return _digest([[message_to_row(m) for m in self.history], before])

    @property
    def key(self) -> str:
        """Digest of question, principle and responses in either order."""
        return _digest([self.question, self.principle, *sorted((self.response_1, self.response_2))])


def _digest(value: object) -> str:
    # surrogatepass: what cannot be written as UTF-8 is refused by name elsewhere
    text = json_text(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


# as the prompts of Nemotron-RLHF-GenRM-v1 mark them
_MARKS = tuple((f"[The Begin of Response {n}]", f"[The End of Response {n}]") for n in (1, 2))


def frame_of(messages: Sequence[Message], where: str) -> tuple[Frame, str, str]:
    """The texts around the responses, and the responses as they stand between their marks.

    Raises RowProblem `unsplit_prompt`: not one user turn with each mark once, in this order.
    """
    if len(messages) != 1 or messages[0].role != "user":
        raise RowProblem("unsplit_prompt", where, "a judging prompt is one user turn")
    rest, parts = messages[0].content, list[str]()
    for begin, end in _MARKS:
        for mark in (begin, end):
            if (times := messages[0].content.count(mark)) != 1:
                raise RowProblem("unsplit_prompt", where, f"{mark} stands {times} times")
        before, _, inside = rest.partition(begin)
        response, closed, rest = inside.partition(end)
        if not closed:
            raise RowProblem("unsplit_prompt", where, "the marks of the responses are out of order")
        # white space around a response belongs to the frame
        start = len(response) - len(response.lstrip())
        stop = start + len(response.strip())
        parts += [before + begin + response[:start], response[start:stop]]
        rest = response[stop:] + end + rest
    before, first, between, second = parts
    return Frame(before, between, rest), first, second


CONTEXT_KEYS = ("context", "history", "messages", "conversations", "conversation", "prompt",
                "question")  # fmt: skip
RESPONSE_KEYS = (
    ("response_1", "response_2"),
    ("response1", "response2"),
    ("response_a", "response_b"),
    ("output_1", "output_2"),
    ("output1", "output2"),
)


_TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")


def marked_turns(prompt: Any) -> Any:
    """The messages of a text that holds several turns, as HelpSteer2's; anything else as it is.

    Marked as in NeMo-Aligner (`examples/nlp/data/steerlm/common.py`). Raises RowProblem where the
    marks do not part a user's and an assistant's turns.
    """
    if not isinstance(prompt, str) or "<extra_id_" not in prompt:
        return prompt
    first, *rest = _TURN.split(prompt)
    texts = [first, *rest[1::2]]
    roles = ["user", *(role.lower() for role in rest[::2])]
    alternate = all(role == ("user", "assistant")[k % 2] for k, role in enumerate(roles))
    if not alternate or any("<extra_id_" in text for text in texts):
        raise RowProblem("malformed_message", "prompt", "turns marked in another way")
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def history_of(row: Row, how: Reading) -> tuple[Message, ...]:
    """The conversation that both responses answer, reasoning removed. Raises RowProblem."""
    for key in CONTEXT_KEYS:
        if row.get(key) is not None:
            return plain_history(with_system(row, read_prompt(marked_turns(row[key]), how, key)))
    if row.get("instruction") is not None:
        return plain_history(with_system(row, (Message("user", request(row)),)))
    raise RowProblem("unrecognised", ", ".join(map(str, row)), "no conversation is there")


def plain_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Turns without their reasoning, the last of them one to be answered. Raises RowProblem."""
    if not messages or messages[-1].role not in ("user", "tool"):
        raise RowProblem("nothing_to_answer", "the conversation", "it does not end on a question")
    if not messages[-1].content.strip():
        raise RowProblem("nothing_to_answer", "the conversation", "its last turn is empty")
    if (empty := first_empty(messages, "user")) is not None:
        raise RowProblem("empty_user_turn", f"message {empty}", "a user turn without text")
    return tuple(replace(m, reasoning=None) for m in messages)


def responses_of(row: Row, how: Reading) -> tuple[str, str]:
    """What the two sides answered, reasoning removed. Raises RowProblem."""
    for keys in RESPONSE_KEYS:
        if all(row.get(key) is not None for key in keys):
            first, second = (final_answer(read_answer(row[key], how, key), key) for key in keys)
            return first, second
    raise RowProblem("unrecognised", ", ".join(map(str, row)), "no two responses are there")


def shared_messages(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Messages that two conversations begin with, up to the last user turn at most."""
    pairs = zip(first, second, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    while same and first[same - 1].role == "assistant":
        same -= 1
    return same


def final_answer(turns: Sequence[Message], where: str) -> str:
    """The answer of a response of one turn, with its last calls as JSON. Raises RowProblem."""
    if len(turns) != 1 or turns[0].role != "assistant":
        raise RowProblem("several_turns", where, "a response of more than one assistant turn")
    # as `reward.judge.prompt.shown_answer` shows a completion
    calls = [json_text({"call": c.name, "arguments": c.arguments}) for c in turns[0].tool_calls]
    return "\n".join(part for part in (turns[0].content, *calls) if part)


def turns_of(value: Any) -> list[str] | None:
    """The texts of a list of turns, or of its JSON; None where it is no such list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = load_json(value)
        except ValueError:
            return None
    found: list[Any] = value if isinstance(value, list) else []
    return found if found and all(isinstance(turn, str) for turn in found) else None


def interleaved(questions: Sequence[str], answers: Sequence[str] | None) -> tuple[Message, ...]:
    """A conversation from its questions and its answers. Raises RowProblem."""
    if answers is None or len(questions) != len(answers):
        raise RowProblem("malformed_message", "the responses", "not an answer to every turn")
    return tuple(
        message
        for question, answer in zip(questions, answers, strict=True)
        for message in (Message("user", question), Message("assistant", answer))
    )
