"""The recipe of a judge's evaluation: `scripts/eval_genrm.py --config F out=DIR`.

    data: runs/tiny/genrm_data            # its held-out pairs, each in both orders
    checkpoints: {warm: runs/tiny/genrm_sft, rl: runs/tiny/genrm}
    backend: {kind: transformers}
    sampling: {temperature: 0, max_tokens: 256}

The first checkpoint is the one that the others are compared with. Paths are relative to the
directory the command is run in.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from posttrain.config.backend import BackendConfig, Server
from posttrain.config.base import Strict
from posttrain.config.eval import EvaluatedConfig
from posttrain.config.sample import SamplingConfig

# how a server is reached decides nothing about what is asked: a run may go on with other values
REACHING = {"concurrency", "timeout", "retries", "api_key_env"}
_NAME = re.compile(r"[\w+-][\w.+-]*")


class EvalGenRmConfig(Strict):
    """One evaluation of judges on the same held-out pairs.

    Args:
        data: a `genrm_data` artifact.
        checkpoints: name → path, or path and backend.
        backend: what checkpoints run on that name no backend of their own.
        n: judgements of each pair in each order.
        pairs: how many pairs, from the front of the file; null takes all.
        chunk: in process, the judgements that are made together and kept together.
        max_failure_rate: largest share of judgements that a backend may have given up on.
    """

    out: str
    data: str
    checkpoints: dict[str, str | EvaluatedConfig] = Field(min_length=1)
    backend: BackendConfig | None = None
    n: int = Field(default=1, ge=1)
    pairs: int | None = Field(default=None, ge=1)
    sampling: SamplingConfig = SamplingConfig()
    chunk: int = Field(default=2048, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _runnable(self) -> EvalGenRmConfig:
        for name in self.checkpoints:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"checkpoint name {name!r}: use letters, digits and any of _ + - ."
                )
            backend, path = self.backend_of(name), self.path_of(name)
            if path is None and not isinstance(backend, Server):
                raise ValueError(f"checkpoints.{name}: path is required with kind {backend.kind}")
            if backend.kind == "completions" and path is None and backend.tokenizer is None:
                raise ValueError(f"checkpoints.{name}: name a path, or backend.tokenizer")
        return self

    def path_of(self, checkpoint: str) -> str | None:
        """Where a checkpoint lies."""
        found = self.checkpoints[checkpoint]
        return found if isinstance(found, str) else found.path

    def backend_of(self, checkpoint: str) -> BackendConfig:
        """What a checkpoint runs on."""
        found = self.checkpoints[checkpoint]
        backend = self.backend if isinstance(found, str) else found.backend or self.backend
        if backend is None:
            raise ValueError(f"checkpoints.{checkpoint}: there is no backend; name one for all")
        return backend

    def owner_config(self) -> dict[str, Any]:
        """What the judgements depend on: the digest of the output directory is taken of this."""
        config = self.model_dump(mode="json", exclude={"out", "max_failure_rate", "data"})
        config["backend"] = _asked(self.backend)
        config["checkpoints"] = {
            name: {"path": self.path_of(name), "backend": _asked(self.backend_of(name))}
            for name in self.checkpoints
        }
        return config


def _asked(backend: BackendConfig | None) -> dict[str, Any] | None:
    """A backend without how it is reached."""
    return None if backend is None else backend.model_dump(mode="json", exclude=REACHING)
