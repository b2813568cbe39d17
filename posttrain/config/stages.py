"""The recipe of a chain: `posttrain stages --config one-gpu/rlvr_stages`."""

from pathlib import Path
from typing import Any

from pydantic import Field

from posttrain.config.base import Name, Strict, refuse_twice, refuse_unknown

CHAIN = "chain.yaml"  # file of a folder's chain, if the folder has one


class StageStep(Strict):
    """One command of a chain.

    stage: name of the script.
    recipe: a file, or a shipped recipe's name.
    overrides: `key.path=value`, as on the command line.
    launch: options of `accelerate launch`; null: one process.
    name: name in messages, logs, targets and sizes; null: the recipe's name without its folder.
    about: text on what the stage does, printed when it begins.
    look: text on what its page shows, printed when it begins.
    seeded: take the chain's `seed`.
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
        """Name of the step: its own, or the recipe's without its folder."""
        return self.name or Path(self.recipe).stem


class StagesConfig(Strict, stage="stages"):
    """A chain of stages, each in a process of its own, after the stages whose output it reads.

    targets: names of the stages to reach, in this order, with all that they need; null: all.
    jobs: stages that run at a time.
    logs: folder for the output of the stages, a file each; null: the terminal, one stage at a time.
    size: one of `sizes`; null: the recipes as they are.
    sizes: size → name of a stage → keys of its recipe (dotted paths) and their values, in place of
        the step's overrides of these keys.
    seed: seed of the stages that are `seeded`; null: the recipes' own.
    environment: variables that the stages are given, unless they are set already.
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
        if self.jobs > 1 and self.logs is None:
            raise ValueError(
                f"jobs: {self.jobs} stages at a time would print among one another; set logs, a "
                "folder"
            )
