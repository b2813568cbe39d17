"""Kinds of synthesis by their names in a recipe."""

from __future__ import annotations

import re
from pathlib import Path

from data_builders.filters.language import AnswerLanguage
from data_builders.synthesis.continue_chat import ChatContinuation
from data_builders.synthesis.genselect import SelectionTraces
from data_builders.synthesis.instructions import ConstrainedConversations
from data_builders.synthesis.long_documents import LongDocumentQuestions
from data_builders.synthesis.open_question import OpenQuestions
from data_builders.synthesis.rejection import RejectionSampling
from data_builders.synthesis.safety import SafetyAnswers
from data_builders.synthesis.steps import KindSetup, SynthesisKind
from data_builders.synthesis.tool_conversation import ToolConversations
from data_builders.synthesis.translate import Translation
from data_builders.synthesis.twin import VariantTasks
from posttrain.config.load import nearest
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.errors import ConfigError

KINDS: dict[str, type[SynthesisKind]] = {
    "rejection": RejectionSampling,
    "genselect": SelectionTraces,
    "continue_chat": ChatContinuation,
    "translate": Translation,
    "instructions": ConstrainedConversations,
    "twin": VariantTasks,
    "open_question": OpenQuestions,
    "safety": SafetyAnswers,
    "long_documents": LongDocumentQuestions,
    "tool_conversation": ToolConversations,
}
_MIN_FRAME = 20  # characters of a prompt that no row has by chance
_PROMPTS = Path(__file__).parent / "prompts"


def open_kind(recipe: SynthesizeConfig) -> SynthesisKind:
    """Open the kind that a recipe names. ConfigError for bad templates or what is missing here.

    Raises:
        ConfigError: see `load_templates`; or this machine lacks what the kind needs.
    """
    models: dict[str, tuple[str, ...]] = {}
    for role, role_models in recipe.models.items():
        models[role] = tuple(model.name for model in role_models)
    setup = KindSetup(
        templates=load_templates(recipe),
        models=models,
        seed=recipe.seed,
        out=Path(recipe.out),
        language=_open_language(recipe),
    )
    return KINDS[recipe.make.kind](recipe.make, setup)


def _open_language(recipe: SynthesizeConfig) -> AnswerLanguage | None:
    """Open the check of languages if the recipe has one, and a model that it checks."""
    if not recipe.checks.language or not recipe.models:
        return None
    frames: list[str] = []
    for name in recipe.make.templates:
        texts = re.split(r"\{\{\w+\}\}", _shipped_template(name))
        frames += [text.strip() for text in texts if len(text.strip()) >= _MIN_FRAME]
    try:
        return AnswerLanguage(frames)
    except ConfigError as error:
        raise ConfigError(f"{error}; or set checks.language=false") from None


def load_templates(recipe: SynthesizeConfig) -> dict[str, str]:
    """Text of each prompt of the recipe's kind: the recipe's own, or the one that comes with it.

    The recipe gives a file, or a text, which is recognised by its marks.

    Raises:
        ConfigError: a name that the kind does not have, a file that is not there or lacks a mark
            that the shipped one has or has one that it lacks.
    """
    names = recipe.make.templates
    for name in recipe.templates:
        if name not in names:
            hint = nearest(name, names)
            raise ConfigError(f"templates: {recipe.make.kind} has no prompt {name!r}{hint}")
    texts: dict[str, str] = {}
    for name in names:
        shipped = _shipped_template(name)
        texts[name] = shipped
        if name not in recipe.templates:
            continue
        file_or_text = recipe.templates[name]
        is_text = "{{" in file_or_text
        if not is_text and not Path(file_or_text).is_file():
            raise ConfigError(f"templates.{name}: there is no file {file_or_text}")
        texts[name] = file_or_text if is_text else _read_template(Path(file_or_text), name)
        marks = _marks(shipped)
        missing = sorted(marks - _marks(texts[name]))
        if missing:
            raise ConfigError(f"templates.{name}: {file_or_text} lacks {', '.join(missing)}")
        for mark in sorted(_marks(texts[name]) - marks):
            if mark.strip("{}").isidentifier():
                raise ConfigError(
                    f"templates.{name}: nothing fills {mark}, only {', '.join(sorted(marks))}"
                )
    return texts


def _shipped_template(name: str) -> str:
    return (_PROMPTS / f"{name}.txt").read_text("utf-8")


def _read_template(file: Path, name: str) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"templates.{name}: {file} is no UTF-8 text: {error.reason}") from None


def _marks(template: str) -> set[str]:
    """Marks of a template that values replace: `{{question}}`."""
    parts = template.split("{{")[1:]
    return {"{{" + part.partition("}}")[0] + "}}" for part in parts if "}}" in part}
