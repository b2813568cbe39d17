"""Where prompts come from and in which settings they are asked; shared by sampling and evaluation.

    prompts:
      - {name: maths, format: tiny_world, path: runs/tiny/world/train/maths.jsonl, count: 150}
      - name: gsm8k
        format: question
        path: data/gsm8k.jsonl
        gold_pattern: "#### (.+)"
        grader: math
    settings:
      - {name: no_tools}
      - {name: with_tools, tools: python, sources: [gsm8k], thinking: both}

Paths are relative to the directory the command is run in.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from posttrain.config.base import Name, Strict, refuse_twice
from posttrain.config.source import DialectName, FieldName, Metadata, RowPlace, SourceConfig
from posttrain.config.templates import (
    OPTION_LETTERS,
    PLACEHOLDER,
    AugmentConfig,
    PromptTemplate,
    Templates,
    check_templates,
)
from posttrain.config.where import Where
from posttrain.records import Role

NO_TOOLS, GIVEN_TOOLS = "none", "given"

OPEN_TEMPLATE = "{question}\n\nGive the final answer, and nothing but the answer, inside \\boxed{}."
CHOICE_TEMPLATE = (
    "{question}\n\n{options}\n\nGive the letter of the right option, and nothing but the letter, "
    "inside \\boxed{}."
)


class PromptSource(RowPlace):
    """What every source of prompts has.

    Args:
        where: keep only the rows that meet these conditions (`posttrain.config.where`).
        count: how many rows to take, chosen by a keyed hash of their content; null takes all.
        environment: the toolkit that runs calls of the tools which a row itself declares; null:
            nothing runs them, and a call ends the completion.
        metadata: fields of the row (dotted paths) to hand to graders, keyed by their last part.
        obtain: where the rows come from, shown where they are missing.
        templates: for evaluation: every question is asked in each template of a set or a file.
        augment: for training: some questions are asked in one template.
    """

    name: Name
    where: Where | None = None
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

    @model_validator(mode="after")
    def _askable(self) -> Self:
        where = f"source {self.name!r}"
        if self.templates is not None and self.augment is not None:
            raise ValueError(f"{where}: give templates or augment, not both")
        check_templates(
            where,
            self.any_templates,
            options=bool(getattr(self, "options", ())),
            own_format=isinstance(self, EnvironmentPrompts),
        )
        return self

    def rows(self) -> SourceConfig:
        """The same place as a source of rows."""
        shared = {key: getattr(self, key) for key in RowPlace.model_fields}
        return SourceConfig(**shared, where=self.where, metadata=self.metadata)


class TinyWorldPrompts(PromptSource):
    """Rows of the tiny world, of either split; its own grader and its own tools by default."""

    format: Literal["tiny_world"]
    environment: str | None = "tiny_world"
    grader: str | None = "tiny_world"


class QuestionPrompts(PromptSource):
    """Rows with a question and a right answer, in fields of any name.

    Args:
        question, gold: fields (dotted paths); gold null: its grader reads metadata alone.
        gold_pattern: a regular expression; its last match's first group in the gold field is what
            counts, e.g. the number behind GSM8K's `####`.
        options: fields of the options, lettered A, B, … in this order; or one field with a list.
            The gold is then the right option's letter, its position from 0, or its text.
        shuffle: put each question's options in an order of its own, drawn by a keyed hash.
        template: the user message; `{question}`, `{options}` and `{A}`, `{B}`, … are filled in, all
            other braces stay. null asks for the answer in a box.
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

    @model_validator(mode="after")
    def _fits(self) -> QuestionPrompts:
        if self.template is not None and self.templates is not None:
            raise ValueError(f"source {self.name!r}: give template or templates, not both")
        named = set(PLACEHOLDER.findall(self.text))
        if "question" not in named:
            raise ValueError(f"source {self.name!r}: its template has no {{question}}")
        if self.options and not named - {"question"}:
            raise ValueError(f"source {self.name!r}: its template shows no options")
        if not self.options and (named != {"question"} or self.shuffle):
            raise ValueError(f"source {self.name!r}: there are no options to show or shuffle")
        if self.gold is None and (self.options or self.gold_pattern):
            raise ValueError(f"source {self.name!r}: options and gold_pattern need a gold field")
        if len(self.options) > len(OPTION_LETTERS):
            raise ValueError(f"source {self.name!r}: more options than letters")
        if self.gold_pattern is not None:
            try:
                groups = re.compile(self.gold_pattern).groups
            except re.error as error:
                raise ValueError(f"source {self.name!r}: gold_pattern: {error}") from None
            if groups < 1:
                raise ValueError(f"source {self.name!r}: gold_pattern has no group in parentheses")
        return self


class ChatPrompts(PromptSource):
    """Conversations of any dialect that training rows may have, asked at their last user turn.

    What the row says after that turn is left out. An answer to compare with, if there is one, is
    another field of the row.

    Args:
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

    def rows(self) -> SourceConfig:
        """The same place, with how its rows are read."""
        how: dict[str, Any] = {key: getattr(self, key) for key in _CHAT}
        return super().rows().model_copy(update=how)

    @model_validator(mode="after")
    def _gold_for_grader(self) -> ChatPrompts:
        if self.grader is not None and self.gold is None:
            raise ValueError(f"source {self.name!r}: a grader needs the field of the gold answer")
        return self


_CHAT = ("dialect", "fields", "roles", "prefilled_think")


class EnvironmentPrompts(PromptSource):
    """Rows of one RLVR environment, which grades them too; a row's own tools are always declared.

    Args:
        environment: its name (docs/environments.md has them, and their rows).
        generated: a seed, in place of a path: the environment itself makes `count` rows from it.
    """

    format: Literal["environment"]
    environment: str  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]  # required here
    grader: Literal["environment"] = "environment"
    generated: int | None = Field(default=None, ge=0)

    def rows(self) -> SourceConfig:
        """The same place; the one of generated rows is no file."""
        if self.generated is None:
            return super().rows()
        path = f"{self.environment}, seed {self.generated}"
        return SourceConfig(name=self.name, path=path, where=self.where, metadata=self.metadata)

    @model_validator(mode="after")
    def _one_place(self) -> EnvironmentPrompts:
        if self.generated is None:
            self.check_place()
        elif self.path is not None or self.hub is not None or self.count is None:
            raise ValueError(f"source {self.name!r}: generated rows need a count, and no place")
        return self


AnySource = Annotated[
    TinyWorldPrompts | QuestionPrompts | ChatPrompts | EnvironmentPrompts,
    Field(discriminator="format"),
]


class Setting(Strict):
    """One way in which prompts are asked.

    Args:
        tools: `none` declares none; `given` those of the row itself, and rows without are left out;
            any other word is a toolkit, whose tools are declared and whose environment runs them.
        thinking: the share of prompts asked with reasoning on, chosen by a keyed hash; `both` asks
            every prompt in both modes.
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

    @model_validator(mode="after")
    def _named(self) -> Setting:
        if self.reasoning_budget is not None and self.thinking == 0:
            raise ValueError(f"setting {self.name!r}: a reasoning budget, but reasoning is off")
        return self


def check_prompts(sources: tuple[PromptSource, ...], settings: tuple[Setting, ...]) -> None:
    """Raises ValueError for names that stand twice or that no source has."""
    names = [source.name for source in sources]
    refuse_twice("source", names)
    refuse_twice("setting", [setting.name for setting in settings])
    for setting in settings:
        unknown = [name for name in setting.sources or () if name not in names]
        if unknown:
            raise ValueError(
                f"setting {setting.name!r}: there is no source {unknown[0]!r}; "
                f"sources are {', '.join(names)}"
            )
