"""Prompt templates: several ways to give one question, each with the answer format it requests."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field

from posttrain.config.base import Name, Strict, refuse_twice
from posttrain.config.load import nearest
from posttrain.config.recipe_files import read_mapping
from posttrain.errors import ConfigError

OPTION_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLACEHOLDER = re.compile(r"\{(question|options|[A-Z])\}")
SHIPPED = Path(__file__).parent / "prompt_templates"


class PromptTemplate(Strict):
    """One way to give a question.

    text: text of the user message, with placeholders `{question}`, `{options}`, `{A}`, …; other
        braces stay.
    answer: format in which the text requests an answer, with `{answer}`; null: no format.
    """

    name: Name
    text: str
    answer: str | None = None

    @property
    def shows_options(self) -> bool:
        """True if the text has a placeholder for options."""
        return bool(set(PLACEHOLDER.findall(self.text)) - {"question"})

    def check(self) -> None:
        where = f"template {self.name!r}"
        if PLACEHOLDER.findall(self.text).count("question") != 1:
            raise ValueError(f"{where}: {{question}} has to be in its text once")
        if self.answer is not None and self.answer.count("{answer}") != 1:
            raise ValueError(f"{where}: {{answer}} has to be in its answer once")


def fill(text: str, question: str, options: Mapping[str, str]) -> str:
    """Fill in the placeholders of a text; placeholders in the filled-in texts stay as they are.

    Args:
        options: letter → text of the option.
    """
    listed = "\n".join(f"{letter}) {option}" for letter, option in options.items())
    values = {"question": question, "options": listed, **options}
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def _read_templates(value: Any) -> Any:
    """Read templates from a list, from a shipped set by its name, or from a file."""
    if isinstance(value, list | tuple) and value:
        return tuple(map(PromptTemplate.model_validate, cast(list[Any], value)))
    if not isinstance(value, str):
        return cast(object, value)
    shipped = SHIPPED / f"{value}.yaml"
    path = shipped if shipped.is_file() else Path(value)
    if path.suffix not in (".yaml", ".yml"):
        names = sorted(file.stem for file in SHIPPED.glob("*.yaml"))
        raise ValueError(f"no templates {value!r}{nearest(value, names)}: name a file or a set")
    templates: list[PromptTemplate] = []
    try:
        for name, block in read_mapping(path).items():
            templates.append(PromptTemplate.model_validate({"name": name, **block}))
    except (ConfigError, TypeError) as error:  # a TypeError: a template that is no mapping
        raise ValueError(f"{path}: {error}") from None
    return tuple(templates)


Templates = Annotated[
    tuple[PromptTemplate, ...], BeforeValidator(_read_templates), Field(min_length=2)
]


class AugmentConfig(Strict):
    """Prompt augmentation: a keyed hash chooses records and the template that each is given in.

    templates: a set or a file of templates (posttrain.config.templates).
    share: share of the records that are given in a template.
    """

    templates: Templates
    share: float = Field(gt=0, le=1)


def check_templates(
    where: str, templates: tuple[PromptTemplate, ...], *, options: bool, own_format: bool
) -> None:
    """Raise ValueError for templates that do not fit a source.

    Args:
        options: whether the source's questions have options.
        own_format: whether its questions state an answer format themselves.
    """
    refuse_twice(f"{where}: template", [template.name for template in templates])
    for template in templates:
        template_where = f"{where}: template {template.name!r}"
        if options and not template.shows_options:
            raise ValueError(f"{template_where}: shows no options")
        if template.shows_options and not options:
            raise ValueError(f"{template_where}: shows options, and there are none")
        if own_format and template.answer is not None:
            raise ValueError(
                f"{template_where}: requests an answer format, but the questions bring their own; "
                "take templates without `answer`, such as framing"
            )
