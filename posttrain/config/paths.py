"""Refusal of checkpoints and templates that are not there, before anything heavy is loaded."""

import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from posttrain.errors import ConfigError, DataError
from posttrain.runs import MANIFEST, STAGE, read_artifact

_TRUE = ("1", "ON", "YES", "TRUE")  # values of HF_HUB_OFFLINE that huggingface_hub takes for true
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_FILES_OF_MODELS = ("config.json", "adapter_config.json", "tokenizer_config.json", "tokenizer.json")
_CONNECT_SECONDS = 1.5  # time that the hub has to take a connection
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def is_hub_id(path: str) -> bool:
    """True if a path may be the name of a repository on the hub."""
    return HUB_ID.fullmatch(path) is not None


def refuse_missing_checkpoint(path: str | None, *, key: str, is_served: bool = False) -> None:
    """Refuse a model that cannot be loaded, without loading anything heavy.

    Args:
        is_served: a server has the weights, so that a directory needs a tokenizer alone.

    Raises:
        ConfigError: a path that is no directory and cannot be a hub id, a hub id that cannot be
            fetched from here, or a directory without a model or its weights.
        DataError: the directory of another stage, or of one that has not finished.
    """
    if path is not None and not Path(path).is_dir() and not is_hub_id(path):
        raise ConfigError(f"{key}: there is no directory {path!r}, nor can that be a hub id")
    if path is not None and Path(path).is_dir() and not is_model(Path(path)):
        if any((Path(path) / name).is_file() for name in (STAGE, MANIFEST)):
            try:
                read_artifact(path, kind="checkpoint", verify=False)
            except DataError as error:
                raise DataError(f"{key}: {error}") from error
        raise ConfigError(f"{key}: {path!r} holds no model, for it has no config.json")
    if path is not None and Path(path).is_dir() and not is_served:
        _refuse_without_weights(Path(path), key=key)
    refuse_out_of_reach(path, key=key)


def _refuse_without_weights(directory: Path, *, key: str) -> None:
    """Raise ConfigError for a directory that has no weights, or has them as pickle."""
    if (directory / "adapter_config.json").is_file():
        return  # an adapter is welcome, or refused in words of its own
    if any(directory.glob("*.safetensors")):
        return
    pickles = sorted(file.name for file in directory.glob("pytorch_model*.bin"))
    if pickles:
        raise ConfigError(
            f"{key}: {str(directory)!r} has its weights as pickle ({pickles[0]}), which can run "
            "code when it is read: load the model and save_pretrained it, which writes safetensors"
        )
    raise ConfigError(f"{key}: {str(directory)!r} has no weights, for it has no *.safetensors")


def refuse_partial_checkpoint(path: str | None, *, key: str) -> None:
    """Refuse a model that is missing, an adapter alone, or quantised, before anything is loaded.

    Raises:
        ConfigError, DataError: as `refuse_missing_checkpoint`, or for such a folder.
    """
    refuse_missing_checkpoint(path, key=key)
    if path is None:
        return
    refuse_adapter(path)
    if is_quantised(path):
        raise cannot_use_quantised(path)


def is_model(directory: Path) -> bool:
    """True if a directory holds a model, an adapter, or the tokenizer of a served model."""
    return any((directory / name).is_file() for name in _FILES_OF_MODELS)


def refuse_out_of_reach(
    path: str | None, *, key: str, kind: Literal["model", "dataset"] = "model"
) -> None:
    """Raise ConfigError for a hub id that is not in the cache while the hub cannot be reached.

    The libraries would try for minutes, or name none of the ways out; of an id in the cache they
    try each file, so that a line says how to do without.
    """
    if path is None or Path(path).is_dir() or not is_hub_id(path):
        return
    is_cached = _is_cached(path, kind)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        if is_cached:
            return
        raise ConfigError(
            f"{key}: there is no directory {path!r}, the hub's cache does not hold it, and "
            "HF_HUB_OFFLINE is set: unset it to fetch it, or name a local path"
        )
    if any(name.upper() in _PROXIES for name in os.environ):
        return  # a direct connection says nothing about one through a proxy
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except TimeoutError:
        return  # the network may only be slow
    except OSError as error:
        if is_cached:
            print(
                f"{key}: the hub ({hub.hostname}) cannot be reached, which every file of {path} is "
                "tried for; HF_HUB_OFFLINE=1 takes them from the cache at once",
                file=sys.stderr,
            )
            return
        raise ConfigError(
            f"{key}: there is no directory {path!r}, and the hub ({hub.hostname}) cannot be "
            f"reached: {error.strerror or error}. Name a local path; with HF_HUB_OFFLINE=1 only "
            "the cache is looked into"
        ) from error


def _is_cached(hub_id: str, kind: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    # rows that `datasets` has read before are in a cache of its own
    rows = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    if kind == "dataset" and (rows / hub_id.replace("/", "___")).is_dir():
        return True
    return (cache / f"{kind}s--{hub_id.replace('/', '--')}" / "snapshots").is_dir()


def refuse_adapter(path: str) -> None:
    """Raise ConfigError for a folder that holds an adapter alone.

    transformers would load its base with the adapter on, all of it frozen.
    """
    if (Path(path) / "adapter_config.json").is_file():
        raise is_adapter(path)


def is_adapter(path: str) -> ConfigError:
    """Error for an adapter where a model is needed."""
    return ConfigError(
        f"{path} is a LoRA adapter, not a model: merge it first (posttrain merge {path} OUT), or "
        "name the folder above adapter/ in a checkpoint of ours, which is merged"
    )


def is_quantised(path: str | Path) -> bool:
    """True if a directory holds weights that ModelOpt has quantised, with scales beside them.

    Servers read the scales; transformers loads such a directory without them and says nothing.
    """
    folder = Path(path)
    if (folder / "hf_quant_config.json").is_file():
        return True
    if not (folder / "config.json").is_file():
        return False
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return names_modelopt(config.get("quantization_config"))


def names_modelopt(quantization: Any) -> bool:
    """True if the `quantization_config` of a model's config is one that ModelOpt writes."""
    if not isinstance(quantization, dict):
        return False
    method = cast(dict[str, Any], quantization).get("quant_method")
    return isinstance(method, str) and method.startswith("modelopt")


def cannot_use_quantised(path: str | Path) -> ConfigError:
    """Error for a quantised directory where full weights are needed."""
    return ConfigError(
        f"{path} holds weights quantised by ModelOpt, and transformers would load them without "
        "their scales: serve the folder (vllm serve) and name the server, or use the checkpoint "
        "that it was made from"
    )


def refuse_missing_template(path: str, choice: str, *, key: str) -> None:
    """Raise ConfigError if a directory's tokenizer is to use its own template and has none.

    Args:
        choice: value of the recipe's `chat_template`.
        key: the dotted key of that value.
    """
    folder = Path(path)
    if choice != "own" or not (folder / "tokenizer_config.json").is_file():
        return
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    if "chat_template" not in settings and not any((folder / name).exists() for name in files):
        raise missing_template(path, key=key)


def missing_template(path: str, *, key: str) -> ConfigError:
    """Error for a tokenizer without a chat template, with the key to set."""
    return ConfigError(
        f"the tokenizer {path!r} has no chat template of its own, as those of base models: set "
        f"{key} to hermes (tools), chatml (plain), nemotron_3_nano (tools and reasoning), "
        "trl:FAMILY, or a Jinja file"
    )


def checkpoint_dtype(path: str | Path) -> str | None:
    """Precision that a checkpoint's config states, such as `float32`.

    None if it states none, or the checkpoint is no directory.
    """
    file = Path(path) / "config.json"
    if not file.is_file():
        return None
    config = json.loads(file.read_text("utf-8"))
    text = config.get("text_config", {})
    for stated in (config.get("dtype"), config.get("torch_dtype"), text.get("dtype")):
        if isinstance(stated, str):
            return stated
    return None
