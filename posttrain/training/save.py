"""A trained model on disk as plain transformers reads it: weights, config, tokenizer, stop tokens.

    write_model(trainer, out, out=out, base=recipe.model, special=special)
    → config.json generation_config.json model.safetensors tokenizer.json … [adapter/]

With an adapter, the adapter goes to `adapter/` and the directory itself holds the merged model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from peft import PeftModel

from posttrain.config.sft import ModelConfig
from posttrain.models.adapters import merge_adapter
from posttrain.models.load import set_special_tokens
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.resumable import Resumable

ADAPTER = "adapter"
# what the trainer adds and plain transformers does not need; it also holds host-dependent values
_NOT_MODEL = ("training_args.bin", "README.md")


def write_model(
    trainer: Resumable, target: Path, *, out: Path, base: ModelConfig, special: SpecialTokens
) -> None:
    """Write the model to `target`, the stage's `out` or a folder in it. Runs on every process.

    Args:
        base: what an adapter is merged into.
    """
    partial = out / f".{target.name}.partial"
    first = trainer.is_world_process_zero()
    if first:
        shutil.rmtree(partial, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    adapted = isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel)
    trainer.save_model(str(partial / ADAPTER if adapted else partial), _internal_call=True)
    if first:
        if adapted:
            _write_merged(partial, base, special)
        for name in _NOT_MODEL:
            for path in (partial / name, partial / ADAPTER / name):
                path.unlink(missing_ok=True)
        _move_into_place(partial, target)
    trainer.accelerator.wait_for_everyone()


def _write_merged(partial: Path, base: ModelConfig, special: SpecialTokens) -> None:
    _order_lists(partial / ADAPTER / "adapter_config.json")
    merged = merge_adapter(partial / ADAPTER, base)
    set_special_tokens(merged, special)
    merged.save_pretrained(str(partial))
    for path in sorted((partial / ADAPTER).iterdir()):
        if path.name.startswith(
            ("tokenizer", "chat_template", "special_tokens", "vocab", "merges")
        ):
            path.replace(partial / path.name)


def _order_lists(config: Path) -> None:
    """PEFT keeps module names in sets: their order in the file differs between processes."""
    read = json.loads(config.read_text("utf-8"))
    ordered = {k: sorted(v) if isinstance(v, list) else v for k, v in read.items()}
    config.write_text(json.dumps(ordered, indent=2, sort_keys=True), encoding="utf-8")


def _move_into_place(partial: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(partial.iterdir()):
        goal = target / path.name
        if goal.is_dir():
            shutil.rmtree(goal)
        path.replace(goal)
    partial.rmdir()


def model_files(target: Path) -> list[str]:
    """The files of a written model, by path relative to `target`."""
    return sorted(
        str(path.relative_to(target))
        for path in target.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )
