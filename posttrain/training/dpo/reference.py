"""Log-probabilities of every pair under the reference model, computed once and kept on disk.

    runs/x/dpo/reference/5d1e0c…/key.json                  inputs that the numbers depend on
    runs/x/dpo/reference/5d1e0c…/shard-00000.safetensors   row [n], chosen [n], rejected [n]

A shard is written atomically, so an interrupted run continues with the next one. Each carries the
key and a checksum. Which rows share a batch does not depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of, sha256_file
from posttrain.revisions import loaded_commit
from posttrain.runs import Manifest, atomic_write_json

SHARD_PAIRS = 512
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """Inputs that a reference's log-probabilities depend on.

    The adapter is not among them: the reference is the model without it.

    Attributes:
        weights: Digest of the weights, or the hub's commit.
        template: Digest of the chat template.
        data: Digest of the pairs.
        dtype: Dtype of the forward pass.
        quantization: Quantisation of the base model, if any.
    """

    weights: str
    template: str | None
    data: str
    dtype: str
    quantization: str | None

    @property
    def digest(self) -> str:
        """Digest that names the folder of the shards."""
        return digest_of(asdict(self))


@dataclass(frozen=True, slots=True)
class Reference:
    """Log-probabilities of all pairs under the reference.

    Attributes:
        chosen: float64 `[pairs]`, sum over the sampled tokens of each chosen.
        rejected: float64 `[pairs]`, likewise for each rejected.
    """

    chosen: Array
    rejected: Array

    def select(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of chosen and rejected of some rows, in float64, on the device of `rows`."""
        indices = rows.cpu().numpy()
        chosen = torch.from_numpy(self.chosen[indices]).to(rows.device)
        rejected = torch.from_numpy(self.rejected[indices]).to(rows.device)
        return chosen, rejected


class ReferenceStore:
    """Store of the shards of one key on disk.

    Args:
        folder: parent of the folders of all keys.
        order: rows of the pairs in the order of computation, longest first.
    """

    def __init__(self, folder: Path, key: ReferenceKey, *, order: Array) -> None:
        self.path = folder / key.digest[:16]
        self.key = key
        self.pairs = len(order)
        self.shards = [
            order[start : start + SHARD_PAIRS] for start in range(0, len(order), SHARD_PAIRS)
        ]

    def missing(self) -> list[int]:
        """Indices of the shards that are not on disk."""
        return [shard for shard in range(len(self.shards)) if not self._file(shard).is_file()]

    def _file(self, shard: int) -> Path:
        return self.path / f"shard-{shard:05d}.safetensors"

    def write(self, shard: int, *, chosen: Array, rejected: Array) -> None:
        """Write one shard, with values in the order of the rows `shards[shard]`."""
        values = {"row": self.shards[shard], "chosen": chosen, "rejected": rejected}
        if not (self.path / "key.json").is_file():
            atomic_write_json(self.path / "key.json", asdict(self.key))
        metadata = {"key": self.key.digest, "sha256": _checksum(values)}
        # runs that share the folder may write the same shard: each has a partial file of its own
        partial = self._file(shard).with_name(f".{shard}.{os.getpid()}.partial")
        with partial.open("wb") as handle:
            handle.write(safetensors.numpy.save(values, metadata=metadata))
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(self._file(shard))

    def load(self) -> Reference:
        """Read the log-probabilities of all pairs.

        Raises:
            DataError: a shard of another key, or one that was changed.
        """
        chosen = np.full(self.pairs, np.nan)
        rejected = np.full(self.pairs, np.nan)
        for shard, rows in enumerate(self.shards):
            values = self._read(shard)
            chosen[rows] = values["chosen"]
            rejected[rows] = values["rejected"]
        return Reference(chosen, rejected)

    def _read(self, shard: int) -> dict[str, Array]:
        """Read one shard and check its key, its rows and its checksum."""
        file = self._file(shard)
        advice = f"; delete {self.path} to have it computed again"
        values: dict[str, Array] = {}
        try:
            with safetensors.safe_open(file, framework="numpy") as handle:
                metadata = handle.metadata() or {}
                for name in handle.keys():  # noqa: SIM118 - it is no mapping
                    values[name] = handle.get_tensor(name)
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"{file} cannot be read: {error}{advice}") from error
        if metadata.get("key") != self.key.digest:
            raise DataError(f"{file} belongs to another model, template or data{advice}")
        same_rows = np.array_equal(values["row"], self.shards[shard])
        if not same_rows or metadata.get("sha256") != _checksum(values):
            raise DataError(f"{file} has changed since it was written{advice}")
        return values


def _checksum(values: dict[str, Array]) -> str:
    """Checksum of arrays by name, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def initial_weights(spec: ModelConfig, parent: Manifest | None) -> str:
    """Identify the weights that were loaded, by a digest of their files or by the hub's commit.

    Args:
        parent: manifest of the checkpoint artifact, if the model is one.

    Raises:
        ConfigError: the hub's cache knows no commit.
    """
    path = Path(spec.path or "")
    if parent is not None:
        model_files = [file for file in parent.files if _is_model_file(file.path)]
        return digest_of([[file.path, file.sha256] for file in model_files])
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if _is_model_file(file.name))
        return digest_of([[file.name, sha256_file(file)] for file in paths])
    commit = loaded_commit(str(spec.path), revision=spec.revision, file="config.json")
    if commit is None:
        raise ConfigError(
            f"model.path {spec.path}: the hub's cache names no commit: fetch the model into a "
            "directory and name that"
        )
    return f"{spec.path}@{commit}"


def _is_model_file(name: str) -> bool:
    """Tell whether a file of a checkpoint, by its path in it, decides what the model computes."""
    # files in folders belong to an adapter or to a kept epoch
    return "/" not in name and name.endswith((".safetensors", ".bin", ".json"))


def longest_first(lengths: Array) -> Array:
    """Rows by descending length, equals in their order: a batch then has pairs of like length."""
    return np.lexsort((np.arange(len(lengths)), -lengths))
