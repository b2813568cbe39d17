"""The recipe's block `decontamination:`, which keeps what is evaluated on out of training."""

from pydantic import Field

from posttrain.config.base import Strict


class EvaluationFile(Strict):
    """One file, glob or directory of evaluation items, in any form that a source may have.

    path: relative to the base directory.
    split: of a dataset directory that holds several.
    fields: dotted paths of the texts to look for, lists and objects standing for all texts in them;
        () takes every text of a row. Options (fields named `A` to `J`, `choices`, `options` and the
        like, lists beside a named text) count beside their question alone.
    """

    path: str = Field(min_length=1)
    split: str | None = None
    fields: tuple[str, ...] = ()


class DecontaminationConfig(Strict):
    """Records that share runs of words with an evaluation item are dropped as `contaminated`.

    files: what is evaluated on.
    ngram: words of a run, and the own words of an item that must be found at least; a question with
        fewer is found with its options, or as a whole message.
    coverage: the share of an item's own words that must lie in runs that one message also has.
    common: a run in more distinct items than this is a template, whose words are no item's own.
    """

    files: tuple[EvaluationFile, ...] = Field(min_length=1)
    ngram: int = Field(default=8, ge=3, le=50)
    coverage: float = Field(default=0.6, gt=0, le=1)
    common: int = Field(default=10, ge=1)
