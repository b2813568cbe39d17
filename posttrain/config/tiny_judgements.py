"""The recipe of the tiny world's judgements: how many pairs of answers, to questions of which kind.

out: runs/tiny/judgements
families:
  maths: {warm_up: 3000, train: 1000, heldout: 300, difficulties: [1, 2]}
drills: 1000
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from posttrain.config.base import Strict
from posttrain.config.build_genrm import LayoutName
from posttrain.config.tiny_world import Difficulty, Rows

Judged = Literal["maths", "steps", "logs"]


class JudgedFamily(Strict):
    """Pairs of one family: to warm a judge up on, to train it on, and to evaluate it on.

    `difficulties` are drawn from alike. Questions come alone and declare no tools.
    """

    warm_up: Rows
    train: Rows
    heldout: Rows
    difficulties: Annotated[tuple[Difficulty, ...], Field(min_length=1, strict=False)] = (1, 2)


class TinyJudgementsConfig(Strict):
    """Everything that shapes the artifact; the same config gives the same bytes.

    Args:
        families: those whose answers are numbers.
        drills: rows that only compare numbers digit by digit, for the warm-up.
        layout: of the judging prompts in the warm-up rows.
        seed, heldout_seed: as the tiny world's; held-out content is apart for any two seeds.
    """

    out: str
    families: Annotated[dict[Judged, JudgedFamily], Field(min_length=1)]
    drills: Rows = 0
    layout: LayoutName = "compact"
    seed: int = 3
    heldout_seed: int = 7

    @model_validator(mode="after")
    def _some_rows(self) -> TinyJudgementsConfig:
        if not any(f.warm_up + f.train + f.heldout for f in self.families.values()):
            raise ValueError("families: no family has any rows")
        return self

    def owner_config(self) -> dict[str, Any]:
        """The config without its output path: what the artifact's digest is taken of."""
        return self.model_dump(mode="json", exclude={"out"})
