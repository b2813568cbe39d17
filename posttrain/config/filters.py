"""Which rows a source loses: structural checks and filters of the text, with their patterns."""

from typing import Annotated, Any, cast

import yaml
from pydantic import BeforeValidator, Field

from posttrain.config.base import Strict
from posttrain.config.recipe_files import read_mapping, recipe_file
from posttrain.errors import ConfigError


class StructuralFilters(Strict):
    """Which structural checks a source must pass. Each name is also the drop reason.

    bad_unicode: text that cannot be written as UTF-8.
    role_order: turns that no chat could have produced.
    empty_answer: an assistant turn without text and calls.
    empty_user_turn: a user turn without text.
    unclosed_think: a think tag without its partner.
    nested_think: think tags inside or after a trace.
    foreign_think: a trace in other tags than <think>.
    template_markup: a text that starts or ends with a mark of some chat template.
    undeclared_tools: tool calls where no tool is declared.
    unknown_tool: a call to a tool that is not declared.
    unusable_schema: a called tool's schema cannot be checked.
    bad_arguments: arguments that fail the declared schema.
    unpaired_tool_result: results and calls that do not match.
    tool_markup: tool calls written as text.
    """

    bad_unicode: bool = True
    role_order: bool = True
    empty_answer: bool = True
    empty_user_turn: bool = True
    unclosed_think: bool = True
    nested_think: bool = True
    foreign_think: bool = True
    template_markup: bool = True
    undeclared_tools: bool = True
    unknown_tool: bool = True
    unusable_schema: bool = True
    bad_arguments: bool = True
    unpaired_tool_result: bool = True
    tool_markup: bool = True


class RepetitionFilter(Strict):
    """When a trace or an answer is a pathological repetition (paper, 3.1.3; all numbers are ours).
    A *word* is a run of letters, digits or signs, an ideograph, or a line end.

    min_words: words of the shortest loop that is dropped. Raise it for honest texts that repeat
        themselves, such as tables and code.
    """

    min_words: int = Field(default=80, ge=16)


class LanguageFilter(Strict):
    """Languages that traces and answers may be in; code, formulas and numbers are not judged.

    allowed: ISO 639-1 codes.
    letters: a text with fewer, code and formulas apart, is not judged.
    confidence: another language counts from this probability on.
    """

    allowed: tuple[str, ...] = Field(min_length=1)
    letters: int = Field(default=200, ge=20)
    confidence: float = Field(default=0.9, gt=0, le=1)


class LengthFilter(Strict):
    """How long a record may be; `null` sets no bound.

    min_tokens, max_tokens: of its longest sequence, as rendered for training.
    min_turns, max_turns: user turns.
    """

    min_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    min_turns: int | None = Field(default=None, ge=1)
    max_turns: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        bounds = (self.min_tokens, self.max_tokens), (self.min_turns, self.max_turns)
        for least, most in bounds:
            if least is not None and most is not None and least > most:
                raise ValueError(f"the least length, {least}, is above the most, {most}")
        if bounds == ((None, None), (None, None)):
            raise ValueError("length: give at least one bound")


class CopiedFilter(Strict):
    """Answers that say again what stood before: the question, an earlier answer, their own trace.

    characters: shorter answers may be equal to anything ("Yes.", a number).
    """

    characters: int = Field(default=80, ge=1)


class TruncatedFilter(Strict):
    """Texts cut off at the limit their sampler had: they stop in mid-sentence, and just there.

    tokens: the source's known limits on a turn, trace and answer in one.
    slack: how far off the count may be, as a share: the limit may be in another tokenizer's tokens.
    """

    tokens: tuple[Annotated[int, Field(ge=16)], ...] = Field(min_length=1)
    slack: float = Field(default=0.01, ge=0, le=0.5)


class Pattern(Strict):
    """One pattern, in RE2's syntax, matched without regard to case.

    pattern: what is looked for.
    near: must match as well, within `within` characters before or after the match.
    unless: must not match within `within` characters before or after the match, nor in it.
    within: how far context reaches, in characters.
    place: the file and line it was read from, for messages; no part of the recipe.
    """

    pattern: str = Field(min_length=1)
    near: str | None = Field(default=None, min_length=1)
    unless: str | None = Field(default=None, min_length=1)
    within: int = Field(default=200, ge=0)
    place: str | None = Field(default=None, exclude=True, repr=False)


def _as_mapping(item: Any) -> dict[str, Any]:
    return cast(dict[str, Any], item) if isinstance(item, dict) else {"pattern": item}


def _read(given: object) -> object:
    """Patterns of a list, or of the named file, each with its place; the recipe then holds them."""
    if not isinstance(given, str):
        # a tuple, for what a validator returns is no JSON any more: taken as strictly as Python
        return tuple(map(_as_mapping, cast(list[Any], given))) if isinstance(given, list) else given
    path = recipe_file(given)
    read = read_mapping(path)
    if set(read) != {"patterns"} or not isinstance(read["patterns"], list):
        raise ConfigError(f"{path}: a file of patterns is a mapping with one list, patterns")
    text = path.read_text(encoding="utf-8")
    node = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped
    ((_, nodes),) = node.value  # which know their lines
    return tuple(
        {**_as_mapping(item), "place": f"{path}:{node.start_mark.line + 1}"}
        for item, node in zip(cast(list[Any], read["patterns"]), nodes.value, strict=True)
    )


Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_read), Field(min_length=1)]


class Filters(StructuralFilters):
    """All filters of a source. Those that are `null` look for nothing.

    repetition: pathological repetition in traces and answers.
    narratives: patterns of political or nationalist alignment, in traces and answers.
    untranslated: patterns of answers that say they cannot translate.
    refusals: patterns of refusal boilerplate, in answers.
    language: which languages traces and answers may be in.
    length: in tokens and in turns.
    copied: answers that repeat what stood before.
    truncated: texts cut off at a known limit.
    """

    repetition: RepetitionFilter | None = RepetitionFilter()
    narratives: Patterns | None = None
    untranslated: Patterns | None = None
    refusals: Patterns | None = None
    language: LanguageFilter | None = None
    length: LengthFilter | None = None
    copied: CopiedFilter | None = None
    truncated: TruncatedFilter | None = None
