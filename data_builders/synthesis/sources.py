"""Sources of rows that are no conversations: their files, and the config that readers take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_builders.rows.files import input_files
from data_builders.rows.inputs import Input, find_parents
from posttrain.config.source import RowPlace, SourceConfig
from posttrain.hashing import sha256_file
from posttrain.runs import Parent

_BASE = Path()  # paths in a recipe are relative to the working directory


def row_inputs(sources: Sequence[RowPlace], out: Path) -> tuple[list[Input], list[Parent]]:
    """Input files of sources, hashed, and the artifacts that they lie in."""
    inputs: list[Input] = []
    paths: list[Path] = []
    for source in sources:
        if source.hub is not None:
            inputs.append(Input(source.name, f"{source.hub}@{source.revision}", None, None))
            continue
        for path in input_files(as_source_config(source), _BASE):
            inputs.append(Input(source.name, str(path), path.stat().st_size, sha256_file(path)))
            paths.append(path)
    return inputs, find_parents(paths, out)


def as_source_config(source: RowPlace) -> SourceConfig:
    """Source with the keys that say where its rows are, and the fields that it carries along."""
    keys = [*RowPlace.model_fields, "metadata"]
    # a carried field that no row has is refused as that of any other source is
    return SourceConfig(**{key: getattr(source, key) for key in keys if hasattr(source, key)})
