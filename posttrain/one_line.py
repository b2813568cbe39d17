"""`posttrain sft --model M --data D`: recipes of build_sft and sft for a model and rows by name.

The recipes are those for a CPU or for one GPU with places put in. They are written into the output
directory, to keep and edit, and each stage is run from its file as a user would run it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from posttrain.chain import resolve_chain, run_chain
from posttrain.config.load import apply_overrides, validate
from posttrain.config.paths import HUB_ID, refuse_out_of_reach, refuse_partial_checkpoint
from posttrain.config.recipe_files import read_mapping, recipe_file, recipe_text
from posttrain.config.schemas import stage_schemas
from posttrain.config.stages import StagesConfig, StageStep
from posttrain.errors import ConfigError, PosttrainError
from posttrain.revisions import newest_commit
from posttrain.runs import MANIFEST, read_artifact

# of the CPU's recipe, whose steps are for more rows than many first data sets have; ours
_MOST_EPOCHS = 3
_ROWS = ("*.jsonl", "*.ndjson", "*.json", "*.parquet", "*.jsonl.gz", "*.jsonl.zst")
_CHAT_TOKENS = {"<|im_start|>", "<|im_end|>"}
_SAVED_BY_DATASETS = ("state.json", "dataset_dict.json")
# a key that may follow the command, for the error when a stage stops
_EXAMPLE_KEYS = {
    "build_sft": "build_sft.sources.0.fields.prompt=question",
    "sft": "trainer.learning_rate=1e-5",
}


@dataclass
class OneLine:
    """A model and rows by name.

    Attributes:
        model, data: a directory or a hub id each; rows may be a file or a glob, too.
        out: the directory for recipes, data and checkpoint.
        overrides: keys of sft, and of build_sft behind `build_sft.`.
        scripts: the folder of the command `posttrain`.
        show: prints a line.
    """

    model: str
    data: str
    out: Path
    overrides: Sequence[str]
    scripts: Path
    show: Callable[[str], object]

    def run(self, *, dry_run: bool) -> None:
        """Build the data and train; with `dry_run`, the dry run of what can be done by now.

        Raises:
            ConfigError: a name that nothing has, a key that no recipe has, or a recipe that says
                otherwise is there.
            PosttrainError: a stage stopped.
        """
        build = self._recipe("build_sft", self._build_keys())
        model = build["tokenizer"]
        self._recipe("sft", self._sft_keys(model))  # a misspelt key is not found after the build
        self._run_stage("build_sft", build, dry_run=dry_run)
        if not (Path(build["out"]) / MANIFEST).is_file():
            self.show("\nThe plan of training needs the data: it follows when they are built.")
            return
        self._run_stage("sft", self._recipe("sft", self._sft_keys(model)), dry_run=dry_run)
        if not dry_run:
            self.show(f"To talk to it: posttrain chat {shlex.quote(str(self.out / 'sft'))}")

    # -- recipes

    def _build_keys(self) -> dict[str, Any]:
        source = {"name": "data", **rows_of(self.data)}
        tokenizer: dict[str, Any] = {"path": self.model}
        refuse_partial_checkpoint(self.model, key="--model")
        if not Path(self.model).is_dir():
            tokenizer["revision"] = newest_commit(self.model, kind="model", key="--model")
        if not self._has_template(tokenizer):
            tokenizer["chat_template"] = "hermes"
        return {"out": f"{self.out / 'sft_data'}", "tokenizer": tokenizer, "sources": [source]}

    def _has_template(self, tokenizer: dict[str, Any]) -> bool:
        """Check that the tokenizer brings a template, or cannot be given the usual one."""
        from posttrain.tokens.tokenizer import load_any_tokenizer  # takes a second

        loaded = load_any_tokenizer(tokenizer["path"], revision=tokenizer.get("revision"))
        return bool(loaded.chat_template) or not loaded.get_vocab().keys() >= _CHAT_TOKENS

    def _sft_keys(self, tokenizer: dict[str, Any]) -> dict[str, Any]:
        """Keys of the training recipe; the steps follow from the data once they are built."""
        data = self.out / "sft_data"
        model: dict[str, Any] = {"path": self.model}
        if "revision" in tokenizer:
            model["revision"] = tokenizer["revision"]
        keys: dict[str, Any] = {"data": f"{data}", "out": f"{self.out / 'sft'}", "model": model}
        if not (data / MANIFEST).is_file():
            return keys
        splits = read_artifact(data, verify=False).stats["splits"]
        trainer: dict[str, Any] = {}
        if "eval" not in splits:  # too few rows
            trainer |= {"eval_strategy": "no", "eval_on_start": False}
        if self._folder == "cpu":
            usual = self._base("sft")["trainer"]
            batch = usual["per_device_train_batch_size"] * usual["gradient_accumulation_steps"]
            steps_per_epoch = -(-splits["train"]["packs"] // batch)
            trainer["max_steps"] = min(usual["max_steps"], _MOST_EPOCHS * steps_per_epoch)
        return keys | {"trainer": trainer}

    def _base(self, stage: str) -> dict[str, Any]:
        return read_mapping(recipe_file(f"{self._folder}/{stage}"))

    @cached_property
    def _folder(self) -> str:
        """Folder of the recipes that fit this machine."""
        import torch

        return "one-gpu" if torch.cuda.is_available() else "cpu"

    def _recipe(self, stage: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Make the shipped recipe this run's: merge its blocks with our keys, then the overrides.

        Raises:
            ConfigError: an override that the stage does not take.
        """
        recipe = self._base(stage)
        for key, value in keys.items():
            merged = isinstance(value, dict) and key != "tokenizer"
            recipe[key] = {**recipe.get(key, {}), **value} if merged else value
        recipe = apply_overrides(recipe, self._overrides_of(stage))
        validate(recipe, stage_schemas()[stage], where=stage)
        return recipe

    def _overrides_of(self, stage: str) -> list[str]:
        prefix = "build_sft."
        if stage == "build_sft":
            prefixed = [override for override in self.overrides if override.startswith(prefix)]
            return [override.removeprefix(prefix) for override in prefixed]
        return [override for override in self.overrides if not override.startswith(prefix)]

    # -- stages

    def _run_stage(self, stage: str, recipe: dict[str, Any], *, dry_run: bool) -> None:
        file = self.out / f"{stage}.yaml"
        if file.is_file() and read_mapping(file) != recipe:
            raise ConfigError(
                f"{file} is there and is not the recipe of this command: run it as it is "
                f"(posttrain {stage} --config {file}), remove it, or name another --output"
            )
        if dry_run and (Path(recipe["out"]) / MANIFEST).is_file():
            return
        text = self._text_of(stage, recipe)
        self.show(f"\n{text}")
        if dry_run:
            with tempfile.TemporaryDirectory() as scratch:
                scratch_file = Path(scratch) / file.name
                scratch_file.write_text(text, "utf-8")
                self._call(stage, scratch_file, dry_run=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        try:
            self._call(stage, file, dry_run=False)
        except PosttrainError:
            if not Path(recipe["out"]).exists():  # refused before it began: nothing stays of it
                file.unlink()
                with contextlib.suppress(OSError):
                    self.out.rmdir()
            raise

    def _text_of(self, stage: str, recipe: dict[str, Any]) -> str:
        path = shlex.quote(f"{self.out / stage}.yaml")
        head = (
            f"# {path}: {self._folder}/{stage} for {self.model}; to run it, edited or not:\n"
            f"# posttrain {stage} --config {path}\n"
        )
        # by way of JSON, so that equal lists are written twice and not as references
        plain = json.loads(json.dumps(recipe))
        return head + recipe_text(plain)

    def _call(self, stage: str, file: Path, *, dry_run: bool) -> None:
        config = StagesConfig(stages=(StageStep(stage=stage, recipe=str(file)),))
        stages = resolve_chain(config, self.scripts)
        if dry_run:
            [resolved] = stages
            stages = [replace(resolved, arguments=(*resolved.arguments, "--dry-run"))]
        advice = f"Keys of the recipe above may follow the command, such as {_EXAMPLE_KEYS[stage]}."
        if not dry_run:
            advice = f"Rerun the same command to resume. {advice}"
        run_chain(stages, config, scripts=self.scripts, root=Path(), show=self.show, advice=advice)


def rows_of(data: str) -> dict[str, Any]:
    """The keys of a source: a path, or a hub id at the commit that it has now.

    Raises:
        ConfigError: there is nothing of this name, or nothing in it that can be read.
    """
    path = Path(data)
    if path.is_dir() and not any((path / name).is_file() for name in _SAVED_BY_DATASETS):
        patterns = [f"{path}/**/{name}" for name in _ROWS if any(path.rglob(name))]
        if not patterns:
            raise ConfigError(f"--data: {path} holds none of {', '.join(_ROWS)}")
        return {"path": patterns}
    if path.exists() or glob.has_magic(data):
        return {"path": data}
    if not HUB_ID.fullmatch(data) or path.suffix in (".jsonl", ".json", ".parquet", ".csv"):
        raise ConfigError(f"--data: there is no file or directory {data!r}, nor is it a hub id")
    refuse_out_of_reach(data, key="--data", kind="dataset")
    return {
        "hub": data,
        "revision": newest_commit(data, kind="dataset", key="--data"),
        "split": "train",
    }


def default_output(model: str, data: str) -> str:
    """A directory under `runs` that is named after both."""
    file = Path(data)
    rows = file.resolve().name if file.is_dir() else file.name.partition(".")[0]
    names = [re.sub(r"[^\w.-]+", "", name) for name in (Path(model).resolve().name, rows)]
    return f"runs/{'-'.join(name for name in names if name)}"
