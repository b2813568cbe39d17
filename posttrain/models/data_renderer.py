"""Messages → ids for the SFT data stage: a tokenizer, its special tokens and its chat template.

renderer = load_data_renderer(recipe.tokenizer)
renderer.template, renderer.encode, renderer.offsets, renderer.marks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from posttrain.audit.marks import marks_of
from posttrain.chat import ChatTemplate
from posttrain.config.build_sft import SftTokenizer
from posttrain.models.audit_tokens import special_ids
from posttrain.models.chat_template import chat_template_of
from posttrain.models.encoding import Encoder, encoder_of, load_any_tokenizer
from posttrain.models.tokenizer import SpecialTokens, special_tokens
from posttrain.tokens.supervision import Marks


@dataclass(frozen=True, slots=True)
class DataRenderer:
    """What makes tokens in the data stage."""

    tokenizer: PreTrainedTokenizerBase
    special: SpecialTokens
    template: ChatTemplate
    encoder: Encoder
    marks: Marks

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, nothing added."""
        return self.encoder.arrays(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token."""
        return self.encoder.offsets(text)


def load_data_renderer(config: SftTokenizer, probes: Sequence[str] = ()) -> DataRenderer:
    """Load what a recipe names.

    Args:
        probes: texts on which a quicker library must give the tokenizer's own ids.

    Raises:
        ConfigError: a tokenizer, token or template that is not there or cannot be used.
    """
    tokenizer = load_any_tokenizer(config.path, revision=config.revision)
    special = special_tokens(tokenizer, end_token=None, pad_token=config.pad_token)
    template = chat_template_of(
        tokenizer, choice=config.chat_template, variables=config.template_variables
    )
    encoder = encoder_of(tokenizer, backend=config.backend, probes=probes)
    marks = marks_of(
        encoder.encode,
        special=special_ids(tokenizer),
        stop_ids=special.stop_ids,
        pad_id=special.pad_id,
        template=template,
    )
    return DataRenderer(tokenizer, special, template, encoder, marks)
