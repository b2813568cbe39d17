"""Recipes of the tiny world: amount and difficulty of each family."""

from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.config.base import Strict

Share = Annotated[float, Field(ge=0, le=1)]
Rows = Annotated[int, Field(ge=0)]
Difficulty = Annotated[int, Field(ge=1, le=5)]


class _Artifact(Strict):
    out: str

    def owner_config(self) -> dict[str, Any]:
        """The config without its output path, for the artifact's digest."""
        return self.model_dump(mode="json", exclude={"out"})


class FamilyConfig(Strict):
    """One family's rows.

    train, heldout: number of rows; `train: 0` holds the whole family out of training.
    difficulties: difficulties, each equally likely.
    tools_declared: share of the rows that declare tools; for families that can do without tools
        (maths, lookups) or have no use for them (logs, steps).
    """

    train: Rows
    heldout: Rows
    difficulties: Annotated[tuple[Difficulty, ...], Field(min_length=1, strict=False)] = (1, 2, 3)
    tools_declared: Share = 0.5


class TinyWorldConfig(_Artifact, stage="tiny_world"):
    """Everything that shapes the artifact; the same config gives the same bytes.

    families: name → family of rows.
    seed, heldout_seed: seeds of the training rows and of the held-out prompts.
    """

    families: dict[str, FamilyConfig]
    seed: int = 1
    heldout_seed: int = 7

    def check(self) -> None:
        if self.seed == self.heldout_seed:
            raise ValueError("seed and heldout_seed must differ: test seeds are held out")
        if not any(family.train for family in self.families.values()):
            raise ValueError("no family has training rows, and the tokenizer is trained on them")


Judged = Literal["maths", "steps", "logs"]


class JudgedFamily(Strict):
    """Pairs of one family, whose questions come alone and declare no tools.

    warm_up, train, heldout: number of pairs.
    difficulties: difficulties, each equally likely.
    """

    warm_up: Rows
    train: Rows
    heldout: Rows
    difficulties: Annotated[tuple[Difficulty, ...], Field(min_length=1, strict=False)] = (1, 2)


class TinyJudgementsConfig(_Artifact, stage="tiny_judgements"):
    """Everything that shapes the artifact; the same config gives the same bytes.

    families: name → family; only families whose answers are numbers.
    drills: rows that only compare numbers digit by digit, for the warm-up.
    seed, heldout_seed: as for the tiny world.
    """

    families: Annotated[dict[Judged, JudgedFamily], Field(min_length=1)]
    drills: Rows = 0
    seed: int = 3
    heldout_seed: int = 7

    def check(self) -> None:
        if not any(f.warm_up + f.train + f.heldout for f in self.families.values()):
            raise ValueError("families: no family has any rows")
