"""Where prompts come from and in which settings they are asked, for sampling and evaluation."""

import re
from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.base import Name, Strict, refuse, refuse_twice, refuse_unknown
from posttrain.config.source import DialectName, FieldName, Metadata, RowPlace, SourceConfig, Where
from posttrain.config.templates import (
    OPTION_LETTERS,
    PLACEHOLDER,
    AugmentConfig,
    PromptTemplate,
    Templates,
    check_templates,
)
from posttrain.records import Role

NO_TOOLS, GIVEN_TOOLS = "none", "given"

OPEN_TEMPLATE = "{question}\n\nGive the final answer, and nothing but the answer, inside \\boxed{}."
CHOICE_TEMPLATE = (
    "{question}\n\n{options}\n\nGive the letter of the right option, and nothing but the letter, "
    "inside \\boxed{}."
)


class PromptSource(RowPlace):
    """What every source of prompts has.

    count: how many rows to take, chosen by a keyed hash of their content; null takes all.
    environment: the toolkit that runs calls of a row's own tools; null: a call ends the completion.
    metadata: fields of the row (dotted paths) to hand to graders, keyed by their last part.
    obtain: where the rows come from, shown where they are missing.
    templates: for evaluation: every question is asked in each template of a set or a file.
    augment: for training: some questions are asked in one template.
    """

    name: Name
    count: int | None = Field(default=None, ge=1)
    environment: str | None = None
    metadata: Metadata = ()
    obtain: str | None = None
    templates: Templates | None = None
    augment: AugmentConfig | None = None

    @property
    def any_templates(self) -> tuple[PromptTemplate, ...]:
        """Those that questions may be asked in, in place of the source's own text."""
        return self.templates or (self.augment.templates if self.augment else ())

    def check(self) -> None:
        where = f"source {self.name!r}"
        if self.templates is not None and self.augment is not None:
            raise ValueError(f"{where}: give templates or augment, not both")
        check_templates(
            where,
            self.any_templates,
            options=bool(getattr(self, "options", ())),
            own_format=isinstance(self, EnvironmentPrompts),
        )

    def rows(self) -> SourceConfig:
        """The same place as a source of rows, with how its rows are read."""
        shared = SourceConfig.model_fields.keys() & type(self).model_fields.keys()
        return SourceConfig(**{key: getattr(self, key) for key in shared})


class TinyWorldPrompts(PromptSource):
    """Rows of the tiny world, of either split; its own grader and its own tools by default."""

    format: Literal["tiny_world"]
    environment: str | None = "tiny_world"
    grader: str | None = "tiny_world"


class QuestionPrompts(PromptSource):
    """Rows with a question and a right answer, in fields of any name.

    question, gold: fields (dotted paths); gold null: its grader reads metadata alone.
    gold_pattern: a regular expression; the first group of its last match in the gold field counts,
        e.g. the number behind GSM8K's `####`.
    options: fields of the options, lettered A, B, … in this order; or one field with a list. The
        gold is then the right option's letter, its position from 0, or its text.
    shuffle: put each question's options in an order of its own, by a keyed hash.
    template: the user message, with places as in prompt templates; null asks for a box.
    system: a system message before it.
    """

    format: Literal["question"]
    question: str = "question"
    gold: str | None = "answer"
    gold_pattern: str | None = None
    options: tuple[str, ...] = ()
    shuffle: bool = False
    template: str | None = None
    system: str | None = None
    grader: str | None

    @property
    def text(self) -> str:
        """The template in force."""
        return self.template or (CHOICE_TEMPLATE if self.options else OPEN_TEMPLATE)

    def check(self) -> None:
        where, named = f"source {self.name!r}", set(PLACEHOLDER.findall(self.text))
        try:
            groups = re.compile("()" if self.gold_pattern is None else self.gold_pattern).groups
        except re.error as error:
            raise ValueError(f"{where}: gold_pattern: {error}") from None
        refuse(where, {
            "give template or templates, not both": self.template is not None and self.templates,
            "its template has no {question}": "question" not in named,
            "its template shows no options": self.options and len(named) == 1,
            "there are no options to show or shuffle":
                not self.options and (len(named) > 1 or self.shuffle),
            "options and gold_pattern need a gold field":
                self.gold is None and (self.options or self.gold_pattern),
            "more options than letters": len(self.options) > len(OPTION_LETTERS),
            "gold_pattern has no group in parentheses": groups < 1,
        })  # fmt: skip


class ChatPrompts(PromptSource):
    """Conversations of any dialect of training rows, cut behind their last user turn.

    dialect, fields, roles, prefilled_think: as for a source of training rows.
    gold: field of the right answer (a dotted path); null: there is none.
    """

    format: Literal["chat"]
    dialect: DialectName | None = None
    fields: dict[FieldName, str] = Field(default_factory=dict[FieldName, str])
    roles: dict[str, Role] = Field(default_factory=dict[str, Role])
    prefilled_think: bool = False
    gold: str | None = None
    grader: str | None = None

    def check(self) -> None:
        if self.grader is not None and self.gold is None:
            raise ValueError(f"source {self.name!r}: a grader needs the field of the gold answer")


class EnvironmentPrompts(PromptSource):
    """Rows of one RLVR environment, which grades them too; a row's own tools are always declared.

    environment: its name (docs/guides/environments.md has them, and their rows), the name of an
        entry point, or `module:Class`.
    server: NeMo Gym's resources server of rows that name none; null: any of this environment.
    server_url: of `gym_http`: where that server runs, e.g. http://127.0.0.1:8001.
    match: of `structured_output` rows without right values: `content`, they come from the document;
        `schema_only`, any that fit the schema, as in NVIDIA's; null: as the row says.
    generated: a seed, in place of a path: the environment itself makes `count` rows from it.
    """

    format: Literal["environment"]
    environment: str  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]  # required here
    grader: Literal["environment"] = "environment"
    server: str | None = None
    server_url: str | None = None
    match: Literal["content", "schema_only"] | None = None
    generated: int | None = Field(default=None, ge=0)

    def check(self) -> None:
        super().check()
        over_http = self.environment == "gym_http"
        refuse(f"source {self.name!r}", {
            "environment gym_http needs server_url, the address of the running server":
                over_http and self.server_url is None,
            "match is for environment structured_output":
                self.match is not None and self.environment != "structured_output",
            "server_url is for environment gym_http": self.server_url and not over_http,
            "server says how rows are read here, and gym_http leaves them to its server":
                over_http and self.server,
        })  # fmt: skip

    def rows(self) -> SourceConfig:
        """The same place; the one of generated rows is no file."""
        if self.generated is None:
            return super().rows()
        path = f"{self.environment}, seed {self.generated}"
        return SourceConfig(name=self.name, path=path, where=self.where, metadata=self.metadata)

    def check_place(self) -> None:
        if self.generated is None:
            super().check_place()
        elif self.path is not None or self.hub is not None or self.count is None:
            raise ValueError(f"source {self.name!r}: generated rows need a count, and no place")


AnySource = Annotated[
    TinyWorldPrompts | QuestionPrompts | ChatPrompts | EnvironmentPrompts,
    Field(discriminator="format"),
]


class Setting(Strict):
    """One way in which prompts are asked.

    tools: `none` declares none; `given` those of the row itself, and rows without are left out; any
        other word is a toolkit, declared and run.
    thinking: share of prompts asked with reasoning on, by a keyed hash; `both` asks each twice.
    reasoning_budget: tokens of reasoning in each step with reasoning on; null: no budget.
    sources: names of the sources asked in this setting; null: all.
    where: only rows that meet these conditions.
    n: completions of each prompt, instead of the recipe's.
    """

    name: Name
    tools: str = NO_TOOLS
    thinking: Annotated[float, Field(ge=0, le=1)] | Literal["both"] = 1.0
    reasoning_budget: int | None = Field(default=None, ge=1)
    sources: tuple[str, ...] | None = None
    where: Where | None = None
    n: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        if self.reasoning_budget is not None and self.thinking == 0:
            raise ValueError(f"setting {self.name!r}: a reasoning budget, but reasoning is off")


def check_prompts(sources: tuple[PromptSource, ...], settings: tuple[Setting, ...]) -> None:
    """Raises ValueError for names that stand twice or that no source has."""
    names = [source.name for source in sources]
    refuse_twice("source", names)
    refuse_twice("setting", [setting.name for setting in settings])
    for setting in settings:
        what = f"setting {setting.name!r}: there is no source"
        refuse_unknown(what, setting.sources or (), names)
