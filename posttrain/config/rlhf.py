"""The recipes of RLHF and of its judge's training: `posttrain rlhf`, `posttrain genrm`."""

from pydantic import Field

from posttrain.config.base import source
from posttrain.config.grpo import GroupTraining
from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.config.prompts import AnySource, Setting, check_prompts


class RlhfConfig(GroupTraining, stage="rlhf"):
    """One RLHF run: rewards from judgements of pairs of rollouts, and from their lengths.

    prompts, settings: as in a sampling recipe. The scores of a source's grader are logged beside
        the reward.
    """

    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    judge: JudgeConfig
    pairing: PairingConfig = PairingConfig()
    length: LengthConfig = LengthConfig()

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(
                    f"setting {setting.name!r}: n is for sampling; here every prompt has "
                    "num_generations: rollouts"
                )


class GenRmConfig(GroupTraining, stage="genrm"):
    """One run of the judge's training, rewarded by equation 1 of the paper.

    data: a `genrm_data` artifact.
    """

    data: str
    num_generations: int = Field(default=8, ge=2, json_schema_extra=source("paper, 3.3.1"))
