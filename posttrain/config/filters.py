"""Filters of a source's rows: structural checks and filters of the text, with their patterns."""

from typing import Annotated, Any, cast

import yaml
from pydantic import BeforeValidator, Field

from posttrain.config.base import Strict
from posttrain.config.recipe_files import read_mapping, recipe_file
from posttrain.errors import ConfigError


class StructuralFilters(Strict):
    """Structural checks that drop a row. The name of each is also its drop reason.

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
    """Pathological repetition in a trace or an answer (paper, 3.1.3; all numbers are ours).

    A *word* is a run of letters, digits or signs, an ideograph, or a line end.

    min_words: words of the shortest loop that is dropped. Raise it for honest texts that repeat
        themselves, such as tables and code.
    """

    min_words: int = Field(default=80, ge=16)


class LanguageFilter(Strict):
    """Languages that traces and answers may be in; code, formulas and numbers are not judged.

    allowed: ISO 639-1 codes of the allowed languages.
    confidence: least probability at which another language counts. Raise it where rows of a related
        language, or short ones, are dropped that should not be.
    """

    allowed: tuple[str, ...] = Field(min_length=1)
    confidence: float = Field(default=0.9, gt=0, le=1)


class LengthFilter(Strict):
    """Bounds on the length of a record; `null` sets none.

    min_tokens, max_tokens: tokens of its longest sequence, as rendered for training.
    min_turns, max_turns: number of user turns; `min_turns: 2` makes a source of dialogues.
    """

    min_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    min_turns: int | None = Field(default=None, ge=1)
    max_turns: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        bounds = [(self.min_tokens, self.max_tokens), (self.min_turns, self.max_turns)]
        for least, most in bounds:
            if least is not None and most is not None and least > most:
                raise ValueError(f"the least length, {least}, is above the most, {most}")
        if bounds == [(None, None), (None, None)]:
            raise ValueError("length: give at least one bound")


class CopiedFilter(Strict):
    """Answers that copy the question, an earlier answer, or their own trace.

    characters: length of the shortest answer that is checked; a shorter one ("Yes.", a number) may
        repeat anything.
    """

    characters: int = Field(default=80, ge=1)


class TruncatedFilter(Strict):
    """Texts cut off at the limit their sampler had: they stop in mid-sentence, and just there.

    tokens: limits of the source's sampler on the tokens of a turn, trace and answer together.
    """

    tokens: tuple[Annotated[int, Field(ge=16)], ...] = Field(min_length=1)


class Pattern(Strict):
    """One pattern, in RE2's syntax, matched without regard to case.

    pattern: the pattern to find.
    near: pattern that must match as well, within `within` characters before or after the match.
    unless: pattern that must not match within `within` characters before or after, nor in the
        match.
    within: reach of `near` and `unless`, in characters.
    place: file and line that the pattern was read from, for messages; no part of the recipe.
    """

    pattern: str = Field(min_length=1)
    near: str | None = Field(default=None, min_length=1)
    unless: str | None = Field(default=None, min_length=1)
    within: int = Field(default=200, ge=0)
    place: str | None = Field(default=None, exclude=True, repr=False)


def _as_mapping(pattern: Any) -> dict[str, Any]:
    return cast(dict[str, Any], pattern) if isinstance(pattern, dict) else {"pattern": pattern}


def _read_patterns(value: object) -> object:
    """Read patterns from a list, or from the named file, each with its place in that file.

    The resolved recipe holds the patterns themselves.
    """
    if isinstance(value, list):
        # a tuple: values from a validator are checked as Python, in which a strict tuple takes no
        # list
        return tuple(map(_as_mapping, cast(list[Any], value)))
    if not isinstance(value, str):
        return value
    path = recipe_file(value)
    mapping = read_mapping(path)
    if set(mapping) != {"patterns"} or not isinstance(mapping["patterns"], list):
        raise ConfigError(f"{path}: a file of patterns is a mapping with one list, patterns")
    # read once more as nodes, which know their lines
    text = path.read_text(encoding="utf-8")
    root = cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]  # PyYAML is untyped
    ((_, list_node),) = root.value
    patterns: list[dict[str, Any]] = []
    for pattern, node in zip(cast(list[Any], mapping["patterns"]), list_node.value, strict=True):
        patterns.append({**_as_mapping(pattern), "place": f"{path}:{node.start_mark.line + 1}"})
    return tuple(patterns)


Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_read_patterns), Field(min_length=1)]


class Filters(StructuralFilters):
    """All filters of a source. A filter that is `null` drops nothing.

    repetition: pathological repetition in traces and answers.
    narratives: patterns of political or nationalist alignment, in traces and answers.
    untranslated: patterns of answers that say they cannot translate.
    refusals: patterns of refusal boilerplate, in answers.
    language: languages that traces and answers may be in.
    length: bounds on tokens and on turns.
    copied: answers that repeat an earlier text.
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
