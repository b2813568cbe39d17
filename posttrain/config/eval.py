"""The recipe of an evaluation: `scripts/eval.py --config F out=DIR`.

    checkpoints: {sft: runs/tiny/sft, dpo: runs/tiny/dpo}
    backend: {kind: transformers}
    prompts: [{name: maths, format: tiny_world, path: runs/tiny/world/heldout/maths.jsonl}]
    settings: [{name: no_tools, thinking: both}, {name: with_tools, tools: given}]
    sampling: {temperature: 0, max_tokens: 192}

The first checkpoint is the one that the others are compared with. A source of prompts is a task;
paths are relative to the directory the command is run in.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from posttrain.config.backend import BackendConfig, Server
from posttrain.config.base import Strict
from posttrain.config.load import nearest
from posttrain.config.prompts import AnySource, Setting, check_prompts
from posttrain.config.sample import ToolLoopSampling
from posttrain.errors import ConfigError

# how a server is reached decides nothing about what is asked: a run may go on with other values
_REACHING = {"concurrency", "timeout", "retries", "api_key_env"}
_NAME = re.compile(r"[\w+-][\w.+-]*")


class EvaluatedConfig(Strict):
    """One checkpoint, where its path alone does not say everything.

    Args:
        path: a directory; with a server, the checkpoint that it serves (optional: it gives the
            tokenizer and the lineage).
        backend: what it runs on, instead of the recipe's.
    """

    path: str | None = None
    backend: BackendConfig | None = None


class EvalConfig(Strict):
    """One evaluation.

    Args:
        checkpoints: name → path, or path and backend.
        backend: what checkpoints run on that name no backend of their own.
        n: completions of each prompt.
        chunk: in process, the completions that are made together and kept together; a killed run
            makes at most so many again.
        max_failure_rate: largest share of completions that a backend may have given up on.
        inspect_logs: keep inspect's own logs beside the records, for `inspect view`.
    """

    out: str
    checkpoints: dict[str, str | EvaluatedConfig] = Field(min_length=1)
    backend: BackendConfig | None = None
    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    n: int = Field(default=1, ge=1)
    sampling: ToolLoopSampling = ToolLoopSampling()
    chunk: int = Field(default=2048, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    inspect_logs: bool = False
    seed: int = Field(default=0, ge=0)

    @field_validator("checkpoints")
    @classmethod
    def _named(
        cls, checkpoints: dict[str, str | EvaluatedConfig]
    ) -> dict[str, str | EvaluatedConfig]:
        for name in checkpoints:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"checkpoint name {name!r}: use letters, digits and any of _ + - ."
                )
        return checkpoints

    @model_validator(mode="after")
    def _consistent(self) -> EvalConfig:
        check_prompts(self.prompts, self.settings)
        names = [f"{p.name}.{s.name}" for p in self.prompts for s in self.settings]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pairs of source and setting would share the name {twice[0]!r}")
        for name in self.checkpoints:
            self._runnable(name)
        return self

    def _runnable(self, name: str) -> None:
        backend, path = self.backend_of(name), self.path_of(name)
        if path is None and not isinstance(backend, Server):
            raise ValueError(f"checkpoints.{name}: path is required with kind {backend.kind}")
        if backend.kind == "completions" and path is None and backend.tokenizer is None:
            raise ValueError(f"checkpoints.{name}: name a path, or backend.tokenizer")
        budgets = [s.name for s in self.settings if s.reasoning_budget is not None]
        if backend.kind == "chat" and budgets:
            raise ValueError(
                f"setting {budgets[0]!r}: a chat endpoint cannot hold a reasoning budget; "
                "use kind: completions"
            )

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
        """What the records depend on: the digest of the output directory is taken of this."""
        config = self.model_dump(mode="json", exclude={"out", "max_failure_rate", "inspect_logs"})
        config["backend"] = _asked(self.backend)
        config["checkpoints"] = {
            name: found
            if isinstance(found, str)
            else {"path": found.path, "backend": _asked(found.backend)}
            for name, found in self.checkpoints.items()
        }
        return config

    def n_of(self, setting: str) -> int:
        """Completions of each prompt in a setting."""
        own = next(s.n for s in self.settings if s.name == setting)
        return self.n if own is None else own

    def part(self, tasks: tuple[str, ...]) -> EvalConfig:
        """The recipe with some of its tasks alone, and the settings that ask these.

        Raises:
            ConfigError: a task that is not there, or that no setting asks.
        """
        known = [source.name for source in self.prompts]
        for name in tasks:
            if name not in known:
                raise ConfigError(f"there is no task {name!r}{nearest(name, known)}")
        kept = tuple(
            setting.model_copy(
                update={"sources": tuple(n for n in setting.sources or known if n in tasks)}
            )
            for setting in self.settings
            if set(setting.sources or known) & set(tasks)
        )
        if not kept:
            raise ConfigError(f"no setting asks {', '.join(tasks)}")
        sources = tuple(source for source in self.prompts if source.name in tasks)
        return self.model_copy(update={"prompts": sources, "settings": kept})


def _asked(backend: BackendConfig | None) -> dict[str, Any] | None:
    """A backend without how it is reached."""
    return None if backend is None else backend.model_dump(mode="json", exclude=_REACHING)
