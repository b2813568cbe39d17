"""The recipe of preference data: `posttrain build_dpo --config tiny/build_dpo`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.base import Strict, refuse, refuse_shares, refuse_twice
from posttrain.config.build_sft import TokenizerConfig
from posttrain.config.source import SourceConfig
from posttrain.records import Category

PairingRule = Literal["even", "once"]


class BuildDpoConfig(Strict, stage="build_dpo"):
    """One preference data set (paper, Appendix C).

    samples: artifacts of the sampling stage, graded here.
    offline: sources of pairs that exist as text (chosen/rejected): the category `offline`.
    tokenizer: where there are no samples, or a server made them and hid its own.
    categories: category → share of the pairs, 1 in all; one that is not named is not built.
    total: pairs at most; `null` takes as many as the shares allow. Where a category is too small,
        the others shrink with it, so that shares hold.
    pairs_per_prompt: at most, of one prompt in one category. The paper has about 50,000 pairs of
        2,000 tasks (25 each), by a rule that it does not state.
    rule: `even` pairs every right completion with every wrong one, using each as evenly as can be,
        up to `pairs_per_prompt`; `once` uses no completion twice.
    thinking_on: share of each category's pairs with reasoning on; `null` leaves it as sampled.
    right_at: a score from here on is right; below it is wrong.
    minimum_distance: drop pairs of which a smaller share of tokens lies between their common
        beginning and common end (0 keeps all): DPO would push the chosen down as well.
    match_length: among pairs that differ by about as many tokens, keep as many whose chosen is the
        longer as the shorter one, so that DPO cannot learn length.
    max_length: prompt and completion, in tokens; longer pairs are dropped.
    shard_pairs: pairs of a shard.
    """

    out: str
    samples: tuple[str, ...] = ()
    offline: tuple[SourceConfig, ...] = ()
    tokenizer: TokenizerConfig | None = None
    categories: dict[Category, Annotated[float, Field(gt=0)]] = Field(min_length=1)
    total: int | None = Field(default=None, ge=1)
    pairs_per_prompt: int = Field(default=25, ge=1)
    rule: PairingRule = "even"
    thinking_on: float | None = Field(default=None, ge=0, le=1)
    right_at: float = Field(default=1.0, gt=0, le=1)
    minimum_distance: float = Field(default=0.0, ge=0, le=1)
    match_length: bool = False
    max_length: int | None = Field(default=None, ge=2)
    shard_pairs: int = Field(default=8192, ge=1)
    seed: int = Field(default=0, ge=0)
    write_dropped: bool = False

    def check(self) -> None:
        refuse_shares("categories", [*self.categories.values()])
        sampled = set(self.categories) - {"offline"}
        if bool(self.samples) != bool(sampled):
            raise ValueError(
                "categories other than offline are built from samples: "
                + (f"{', '.join(sorted(sampled))} need samples:" if sampled else "none is named")
            )
        if bool(self.offline) != ("offline" in self.categories):
            raise ValueError("give both, or neither: sources in offline:, a share of `offline`")
        if self.offline and not self.samples and self.tokenizer is None:
            raise ValueError("offline pairs without samples need a tokenizer:")
        for source in self.offline:
            refuse(f"offline source {source.name!r}", {
                "pairs carry no metadata or license": source.metadata or source.license_field,
                "its dialect is chosen_rejected": source.dialect not in (None, "chosen_rejected"),
            })  # fmt: skip
        refuse_twice("offline source", [source.name for source in self.offline])
