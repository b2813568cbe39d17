"""The recipe of a chain: `posttrain stages --config one-gpu/rlvr_stages`."""

from pathlib import Path
from typing import Any

from pydantic import Field

from posttrain.config.base import Name, Strict, refuse, refuse_twice, refuse_unknown

# the recipe of a folder's chain, where the folder has one
CHAIN = "chain.yaml"


class StageStep(Strict):
    """One command of a chain.

    stage: the script's name.
    recipe: a file, or a shipped recipe's name.
    overrides: `key.path=value`, as on the command line.
    launch: options of `accelerate launch`; null: one process.
    name: for messages, logs, targets and sizes; null: the recipe's name without its folder.
    about: what the stage does, printed when it begins.
    look: what its page shows, printed when it begins.
    seeded: whether the chain's `seed` is its seed.
    """

    stage: str
    recipe: str
    overrides: tuple[str, ...] = ()
    launch: tuple[str, ...] | None = None
    name: Name | None = None
    about: str = ""
    look: str = ""
    seeded: bool = False

    @property
    def title(self) -> str:
        """The step's name, given or the recipe's."""
        return self.name or Path(self.recipe).stem


class StagesConfig(Strict, stage="stages"):
    """Stages in processes of their own, each behind those whose output its recipe names.

    targets: names of the stages to reach, the first one's way first, with all that they need;
        null: every stage.
    jobs: stages at a time.
    logs: a folder for what the stages print, a file each; null: the terminal, one stage at a time.
    size: which of `sizes` to run; null: the recipes as they are.
    sizes: size → name of a stage → keys of its recipe (dotted paths) and their values.
    seed: of the stages that are `seeded`; null: the recipes' own.
    environment: variables that the stages get where they are not set.
    """

    stages: tuple[StageStep, ...] = Field(min_length=1)
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    jobs: int = Field(default=1, ge=1)
    logs: str | None = None
    size: str | None = None
    sizes: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    seed: int | None = Field(default=None, ge=0)
    environment: dict[str, str] = Field(default_factory=dict)

    def check(self) -> None:
        names = [step.title for step in self.stages]
        needs_names = self.targets is not None or self.logs is not None or bool(self.sizes)
        if needs_names:
            refuse_twice("stage", names)
        refuse_unknown("targets: there is no stage", self.targets or (), names)
        if self.size is not None:
            refuse_unknown("size: there is no size", (self.size,), [*self.sizes])
        for size, stages in self.sizes.items():
            refuse_unknown(f"sizes.{size}: there is no stage", stages, names)
        refuse("jobs", {
            f"{self.jobs} stages at a time would print among one another; set logs, a folder":
                self.jobs > 1 and self.logs is None,
        })  # fmt: skip
