"""The recipe's block `deduplication:`; without it, no record is dropped for being like another."""

from typing import Annotated

from pydantic import Field

from posttrain.config.base import Strict, refuse_twice

# below 0.7 the index would miss too many of the pairs
Threshold = Annotated[float, Field(ge=0.7, le=1)]


class NearConfig(Strict):
    """Near-duplicates by the Jaccard similarity of word 3-grams, prompt and answer together.

    threshold: the least similarity; 0.8 is that of Lee et al. (2022), "Deduplicating Training Data
        Makes Language Models Better".
    per_source: thresholds of sources by name, null for one without near-duplicates: of exercises
        from one template, 0.8 merges those that differ in a few words. Of two records from two
        sources the higher threshold counts.
    """

    threshold: Threshold = 0.8
    per_source: dict[str, Threshold | None] = Field(default_factory=dict)


class DeduplicationConfig(Strict):
    """Of records that say the same, one is kept: exact copies always, others as configured.

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
        """The threshold of a source, `None` where near-duplicates are not looked for."""
        return self.near and self.near.per_source.get(source, self.near.threshold)
