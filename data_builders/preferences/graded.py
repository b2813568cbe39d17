"""One completion as pair building sees it: how it was graded, what it called, how long it is.

    Graded(index=3, score=1.0, calls=0, finish="stop", length=41, …)

Nothing of its text is kept: pairs are chosen over all prompts at once, and a set of samples may
hold billions of tokens.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from data_builders.preferences.encoded import Encoded
from posttrain.chat.detect import Verdict, has_call_marker
from posttrain.records import Score
from posttrain.rollouts import Completion, Finish

_INSIGNIFICANT = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Graded:
    """A graded completion.

    Attributes:
        index: which of its prompt's samples.
        score: the grader's value, None where unscored.
        calls: tool calls that the detector found, whether or not they could be parsed.
        length: tokens after the prompt that the model sampled.
        tokens: prompt and completion, tool results and all.
        ids_key: digest of the exact completion; text_key: of its letters and digits alone.
        call_markup: whether it holds what opens or closes calls, called or not.
    """

    index: int
    score: float | None
    calls: int
    finish: Finish
    length: int
    tokens: int
    reasoning_tokens: int
    answer_tokens: int
    ids_key: str
    text_key: str
    call_markup: bool = False

    @property
    def truncated(self) -> bool:
        return self.finish in ("length", "turn_limit", "token_limit")


def graded(
    completion: Completion, encoded: Encoded | None, score: Score, verdict: Verdict
) -> Graded:
    """What pair building keeps of a completion; without ids it counts as failed."""
    text = reading_text(completion)
    return Graded(
        index=completion.index,
        score=score.value,
        calls=len(verdict.calls),
        finish="failed" if encoded is None else completion.finish,
        length=sum(encoded.mask) if encoded else 0,
        tokens=encoded.tokens if encoded else 0,
        reasoning_tokens=completion.reasoning_tokens,
        answer_tokens=completion.answer_tokens,
        ids_key=_digest(repr(encoded.ids) if encoded else ""),
        text_key=_digest(_INSIGNIFICANT.sub("", text).lower()),
        call_markup=has_call_marker("".join(step.text for step in completion.steps)),
    )


def reading_text(completion: Completion) -> str:
    """All that was said after the prompt, tool results included, for a person to read."""
    return "".join(
        step.text + "".join(f"\n[{m.name}: {m.content}]\n" for m in step.results)
        for step in completion.steps
    )


def _digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=12).hexdigest()
