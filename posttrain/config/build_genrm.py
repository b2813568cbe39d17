"""The recipe of the judge's data: `posttrain build_genrm --config tiny/build_genrm`."""

from typing import Literal

from pydantic import Field

from posttrain.config.base import Name, Strict, refuse_twice
from posttrain.config.build_sft import TokenizerConfig
from posttrain.config.source import RowPlace, SourceConfig
from posttrain.records import Role

PreferenceDialect = Literal[
    "helpsteer3", "arena", "pandalm", "chosen_rejected", "ranked", "judging_prompt"
]
PreferenceField = Literal[
    "context",
    "instruction",
    "input",
    "system",
    "role",
    "content",
    "response_1",
    "response_2",
    "chosen",
    "rejected",
    "conversation_a",
    "conversation_b",
    "overall_preference",
    "winner",
    "ranking",
    "score_1",
    "score_2",
    "principle",
]
Ties = Literal["drop", "middle"]
LayoutName = Literal["roles", "message", "compact"]
_SHARED = (*RowPlace.model_fields, "strict", "roles")
MIDDLE = 3.5  # ranking of two equal responses, on the scale from 1 to 6


class ScoresConfig(Strict):
    """Individual scores of another scale, brought linearly to 1–5. The mapping is ours.

    low, high: the ends of the scale that the rows use, the worst and the best.
    """

    low: float
    high: float

    def check(self) -> None:
        if self.low >= self.high:
            raise ValueError("scores.low must be below scores.high")


class PreferenceSource(RowPlace):
    """Place of a source's rows, and the meaning of their preferences.

    roles, strict: as for a source of training rows.
    dialect: name of the dialect, to forbid recognition by structure.
    fields: canonical name → name of the field in the rows (a dotted path reaches inside objects).
    win: ranking of a pair of which only the winner is known, if response 1 won; 7 − win if response
        2 did. Ours: the paper gives no mapping; its safety pairs have 1.
    ties: treatment of pairs in which neither is better: dropped, or ranked 3.5. Ours.
    agreement: share of the annotators who must name the same outcome.
    scores: scale of the rows' individual scores; null: 1–5 already.
    held_out: hold out every pair of this source.
    count: number of pairs to take, chosen by a keyed hash of their content; null takes all.
    """

    name: Name
    strict: bool = False
    roles: dict[str, Role] = Field(default_factory=dict[str, Role])
    dialect: PreferenceDialect | None = None
    fields: dict[PreferenceField, str] = Field(default_factory=dict[PreferenceField, str])
    win: float = Field(default=2.0, ge=1, lt=MIDDLE)
    ties: Ties = "drop"
    agreement: float = Field(default=0.6, gt=0.5, le=1)
    scores: ScoresConfig | None = None
    held_out: bool = False
    count: int | None = Field(default=None, ge=1)

    def rows(self) -> SourceConfig:
        """The source of rows that these pairs are read from."""
        return SourceConfig(**{key: getattr(self, key) for key in _SHARED})


class BuildGenRmConfig(Strict, stage="build_genrm"):
    """One set of judging prompts with gold verdicts (paper, section 3.3.1).

    layout: layout of a pair in the judging prompt; the judge must be used with the same.
    principle: principle to judge by, for rows that bring none of their own; null: none.
    swap: give each pair in the other order too, scores exchanged and ranking 7 − r, as in the
        paper; held-out pairs always come in both orders.
    held_out: share of the questions, by a keyed hash, whose pairs are all held out. Ours.
    tokenizer: the judge's tokenizer and template, to count tokens.
    max_tokens: tokens of a rendered judging prompt at most; pairs with a longer one are dropped.
    max_characters: characters of its texts at most, as a limit without a tokenizer.
    thinking: let the judge reason before its verdict.
    """

    out: str
    sources: tuple[PreferenceSource, ...] = Field(min_length=1)
    layout: LayoutName = "message"
    principle: str | None = None
    swap: bool = True
    held_out: float = Field(default=0.02, ge=0, lt=1)
    tokenizer: TokenizerConfig | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_characters: int | None = Field(default=None, ge=1)
    thinking: bool = True
    seed: int = Field(default=0, ge=0)

    def check(self) -> None:
        refuse_twice("source", [source.name for source in self.sources])
        if self.max_tokens is not None and self.tokenizer is None:
            raise ValueError("max_tokens needs a tokenizer: to count with")
