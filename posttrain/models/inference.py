"""Checkpoints for inference: weights, their digest, and the ids at which generation stops."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from posttrain.errors import ConfigError
from posttrain.hashing import sha256_file
from posttrain.models.load import choose_attention, embedding_rows, load_pretrained
from posttrain.revisions import loaded_commit
from posttrain.runs import MANIFEST, read_artifact
from posttrain.tokens.tokenizer import saved_stops

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# elements; smaller matrices stay in the processor's caches, however they are stored
_LARGE_WEIGHT = 1 << 18


def load_for_inference(
    path: str,
    *,
    dtype: str,
    device: str,
    attention: str,
    vocabulary: int,
    transposed: bool = True,
    simulate: bool = False,
) -> PreTrainedModel:
    """Load a model in eval mode, from safetensors only; never runs remote code.

    Args:
        path: a checkpoint directory or a hub id.
        dtype: `auto` is bfloat16 on a GPU and float32 on a CPU.
        device: `auto` is the GPU where there is one.
        attention: `auto`, or an implementation that transformers knows.
        vocabulary: rows that the embedding must have at least (largest token id + 1).
        transposed: on a CPU, store large weights so that decoding a few rows is fast; a pass over
            whole sequences gains nothing, and rounds otherwise than a model in training.
        simulate: load also a checkpoint quantised by ModelOpt, as `load_pretrained` does.

    A CPU that would emulate bfloat16 is named on stderr: an evaluation takes days there.

    Raises:
        ConfigError: the model cannot be loaded so, is only an adapter, or its embedding is too
            small.
    """
    try:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        torch_device = torch.device(device)
        if dtype == "bfloat16" and emulates_bfloat16(torch_device):
            print(
                f"{path}: this CPU has no instructions for bfloat16: it is many times slower than "
                "in float32; set dtype: float32",
                file=sys.stderr,
            )
        # only a download needs the bar
        if Path(path).is_dir():
            disable_progress_bar()
        auto_dtype = torch.bfloat16 if torch_device.type == "cuda" else torch.float32
        loaded: Any = load_pretrained(
            path,
            simulate=simulate,
            dtype=_DTYPES.get(dtype, auto_dtype),
            attn_implementation=choose_attention(attention),
            use_safetensors=True,
            trust_remote_code=False,
        )
        model: PreTrainedModel = loaded.to(torch_device)
    except ConfigError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"checkpoint {path}: cannot be loaded: {error}") from error
    rows = embedding_rows(model)
    if rows < vocabulary:
        raise ConfigError(
            f"checkpoint {path}: its tokenizer uses ids up to {vocabulary - 1}, its embedding has "
            f"{rows} rows: they do not belong together"
        )
    if torch_device.type == "cpu" and transposed:
        transpose_large_weights(model)
    return model.eval()


def emulates_bfloat16(device: torch.device) -> bool:
    """True for a CPU without instructions for bfloat16.

    A product of 512 × 576 by 576 × 1,536 took 65 times as long in bfloat16 as in float32 on a CPU
    with AVX2 alone.
    """
    # older versions of torch cannot tell the capabilities of the CPU
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return not (capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def transpose_large_weights(model: PreTrainedModel) -> None:
    """Store large linear weights column by column; their values and shapes stay.

    A processor multiplies a few rows, as decoding does, by such a matrix up to twice as fast. An
    embedding that is also the head stays as it is: its rows are read one by one.
    """
    embedding: Any = model.get_input_embeddings()
    for module in model.modules():
        # subclasses may read their weight in their own way
        if type(module) is not torch.nn.Linear or module.weight is embedding.weight:
            continue
        if module.weight.numel() >= _LARGE_WEIGHT:
            module.weight.data = module.weight.data.t().contiguous().t()


def weights_digest(path: str) -> str:
    """Digest that identifies a checkpoint's weights.

    An artifact's digest (its files are not read again), else the sha256 of every safetensors file
    and of the config; for a hub id the commit that was loaded.

    Raises:
        ConfigError: a directory without safetensors.
    """
    folder = Path(path)
    if not folder.is_dir():
        commit = loaded_commit(path, file="config.json")
        return f"{path}@{commit or 'unknown'}"
    if (folder / MANIFEST).is_file():
        return read_artifact(folder, verify=False).digest
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"checkpoint {path} holds no safetensors")
    total = hashlib.sha256()
    for file in [*files, folder / "config.json"]:
        total.update(f"{file.name} {sha256_file(file)}\n".encode())
    return total.hexdigest()


def generation_stops(path: str, model: PreTrainedModel | None = None) -> tuple[int, ...]:
    """Ids at which a checkpoint's generation config stops; () where it has none."""
    if model is None:
        return saved_stops(path)
    stop_ids = getattr(model.generation_config, "eos_token_id", None)
    if stop_ids is None:
        return ()
    return tuple(stop_ids) if isinstance(stop_ids, list) else (int(stop_ids),)
