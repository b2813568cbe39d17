"""The recipes of RLHF and of its judge's training: `posttrain rlhf`, `posttrain genrm`."""

from pydantic import Field

from posttrain.config.base import refuse, source
from posttrain.config.grpo import GroupTraining
from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.config.prompts import AnySource, Setting, check_prompts


class RlhfConfig(GroupTraining, stage="rlhf"):
    """One RLHF run: rollouts are judged in pairs, and what their length adds comes on top.

    prompts, settings: as in a sampling recipe. A source's grader is watched beside the reward.
    """

    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    judge: JudgeConfig
    pairing: PairingConfig = PairingConfig()
    length: LengthConfig = LengthConfig()

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            why = "n is for sampling; here every prompt has num_generations: rollouts"
            refuse(f"setting {setting.name!r}", {why: setting.n is not None})


class GenRmConfig(GroupTraining, stage="genrm"):
    """One run of the judge's training, rewarded by equation 1 of the paper.

    data: a `genrm_data` artifact.
    """

    data: str
    num_generations: int = Field(default=8, ge=2, json_schema_extra=source("paper, 3.3.1"))
