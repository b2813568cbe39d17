"""Which rows a source loses on the way to its records: structural checks and filters of the text.

filters:
  tool_markup: false
  repetition: {window_share: 0.8}
  narratives: recipes/nemotron-3-nano/narratives.yaml
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from posttrain.config.base import Strict
from posttrain.config.patterns import Patterns


class StructuralFilters(Strict):
    """Which structural checks a source must pass. Each name is also the drop reason."""

    bad_unicode: bool = True  # text that cannot be written as UTF-8
    role_order: bool = True  # turns that no chat could have produced
    empty_answer: bool = True  # an assistant turn without text and calls
    empty_user_turn: bool = True  # a user turn without text
    empty_system_turn: bool = True  # a system turn without text
    unclosed_think: bool = True  # a think tag without its partner
    nested_think: bool = True  # think tags inside or after a trace
    foreign_think: bool = True  # a trace in other tags than <think>
    undeclared_tools: bool = True  # tool calls where no tool is declared
    unknown_tool: bool = True  # a call to a tool that is not declared
    unusable_schema: bool = True  # a called tool's schema cannot be checked
    bad_arguments: bool = True  # arguments that fail the declared schema
    unpaired_tool_result: bool = True  # results and calls that do not match
    tool_markup: bool = True  # tool calls written as text


class RepetitionFilter(Strict):
    """When a trace or an answer is a pathological repetition. All numbers are ours.

    The paper (3.1.3) names repeated n-grams in a sliding window and across the trajectory, and
    gives no n, window or threshold. A *word* is a run of letters, of digits or of signs, an
    ideograph, or a line's end. Rules, each with a reason of its own in `docs/filters.md`:

    Args:
        cycle_words, cycle_rounds, cycle_share: a stretch of at least so many words and rounds, in
            which this share of the words equal the word one round before, or in running text any
            word at most a round before: rounds may grow and shrink.
        short_words, short_share: the same for shorter stretches of running text that hardly change,
            numbers that count apart.
        exact_share: in code, tables and data, whose rows differ a little for good reasons, this
            share of the words must stand in rounds that are equal to the letter.
        counting_share: the share where numbers that count up or down are equal too.
        row_rounds: rounds of that in code, tables and data.
        drift_words, drift_rounds, drift_share: the same for longer stretches that change more.
        bare_words, bare_rounds, bare_share: the same for stretches with next to no letters: grids
            and tables of numbers repeat their rows honestly.
        unbroken: characters of one word (no blank in it) that repeat the ones a few before.
        window, window_share, window_times: in so many words, this share stands in eight-word
            n-grams or lines that each stood at least so often in the four windows before.
        whole_words, whole_share, whole_times: in a text of at least so many words, this share
            stands in n-grams or lines that each stand so often in it.
        vocabulary: distinct words of language that must return by those two rules; with fewer it
            is a table or a list of moves, and a cycle or nothing.
        blanks: blank characters and line ends in a row.
    """

    cycle_words: int = Field(default=160, ge=16)
    cycle_rounds: int = Field(default=6, ge=3)
    cycle_share: float = Field(default=0.97, ge=0.5, le=1)
    short_words: int = Field(default=80, ge=16)
    short_share: float = Field(default=0.97, ge=0.5, le=1)
    exact_share: float = Field(default=0.75, ge=0, le=1)
    row_rounds: int = Field(default=24, ge=3)
    counting_share: float = Field(default=0.97, ge=0.5, le=1)
    drift_words: int = Field(default=640, ge=16)
    drift_rounds: int = Field(default=24, ge=3)
    drift_share: float = Field(default=0.97, ge=0.5, le=1)
    bare_words: int = Field(default=200, ge=16)
    bare_rounds: int = Field(default=64, ge=3)
    bare_share: float = Field(default=0.99, ge=0.5, le=1)
    unbroken: int = Field(default=256, ge=32)
    window: int = Field(default=512, ge=128)
    window_share: float = Field(default=0.75, ge=0.5, le=1)
    window_times: int = Field(default=5, ge=2)
    whole_words: int = Field(default=1000, ge=256)
    whole_share: float = Field(default=0.5, ge=0.4, le=1)
    whole_times: int = Field(default=8, ge=3)
    vocabulary: int = Field(default=20, ge=0)
    blanks: int = Field(default=1000, ge=100)

    @property
    def shortest(self) -> int:
        """Words of the shortest loop that any rule about words finds."""
        return min(self.short_words, self.cycle_words, self.bare_words)


class LanguageFilter(Strict):
    """Languages that traces and answers may be in; code, formulas and numbers are not judged.

    Args:
        allowed: ISO 639-1 codes.
        letters: a text with fewer, code and formulas apart, is not judged.
        confidence: another language counts from this probability on.
    """

    allowed: tuple[str, ...] = Field(min_length=1)
    letters: int = Field(default=200, ge=20)
    confidence: float = Field(default=0.9, gt=0, le=1)


class LengthFilter(Strict):
    """How long a record may be; `null` sets no bound.

    Args:
        min_tokens, max_tokens: of its longest sequence, as rendered for training.
        min_turns, max_turns: user turns.
    """

    min_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    min_turns: int | None = Field(default=None, ge=1)
    max_turns: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> LengthFilter:
        for least, most in ((self.min_tokens, self.max_tokens), (self.min_turns, self.max_turns)):
            if least is not None and most is not None and least > most:
                raise ValueError(f"the least length, {least}, is above the most, {most}")
        if self.model_dump(exclude_none=True) == {}:
            raise ValueError("length: give at least one bound")
        return self


class CopiedFilter(Strict):
    """Answers that say again what stood before: the question, an earlier answer, their own trace.

    Args:
        characters: shorter answers may be equal to anything ("Yes.", a number).
    """

    characters: int = Field(default=80, ge=1)


class TruncatedFilter(Strict):
    """Texts cut off at the limit their sampler had: they stop in mid-sentence, and just there.

    Args:
        tokens: the limits that are known of the source, in tokens of a turn, trace and answer
            together.
        slack: how far off the count may be, as a share of the limit: the tokenizer of the model
            that wrote the text may be another than the recipe's.
    """

    tokens: tuple[Annotated[int, Field(ge=16)], ...] = Field(min_length=1)
    slack: float = Field(default=0.01, ge=0, le=0.5)


class Filters(StructuralFilters):
    """All filters of a source. Those that are `null` look for nothing.

    Args:
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
