"""The recipe of the RLVR stage: `posttrain rlvr --config tiny/rlvr`.

The paper (3.2) fixes each domain's share and lets the mean of a Gaussian over pass rates fall
linearly; the shares, the means, the sigma and the rest of the curriculum are ours.
"""

from typing import Literal

from pydantic import Field

from posttrain.config.base import Name, Strict, source
from posttrain.config.grpo import GroupTraining
from posttrain.config.judge import LabelJudgeConfig

Order = Literal["gaussian", "uniform", "random", "difficulty_pools"]


class DomainConfig(Strict):
    """Prompts that share a part of every batch.

    ratio: share of the prompts of a batch; only proportions count.
    sources: sources of the profile's prompts; null: the source with the domain's name.
    max_failure_rate: largest share of a step's verifications that may fail (crashes, time limits).
    verifier_seconds: seconds after which a verification is given up; its rollout stays unscored.
    """

    ratio: float = Field(gt=0)
    sources: tuple[str, ...] | None = Field(default=None, min_length=1)
    max_failure_rate: float = Field(default=0.05, ge=0, lt=1)
    verifier_seconds: float = Field(default=600.0, gt=0)


class DynamicSamplingConfig(Strict):
    """Replacement of groups whose rewards are all equal (DAPO, arXiv 2503.14476).

    Such a group is left out of the loss, and another prompt of its domain takes its place.

    max_gen_batches: rounds of rollouts of a step at most; places without an informative group then
        stay empty (NeMo RL ends the run there).
    """

    max_gen_batches: int = Field(
        default=10, ge=2, json_schema_extra=source("NeMo RL, dynamic_sampling_max_gen_batches")
    )


class CurriculumConfig(Strict):
    """Order of the prompts. All of it is ours, except for the linear fall of the Gaussian's mean.

    order: `gaussian`; `uniform` (all pass rates alike in every step) and `random`, the ablations;
        `difficulty_pools`, by the pass rates that the run shows.
    mean_start, mean_end: mean pass rates of the first and the last step, read off the paper's
        figure 6.
    sigma: width of the Gaussian, as a pass rate.
    """

    order: Order = "gaussian"
    mean_start: float = Field(default=0.7, ge=0, le=1)
    mean_end: float = Field(default=0.4, ge=0, le=1)
    sigma: float = Field(default=0.15, gt=0)


class RlvrConfig(GroupTraining, stage="rlvr"):
    """One RLVR run over all environments at once.

    pass_rates: a `pass_rates` artifact of the policy that is trained.
    domains: name → domain.
    judge: judge model of the environments that need one.
    max_epochs: number of times that a prompt may be drawn; with difficulty pools, on average in its
        domain.
    dynamic_sampling: replacement of groups with equal rewards; null is off, as in Nano's recipe.
    """

    pass_rates: str
    domains: dict[Name, DomainConfig] = Field(min_length=1)
    curriculum: CurriculumConfig = CurriculumConfig()
    dynamic_sampling: DynamicSamplingConfig | None = None
    judge: LabelJudgeConfig | None = None

    def check(self) -> None:
        source_names: list[str] = []
        for domain in self.domains:
            source_names += self.sources_of(domain)
        repeated = sorted({name for name in source_names if source_names.count(name) > 1})
        if repeated:
            raise ValueError(f"source {repeated[0]!r} is in two domains, or twice in one")
        draws_by_rewards = (
            self.dynamic_sampling is not None or self.curriculum.order == "difficulty_pools"
        )
        if self.rollouts.lag and draws_by_rewards:
            raise ValueError(
                "rollouts.lag 1 draws the next step's prompts before a step has its rewards, and "
                "dynamic_sampling and difficulty pools draw by them: set rollouts.lag=0, or do "
                "without"
            )

    def sources_of(self, domain: str) -> tuple[str, ...]:
        """Names of a domain's sources."""
        return self.domains[domain].sources or (domain,)
