"""The recipe of the RLHF stage: `posttrain rlhf --config tiny/rlhf`.

    out: runs/tiny/rlhf
    model: {path: runs/tiny/dpo}
    prompts: [{name: maths, format: tiny_world, path: runs/tiny/world/train/maths.jsonl}]
    settings: [{name: rlhf, thinking: 0.5}]
    prompts_per_step: 16
    num_generations: 8
    judge: {models: [{backend: {kind: transformers}, checkpoint: runs/tiny/genrm}]}
    pairing: {strategy: circular}
    length: {reasoning_coefficient: 0.5, answer_coefficient: 0.5}
    trainer: {learning_rate: 1.0e-4, max_steps: 40}

Prompts × num_generations and the length control are the paper's by default (section 3.3.2); its
RLHF learning rate, KL weight and longest completion are not published.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from posttrain.config.grpo import GroupTraining
from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.config.prompts import AnySource, Setting, check_prompts


class RlhfConfig(GroupTraining):
    """One RLHF run: rollouts are judged in pairs, and what their length adds comes on top.

    Args:
        prompts, settings: as in a sampling recipe. A prompt whose source names a grader is also
            graded, to be watched beside the reward.
    """

    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    judge: JudgeConfig
    pairing: PairingConfig = PairingConfig()
    length: LengthConfig = LengthConfig()

    @model_validator(mode="after")
    def _consistent(self) -> RlhfConfig:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(
                    f"setting {setting.name!r}: n is for sampling; here every prompt has "
                    "num_generations: rollouts"
                )
        return self
