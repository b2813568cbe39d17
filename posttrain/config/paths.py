"""What a recipe names and is not there, refused before anything heavy is loaded."""

import json
import re
from pathlib import Path

from posttrain.errors import ConfigError

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def refuse_missing_checkpoint(path: str | None, *, key: str) -> None:
    """Raises ConfigError for a path that is no directory and cannot be a hub id."""
    if path is not None and not Path(path).is_dir() and not _HUB_ID.fullmatch(path):
        raise ConfigError(f"{key}: there is no directory {path!r}, nor can that be a hub id")


def refuse_adapter(path: str) -> None:
    """Raises ConfigError for a folder with an adapter alone: transformers would load its base with
    the adapter on, all of it frozen."""
    if (Path(path) / "adapter_config.json").is_file():
        raise is_adapter(path)


def is_adapter(path: str) -> ConfigError:
    """The error of an adapter where a model is needed."""
    return ConfigError(
        f"{path} is a LoRA adapter, not a model: merge it first (posttrain merge {path} OUT), or "
        "name the folder above adapter/ in a checkpoint of ours, which is merged"
    )


def refuse_missing_template(path: str, choice: str, *, key: str) -> None:
    """Raises ConfigError where a directory's tokenizer has no template and is to use its own.

    Args:
        choice: the recipe's `chat_template`, which stands under `key`.
    """
    folder = Path(path)
    if choice != "own" or not (folder / "tokenizer_config.json").is_file():
        return
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    if "chat_template" not in settings and not any((folder / name).exists() for name in files):
        raise missing_template(path, key=key)


def missing_template(path: str, *, key: str) -> ConfigError:
    """The error of a base model's tokenizer, with the key to set."""
    return ConfigError(
        f"the tokenizer {path!r} has no chat template of its own, as those of base models: set "
        f"{key} to hermes (tools), chatml (plain), nemotron_3_nano (tools and reasoning), "
        "trl:FAMILY, or a Jinja file"
    )


def checkpoint_dtype(path: str | Path) -> str | None:
    """The precision that a checkpoint's config states, such as `float32`; None where it does not,
    or the checkpoint is no directory."""
    file = Path(path) / "config.json"
    if not file.is_file():
        return None
    config = json.loads(file.read_text("utf-8"))
    text = config.get("text_config", {})
    for stated in (config.get("dtype"), config.get("torch_dtype"), text.get("dtype")):
        if isinstance(stated, str):
            return stated
    return None
