"""The recipes of sampling and of profiles: `posttrain sample`, `posttrain profile_prompts`."""

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field

from posttrain.config.backend import REACHING, BackendConfig, check_checkpoint
from posttrain.config.base import Strict
from posttrain.config.generation import UNSTATED, TokenChoice, choice_line, generation_choice
from posttrain.config.judge import LabelJudgeConfig
from posttrain.config.overlap import DecontaminationConfig
from posttrain.config.prompts import NO_TOOLS, AnySource, Setting, check_prompts
from posttrain.rollouts import Parameters, RolloutLimits


class SamplingConfig(TokenChoice):
    """How each step is sampled.

    max_tokens: of one step, reasoning included.
    logps: keep the log-probability of each sampled token.
    """

    max_tokens: int = Field(default=1024, ge=1)
    logps: bool = False

    def parameters(self) -> Parameters:
        """As samplers take them."""
        return Parameters(max_tokens=self.max_tokens, logps=self.logps, **self.chosen())


class ToolLoopSampling(SamplingConfig):
    """How a completion is sampled, and how far one with tools may go.

    max_turns: steps; a call in the last one is not run.
    max_total_tokens: that the model may write in all steps; null: no such limit.
    tools_at_once: completions whose calls run at the same time.
    """

    max_turns: int = Field(default=8, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=1)
    tools_at_once: int = Field(default=4, ge=1)

    def limits(self) -> RolloutLimits:
        """As rollouts take them."""
        return RolloutLimits(
            self.parameters(), self.max_turns, self.max_total_tokens, self.tools_at_once
        )


class SampleConfig(Strict, stage="sample"):
    """One set of samples.

    checkpoint: a directory; with a server, what it serves (optional: for tokenizer and lineage).
    n: completions of each prompt.
    chunk: in process, completions that are kept together; a killed run makes at most so many again.
    max_failure_rate: largest share of completions that a backend may have given up on.
    """

    out: str
    checkpoint: str | None = None
    backend: BackendConfig
    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    n: int = Field(ge=1)
    sampling: ToolLoopSampling = ToolLoopSampling()
    chunk: int = Field(default=1024, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0)

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        check_checkpoint(self.backend, self.checkpoint, "checkpoint")
        check_chat(self.backend, self.settings)

    def with_choice(self) -> tuple[Self, str]:
        """The recipe with all values that tokens are chosen by, and where each comes from.

        Raises:
            ConfigError: as `generation_choice`.
        """
        model = generation_choice(self.checkpoint or getattr(self.backend, "tokenizer", None))
        line = f"sampling: {choice_line(self.sampling, model)}"
        chosen = self.sampling.filled(UNSTATED | model.chosen())
        return self.model_copy(update={"sampling": chosen}), line

    def owner_config(self) -> dict[str, Any]:
        """What the samples depend on: the digest of the output directory is taken of this."""
        beside = {"out": True, "max_failure_rate": True, "backend": REACHING}
        return self.model_dump(mode="json", exclude=beside)

    def most_tokens(self, setting: str) -> int:
        """The longest that a completion in a setting can be, tool results not counted."""
        # prompts profiled before are of no setting here, and any may declare tools
        declares = [s.tools for s in self.settings if s.name == setting] != [NO_TOOLS]
        declares |= any(source.format == "environment" for source in self.prompts)  # a row's own
        sampling = self.sampling
        steps = sampling.max_tokens * (sampling.max_turns if declares else 1)
        return min(steps, sampling.max_total_tokens or steps)

    def n_of(self, setting: str) -> int:
        """Completions of each prompt in a setting."""
        return next((s.n for s in self.settings if s.name == setting), None) or self.n


def check_chat(backend: BackendConfig, settings: Sequence[Setting]) -> None:
    """Raises ValueError for settings that a chat endpoint cannot hold."""
    if backend.kind != "chat":
        return
    for setting in settings:
        if setting.reasoning_budget is not None:
            raise ValueError(
                f"setting {setting.name!r}: a chat endpoint cannot hold a reasoning budget; use "
                "kind: completions"
            )
    modes = {setting.thinking for setting in settings}
    if backend.thinking == "fixed" and modes not in (set(), {0.0}, {1.0}):
        raise ValueError(
            "settings use thinking on and off, and backend.thinking: fixed switches neither; name "
            "the server's field, such as backend.thinking: enable_thinking with backend.server: "
            "vllm, or give every setting thinking: 1 (or 0) as the server does"
        )


class ProfileConfig(SampleConfig, stage="profile_prompts"):
    """One profile: samples of every prompt, verified, and the share of them that passes.

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

    def check(self) -> None:
        given = bool(self.prompts), bool(self.settings)
        if given != ((False, False) if self.previous else (True, True)):
            raise ValueError("give either prompts and settings, or previous")
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(f"setting {setting.name!r}: every prompt has n rollouts here")
        for source in self.prompts:
            if source.grader is None:
                raise ValueError(f"source {source.name!r}: nothing verifies it; name a grader")

    def owner_config(self) -> dict[str, Any]:
        """As the parent; neither limits nor how a judge's server is reached decide anything."""
        config = super().owner_config() | {"judge": self.judge and self.judge.identity()}
        del config["max_unscored"]
        return config
