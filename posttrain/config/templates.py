"""Prompt templates: several ways to give one question, each with the answer format it requests."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field

from posttrain.config.base import Name, Strict, refuse, refuse_twice
from posttrain.config.load import nearest
from posttrain.config.recipe_files import read_mapping
from posttrain.errors import ConfigError

OPTION_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLACEHOLDER = re.compile(r"\{(question|options|[A-Z])\}")
SHIPPED = Path(__file__).parent / "prompt_templates"


class PromptTemplate(Strict):
    """One way to give a question.

    text: of the user message, with places `{question}`, `{options}`, `{A}`, …; other braces stay.
    answer: how the text requests an answer, with `{answer}`; null: it requests no format.
    """

    name: Name
    text: str
    answer: str | None = None

    @property
    def shows_options(self) -> bool:
        """Whether the text has a place for options."""
        return bool(set(PLACEHOLDER.findall(self.text)) - {"question"})

    def check(self) -> None:
        questions = PLACEHOLDER.findall(self.text).count("question")
        answers = 1 if self.answer is None else self.answer.count("{answer}")
        refuse(f"template {self.name!r}", {
            "{question} has to be in its text once": questions != 1,
            "{answer} has to be in its answer once": answers != 1,
        })  # fmt: skip


def fill(text: str, question: str, options: Mapping[str, str]) -> str:
    """A text with its placeholders filled; what is filled in is not looked at again.

    Args:
        options: letter → text.
    """
    listed = "\n".join(f"{letter}) {option}" for letter, option in options.items())
    values = {"question": question, "options": listed, **options}
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _read(given: Any) -> Any:
    """The templates of a shipped set or of a file; a list is one already."""
    if not isinstance(given, str):
        rows = cast(list[Any], given) if isinstance(given, list | tuple) else []
        return tuple(map(PromptTemplate.model_validate, rows)) or cast(object, given)
    shipped = SHIPPED / f"{given}.yaml"
    path = shipped if shipped.is_file() else Path(given)
    if path.suffix not in (".yaml", ".yml"):
        names = sorted(file.stem for file in SHIPPED.glob("*.yaml"))
        raise ValueError(f"no templates {given!r}{nearest(given, names)}: name a file or a set")
    try:
        rows = read_mapping(path)
        return tuple(PromptTemplate.model_validate({"name": name, **rows[name]}) for name in rows)
    except (ConfigError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


Templates = Annotated[tuple[PromptTemplate, ...], BeforeValidator(_read), Field(min_length=2)]


class AugmentConfig(Strict):
    """Some records are given in one of several templates, chosen by a keyed hash of the record.

    templates: a set or a file of templates (posttrain.config.templates).
    share: of the records.
    """

    templates: Templates
    share: float = Field(gt=0, le=1)


def check_templates(
    where: str, templates: tuple[PromptTemplate, ...], *, options: bool, own_format: bool
) -> None:
    """Raises ValueError for templates that a source cannot be given in.

    Args:
        options: whether its questions have options.
        own_format: whether its questions say themselves how to answer.
    """
    refuse_twice(f"{where}: template", [one.name for one in templates])
    for one in templates:
        refuse(f"{where}: template {one.name!r}", {
            "shows no options": options and not one.shows_options,
            "shows options, and there are none": one.shows_options and not options,
            "requests an answer format, but the questions bring their own; take templates without "
            "`answer`, such as framing": own_format and one.answer is not None,
        })  # fmt: skip
