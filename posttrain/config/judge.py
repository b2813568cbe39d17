"""How rollouts are judged: the blocks `judge:`, `pairing:` and `length:` of the RLHF recipe.

Sampling and retries are those of NVIDIA's public code (nemotron-3-nano reference, `genrm_compare`).
"""

from typing import Any, Literal

from pydantic import Field

from posttrain.config.backend import REACHING, BackendConfig, check_checkpoint
from posttrain.config.base import Strict, source
from posttrain.rollouts import Parameters

_REFERENCE, _PAPER = source("NVIDIA's genrm_compare"), source("paper, 3.3.2")
LayoutName = Literal["auto", "roles", "message", "compact"]


class JudgeSampling(Strict):
    """How a judgement is sampled; one that runs to `max_tokens` has failed.

    temperature: 0 is greedy.
    top_p: the tokens that share so much of the probability.
    top_k: 0 keeps all.
    max_tokens: of one step, reasoning included.
    """

    temperature: float = Field(default=0.6, ge=0, json_schema_extra=_REFERENCE)
    top_p: float = Field(default=0.95, gt=0, le=1, json_schema_extra=_REFERENCE)
    top_k: int = Field(default=0, ge=0)
    max_tokens: int = Field(default=16384, ge=1, json_schema_extra=_REFERENCE)

    def parameters(self) -> Parameters:
        """As samplers take them."""
        return Parameters(**self.model_dump())


class AskedModel(Strict):
    """A model beside the one that is trained or evaluated.

    backend: what it runs on.
    checkpoint: a directory or hub id; with a server, what it serves, for its tokenizer.
    thinking: whether it reasons before it answers.
    """

    backend: BackendConfig
    checkpoint: str | None = None
    thinking: bool = True

    def check(self) -> None:
        check_checkpoint(self.backend, self.checkpoint, "checkpoint")


class JudgeModel(AskedModel):
    """One model that judges.

    layout: how it is asked; `auto` is `roles` where its template knows the roles of the released
        GenRM, else `message`; a chat endpoint needs a name.
    """

    layout: LayoutName = "auto"

    def check(self) -> None:
        if self.backend.kind == "chat" and self.layout == "auto":
            raise ValueError(
                "a chat endpoint hides its template: set layout to roles for the released GenRM, "
                "which knows response_1 and response_2, to message for any other"
            )


class LabelJudgeConfig(AskedModel):
    """The model that environments without a rule of their own ask: equivalence, rubrics.

    retries: further questions, with new seeds, where a label cannot be read.
    """

    sampling: JudgeSampling = JudgeSampling()
    retries: int = Field(default=3, ge=0, json_schema_extra=_REFERENCE)

    def model(self) -> JudgeModel:
        """As judges are opened."""
        shared = {name: getattr(self, name) for name in AskedModel.model_fields}
        return JudgeModel(**shared, layout="message")

    def identity(self) -> dict[str, Any]:
        """What decides its labels."""
        return self.model_dump(mode="json", exclude={"backend": REACHING})


class JudgeConfig(Strict):
    """Who judges, and what becomes of judgements that fail.

    models: each votes on every match, and the verdicts that come are averaged field by field; the
        same model twice votes twice, with other seeds.
    principle: what to judge by where a prompt's metadata has none; null: the layout's own words.
    retries: further judgements, with new seeds, of a match whose judgement cannot be read.
    max_failure_rate: largest share of a step's matches that may be left without any verdict.
    max_characters: a longer judging prompt is not asked and has failed; null: no limit.
    chunk: in process, matches that are kept together; a killed run judges at most so many again.
    cache: a folder of verdicts that steps and runs share, so that a run depends on what is there;
        null: kept in `out` until the run is finished, and every step asks anew.
    """

    models: tuple[JudgeModel, ...] = Field(min_length=1)
    principle: str | None = None
    sampling: JudgeSampling = JudgeSampling()
    retries: int = Field(default=3, ge=0, json_schema_extra=_REFERENCE)
    max_failure_rate: float = Field(default=0.2, ge=0, lt=1)
    max_characters: int | None = Field(default=None, ge=1)
    chunk: int = Field(default=1024, ge=1)
    cache: str | None = None

    def owner_config(self) -> dict[str, Any]:
        """What the verdicts depend on: the digest of an output directory is taken of this."""
        how = {"models": {"__all__": {"backend": REACHING}}, "max_failure_rate": True}
        return self.model_dump(mode="json", exclude={**how, "cache": True})


class PairingConfig(Strict):
    """Who is compared with whom.

    strategy: `circular`, each rollout with its successor, N judgements (paper); `both_orders`,
        those in both orders, 2N; `all_pairs`, N(N − 1)/2.
    """

    strategy: Literal["circular", "both_orders", "all_pairs"] = "circular"


class LengthConfig(Strict):
    """What length adds to the base reward. The paper's values; 0 turns a part off.

    reasoning_coefficient, answer_coefficient: of the zero-sum adjustment inside a group.
    reasoning_bonus, answer_bonus: for the shortest, if its base reward is good enough.
    quality_percentile: of the group's base rewards, from which it is.
    unit: lengths in tokens, or in characters without surrounding white space (NVIDIA's code).
    style_coefficient: of the zero-sum adjustment by markup density; not in Nano's paper.
    absolute_penalty: for each 100 units of reasoning and answer, in any group; not in the paper.
    """

    reasoning_coefficient: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    answer_coefficient: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    reasoning_bonus: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    answer_bonus: float = Field(default=0.5, ge=0, json_schema_extra=_PAPER)
    quality_percentile: float = Field(default=80.0, ge=0, le=100, json_schema_extra=_PAPER)
    unit: Literal["tokens", "characters"] = "tokens"
    style_coefficient: float = Field(default=0.0, ge=0)
    absolute_penalty: float = Field(default=0.0, ge=0)
