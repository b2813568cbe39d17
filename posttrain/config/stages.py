"""The recipe of a chain: `posttrain stages --config one-gpu/rlvr_stages`."""

from pydantic import Field

from posttrain.config.base import Strict


class StageStep(Strict):
    """One command of a chain.

    stage: the script's name.
    recipe: a file, or a shipped recipe's name.
    overrides: `key.path=value`, as on the command line.
    launch: options of `accelerate launch`; null: one process.
    """

    stage: str
    recipe: str
    overrides: tuple[str, ...] = ()
    launch: tuple[str, ...] | None = None


class StagesConfig(Strict):
    """Stages that run one after the other, each in processes of its own."""

    stages: tuple[StageStep, ...] = Field(min_length=1)
