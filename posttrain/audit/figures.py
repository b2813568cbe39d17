"""The figures of one source, growing with its sequences, and the limits they are held against.

figures = Figures.empty(knows_roles=True, knows_cuts=False)
figures.add(lengths, trained, flags)
figures.stats()  →  {"sequences": 7470, "tokens": 912_340, "trained": 610_012, …}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.audit.titles import share
from posttrain.config.supervision import SupervisionLimits
from posttrain.tokens.supervision import Flag, Marks

# counts of sequences, by the flag that they share
_COUNTED = {
    "end_trained": Flag.END_TRAINED,
    "end_masked": Flag.END_MASKED,
    "empty_think": Flag.EMPTY_THINK,
    "everything_trained": Flag.EVERYTHING,
    "turn_tokens": Flag.TURN_TOKEN,
    "prompt_trained": Flag.PROMPT,
    "cut_trace": Flag.CUT_TRACE,
    "clipped": Flag.CLIPPED,
}


@dataclass
class Figures:
    """Counts of sequences, but for `tokens`, `trained` (tokens) and `longest` (tokens).

    Every sequence is one of `nothing_trained`, `end_trained`, `end_masked` and `no_end`. `None` is
    a count that this data cannot tell: turns that cannot be told apart, cuts that left no trace.
    """

    sequences: int = 0
    tokens: int = 0
    trained: int = 0
    nothing_trained: int = 0
    end_trained: int = 0
    end_masked: int = 0
    no_end: int = 0
    empty_think: int = 0
    everything_trained: int = 0
    turn_tokens: int = 0
    prompt_trained: int | None = 0
    cut_trace: int | None = 0
    clipped: int | None = 0
    duplicated: int = 0
    longest: int = 0

    @classmethod
    def empty(cls, marks: Marks, *, knows_cuts: bool) -> Figures:
        """Nothing counted yet; what the marks, or data of another's making, cannot tell is None."""
        cuts = 0 if knows_cuts else None
        roles = 0 if marks.knows_roles else None
        return cls(prompt_trained=roles, cut_trace=cuts, clipped=cuts)

    def add(
        self,
        lengths: npt.NDArray[np.integer],
        trained: npt.NDArray[np.integer],
        flags: npt.NDArray[np.uint16],
    ) -> None:
        """Count some sequences: their tokens, trained tokens and flags, all (m,)."""
        self.sequences += len(lengths)
        self.tokens += int(lengths.sum())
        self.trained += int(trained.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        number = np.bincount(flags, minlength=1)
        values = np.arange(len(number))
        some = int(number[(values & Flag.TRAINED) != 0].sum())
        self.nothing_trained += len(flags) - some
        for name, flag in _COUNTED.items():
            before = getattr(self, name)
            if before is not None:
                setattr(self, name, before + int(number[(values & flag) != 0].sum()))
        self.no_end = self.sequences - self.nothing_trained - self.end_trained - self.end_masked

    def stats(self) -> dict[str, int | None]:
        """For a manifest."""
        return asdict(self)


def violations(source: str, figures: Mapping[str, Any], limits: SupervisionLimits) -> list[str]:
    """What crosses a limit: the source, the figure, the limit, and what to do."""
    found: list[str] = []
    for name, key, advice in _LIMITED:
        limit: float | None = getattr(limits, key)
        actual = share(figures, name)
        if limit is None or actual is None:
            continue
        least = key.startswith("min_")
        if actual < limit if least else actual > limit:
            whole = "tokens" if name == "trained" else "sequences"
            bound = "at least" if least else "at most"
            found.append(
                f"source {source!r}: {_WORDS[name]} in {actual:.2%} of {figures[whole]:,} {whole} "
                f"({figures[name]:,}), limits.{key} allows {bound} {limit:.2%}. {advice}"
            )
    return found


_WORDS = {
    "nothing_trained": "nothing is trained",
    "end_trained": "the last answer's end token is trained",
    "turn_tokens": "a token that opens turns, or the pad, is trained",
    "prompt_trained": "a token of a system, user or tool turn is trained",
    "trained": "the loss is taken",
    "duplicated": "an exact copy of another sequence is found",
    "empty_think": "an answer is trained after an empty trace",
}
_LIMITED = (
    (
        "nothing_trained",
        "nothing_trained",
        "Look at the mask, and at packing.max_length: are prompts longer than what is kept?",
    ),
    (
        "end_trained",
        "min_end_trained",
        "A model trained so may not stop. Are answers clipped, or is the end token left out of "
        "the mask or of the text?",
    ),
    (
        "turn_tokens",
        "max_turn_tokens",
        "Are prompts left unmasked, or chats pasted into answers?",
    ),
    ("prompt_trained", "max_prompt_trained", "Mask what the assistant does not write."),
    (
        "trained",
        "min_trained",
        "Look for long prompts, and for turns that the mask leaves out.",
    ),
    ("duplicated", "max_duplicated", "Deduplicate the source, or lower its share."),
    (
        "empty_think",
        "max_empty_think",
        "Did reasoning get lost while reading? Look at reasoning.strip and fields.reasoning.",
    ),
)
