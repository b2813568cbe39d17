"""The recipe of a profile: `posttrain profile_prompts --config tiny/profile`.

    out: runs/tiny/profile
    checkpoint: runs/tiny/sft
    backend: {kind: transformers}
    n: 8
    sampling: {max_tokens: 192}
    prompts: [{name: maths, format: tiny_world, path: runs/tiny/world/train/maths.jsonl}]
    settings: [{name: rlvr, tools: given}]

Profiled again with a later checkpoint: `previous: runs/tiny/profile` in place of prompts and
settings. The paper (section 3.2.2) drops what the checkpoint always passes and says no more; how
many rollouts, at which temperature and length, and what is done with the rest is ours.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from posttrain.config.decontamination import DecontaminationConfig
from posttrain.config.judge import LabelJudgeConfig
from posttrain.config.prompts import AnySource, Setting
from posttrain.config.sample import SampleConfig


class ProfileConfig(SampleConfig):
    """One profile: samples of every prompt, verified, and the share of them that passes.

    Args:
        n: rollouts of each prompt; 8 as in the published blend of NVIDIA.
        prompts, settings: as in a sampling recipe; every source has to name a grader.
        previous: a profile whose remaining prompts are profiled again; what it dropped stays out.
        judge: of the environments that need one.
        decontamination: prompts that overlap evaluation items are dropped before they are sampled.
        drop_unsolved: whether prompts that no rollout passes are dropped.
        max_unscored: the largest share of the rollouts that verifiers may leave without a score.
    """

    n: int = Field(default=8, ge=1)
    prompts: tuple[AnySource, ...] = ()
    settings: tuple[Setting, ...] = ()
    previous: str | None = None
    judge: LabelJudgeConfig | None = None
    decontamination: DecontaminationConfig | None = None
    drop_unsolved: bool = False
    max_unscored: float = Field(default=0.05, ge=0, lt=1)

    @model_validator(mode="after")
    def _one_origin(self) -> ProfileConfig:
        given = bool(self.prompts), bool(self.settings)
        if given != ((False, False) if self.previous else (True, True)):
            raise ValueError("give either prompts and settings, or previous")
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(f"setting {setting.name!r}: every prompt has n rollouts here")
        for source in self.prompts:
            if source.grader is None:
                raise ValueError(f"source {source.name!r}: nothing verifies it; name a grader")
        return self

    def owner_config(self) -> dict[str, Any]:
        """As the parent; neither limits nor how a judge's server is reached decide anything."""
        config = super().owner_config() | {"judge": self.judge and self.judge.identity()}
        return {key: value for key, value in config.items() if key != "max_unscored"}

    def n_of(self, setting: str) -> int:
        """The same for all: a bucket is a number of passes out of n."""
        return self.n

    def most_tokens(self, setting: str) -> int:
        """As of samples; of prompts profiled before, any may declare tools."""
        if self.previous is None:
            return super().most_tokens(setting)
        steps = self.sampling.max_tokens * self.sampling.max_turns
        return min(steps, self.sampling.max_total_tokens or steps)
