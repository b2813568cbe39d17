"""What jobs of a build need, without a tokenizer library; a token is a character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from data_builders.sft.part import WorkerState
from posttrain.chat import ChatTemplate, nemotron_3_nano_template
from posttrain.config.build_sft import BuildSftConfig
from posttrain.tokens.supervision import NO_MARKS, Marks


@dataclass(frozen=True)
class Characters:
    """Renders as the real thing does; the ids are code points."""

    template: ChatTemplate = field(default_factory=nemotron_3_nano_template)
    marks: Marks = NO_MARKS
    special_texts: Mapping[int, str] = field(default_factory=dict[int, str])

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Code points."""
        return [np.frombuffer(text.encode("utf-32-le"), np.int32) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """One character each."""
        return [(k, k + 1) for k in range(len(text))]


def light_state(recipe: BuildSftConfig) -> WorkerState:
    """Made in no time, as often as somebody wants."""
    return WorkerState(recipe, lambda: (Characters(), None))
