"""What rendering yields: runs of text that are each trained or not.

    Segment("<|im_start|>assistant\\n<think>\\n", "assistant", False, 1)
    Segment("2+2 is 4.\\n</think>\\n4<|im_end|>\\n", "assistant", True, 1)

Segments are cut only where tokenising the two sides apart is required (the generation boundary,
where inference tokenises apart too) or makes no difference (before a special token), so a tokenizer
may encode each segment alone and concatenate.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.records import JudgedRole, ReasoningMode, Role


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of rendered text; `role` and `message_index` are of the message it begins with."""

    text: str
    role: Role | JudgedRole
    trained: bool
    message_index: int


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One sequence to train on.

    `turn` counts the record's user turns when each is a sequence of its own (0 when the record is
    one sequence). `trained_messages` are indices into the record's messages.
    """

    record_id: str
    turn: int
    reasoning: ReasoningMode
    segments: tuple[Segment, ...]
    trained_messages: tuple[int, ...]

    @property
    def text(self) -> str:
        """The full text, byte-identical to what the chat template renders."""
        return "".join(segment.text for segment in self.segments)
