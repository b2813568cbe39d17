"""The recipe of the SFT data stage: `posttrain build_sft --config tiny/build_sft`."""

import re
from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.audit import SupervisionLimits
from posttrain.config.base import Name, Strict, refuse_shares, refuse_twice, refuse_unknown
from posttrain.config.overlap import DecontaminationConfig, DeduplicationConfig
from posttrain.config.source import SourceConfig
from posttrain.config.templates import AugmentConfig, check_templates

Unit = Literal["rows", "tokens"]
# parts of a conversation that a chat template may leave out without an error
LossKind = Literal[
    "system", "user", "text", "reasoning", "tool_call", "tool_result", "tools", "tool_details"
]


class TokenizerConfig(Strict):
    """A tokenizer and the chat template that it renders with.

    path: a directory, or a hub id (then name its `revision`).
    revision: commit of a hub id.
    chat_template: `own` (the tokenizer's), `nemotron_3_nano` (the installed TRL's, pinned by
        digest), `hermes` (tools, no reasoning) or `chatml` (neither), `trl:FAMILY` such as
        `trl:qwen3` (the installed TRL's), or the path of a Jinja file.
    template_variables: fixed variables of the template, e.g. a date for one that reads a clock.
    pad_token: a token other than the one that ends a turn; `null` keeps the tokenizer's, or takes
        one that is used nowhere.
    """

    path: str
    revision: str | None = None
    chat_template: str = "own"
    template_variables: dict[str, str] = Field(default_factory=dict)
    pad_token: str | None = None


class SftTokenizer(TokenizerConfig):
    """The tokenizer of a large data set.

    split_steps: every assistant message ends a sequence of its own, and parallel calls follow one
        another, each with its result: for templates that write a step's text or trace only while it
        is the last (gpt-oss), or one call a message.
    allow_left_out: parts that the template may leave out of a record that is kept all the same.
    """

    split_steps: bool = False
    allow_left_out: tuple[LossKind, ...] = ()


class LogUniformBudgets(Strict):
    """Budgets with a log-uniform density.

    low: the smallest, in tokens.
    high: the largest; null: just below the trace.
    """

    kind: Literal["log_uniform"]
    low: int = Field(default=16, ge=1)
    high: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        if self.high is not None and self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")


class ChoiceBudgets(Strict):
    """Budgets drawn evenly from a list.

    choices: budgets in tokens; those shorter than the trace take part.
    """

    kind: Literal["choices"]
    choices: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)


class ReasoningConfig(Strict):
    """Reasoning control (paper 3.1.4): shares of traces that are removed, or cut short.

    strip: share of the records with reasoning that lose it altogether; paper: 0.10.
    truncate: share of the remaining traces cut to a budget, the answer kept; paper: 0.03.
    budgets: tokens that a cut trace keeps. The paper gives no distribution: this is ours.
    truncated_close: treatment of the early `</think>` after a cut. `trained` follows from Nano's
        published data code; `masked` is what NVIDIA documents for the later Ultra.
    """

    strip: float = Field(default=0.0, ge=0, le=1)
    truncate: float = Field(default=0.0, ge=0, le=1)
    budgets: LogUniformBudgets | ChoiceBudgets = Field(
        default=LogUniformBudgets(kind="log_uniform"), discriminator="kind"
    )
    truncated_close: Literal["trained", "masked"] = "trained"


class SourceReasoning(Strict):
    """Reasoning control of one source.

    strip, truncate: shares as in the recipe's `reasoning`; null takes those.
    """

    strip: float | None = Field(default=None, ge=0, le=1)
    truncate: float | None = Field(default=None, ge=0, le=1)


class HeldOutConfig(Strict):
    """Part of a source that is kept for evaluation and never trained on: a share or a count.

    rate: share of the conversations.
    rows: number of conversations of each source.
    """

    rate: float | None = Field(default=None, ge=0, lt=1)
    rows: int | None = Field(default=None, ge=0)

    def check(self) -> None:
        if (self.rate is None) == (self.rows is None):
            raise ValueError("held_out: give exactly one of rate and rows")


class SftAugment(AugmentConfig):
    """Prompt augmentation: some records are asked in another template, the rest stay as they are.

    question: a regular expression that matches the whole user message, with a group `question` (and
        `options`, for templates that show them); null: all of it is the question.
    """

    question: str | None = None

    def check(self) -> None:
        groups = {"question"}
        if self.question is not None:
            try:
                groups = set(re.compile(self.question).groupindex)
            except re.error as error:
                raise ValueError(f"augment.question: {error}") from None
        if "question" not in groups:
            raise ValueError("augment.question: there is no group (?P<question>…)")
        check_templates("augment", self.templates, options="options" in groups, own_format=False)


class SftSource(SourceConfig):
    """A source and its amount in the mixture: at most one of share, rows, tokens.

    share: share of `mixture.total`, among the sources that state a share.
    rows: number of records (conversations), repeats counted.
    tokens: number of tokens, repeats counted.
    max_epochs: number of times that a record may be seen; `null` takes the mixture's.
    reasoning: reasoning control of this source.
    held_out: held-out part of this source, instead of the recipe's.
    augment: prompt augmentation of this source; null: every record keeps its own words.
    """

    name: Name
    share: float | None = Field(default=None, gt=0, le=1)
    rows: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    max_epochs: float | None = Field(default=None, gt=0, le=10_000)
    reasoning: SourceReasoning = SourceReasoning()
    held_out: HeldOutConfig | None = None
    augment: SftAugment | None = None

    def check(self) -> None:
        amounts = [key for key in ("share", "rows", "tokens") if getattr(self, key) is not None]
        if len(amounts) > 1:
            raise ValueError(f"source {self.name!r} gives {' and '.join(amounts)}; one is enough")

    @property
    def has_amount(self) -> bool:
        """True if the recipe states an amount of this source."""
        return self.share is not None or self.rows is not None or self.tokens is not None


class MixtureConfig(Strict):
    """Mixture of the sources.

    unit: unit of shares and of `total`.
    total: amount that the shares divide; `null` takes the largest that keeps every source with a
        share within its `max_epochs`. Sources with `rows` or `tokens` come on top.
    max_epochs: cap on repeats; `null`: 4, or 1 without a total. Ours, the paper gives none: up to
        four epochs cost little (Muennighoff et al. 2023).
    tolerance: largest relative difference between requested and realised amount of a source.
    """

    unit: Unit = "tokens"
    total: int | None = Field(default=None, ge=1)
    max_epochs: float | None = Field(default=None, gt=0, le=10_000)
    tolerance: float = Field(default=0.02, gt=0)


class PackingConfig(Strict):
    """Packs of one length.

    max_length: tokens of a pack.
    overlong: treatment of a longer sequence: it is dropped, or its end is cut off; counted either
        way.
    """

    max_length: int = Field(ge=8)
    overlong: Literal["drop", "truncate"] = "drop"


class ShardConfig(Strict):
    """Size at which a shard is closed.

    packs: number of packs.
    bytes: bytes of tokens and labels; whichever comes first.
    """

    packs: int = Field(default=8192, ge=1)
    bytes: int = Field(default=268_435_456, ge=1)


class LimitsConfig(SupervisionLimits):
    """Limits that stop a build: too many rows lost for one reason, or masks that teach wrongly.

    overlong: largest share of a source's rows or sequences that may be longer than a pack.
    render_error: largest share of a source's rows that the template may refuse. Lower it where all
        should render, so that a template of another notation is noticed.
    left_out: largest share of a source's rows that may be dropped because the template leaves out
        parts of them (`tokenizer.allow_left_out` keeps such rows).
    """

    overlong: float = Field(default=0.5, ge=0, le=1)
    render_error: float = Field(default=0.5, ge=0, le=1)
    left_out: float = Field(default=0.0, ge=0, le=1)


# blocks that enter the digest of a data set only if they are set
OPTIONAL = ("deduplication", "decontamination")
# keys that change how the work is done and no byte of the result
EXECUTION = frozenset({"executor", "workers", "parts_dir"})


class BuildSftConfig(Strict, stage="build_sft"):
    """One SFT data set. All keys but `out` and those of `EXECUTION` decide its content.

    deduplication: which of several alike records to keep; null keeps all.
    decontamination: evaluation items; records that hold them are dropped; null keeps all.
    licenses: licenses that may enter, for a model that is to be published; null: any.
    executor: `local` works on this machine; `ray` on a Ray cluster that `RAY_ADDRESS` names and
        that sees the same disk, or on a Ray of its own.
    workers: processes that prepare parts and write shards, each of one thread.
    parts_dir: folder that keeps prepared parts for other builds of the same rows; null keeps them
        in `out` until the build is finished.
    """

    out: str
    sources: tuple[SftSource, ...] = Field(min_length=1)
    tokenizer: SftTokenizer
    packing: PackingConfig
    reasoning: ReasoningConfig = ReasoningConfig()
    mixture: MixtureConfig = MixtureConfig()
    held_out: HeldOutConfig = HeldOutConfig(rate=0.0)
    deduplication: DeduplicationConfig | None = None
    decontamination: DecontaminationConfig | None = None
    shards: ShardConfig = ShardConfig()
    limits: LimitsConfig = LimitsConfig()
    licenses: tuple[str, ...] | None = None
    seed: int = Field(default=0, ge=0)
    write_dropped: bool = False
    executor: Literal["local", "ray"] = "local"
    workers: int = Field(default=1, ge=1)
    parts_dir: str | None = None

    def check(self) -> None:
        names = [source.name for source in self.sources]
        refuse_twice("source", names)
        if (dedup := self.deduplication) is not None:
            unknown = "there is no source"
            refuse_unknown(f"deduplication.precedence: {unknown}", dedup.precedence, names)
            per_source = dedup.near.per_source if dedup.near else ()
            refuse_unknown(f"deduplication.near.per_source: {unknown}", per_source, names)
        without_amount = [source.name for source in self.sources if not source.has_amount]
        if without_amount and len(without_amount) < len(self.sources):
            raise ValueError(
                f"sources without share, rows or tokens: {', '.join(without_amount)}. Give every "
                "source an amount, or none to take each once"
            )
        shares = [source.share for source in self.sources if source.share is not None]
        if shares:
            refuse_shares("sources", shares)
        if self.mixture.total is not None and not shares:
            raise ValueError("mixture.total is divided by shares, but no source has a share")
