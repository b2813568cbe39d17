"""The recipe of preference data: `posttrain build_dpo --config tiny/build_dpo`."""

from typing import Annotated

from pydantic import Field

from posttrain.config.base import Strict, refuse_shares, refuse_twice
from posttrain.config.build_sft import TokenizerConfig
from posttrain.config.source import SourceConfig
from posttrain.records import Category


class BuildDpoConfig(Strict, stage="build_dpo"):
    """One preference data set (paper, Appendix C).

    samples: artifacts of the sampling stage, graded here.
    offline: sources of pairs that exist as text (chosen/rejected): the category `offline`.
    tokenizer: tokenizer of the pairs, needed without samples or if a server hid the tokenizer of
        its samples.
    categories: category → share of the pairs, 1 in all; one that is not named is not built.
    total: pairs at most; `null` takes as many as the shares allow. Where a category is too small,
        the others shrink with it, so that shares hold.
    pairs_per_prompt: pairs of one prompt in one category at most, of right and wrong completions
        that are each used as evenly as can be. The paper has about 50,000 pairs of 2,000 tasks (25
        each), by a rule that it does not state.
    right_at: least score of a right completion; any lower score is wrong. Lower it for graders that
        give shares, such as of the constraints that are kept.
    minimum_distance: least share of a pair's tokens between the common beginning and the common end
        of its completions (0 keeps all pairs): on more similar ones DPO would push the chosen down
        as well.
    max_length: tokens of prompt and completion at most; longer pairs are dropped.
    """

    out: str
    samples: tuple[str, ...] = ()
    offline: tuple[SourceConfig, ...] = ()
    tokenizer: TokenizerConfig | None = None
    categories: dict[Category, Annotated[float, Field(gt=0)]] = Field(min_length=1)
    total: int | None = Field(default=None, ge=1)
    pairs_per_prompt: int = Field(default=25, ge=1)
    right_at: float = Field(default=1.0, gt=0, le=1)
    minimum_distance: float = Field(default=0.0, ge=0, le=1)
    max_length: int | None = Field(default=None, ge=2)
    seed: int = Field(default=0, ge=0)
    write_dropped: bool = False

    def check(self) -> None:
        refuse_shares("categories", [*self.categories.values()])
        sampled = sorted(set(self.categories) - {"offline"})
        if bool(self.samples) != bool(sampled):
            reason = f"{', '.join(sampled)} need samples:" if sampled else "none is named"
            raise ValueError(f"categories other than offline are built from samples: {reason}")
        if bool(self.offline) != ("offline" in self.categories):
            raise ValueError("give both, or neither: sources in offline:, a share of `offline`")
        if self.offline and not self.samples and self.tokenizer is None:
            raise ValueError("offline pairs without samples need a tokenizer:")
        for source in self.offline:
            where = f"offline source {source.name!r}"
            if source.metadata or source.license_field:
                raise ValueError(f"{where}: pairs carry no metadata or license")
            if source.dialect not in (None, "chosen_rejected"):
                raise ValueError(f"{where}: its dialect is chosen_rejected")
        refuse_twice("offline source", [source.name for source in self.offline])
