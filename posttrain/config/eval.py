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
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from posttrain.config.backend import BackendConfig, check_checkpoint, without_reaching
from posttrain.config.base import Strict
from posttrain.config.load import nearest
from posttrain.config.prompts import AnySource, Setting, check_prompts
from posttrain.config.sample import ToolLoopSampling, check_chat
from posttrain.errors import ConfigError

Share = Annotated[float, Field(ge=0, le=1)]
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


class CheckpointsConfig(Strict):
    """The checkpoints of an evaluation and how many completions of each prompt they make.

    Args:
        checkpoints: name → path, or path and backend; the others are compared with the first.
        backend: what checkpoints run on that name no backend of their own.
        n: completions of each prompt.
        chunk: in process, the completions that are made and kept together; a killed run makes at
            most so many again.
        max_failure_rate: largest share of completions that a backend may have given up on.
    """

    out: str
    checkpoints: dict[str, str | EvaluatedConfig] = Field(min_length=1)
    backend: BackendConfig | None = None
    n: int = Field(default=1, ge=1)
    chunk: int = Field(default=2048, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _runnable(self) -> Self:
        for name in self.checkpoints:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"checkpoint name {name!r}: use letters, digits and any of _ + - ."
                )
            key = f"checkpoints.{name}.path"
            check_checkpoint(self.backend_of(name), self.path_of(name), key)
        return self

    def path_of(self, checkpoint: str) -> str | None:
        """Where a checkpoint lies."""
        one = self.checkpoints[checkpoint]
        return one if isinstance(one, str) else one.path

    def backend_of(self, checkpoint: str) -> BackendConfig:
        """What a checkpoint runs on."""
        one = self.checkpoints[checkpoint]
        backend = self.backend if isinstance(one, str) else one.backend or self.backend
        if backend is None:
            raise ValueError(f"checkpoints.{checkpoint}: there is no backend; name one for all")
        return backend


class EvalConfig(CheckpointsConfig):
    """One evaluation.

    Args:
        expect: agentic family, or `all` → the range in which the share of its solved runs is
            predicted to lie; a run keeps the predictions that it began with.
        inspect_logs: write the run as inspect's logs as well, for `inspect view`.
    """

    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    sampling: ToolLoopSampling = ToolLoopSampling()
    expect: dict[str, tuple[Share, Share]] = Field(default_factory=dict[str, tuple[float, float]])
    inspect_logs: bool = False

    @model_validator(mode="after")
    def _predicted(self) -> EvalConfig:
        given = [*(str(source.environment) for source in self.prompts), "all"]
        for family, (low, high) in self.expect.items():
            if family not in given:
                raise ValueError(
                    f"expect: no source is of the family {family!r}{nearest(family, given)}"
                )
            if low > high:
                raise ValueError(f"expect.{family}: {low} is above {high}")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> EvalConfig:
        check_prompts(self.prompts, self.settings)
        names = [f"{p.name}.{s.name}" for p in self.prompts for s in self.settings]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pairs of source and setting would share the name {twice[0]!r}")
        for name in self.checkpoints:
            check_chat(self.backend_of(name), self.settings)
        return self

    def owner_config(self) -> dict[str, Any]:
        """What the records depend on: the digest of the output directory is taken of this."""
        config = self.model_dump(mode="json", exclude={"out", "max_failure_rate", "inspect_logs"})
        config["backend"] = without_reaching(self.backend)
        config["checkpoints"] = {
            name: one
            if isinstance(one, str)
            else {"path": one.path, "backend": without_reaching(one.backend)}
            for name, one in self.checkpoints.items()
        }
        return config

    def n_of(self, setting: str) -> int:
        """Completions of each prompt in a setting."""
        own = next(s.n for s in self.settings if s.name == setting)
        return self.n if own is None else own

    def part(self, tasks: tuple[str, ...]) -> EvalConfig:
        """The recipe with some of its tasks alone, and the settings that use these.

        Raises:
            ConfigError: a task that is not there, or that no setting uses.
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
            raise ConfigError(f"no setting uses {', '.join(tasks)}")
        sources = tuple(source for source in self.prompts if source.name in tasks)
        return self.model_copy(update={"prompts": sources, "settings": kept})
