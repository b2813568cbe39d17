"""The recipe of the RLVR stage: `scripts/rlvr.py --config recipes/tiny/rlvr.yaml`.

    out: runs/tiny/rlvr
    model: {path: runs/tiny/sft}
    pass_rates: runs/tiny/profile    # what profile_prompts wrote: prompts and their pass rates
    domains: {maths: {ratio: 0.6}, logs: {ratio: 0.4}}
    curriculum: {order: gaussian, mean_start: 0.7, mean_end: 0.4, sigma: 0.15}
    trainer: {learning_rate: 3.0e-4, max_steps: 40}

Prompts × num_generations and the loss are the paper's by default (section 3.2). It fixes the share
of each domain and lets the mean of a Gaussian over pass rates fall linearly; the shares, the means,
the sigma and the rest of the curriculum are not published and ours.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.base import Name, Strict
from posttrain.config.grpo import GroupTraining
from posttrain.config.judge import LabelJudgeConfig

Order = Literal["gaussian", "uniform", "random"]


class DomainConfig(Strict):
    """Prompts that share a part of every batch, and whose figures are reported beside each other.

    Args:
        ratio: of the prompts of a batch; only proportions count.
        sources: of the profile's prompts; null: the one with the domain's name.
        max_failure_rate: largest share of a step's verifications that may come to nothing (time
            limits, crashes, missing services); what the verifier finds wrong is no failure.
    """

    ratio: float = Field(gt=0)
    sources: tuple[str, ...] | None = Field(default=None, min_length=1)
    max_failure_rate: float = Field(default=0.05, ge=0, lt=1)


class CurriculumConfig(Strict):
    """Which prompts come when; everything here is ours but the Gaussian's linear fall.

    Args:
        order: `gaussian`; `uniform` (all pass rates alike in every step) and `random` (whatever
            the pass rate), the ablations.
        mean_start, mean_end: pass rates, of the first and the last step; read off the axis of the
            paper's figure 6.
        sigma: width of the Gaussian, as a pass rate.
    """

    order: Order = "gaussian"
    mean_start: float = Field(default=0.7, ge=0, le=1)
    mean_end: float = Field(default=0.4, ge=0, le=1)
    sigma: float = Field(default=0.15, gt=0)


class RlvrConfig(GroupTraining):
    """One RLVR run over all environments at once.

    Args:
        pass_rates: a `pass_rates` artifact, of the policy that is trained.
        judge: of the environments that need one.
        max_epochs: how often a prompt may come.
    """

    pass_rates: str
    domains: dict[Name, DomainConfig] = Field(min_length=1)
    curriculum: CurriculumConfig = CurriculumConfig()
    judge: LabelJudgeConfig | None = None

    @model_validator(mode="after")
    def _each_source_once(self) -> RlvrConfig:
        names = [source for d in self.domains for source in self.sources_of(d)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"source {twice[0]!r} is in two domains")
        return self

    def sources_of(self, domain: str) -> tuple[str, ...]:
        """The sources of a domain."""
        return self.domains[domain].sources or (domain,)
