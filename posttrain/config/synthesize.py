"""The recipe of synthesis: `posttrain synthesize`, one block for each kind of data.

Kinds and what keeps a row: the paper, 3.1.2 and 3.1.3; NVIDIA publishes no prompts, numbers of
turns or yields, so that all of these are ours.
"""

from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Field

from posttrain.config.backend import REACHING
from posttrain.config.base import Name, Strict, refuse, refuse_twice, refuse_unknown, source
from posttrain.config.eval import Price
from posttrain.config.generation import UNSTATED, choice_line, generation_choice
from posttrain.config.judge import AskedModel
from posttrain.config.overlap import DecontaminationConfig
from posttrain.config.prompts import AnySource, Setting, check_prompts
from posttrain.config.sample import ToolLoopSampling, check_chat
from posttrain.config.source import SourceConfig

_NEMO_SKILLS = source("NeMo Skills, genselect configs")


class SynthesisModel(AskedModel):
    """A model that writes or checks rows.

    name: what rows, counts and reports call it.
    sampling: how each of its answers is sampled, and how far one with tools may go.
    """

    name: Name
    sampling: ToolLoopSampling = ToolLoopSampling()

    def identity(self) -> dict[str, Any]:
        """What decides its answers."""
        return self.model_dump(mode="json", exclude={"backend": REACHING})


def _several(value: Any) -> Any:
    # a validator hands Python values on, and of these a strict tuple takes no list
    if isinstance(value, dict):
        return (value,)
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value


# one model, or several of which a row's keyed hash draws one
Models = Annotated[tuple[SynthesisModel, ...], BeforeValidator(_several), Field(min_length=1)]


class Kind(Strict):
    """What each kind has: the roles that models play in it, and the prompts that it puts to them.

    A prompt is a file of its name in `data_builders/synthesis/prompts/`.
    """

    roles: ClassVar[tuple[str, ...]]
    optional_roles: ClassVar[frozenset[str]] = frozenset()
    templates: ClassVar[tuple[str, ...]] = ()


class Rejection(Kind):
    """Prompts with a verifier → chat rows of completions that pass it.

    prompts, settings: as in a sampling recipe; every source has to name a grader.
    n: completions of each prompt, a fixed number: nothing is sampled until it passes.
    most: rows of one prompt.
    choose: which of those that pass: a keyed draw, or the shortest.
    """

    roles: ClassVar[tuple[str, ...]] = ("generator",)
    kind: Literal["rejection"]
    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    n: int = Field(default=8, ge=1)
    most: int = Field(default=1, ge=1)
    choose: Literal["draw", "shortest"] = "draw"

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(f"setting {setting.name!r}: every prompt has n completions here")
        for prompt_source in self.prompts:
            where = f"source {prompt_source.name!r}"
            refuse(where, {"nothing verifies it; name a grader": prompt_source.grader is None})
        refuse("most", {
            f"{self.most} rows of a prompt with {self.n} completions": self.most > self.n,
        })  # fmt: skip


class GenSelect(Kind):
    """Samples with grades → prompts that ask for the best of several, and traces that name one.

    samples: a directory that `sample` wrote, of prompts with graders.
    candidates: completions shown in one prompt; fewer where a prompt has fewer.
    minimum: a prompt with fewer usable completions is dropped.
    instances: prompts made of one question at most, with other candidates or another order.
    longest: characters of all candidates together.
    """

    roles: ClassVar[tuple[str, ...]] = ("generator",)
    templates: ClassVar[tuple[str, ...]] = ("select_best",)
    kind: Literal["genselect"]
    samples: str
    candidates: int = Field(default=8, ge=2, le=16)
    minimum: int = Field(default=4, ge=2)
    instances: int = Field(default=1, ge=1, le=8, json_schema_extra=_NEMO_SKILLS)
    longest: int = Field(default=100_000, ge=1, json_schema_extra=_NEMO_SKILLS)

    def check(self) -> None:
        refuse("minimum", {
            f"{self.minimum} is more than the {self.candidates} candidates of a prompt":
                self.minimum > self.candidates,
        })  # fmt: skip


class ContinueChat(Kind):
    """Chats → the same chats with more turns, the user's written by a model.

    sources: rows of any dialect, as in a recipe of `build_sft`.
    turns: user turns that are added.
    longest: characters of an added turn.
    """

    roles: ClassVar[tuple[str, ...]] = ("user", "generator", "judge")
    optional_roles: ClassVar[frozenset[str]] = frozenset({"judge"})
    templates: ClassVar[tuple[str, ...]] = ("user_turn", "judge_continuation")
    kind: Literal["continue_chat"]
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    turns: int = Field(default=1, ge=1, le=16)
    longest: int = Field(default=20_000, ge=1)

    def check(self) -> None:
        refuse_twice("source", [row_source.name for row_source in self.sources])


class Translate(Kind):
    """Chat rows → the same rows in another language, line by line.

    Code, tags, addresses, formulas and tool calls stay as they are; the numbers of a line too.

    sources: rows of any dialect, as in a recipe of `build_sft`.
    language: ISO 639-1 code of the language that is translated to.
    language_name: its name in English, for the prompt.
    confidence: another language drops a row from this probability on.
    letters: a row with fewer letters, code and numbers apart, is not identified.
    """

    roles: ClassVar[tuple[str, ...]] = ("translator",)
    templates: ClassVar[tuple[str, ...]] = ("translate_line",)
    kind: Literal["translate"]
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    language: str = Field(pattern="^[a-z]{2}$")
    language_name: str = Field(min_length=1)
    confidence: float = Field(default=0.9, gt=0, le=1)
    letters: int = Field(default=80, ge=20)

    def check(self) -> None:
        refuse_twice("source", [row_source.name for row_source in self.sources])


AnyKind = Annotated[Rejection | GenSelect | ContinueChat | Translate, Field(discriminator="kind")]


class Checks(Strict):
    """How the checks themselves are checked.

    planted: finished rows that are spoiled in one place and checked again; they must be dropped.
    """

    planted: int = Field(default=20, ge=0)


class SynthesizeConfig(Strict, stage="synthesize"):
    """One set of synthetic rows.

    make: what is made, and from which rows.
    models: by the role that they play, one or a list of which a keyed hash of the row draws one.
    templates: files in place of the prompts that come with a kind, by the prompt's name.
    checks: rows that are spoiled on purpose, to see that the checks drop them.
    prices: of models by their names, for what the run costs.
    decontamination: seeds that overlap evaluation items are dropped before anything is requested.
    limit: seeds at most, in their order; null: all.
    chunk: in process, completions that are kept together; a killed run makes at most so many again.
    max_failure_rate: largest share of a round's completions that a backend may have given up on.
    """

    out: str
    make: AnyKind
    models: dict[Name, Models]
    templates: dict[Name, str] = Field(default_factory=dict)
    checks: Checks = Checks()
    prices: dict[Name, Price] = Field(default_factory=dict)
    decontamination: DecontaminationConfig | None = None
    limit: int | None = Field(default=None, ge=1)
    chunk: int = Field(default=1024, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0)

    def check(self) -> None:
        kind = self.make.kind
        roles = self.make.roles
        listed = ", ".join(roles)
        for role in self.models:
            refuse("models", {f"{kind} has no role {role!r}, only {listed}": role not in roles})
        required = [role for role in roles if role not in self.make.optional_roles]
        missing = [role for role in required if role not in self.models]
        refuse("models", {f"{kind} needs a model as {', '.join(missing)}": missing})
        names = [model.name for models in self.models.values() for model in models]
        refuse_unknown("prices: there is no model", self.prices, names)
        for role, models in self.models.items():
            refuse_twice(f"models.{role}", [model.name for model in models])
            for model in models:
                if isinstance(self.make, Rejection):
                    check_chat(model.backend, self.make.settings)

    def with_choices(self) -> tuple[Self, list[str]]:
        """The recipe with all values that tokens are chosen by, and where each comes from.

        Raises:
            ConfigError: as `generation_choice`.
        """
        models: dict[str, Models] = {}
        lines: list[str] = []
        for role, several in self.models.items():
            filled_models: list[SynthesisModel] = []
            for model in several:
                tokenizer = getattr(model.backend, "tokenizer", None)
                stated = generation_choice(model.checkpoint or tokenizer)
                lines.append(f"{role} {model.name}: {choice_line(model.sampling, stated)}")
                chosen = model.sampling.filled(UNSTATED | stated.chosen())
                filled_models.append(model.model_copy(update={"sampling": chosen}))
            models[role] = tuple(filled_models)
        return self.model_copy(update={"models": models}), lines

    def owner_config(self) -> dict[str, Any]:
        """What the rows depend on: the digest of the output directory is taken of this."""
        beside = {"out", "max_failure_rate", "models", "templates", "prices"}
        models = {
            role: [model.identity() for model in models] for role, models in self.models.items()
        }
        return self.model_dump(mode="json", exclude=beside) | {"models": models}
