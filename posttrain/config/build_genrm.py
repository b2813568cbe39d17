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
    "context", "instruction", "input", "system", "role", "content",
    "response_1", "response_2", "chosen", "rejected", "conversation_a", "conversation_b",
    "overall_preference", "winner", "ranking", "score_1", "score_2", "principle",
]  # fmt: skip
Ties = Literal["drop", "middle"]
LayoutName = Literal["roles", "message", "compact"]
_SHARED = (*RowPlace.model_fields, "strict", "roles")
MIDDLE = 3.5


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
    """Where a source's rows are and what their preference means.

    roles, strict: as for a source of training rows.
    dialect: name it to forbid recognition by structure.
    fields: canonical name → the row's own name for it (a dotted path reaches inside objects).
    win: ranking of a pair of which only the winner is known, where response 1 won, and 7 − win
        where 2 did. Ours: the paper gives no mapping; its safety pairs have 1.
    ties: what becomes of pairs of which neither is better: dropped, or ranked 3.5. Ours.
    agreement: share of the annotators who must name the same outcome.
    scores: the scale of the rows' individual scores; null: 1–5 already.
    held_out: every pair of this source is held out.
    count: how many pairs to take, chosen by a keyed hash of their content; null takes all.
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
        """The same place as a source of rows."""
        return SourceConfig(**{key: getattr(self, key) for key in _SHARED})


class BuildGenRmConfig(Strict, stage="build_genrm"):
    """One set of judging prompts with gold verdicts (paper, section 3.3.1).

    layout: how a judge is shown a pair; the same must be used when it judges.
    principle: what to judge by, for rows that bring no principle of their own; null: none.
    swap: each pair is also asked in the other order, scores exchanged and ranking 7 − r, as in the
        paper; what is held out always is.
    held_out: share of the questions, by a keyed hash, whose pairs are all held out. Ours.
    tokenizer: of the judge, with the template it is asked through; only counts tokens.
    max_tokens: of a rendered judging prompt; pairs with a longer one are dropped.
    max_characters: the same in characters of its texts, without a tokenizer.
    thinking: the judge reasons before its verdict.
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
