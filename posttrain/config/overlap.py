"""Blocks `deduplication:` and `decontamination:`; without a block, nothing is dropped for it."""

from typing import Annotated

from pydantic import Field

from posttrain.config.base import Strict, refuse_twice

# below 0.7 the index would miss too many of the pairs
Threshold = Annotated[float, Field(ge=0.7, le=1)]


class NearConfig(Strict):
    """Near-duplicates by the Jaccard similarity of word 3-grams, prompt and answer together.

    threshold: least similarity of near-duplicates; 0.8 is that of Lee et al. (2022),
        "Deduplicating Training Data Makes Language Models Better".
    per_source: name of a source → its threshold, null to keep all its near-duplicates: of exercises
        from one template, 0.8 merges those that differ in a few words. For two records from two
        sources the higher threshold counts.
    """

    threshold: Threshold = 0.8
    per_source: dict[str, Threshold | None] = Field(default_factory=dict)


class DeduplicationConfig(Strict):
    """Deduplication: one of several exact copies is kept, and of similar records as configured.

    prompt: keep one record for each prompt, whatever its answer.
    near: also drop near-duplicates; `{}` takes the defaults.
    precedence: names of sources; a copy is kept from the first that has it, then from those not
        named, in the recipe's order; inside a source the record with the smaller key.
    """

    prompt: bool = False
    near: NearConfig | None = None
    precedence: tuple[str, ...] = ()

    def check(self) -> None:
        refuse_twice("deduplication.precedence", self.precedence)

    def near_threshold(self, source: str) -> float | None:
        """Threshold of a source; None if its near-duplicates are kept."""
        return self.near and self.near.per_source.get(source, self.near.threshold)


class EvaluationFile(Strict):
    """One file, glob or directory of evaluation items, in any form that a source may have.

    path: path relative to the base directory.
    split: split of a dataset directory that holds several.
    fields: dotted paths of the texts to look for, where a list or an object stands for all texts in
        it; () takes every text of a row. Options (fields named `A` to `J`, `choices`, `options` and
        the like, lists beside a named text) count beside their question alone.
    """

    path: str = Field(min_length=1)
    split: str | None = None
    fields: tuple[str, ...] = ()


class DecontaminationConfig(Strict):
    """Records that share runs of words with an evaluation item are dropped as `contaminated`.

    files: files of evaluation items.
    ngram: words of a run, and least words of an item that must be found; a question with fewer is
        found with its options, or as a whole message.
    coverage: share of an item's own words that must lie in runs that one message also has.
    common: most distinct items that may share a run; a run in more items is a template, whose words
        are no item's own.
    """

    files: tuple[EvaluationFile, ...] = Field(min_length=1)
    ngram: int = Field(default=8, ge=3, le=50)
    coverage: float = Field(default=0.6, gt=0, le=1)
    common: int = Field(default=10, ge=1)
