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
    """Sampling of each step.

    max_tokens: tokens of one step at most, reasoning included.
    """

    max_tokens: int = Field(default=1024, ge=1)

    def parameters(self) -> Parameters:
        """The sampling parameters that a sampler takes."""
        return Parameters(max_tokens=self.max_tokens, **self.chosen())


class ToolLoopSampling(SamplingConfig):
    """Sampling of a completion, and limits of one with tools.

    max_turns: steps of a completion at most; a call in the last one is not run.
    max_total_tokens: tokens that the model may write in all steps together; null: no such limit.
    tools_at_once: completions whose calls run at the same time.
    """

    max_turns: int = Field(default=8, ge=1)
    max_total_tokens: int | None = Field(default=None, ge=1)
    tools_at_once: int = Field(default=4, ge=1)

    def limits(self) -> RolloutLimits:
        """The limits that a rollout takes."""
        return RolloutLimits(
            self.parameters(), self.max_turns, self.max_total_tokens, self.tools_at_once
        )


class SampleConfig(Strict, stage="sample"):
    """One set of samples.

    checkpoint: a directory; with a server, what it serves (optional: for tokenizer and lineage).
    n: completions of each prompt.
    chunk: completions saved together where the model runs in process; a killed run repeats at most
        so many.
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
        """Fill in every sampling value that the recipe leaves to the model's generation config.

        Returns:
            The filled recipe, and a line that says where each value comes from.

        Raises:
            ConfigError: as `generation_choice`.
        """
        model = generation_choice(self.checkpoint or getattr(self.backend, "tokenizer", None))
        line = f"sampling: {choice_line(self.sampling, model)}"
        filled = self.sampling.filled(UNSTATED | model.chosen())
        return self.model_copy(update={"sampling": filled}), line

    def owner_config(self) -> dict[str, Any]:
        """The config without keys that change no sample, for the output directory's digest."""
        excluded = {"out": True, "max_failure_rate": True, "backend": REACHING}
        return self.model_dump(mode="json", exclude=excluded)

    def most_tokens(self, setting: str) -> int:
        """Largest number of tokens of a completion in a setting, tool results not counted."""
        # prompts of an earlier profile have a setting that is not in this recipe: they may declare
        # tools
        toolkits = [s.tools for s in self.settings if s.name == setting]
        rows_bring_tools = any(source.format == "environment" for source in self.prompts)
        has_tools = toolkits != [NO_TOOLS] or rows_bring_tools
        sampling = self.sampling
        tokens = sampling.max_tokens * (sampling.max_turns if has_tools else 1)
        return min(tokens, sampling.max_total_tokens or tokens)

    def n_of(self, setting: str) -> int:
        """Completions of each prompt in a setting."""
        return next((s.n for s in self.settings if s.name == setting), None) or self.n


def check_chat(backend: BackendConfig, settings: Sequence[Setting]) -> None:
    """Raise ValueError for a setting that a chat endpoint cannot honour."""
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
    judge: judge model of the environments that need one.
    decontamination: evaluation items; prompts that overlap them are dropped before sampling.
    drop_unsolved: drop prompts that no rollout passes.
    max_unscored: largest share of the rollouts that verifiers may leave without a score.
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
        has_new_prompts = not self.previous
        if bool(self.prompts) != has_new_prompts or bool(self.settings) != has_new_prompts:
            raise ValueError("give either prompts and settings, or previous")
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(f"setting {setting.name!r}: every prompt has n rollouts here")
        for source in self.prompts:
            if source.grader is None:
                raise ValueError(f"source {source.name!r}: nothing verifies it; name a grader")

    def owner_config(self) -> dict[str, Any]:
        """The config without keys that change no sample, for the output directory's digest."""
        config = super().owner_config() | {"judge": self.judge and self.judge.identity()}
        del config["max_unscored"]
        return config
