"""One preference over two responses, whatever its row looked like.

    Pair(history=(Message("user", "2+2?"),), response_1="4", response_2="5",
         gold=Gold(5, 1, 1), principle=None, frame=None)

Responses are final answers: reasoning is not shown to a judge.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from posttrain.records import Message, json_text, message_to_row
from reward.genrm import Gold


@dataclass(frozen=True, slots=True)
class Frame:
    """A judging prompt that a row brought ready: the texts around its two responses."""

    before: str
    between: str
    after: str

    def around(self, response_1: str, response_2: str) -> str:
        """The prompt with these responses."""
        return f"{self.before}{response_1}{self.between}{response_2}{self.after}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses to one conversation and what is held of them.

    Attributes:
        history: up to and including the user's turn that is answered; () where `frame` has it.
        principle: what to judge by, where the row says so.
        frame: set where the row is a judging prompt itself.
        reasoning: how a judge comes to the verdict in the given order, for a warm-up; or None.
        sided: False where the row has no order of its own (chosen and rejected).
    """

    history: tuple[Message, ...]
    response_1: str
    response_2: str
    gold: Gold
    principle: str | None = None
    frame: Frame | None = None
    reasoning: str | None = None
    sided: bool = True

    def swapped(self) -> Pair:
        """The same pair in the other order; its reasoning names the wrong sides and is gone."""
        return replace(
            self,
            response_1=self.response_2,
            response_2=self.response_1,
            gold=self.gold.swapped(),
            reasoning=None,
        )

    @property
    def question(self) -> str:
        """Digest of what the responses answer: pairs of one question share it."""
        frame = self.frame
        asked = [message_to_row(m) for m in self.history]
        # only what stands before the responses can hold the question
        return _digest([asked, None if frame is None else frame.before])

    @property
    def key(self) -> str:
        """Digest of question, principle and responses in either order."""
        return _digest([self.question, self.principle, *sorted((self.response_1, self.response_2))])


def _digest(value: object) -> str:
    # surrogatepass: what cannot be written as UTF-8 is refused by name elsewhere
    text = json_text(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
