"""Which sequences a conversation becomes, and which of its messages each one trains.

    user, assistant(R1), user, assistant(R2)  →  Sequence(turn=0, stop=2, trained=(1,))
                                                 Sequence(turn=1, stop=4, trained=(3,))
    user, assistant, user, assistant          →  Sequence(turn=0, stop=4, trained=(1, 3))

As NVIDIA's data preparation does (nemotron-3-nano reference, `chat_sft_shard_core`): a template
drops reasoning from earlier turns, so once any message reasons, every user turn is a sequence of
its own that trains only that turn's assistant steps. A turn nobody answers is no sequence. Some
templates (Qwen3's) also write a turn without reasoning differently once others follow; there, every
conversation is split by turn, so that each answer is trained behind the prompt inference gives it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from posttrain.records import Message


@dataclass(frozen=True, slots=True)
class Sequence:
    """`messages[:stop]` with the messages at `trained` trained.

    `first` is where the turn's own messages begin: its user message (0 for a whole conversation).
    """

    turn: int
    first: int
    stop: int
    trained: tuple[int, ...]


def sequences(messages: Seq[Message], *, every_turn: bool = False) -> tuple[Sequence, ...]:
    """The sequences of a conversation, in order; none when no assistant speaks after a user.

    Args:
        messages: the conversation.
        every_turn: make each user turn a sequence also when nobody reasons.
    """
    speakers = [i for i, m in enumerate(messages) if m.role == "assistant"]
    if not every_turn and not any(messages[i].reasons for i in speakers):
        whole = Sequence(turn=0, first=0, stop=len(messages), trained=tuple(speakers))
        return (whole,) if speakers else ()
    users = [i for i, m in enumerate(messages) if m.role == "user"]
    found: list[Sequence] = []
    for turn, first in enumerate(users):
        stop = users[turn + 1] if turn + 1 < len(users) else len(messages)
        trained = tuple(i for i in speakers if first < i < stop)
        if trained:
            found.append(Sequence(turn=turn, first=first, stop=stop, trained=trained))
    return tuple(found)
