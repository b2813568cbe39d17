"""The recipe's block `deduplication:`; without it, no record is dropped for being like another.

deduplication:
  prompt: false
  near: {edits: 0.05, min_words: 40}
  precedence: [curated, scraped]
"""

from __future__ import annotations

from pydantic import Field, model_validator

from posttrain.config.base import Strict


class NearConfig(Strict):
    """When two records that differ are near-duplicates.

    Args:
        edits: the largest share of the characters, on the user's side and on the assistant's, that
            may differ. Ours: copies with 3 % of their characters changed are found, and of the
            distinct questions of public sets the closest differ by more.
        min_words: records with fewer words are only ever compared exactly, and a side with fewer
            may differ only where the other side does. Ours: in a short text one edited word can be
            another question.
    """

    edits: float = Field(default=0.05, gt=0, le=0.1)
    min_words: int = Field(default=40, ge=10)


class DeduplicationConfig(Strict):
    """Of records that say the same, one is kept: exact copies always, others as asked.

    Args:
        prompt: keep one record for each prompt, whatever its answer.
        near: also drop near-duplicates; `{}` takes the defaults.
        precedence: names of sources; a copy is kept from the first named that has it. Sources that
            are not named come after, in the order of the recipe. Inside a source the record with
            the smaller key is kept, so that the order of rows changes nothing.
    """

    prompt: bool = False
    near: NearConfig | None = None
    precedence: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _named_once(self) -> DeduplicationConfig:
        twice = sorted({name for name in self.precedence if self.precedence.count(name) > 1})
        if twice:
            raise ValueError(f"deduplication.precedence names {', '.join(twice)} twice")
        return self
