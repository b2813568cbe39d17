"""Blocks `judge:`, `pairing:` and `length:` of the RLHF recipe.

Sampling and retries are those of NVIDIA's public code (nemotron-3-nano reference, `genrm_compare`).
"""

from typing import Any, Literal

from pydantic import Field

from posttrain.config.backend import REACHING, BackendConfig, check_checkpoint
from posttrain.config.base import Strict, source
from posttrain.rollouts import Parameters

_REFERENCE = source("NVIDIA's genrm_compare")
_PAPER = source("paper, 3.3.2")
LayoutName = Literal["auto", "roles", "message", "compact"]


class JudgeSampling(Strict):
    """Sampling of a judgement.

    temperature: 0 is greedy.
    top_p: probability mass of the likeliest tokens to sample from.
    top_k: number of the likeliest tokens to sample from; 0 keeps all.
    max_tokens: tokens of a judgement, reasoning included; one that reaches them has failed.
    """

    temperature: float = Field(default=0.6, ge=0, json_schema_extra=_REFERENCE)
    top_p: float = Field(default=0.95, gt=0, le=1, json_schema_extra=_REFERENCE)
    top_k: int = Field(default=0, ge=0)
    max_tokens: int = Field(default=16384, ge=1, json_schema_extra=_REFERENCE)

    def parameters(self) -> Parameters:
        """The sampling parameters that a sampler takes."""
        return Parameters(**self.model_dump())


class AskedModel(Strict):
    """A model beside the one that is trained or evaluated.

    backend: backend that the model runs on.
    checkpoint: a directory or hub id; with a server, what it serves, for its tokenizer.
    thinking: reason before answering.
    """

    backend: BackendConfig
    checkpoint: str | None = None
    thinking: bool = True

    def check(self) -> None:
        """Refuse a backend that needs a checkpoint and has none."""
        check_checkpoint(self.backend, self.checkpoint, "checkpoint")


class JudgeModel(AskedModel):
    """One model that judges.

    layout: layout of the judging prompt; `auto` is `roles` where the model's template knows the
        roles of the released GenRM, else `message`; a chat endpoint needs a name.
    """

    layout: LayoutName = "auto"

    def check(self) -> None:
        """Refuse the layout `auto` with a chat endpoint."""
        if self.backend.kind == "chat" and self.layout == "auto":
            raise ValueError(
                "a chat endpoint hides its template: set layout to roles for the released GenRM, "
                "which knows response_1 and response_2, to message for any other"
            )


class LabelJudgeConfig(AskedModel):
    """Judge model of the environments that grade by no rule: equivalence, rubrics.

    retries: further requests, with new seeds, if a label cannot be read.
    """

    sampling: JudgeSampling = JudgeSampling()
    retries: int = Field(default=3, ge=0, json_schema_extra=_REFERENCE)

    def model(self) -> JudgeModel:
        """The same model as a judge with the layout `message`."""
        shared = {name: getattr(self, name) for name in AskedModel.model_fields}
        return JudgeModel(**shared, layout="message")

    def identity(self) -> dict[str, Any]:
        """The config without keys that change no label, for digests."""
        return self.model_dump(mode="json", exclude={"backend": REACHING})


class JudgeConfig(Strict):
    """Judge models, and the treatment of failed judgements.

    models: each votes on every match, and the verdicts that come are averaged field by field; the
        same model twice votes twice, with other seeds.
    principle: principle to judge by where a prompt's metadata has none; null: the layout's words.
    retries: further judgements, with new seeds, of a match whose judgement cannot be read.
    max_failure_rate: largest share of a step's matches that may be left without any verdict.
    max_characters: longest judging prompt; a longer one counts as failed; null: no limit.
    cache: folder of verdicts that steps and runs share, so that a run depends on its content; null:
        verdicts stay in `out` until the run is finished, and every step judges anew.
    """

    models: tuple[JudgeModel, ...] = Field(min_length=1)
    principle: str | None = None
    sampling: JudgeSampling = JudgeSampling()
    retries: int = Field(default=3, ge=0, json_schema_extra=_REFERENCE)
    max_failure_rate: float = Field(default=0.2, ge=0, lt=1)
    max_characters: int | None = Field(default=None, ge=1)
    cache: str | None = None

    def owner_config(self) -> dict[str, Any]:
        """The config without keys that change no verdict, for the digest of an output directory."""
        excluded = {
            "models": {"__all__": {"backend": REACHING}},
            "max_failure_rate": True,
            "cache": True,
        }
        return self.model_dump(mode="json", exclude=excluded)


class PairingConfig(Strict):
    """Choice of the pairs of rollouts to compare.

    strategy: `circular`, each rollout with its successor, N judgements (paper); `both_orders`,
        those in both orders, 2N; `all_pairs`, N(N − 1)/2.
    """

    strategy: Literal["circular", "both_orders", "all_pairs"] = "circular"


class LengthConfig(Strict):
    """Length's part of the reward, beside the base reward. The paper's values; 0 turns a part off.

    reasoning_coefficient, answer_coefficient: coefficient of the zero-sum adjustment by length
        inside a group.
    reasoning_bonus, answer_bonus: bonus of the shortest, if its base reward is good enough.
    quality_percentile: percentile of the group's base rewards that a bonus requires.
    unit: lengths in tokens, or in characters without surrounding white space (NVIDIA's code).
    """

    reasoning_coefficient: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    answer_coefficient: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    reasoning_bonus: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    answer_bonus: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    quality_percentile: float = Field(default=80.0, ge=0, le=100, json_schema_extra=_PAPER)
    unit: Literal["tokens", "characters"] = "tokens"
