"""The recipe that trains a judge: `posttrain genrm --config tiny/genrm`.

    data: runs/tiny/genrm_data       # what build_genrm wrote
    out: runs/tiny/genrm
    model: {path: runs/tiny/genrm_sft}
    sampling: {max_tokens: 256}
    trainer: {learning_rate: 1.0e-4, max_steps: 40}

Defaults are the paper's (section 3.3.1): 128 prompts × 8 judgements, one gradient step a batch.
"""

from __future__ import annotations

from pydantic import Field

from posttrain.config.base import source
from posttrain.config.grpo import GroupTraining


class GenRmConfig(GroupTraining):
    """One run of the judge's training, rewarded by equation 1 of the paper.

    Args:
        data: a `genrm_data` artifact.
    """

    data: str
    num_generations: int = Field(default=8, ge=2, json_schema_extra=source("paper, 3.3.1"))
