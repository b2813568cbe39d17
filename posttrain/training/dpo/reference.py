"""Log-probabilities of every pair under the reference, computed once and kept on disk.

    runs/x/dpo/reference/5d1e0c…/key.json               what they belong to
    runs/x/dpo/reference/5d1e0c…/shard-00000.safetensors   row [n], chosen [n], rejected [n]

A shard appears whole or not at all, so a killed run goes on at the next one. Each carries the key
and a checksum. Batches are cut from a shard's rows, for any number of processes alike."""

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
    """All that the numbers depend on. An adapter is not in it: the reference is without."""

    weights: str
    template: str | None
    data: str
    dtype: str
    quantization: str | None
    tokens: bool

    @property
    def digest(self) -> str:
        """Names the folder."""
        return digest_of(asdict(self))


@dataclass(frozen=True, slots=True)
class Reference:
    """Sums over the sampled tokens of each side, float64 by row, and those of each chosen, float32,
    one after the other from `offsets[row]` on."""

    chosen: Array
    rejected: Array
    tokens: Array | None
    offsets: Array

    def of(
        self, rows: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor | None]:
        """Both sums of some rows, and the chosen tokens one after the other, in float64."""
        at = rows.cpu().numpy()
        chosen = torch.from_numpy(self.chosen[at]).to(rows.device)
        rejected = torch.from_numpy(self.rejected[at]).to(rows.device)
        if self.tokens is None:
            return (chosen, rejected), None
        starts, ends = self.offsets[at], self.offsets[at + 1]
        tokens = torch.from_numpy(self.tokens[ranges(starts, ends - starts)])
        return (chosen, rejected), tokens.to(rows.device).double()


class ReferenceStore:
    """The shards of one key.

    Args:
        folder: that holds a folder for each key.
        order: rows in the order in which they are computed, longest first.
        chosen_counts: sampled tokens of each chosen, by row.
    """

    def __init__(
        self, folder: Path, key: ReferenceKey, *, order: Array, chosen_counts: Array
    ) -> None:
        self.path = folder / key.digest[:16]
        self.key = key
        self.chosen_counts = chosen_counts
        self.shards = [order[at : at + SHARD_PAIRS] for at in range(0, len(order), SHARD_PAIRS)]

    def missing(self) -> list[int]:
        """Numbers of the shards that are not on disk."""
        return [n for n in range(len(self.shards)) if not self._file(n).is_file()]

    def _file(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}.safetensors"

    def write(self, number: int, *, chosen: Array, rejected: Array, tokens: Array | None) -> None:
        """Write one shard; values in the order of `shards[number]`."""
        values = {"row": self.shards[number], "chosen": chosen, "rejected": rejected}
        if tokens is not None:
            values["tokens"] = tokens.astype(np.float32)
        if not (self.path / "key.json").is_file():
            atomic_write_json(self.path / "key.json", asdict(self.key))
        metadata = {"key": self.key.digest, "sha256": _checksum(values)}
        # several runs may share the folder: each writes under a name of its own
        partial = self._file(number).with_name(f".{number}.{os.getpid()}.partial")
        with partial.open("wb") as handle:
            handle.write(safetensors.numpy.save(values, metadata=metadata))
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(self._file(number))

    def load(self) -> Reference:
        """Every row's values.

        Raises:
            DataError: a shard of another key, or one that was changed.
        """
        rows = len(self.chosen_counts)
        offsets = np.concatenate([[0], np.cumsum(self.chosen_counts)])
        chosen, rejected = np.full(rows, np.nan), np.full(rows, np.nan)
        tokens = np.full(offsets[-1], np.nan, np.float32) if self.key.tokens else None
        for number, expected in enumerate(self.shards):
            values = self._read(number, expected)
            chosen[expected], rejected[expected] = values["chosen"], values["rejected"]
            if tokens is not None:
                counts = self.chosen_counts[expected]
                tokens[ranges(offsets[expected], counts)] = values["tokens"]
        return Reference(chosen, rejected, tokens, offsets)

    def _read(self, number: int, expected: Array) -> dict[str, Array]:
        file = self._file(number)
        advice = f"; delete {self.path} to have it computed again"
        try:
            with safetensors.safe_open(file, framework="numpy") as handle:
                metadata = handle.metadata() or {}
                values = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - no mapping
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"{file} cannot be read: {error}{advice}") from error
        if metadata.get("key") != self.key.digest:
            raise DataError(f"{file} belongs to another model, template or data{advice}")
        if metadata.get("sha256") != _checksum(values) or not np.array_equal(
            values["row"], expected
        ):
            raise DataError(f"{file} has changed since it was written{advice}")
        return values


def ranges(starts: Array, counts: Array) -> Array:
    """Indices start … start + count - 1 of each, one after the other."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts, counts) + within


def _checksum(values: dict[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def initial_weights(spec: ModelConfig, parent: Manifest | None) -> str:
    """What identifies the weights that were loaded: their files, or the hub's commit.

    Raises:
        ConfigError: neither is known.
    """
    path = Path(spec.path or "")
    if parent is not None:
        return digest_of([[f.path, f.sha256] for f in parent.files if _is_weights(f.path)])
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if _is_weights(p.name))
        return digest_of([[p.name, sha256_file(p)] for p in files])
    commit = loaded_commit(str(spec.path), revision=spec.revision, file="config.json")
    if commit is None:
        raise ConfigError(
            f"model.path {spec.path}: the hub's cache names no commit: fetch the model into a "
            "directory and name that"
        )
    return f"{spec.path}@{commit}"


def _is_weights(name: str) -> bool:
    # the checkpoint's own files: neither an adapter's nor a kept epoch's
    return "/" not in name and name.endswith((".safetensors", ".bin", ".json"))


def compute_order(lengths: Array) -> Array:
    """Rows by falling length, so that a forward pass holds pairs of like length."""
    return np.lexsort((np.arange(len(lengths)), -lengths))
