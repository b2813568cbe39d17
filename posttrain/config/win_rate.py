"""The recipe of a judged comparison: `posttrain win_rate --config F out=DIR`.

    before: runs/tiny/eval:dpo        # an evaluation and one of its checkpoints, …
    after: runs/tiny/eval:rlhf        # … or an artifact of `posttrain sample`
    judge: {models: [{backend: {kind: transformers}, checkpoint: runs/tiny/genrm}]}

Paths are relative to the directory the command is run in.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from posttrain.config.base import Strict
from posttrain.config.judge import JudgeConfig


class WinRateConfig(Strict):
    """One policy against another on the same prompts, each pair of answers judged in both orders.

    Args:
        before, after: a `samples` artifact; or an evaluation, as RUN:NAME where it has several
            checkpoints.
        judge: as in RLHF; it must not be a judge that `after` was trained with, or the figure says
            how well that judge was pleased.
        prompts: how many, chosen by a keyed hash of their ids; null takes all that both answered.
    """

    out: str
    before: str
    after: str
    judge: JudgeConfig
    prompts: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)

    def owner_config(self) -> dict[str, Any]:
        """What the verdicts depend on beside the two sides themselves."""
        config = self.model_dump(mode="json", exclude={"out", "before", "after", "judge"})
        return config | {"judge": self.judge.owner_config()}
