"""Sources of prompts and the settings that they are asked in, for sampling and evaluation."""

import re
from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.base import Name, Strict, refuse_twice, refuse_unknown
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

NO_TOOLS = "none"
GIVEN_TOOLS = "given"

OPEN_TEMPLATE = "{question}\n\nGive the final answer, and nothing but the answer, inside \\boxed{}."
CHOICE_TEMPLATE = (
    "{question}\n\n{options}\n\nGive the letter of the right option, and nothing but the letter, "
    "inside \\boxed{}."
)


class PromptSource(RowPlace):
    """Keys that all sources of prompts share.

    count: number of rows to take, chosen by a keyed hash of their content; null takes all.
    environment: toolkit that runs calls of a row's own tools; null: a call ends the completion.
    metadata: fields of the row (dotted paths) to hand to graders, keyed by their last part.
    obtain: where to get the rows, shown if they are missing.
    templates: for evaluation: a set or a file of templates; every question is asked in each.
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
        """Templates that questions may be asked in, in place of the source's own text."""
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
        """The source of rows that these prompts are made from."""
        shared = SourceConfig.model_fields.keys() & type(self).model_fields.keys()
        return SourceConfig(**{key: getattr(self, key) for key in shared})


class TinyWorldPrompts(PromptSource):
    """Rows of the tiny world, of either split; its own grader and its own tools by default."""

    format: Literal["tiny_world"]
    environment: str | None = "tiny_world"
    grader: str | None = "tiny_world"


class QuestionPrompts(PromptSource):
    """Rows with a question and a right answer, in fields of any name.

    question, gold: fields (dotted paths); gold null: the grader reads metadata alone.
    gold_pattern: a regular expression; the first group of its last match in the gold field counts,
        e.g. the number after GSM8K's `####`.
    options: fields of the options, lettered A, B, … in this order; or one field with a list. The
        gold is then the right option's letter, its position from 0, or its text.
    shuffle: put each question's options in an order of its own, by a keyed hash.
    template: the user message, with placeholders as in prompt templates; null asks for a box.
    system: system message before the user message.
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
        """Template of the user message, the recipe's or the default."""
        return self.template or (CHOICE_TEMPLATE if self.options else OPEN_TEMPLATE)

    def check(self) -> None:
        where = f"source {self.name!r}"
        placeholders = set(PLACEHOLDER.findall(self.text))
        groups = 1
        if self.gold_pattern is not None:
            try:
                groups = re.compile(self.gold_pattern).groups
            except re.error as error:
                raise ValueError(f"{where}: gold_pattern: {error}") from None
        if self.template is not None and self.templates:
            raise ValueError(f"{where}: give template or templates, not both")
        if "question" not in placeholders:
            raise ValueError(f"{where}: its template has no {{question}}")
        shows_options = len(placeholders) > 1
        if self.options and not shows_options:
            raise ValueError(f"{where}: its template shows no options")
        if not self.options and (shows_options or self.shuffle):
            raise ValueError(f"{where}: there are no options to show or shuffle")
        if self.gold is None and (self.options or self.gold_pattern):
            raise ValueError(f"{where}: options and gold_pattern need a gold field")
        if len(self.options) > len(OPTION_LETTERS):
            raise ValueError(f"{where}: more options than letters")
        if groups < 1:
            raise ValueError(f"{where}: gold_pattern has no group in parentheses")


class ChatPrompts(PromptSource):
    """Conversations of any dialect of training rows, cut after their last user turn.

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

    environment: name of an environment (docs/guides/environments.md lists them and their rows), the
        name of an entry point, or `module:Class`.
    server: NeMo Gym's resources server of rows that name none; null: any of this environment.
    server_url: for `gym_http`: address of the running server, e.g. http://127.0.0.1:8001.
    match: for `structured_output` rows without right values: `content` takes values that come from
        the document; `schema_only` any that fit the schema, as NVIDIA does; null: as the row says.
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
        where = f"source {self.name!r}"
        over_http = self.environment == "gym_http"
        if over_http and self.server_url is None:
            raise ValueError(
                f"{where}: environment gym_http needs server_url, the address of the running server"
            )
        if self.match is not None and self.environment != "structured_output":
            raise ValueError(f"{where}: match is for environment structured_output")
        if self.server_url and not over_http:
            raise ValueError(f"{where}: server_url is for environment gym_http")
        if over_http and self.server:
            raise ValueError(
                f"{where}: server says how rows are read here, and gym_http leaves them to its "
                "server"
            )

    def rows(self) -> SourceConfig:
        """The source of rows; of generated rows, a source whose path only names them."""
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

    tools: `none` declares none; `given` declares those of the row itself and leaves out rows
        without tools; any other word is a toolkit, declared and run.
    thinking: share of prompts asked with reasoning on, by a keyed hash; `both` asks each twice.
    reasoning_budget: tokens of reasoning in each step with reasoning on; null: no budget.
    sources: names of the sources asked in this setting; null: all.
    where: conditions on the rows to ask.
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
    """Raise ValueError for names that stand twice, or settings of sources that are not there."""
    names = [source.name for source in sources]
    refuse_twice("source", names)
    refuse_twice("setting", [setting.name for setting in settings])
    for setting in settings:
        message = f"setting {setting.name!r}: there is no source"
        refuse_unknown(message, setting.sources or (), names)
