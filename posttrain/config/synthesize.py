"""The recipe of synthesis: `posttrain synthesize`, one block for each kind of data.

The kinds and the conditions that keep a row are from the paper, 3.1.2 and 3.1.3. It gives no
prompts, numbers of turns or yields: all of these are ours.
"""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Field

from posttrain.config.backend import REACHING
from posttrain.config.base import Name, Strict, refuse_twice, refuse_unknown, source
from posttrain.config.eval import Price
from posttrain.config.generation import UNSTATED, choice_line, generation_choice
from posttrain.config.judge import AskedModel
from posttrain.config.load import OR_ONE
from posttrain.config.overlap import DecontaminationConfig
from posttrain.config.prompts import AnySource, Setting, check_prompts
from posttrain.config.sample import ToolLoopSampling, check_chat
from posttrain.config.source import Metadata, RowPlace, SourceConfig

_NEMO_SKILLS = source("NeMo Skills, genselect configs")


class SynthesisModel(AskedModel):
    """A model that writes or checks rows.

    name: name of the model in rows, counts and reports.
    sampling: sampling of its answers, and limits of those with tools.
    structured_output: send a judge's requests with the JSON schema of its labels
        (`response_format`), for chat endpoints that hold an answer to one.
    """

    name: Name
    sampling: ToolLoopSampling = ToolLoopSampling()
    structured_output: bool = False

    def check(self) -> None:
        """Refuse a schema for a backend that takes none."""
        if self.structured_output and self.backend.kind != "chat":
            raise ValueError(
                f"structured_output: backend.kind {self.backend.kind} takes no schema; use chat"
            )

    def identity(self) -> dict[str, Any]:
        """The config without keys that change no answer, for digests."""
        return self.model_dump(mode="json", exclude={"backend": REACHING})


def _as_tuple(value: Any) -> Any:
    if isinstance(value, dict):
        return (value,)
    # values from a validator are checked as Python, in which a strict tuple takes no list
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value


# one model, or several of which a row's keyed hash draws one
Models = Annotated[
    tuple[SynthesisModel, ...], BeforeValidator(_as_tuple), Field(min_length=1), OR_ONE
]


class Kind(Strict):
    """Base of the kinds of data, with the roles that models play and the prompts put to them.

    A prompt is a file of its name in `data_builders/synthesis/prompts/`; `rows_key` is the key of
    the sources of rows, where the kind has such.
    """

    rows_key: ClassVar[str] = "sources"
    roles: ClassVar[tuple[str, ...]]
    optional_roles: ClassVar[frozenset[str]] = frozenset()
    templates: ClassVar[tuple[str, ...]] = ()

    def refuse_idle(self, roles: Collection[str]) -> None:
        """Raise ValueError for a model in `roles`, those that a recipe fills, that is never asked.

        Here every role is asked.
        """


class Rejection(Kind):
    """Prompts with a verifier → chat rows of completions that pass it.

    prompts, settings: as in a sampling recipe; every source has to name a grader.
    n: completions of each prompt, a fixed number: nothing is sampled until it passes.
    most: rows of one prompt at most.
    choose: choice among these completions: a keyed draw, or the shortest.
    keep: completions to choose from: those that are `passing`, or `any`, for a control arm that
        tells what the verifier is worth.
    """

    roles: ClassVar[tuple[str, ...]] = ("generator",)
    kind: Literal["rejection"]
    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    n: int = Field(default=8, ge=1)
    most: int = Field(default=1, ge=1)
    choose: Literal["draw", "shortest"] = "draw"
    keep: Literal["passing", "any"] = "passing"

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(f"setting {setting.name!r}: every prompt has n completions here")
        for prompt_source in self.prompts:
            if prompt_source.grader is None:
                raise ValueError(
                    f"source {prompt_source.name!r}: nothing verifies it; name a grader"
                )
        if self.most > self.n:
            raise ValueError(f"most: {self.most} rows of a prompt with {self.n} completions")


class GenSelect(Kind):
    """Samples with grades → prompts that ask for the best of several, and traces that name one.

    samples: a directory that `sample` wrote, of prompts with graders.
    candidates: completions shown in one prompt; fewer where a prompt has fewer.
    minimum: a prompt with fewer usable completions is dropped.
    instances: prompts made of one question at most, with other candidates or another order.
    longest: characters of all candidates together at most.
    for_evaluation: take the first `candidates` completions of every question, also where all or
        none are right: accuracy on these tasks is select@k, beside majority@k, pass@1 and pass@k.
    """

    roles: ClassVar[tuple[str, ...]] = ("generator",)
    optional_roles: ClassVar[frozenset[str]] = frozenset({"generator"})
    templates: ClassVar[tuple[str, ...]] = ("select_best",)
    kind: Literal["genselect"]
    samples: str
    candidates: int = Field(default=8, ge=2, le=16)
    minimum: int = Field(default=4, ge=2)
    instances: int = Field(default=1, ge=1, le=8, json_schema_extra=_NEMO_SKILLS)
    longest: int = Field(default=100_000, ge=1, json_schema_extra=_NEMO_SKILLS)
    for_evaluation: bool = False

    def check(self) -> None:
        if self.for_evaluation and self.instances > 1:
            raise ValueError("instances: a question of an evaluation has one")
        if self.minimum > self.candidates:
            raise ValueError(
                f"minimum: {self.minimum} is more than the {self.candidates} candidates of a prompt"
            )


class ContinueChat(Kind):
    """Chats → the same chats with more turns, the user's written by a model.

    sources: rows of any dialect, as in a recipe of `build_sft`.
    turns: user turns that are added.
    """

    roles: ClassVar[tuple[str, ...]] = ("user", "generator", "judge")
    optional_roles: ClassVar[frozenset[str]] = frozenset({"judge"})
    templates: ClassVar[tuple[str, ...]] = ("user_turn", "judge_continuation")
    kind: Literal["continue_chat"]
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    turns: int = Field(default=1, ge=1, le=16)

    def check(self) -> None:
        refuse_twice("source", [row_source.name for row_source in self.sources])


class Translate(Kind):
    """Chat rows → the same rows in another language, line by line.

    Code, tags, addresses, formulas and tool calls stay as they are; the numbers of a line too.

    sources: rows of any dialect, as in a recipe of `build_sft`.
    language: ISO 639-1 code of the language to translate to.
    language_name: name of that language in English, for the prompt.
    """

    roles: ClassVar[tuple[str, ...]] = ("translator",)
    templates: ClassVar[tuple[str, ...]] = ("translate_line",)
    kind: Literal["translate"]
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    language: str = Field(pattern="^[a-z]{2}$")
    language_name: str = Field(min_length=1)

    def check(self) -> None:
        refuse_twice("source", [row_source.name for row_source in self.sources])


class PersonaRows(RowPlace):
    """Rows with a description of a person.

    persona: field of the description (a dotted path).
    """

    persona: str = "persona"


class Instructions(Kind):
    """Personas + constraints that code verifies → conversations that keep all of them.

    personas: rows that describe people; a model writes as each of them.
    turns: turns of a conversation at most; a keyed hash draws 1 to so many.
    constraints: constraints of a turn at most.
    only: kinds of constraints (docs/guides/environments.md); empty: all.
    """

    rows_key: ClassVar[str] = "personas"
    roles: ClassVar[tuple[str, ...]] = ("user", "generator", "judge")
    optional_roles: ClassVar[frozenset[str]] = frozenset({"judge"})
    templates: ClassVar[tuple[str, ...]] = ("persona_query", "judge_substance")
    kind: Literal["instructions"]
    personas: tuple[PersonaRows, ...] = Field(min_length=1)
    turns: int = Field(default=3, ge=1, le=8)
    constraints: int = Field(default=2, ge=1)
    only: tuple[str, ...] = ()

    def check(self) -> None:
        refuse_twice("source", [rows.name for rows in self.personas])


class TaskRows(RowPlace):
    """Rows with a question and a right answer, in fields of any name.

    question, answer: fields (dotted paths). An answer may be GSM8K's: calculations in `<<…>>` and
        the number behind `####`. With options it is a letter, a position from 0, or a text.
    options: fields of the options, lettered A, B, … in this order; or one field with a list.
    """

    question: str = "question"
    answer: str = "answer"
    options: tuple[str, ...] = ()


class TaskVariants(Kind):
    """Task rows → tasks of the same idea with other numbers, names, or order of options.

    Each original is written beside its variants, as a task of the same form.

    sources: rows to make variants of.
    variants: variants of each row at most.
    solvers: independent answers to a variant that a model wrote.
    agreement: share of these answers that has to be equal.
    attempts: attempts of the model in the role `reference`, at the original and at the variant,
        whose pass rates may differ by half at most.
    """

    roles: ClassVar[tuple[str, ...]] = ("rewriter", "solver", "reference")
    optional_roles: ClassVar[frozenset[str]] = frozenset(roles)
    templates: ClassVar[tuple[str, ...]] = ("variant_question",)
    kind: Literal["twin"]
    sources: tuple[TaskRows, ...] = Field(min_length=1)
    variants: int = Field(default=1, ge=1, le=16)
    solvers: int = Field(default=3, ge=2)
    agreement: float = Field(default=1.0, gt=0.5, le=1)
    attempts: int = Field(default=8, ge=1)

    def refuse_idle(self, roles: Collection[str]) -> None:
        if ("rewriter" in roles) != ("solver" in roles):
            idle = "rewriter" if "rewriter" in roles else "solver"
            raise ValueError(f"models.{idle} is never asked: rewriter and solver need each other")

    def check(self) -> None:
        refuse_twice("source", [rows.name for rows in self.sources])


class OpenQuestion(Kind):
    """Multiple choice → open questions with a gold answer, with paraphrases of them.

    sources: rows with options.
    attempts: answers of a solver that does not see the options. More of them keep questions that a
        solver seldom answers, and cost more.
    passes: number of these answers that have to be the gold.
    paraphrases: paraphrases of each open question.
    """

    roles: ClassVar[tuple[str, ...]] = ("rewriter", "solver", "judge")
    optional_roles: ClassVar[frozenset[str]] = frozenset({"judge"})
    templates: ClassVar[tuple[str, ...]] = (
        "open_question",
        "paraphrase",
        "judge_intent",
        "judge_equal",
    )
    kind: Literal["open_question"]
    sources: tuple[TaskRows, ...] = Field(min_length=1)
    attempts: int = Field(default=4, ge=1)
    passes: int = Field(default=1, ge=1)
    paraphrases: int = Field(default=0, ge=0, le=8)

    def check(self) -> None:
        refuse_twice("source", [rows.name for rows in self.sources])
        for rows in self.sources:
            if not rows.options:
                raise ValueError(f"source {rows.name!r}: name the fields of its options")
        if self.passes > self.attempts:
            raise ValueError(f"passes: {self.passes} right answers of {self.attempts}")


class RequestRows(RowPlace):
    """Rows with a request that may be harmful.

    request: field of the request's text (a dotted path).
    harmful: field with true or false.
    category: field that names the kind of harm, for its strategy; null: none.
    metadata: fields of the row (dotted paths) to hand to a grader, keyed by their last part.
    """

    request: str = "prompt"
    harmful: str = "harmful"
    category: str | None = None
    metadata: Metadata = ()


class Safety(Kind):
    """Harmful and harmless requests → safe answers, and preference pairs (paper, appendix D).

    Every generator writes candidates for both sides; the pair is drawn among the candidates that a
    judge with a rubric or a grader confirms.

    requests: rows of harmful and of harmless requests.
    grader: grader or environment that classifies in place of a judge: a chosen answer has to pass
        as an answer to the request itself, a rejected one to fail. null: a model as judge.
    strategies: category → the way to answer its harmful requests, such as: name a helpline.
    default_strategy: the way to answer harmful requests of any other category.
    """

    rows_key: ClassVar[str] = "requests"
    roles: ClassVar[tuple[str, ...]] = ("generator", "judge")
    optional_roles: ClassVar[frozenset[str]] = frozenset({"judge"})
    templates: ClassVar[tuple[str, ...]] = (
        "safe_wrapper",
        "harmful_request",
        "refusal_wrapper",
        "judge_safety",
    )
    kind: Literal["safety"]
    requests: tuple[RequestRows, ...] = Field(min_length=1)
    grader: str | None = None
    strategies: dict[str, str] = Field(default_factory=dict)
    default_strategy: str = "Decline in one sentence, say why, and offer a safe alternative."

    def check(self) -> None:
        refuse_twice("source", [rows.name for rows in self.requests])
        for rows in self.requests:
            if rows.metadata and self.grader is None:
                raise ValueError(f"source {rows.name!r}: metadata is for a grader; name one")


class DocumentRows(RowPlace):
    """Rows with a text of any length.

    text: field of the text (a dotted path).
    """

    text: str = "text"


LongFamily = Literal[
    "single_needle",
    "multi_key",
    "multi_value",
    "needles",
    "multi_hop",
    "variables",
    "aggregation",
    "written",
]


class LongDocuments(Kind):
    """Documents → questions that need several of them, at lengths in tokens.

    tokenizer: directory or hub id of the tokenizer that measures.
    documents: texts between the needed documents; none: sentences by code.
    families: one code, one among others, all of one town, several (`needles`); chains to follow,
        variables with a value, amounts to sum, by code; or questions that a `writer` writes, and a
        `solver` answers with all needed documents and not without any one.
    lengths: tokens of all documents together at most; questions take these lengths in turn.
    needed: documents that the answer depends on; one for `single_needle` and `multi_key`.
    filler: sentences that say nothing beside each fact by code, 1 to so many; 0: facts alone.
    count: number of questions.
    answers_by_code: rows of every question with an answer by code, in place of those that a
        generator writes: the sentences that the answer rests on, then the line `Answer:`.
    copy_penalty: a right answer counts less by the share of its 16-word sequences that the
        documents have; false: it may quote them.
    """

    rows_key: ClassVar[str] = "documents"
    roles: ClassVar[tuple[str, ...]] = ("writer", "solver", "generator")
    optional_roles: ClassVar[frozenset[str]] = frozenset(roles)
    templates: ClassVar[tuple[str, ...]] = ("question_of_documents",)
    kind: Literal["long_documents"]
    tokenizer: str
    documents: tuple[DocumentRows, ...] = ()
    families: tuple[LongFamily, ...] = ("needles", "multi_hop", "aggregation")
    lengths: tuple[int, ...] = Field(min_length=1)
    needed: int = Field(default=5, ge=1, le=20)
    filler: int = Field(default=3, ge=0)
    count: int = Field(ge=1)
    answers_by_code: bool = False
    copy_penalty: bool = True

    def check(self) -> None:
        refuse_twice("source", [rows.name for rows in self.documents])
        refuse_twice("families", self.families)
        if self.answers_by_code and "written" in self.families:
            raise ValueError("answers_by_code: no code answers the questions of a writer")
        if "written" in self.families and not self.documents:
            raise ValueError("families: written questions need documents")
        if min(self.lengths) < 100:
            raise ValueError("lengths: fewer than 100 tokens hold no question")
        if "multi_value" in self.families and self.needed == 1:
            raise ValueError("needed: multi_value asks for several codes of a town, at least 2")

    def refuse_idle(self, roles: Collection[str]) -> None:
        if self.answers_by_code and "generator" in roles:
            raise ValueError("answers_by_code: a generator would answer the same; leave one out")
        for role in ("writer", "solver"):
            if role in roles and "written" not in self.families:
                raise ValueError(f"models.{role} is never asked: make.families has no written")


class ScenarioRows(RowPlace):
    """Rows with tools and the wish of a user who needs them.

    scenario: field of the written scenario (a dotted path).
    tools: field of the declared tools, in OpenAI's form.
    system: field of the agent's instructions; null: none.
    """

    scenario: str = "scenario"
    tools: str = "tools"
    system: str | None = None


class ToolConversation(Kind):
    """Tasks with tools → conversations of a user model and an agent model.

    Tools run by code where a task has an environment; else a model in the role `tools` plays them,
    and sees the log of its own answers.

    prompts, settings: tasks of environments with tools, as in a sampling recipe.
    scenarios: tools with a written scenario.
    turns: turns of the user at most.
    steps: model calls of the agent between two turns of the user, at most.
    """

    rows_key: ClassVar[str] = "scenarios"
    roles: ClassVar[tuple[str, ...]] = ("user", "agent", "tools", "judge")
    optional_roles: ClassVar[frozenset[str]] = frozenset({"tools", "judge"})
    templates: ClassVar[tuple[str, ...]] = (
        "user_of_task",
        "tool_result",
        "judge_tool_conversation",
    )
    kind: Literal["tool_conversation"]
    prompts: tuple[AnySource, ...] = ()
    settings: tuple[Setting, ...] = ()
    scenarios: tuple[ScenarioRows, ...] = ()
    turns: int = Field(default=6, ge=1, le=30)
    steps: int = Field(default=8, ge=1, le=30)

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        refuse_twice("source", [rows.name for rows in self.scenarios])
        if bool(self.prompts) != bool(self.settings) or not (self.prompts or self.scenarios):
            raise ValueError("make: give prompts with settings, or scenarios")

    def refuse_idle(self, roles: Collection[str]) -> None:
        if "tools" in roles and not self.scenarios:
            raise ValueError(
                "models.tools is never asked: tools of make.prompts run by code, and there are no "
                "make.scenarios"
            )


AnyKind = Annotated[
    Rejection
    | GenSelect
    | ContinueChat
    | Translate
    | Instructions
    | TaskVariants
    | OpenQuestion
    | Safety
    | LongDocuments
    | ToolConversation,
    Field(discriminator="kind"),
]


class Checks(Strict):
    """Checks of every kind, and tests of the checks that decide which rows are kept.

    planted: finished rows that are spoiled in one answer, and have to be dropped.
    language: drop answers in another language than their request (`other_language`), unless it
        names a language; needs the extra `language`.
    """

    planted: int = Field(default=20, ge=0)
    language: bool = True


class SynthesizeConfig(Strict, stage="synthesize"):
    """One set of synthetic rows.

    make: kind of data to make, and the rows to make it from.
    models: role → model, or a list of which a keyed hash of the row draws one.
    templates: name of a prompt → a file, or the text itself with its marks such as `{{request}}`,
        in place of the prompt that comes with the kind.
    prices: name of a model → its prices, for the costs of the run.
    decontamination: evaluation items; seeds that overlap them are dropped before any request.
    checks: planted bad rows that show what the checks are worth.
    limit: seeds at most, in their order; null: all.
    max_failure_rate: largest share of a round's completions that a backend may have given up on.
    """

    out: str
    make: AnyKind
    models: dict[Name, Models] = Field(default_factory=dict)
    templates: dict[Name, str] = Field(default_factory=dict)
    prices: dict[Name, Price] = Field(default_factory=dict)
    decontamination: DecontaminationConfig | None = None
    checks: Checks = Checks()
    limit: int | None = Field(default=None, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0)

    def check(self) -> None:
        kind = self.make.kind
        roles = self.make.roles
        for role in self.models:
            if role not in roles:
                raise ValueError(f"models: {kind} has no role {role!r}, only {', '.join(roles)}")
        required = [role for role in roles if role not in self.make.optional_roles]
        missing = [role for role in required if role not in self.models]
        if missing:
            raise ValueError(f"models: {kind} needs a model as {', '.join(missing)}")
        self.make.refuse_idle(self.models)
        if isinstance(self.make, Safety) and (self.make.grader is None) != ("judge" in self.models):
            raise ValueError("safety: give either make.grader or a model as judge")
        model_names: list[str] = []
        for models in self.models.values():
            model_names += [model.name for model in models]
        refuse_unknown("prices: there is no model", self.prices, model_names)
        for role, models in self.models.items():
            refuse_twice(f"models.{role}", [model.name for model in models])
            for model in models:
                if isinstance(self.make, Rejection):
                    check_chat(model.backend, self.make.settings)
                if model.structured_output and role != "judge":
                    raise ValueError(
                        f"models.{role}.structured_output: only a judge's answers have a schema"
                    )

    def with_choices(self) -> tuple[Self, list[str]]:
        """Fill in every sampling value that the recipe leaves to a model's generation config.

        Returns:
            The filled recipe, and a line for each model that says where its values come from.

        Raises:
            ConfigError: as `generation_choice`.
        """
        models_by_role: dict[str, Models] = {}
        lines: list[str] = []
        for role, models in self.models.items():
            filled_models: list[SynthesisModel] = []
            for model in models:
                tokenizer = getattr(model.backend, "tokenizer", None)
                stated = generation_choice(model.checkpoint or tokenizer)
                lines.append(f"{role} {model.name}: {choice_line(model.sampling, stated)}")
                sampling = model.sampling.filled(UNSTATED | stated.chosen())
                filled_models.append(model.model_copy(update={"sampling": sampling}))
            models_by_role[role] = tuple(filled_models)
        return self.model_copy(update={"models": models_by_role}), lines

    def owner_config(self) -> dict[str, Any]:
        """The config without keys that change no row, for the output directory's digest.

        Templates count by their content, which the caller adds.
        """
        excluded = {"out", "max_failure_rate", "models", "templates", "prices"}
        config = self.model_dump(mode="json", exclude=excluded)
        config["models"] = {}
        for role, models in self.models.items():
            config["models"][role] = [model.identity() for model in models]
        return config
