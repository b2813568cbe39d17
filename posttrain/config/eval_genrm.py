"""The recipe of a judge's evaluation: `posttrain eval_genrm --config F out=DIR`.

    data: runs/tiny/genrm_data            # its held-out pairs, each in both orders
    checkpoints: {warm: runs/tiny/genrm_sft, rl: runs/tiny/genrm}
    backend: {kind: transformers}
    sampling: {temperature: 0, max_tokens: 256}

The first checkpoint is the one that the others are compared with. Paths are relative to the
directory the command is run in.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from posttrain.config.backend import without_reaching
from posttrain.config.eval import CheckpointsConfig
from posttrain.config.sample import SamplingConfig


class EvalGenRmConfig(CheckpointsConfig):
    """One evaluation of judges on the same held-out pairs, `n` judgements of each in each order.

    Args:
        data: a `genrm_data` artifact.
        pairs: how many pairs, from the front of the file; null takes all.
    """

    data: str
    pairs: int | None = Field(default=None, ge=1)
    sampling: SamplingConfig = SamplingConfig()

    def owner_config(self) -> dict[str, Any]:
        """What the judgements depend on: the digest of the output directory is taken of this."""
        config = self.model_dump(mode="json", exclude={"out", "max_failure_rate", "data"})
        config["backend"] = without_reaching(self.backend)
        config["checkpoints"] = {
            name: {"path": self.path_of(name), "backend": without_reaching(self.backend_of(name))}
            for name in self.checkpoints
        }
        return config
