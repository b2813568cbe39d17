"""Thresholds on what a data set's masks teach; crossing one stops a build, or fails an audit.

    limits: {min_trained: 0.1, max_duplicated: 0.2}

Shares are of one source's sequences, but for `min_trained`, which is of its tokens.
"""

from __future__ import annotations

from pydantic import Field

from posttrain.config.base import Strict


class SupervisionLimits(Strict):
    """What one source may do at most, or must at least. `null` sets no limit. All are ours.

    Args:
        nothing_trained: largest share in which no token is trained: no answer, or none left after
            clipping. They cost time and teach nothing, and come from a wrong mask or capacity.
        min_end_trained: smallest share whose last answer ends with a trained end token. An answer
            without one teaches not to stop; some are clipped in any long data.
        max_empty_answers: largest share with an answer of which nothing but its end is trained: an
            empty answer, or a mask that leaves out its words. It teaches to stop at once.
        max_think_header: largest share in which the `<think>` that the generation prompt opens, or
            its empty trace, is trained: inference gives it, the model is never to write it.
        max_turn_tokens: largest share in which a token that opens turns, or the pad, is trained:
            the mark of an unmasked prompt, or of a chat pasted into an answer.
        max_prompt_trained: largest share in which a token of a system, user or tool turn is
            trained, where turns can be told apart.
        min_trained: smallest share of trained tokens. None by default: long documents with a short
            answer are honest.
        max_duplicated: largest share of exact copies of another sequence (beside the repeats that
            the mixture asks for). None by default: some sets repeat a short chat on purpose.
        max_empty_think: largest share that trains an answer after an empty trace. None by default:
            it is right for every source that does not reason.
    """

    nothing_trained: float = Field(default=0.01, ge=0, le=1)
    min_end_trained: float | None = Field(default=0.95, ge=0, le=1)
    max_empty_answers: float | None = Field(default=0.01, ge=0, le=1)
    max_think_header: float | None = Field(default=0.01, ge=0, le=1)
    max_turn_tokens: float | None = Field(default=0.01, ge=0, le=1)
    max_prompt_trained: float | None = Field(default=0.01, ge=0, le=1)
    min_trained: float | None = Field(default=None, ge=0, le=1)
    max_duplicated: float | None = Field(default=None, ge=0, le=1)
    max_empty_think: float | None = Field(default=None, ge=0, le=1)
