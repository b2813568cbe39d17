"""A preference pair as it lies on disk between `build_dpo` and `dpo`: token ids and masks.

    Pair(id="maths-7/no_tools/on/3-0", task="maths-7", category="no_tools", thinking=True,
         prompt_ids=(1, 9, …), chosen=Side(ids=(4, 8, …), mask=(True, True, …), score=1.0, …),
         rejected=Side(…), source="maths")

`mask` is True for the tokens the model sampled: the only ones in any loss term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Category = Literal["no_tools", "with_tools", "hallucination_penalty", "offline"]
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True)
class Side:
    """Chosen or rejected. `index` is the sample it was (-1: given as text, not sampled by us).

    `score` is the grader's value, None where unscored or given; `calls` the number of tool calls:
    those the detector found, or of a text that was given its own; lengths in tokens; `text` is for
    reading only.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    text: str
    index: int = -1
    score: float | None = None
    calls: int = 0
    reasoning_tokens: int = 0
    answer_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two completions of one prompt. `category` "offline" is a pair that came as data."""

    id: str
    task: str
    category: Category
    thinking: bool
    prompt_ids: tuple[int, ...]
    chosen: Side
    rejected: Side
    source: str = ""


def pair_to_row(pair: Pair) -> dict[str, Any]:
    """The pair as one flat row: `chosen_ids`, `chosen_mask`, …, `rejected_text`."""
    row: dict[str, Any] = {
        name: getattr(pair, name)
        for name in ("id", "task", "category", "thinking", "prompt_ids", "source")
    }
    for side in ("chosen", "rejected"):
        half: Side = getattr(pair, side)
        row |= {f"{side}_{name}": getattr(half, name) for name in Side.__slots__}
    return row
