"""The books, files and config of an artifact, short enough to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from posttrain.artifacts import Manifest

_FILES_SHOWN = 12


def summary(console: Console, manifest: Manifest) -> None:
    """Print counts, files, versions and the resolved config."""
    counts = manifest.counts
    dropped = ", ".join(f"{reason} {n:,}" for reason, n in counts.dropped.items()) or "none"
    _line(console, "rows", f"{counts.rows_in:,} in = {counts.kept:,} kept + dropped: {dropped}")
    for file in manifest.files[:_FILES_SHOWN]:
        rows = "" if file.rows is None else f"{file.rows:,} rows, "
        _line(console, "file", f"{file.path}  ({rows}{file.bytes:,} bytes)")
    if len(manifest.files) > _FILES_SHOWN:
        _line(console, "file", f"… and {len(manifest.files) - _FILES_SHOWN} more")
    _line(console, "seed", str(manifest.seed))
    if manifest.template_digest:
        _line(console, "template", manifest.template_digest[:12])
    _line(console, "versions", ", ".join(f"{k} {v}" for k, v in manifest.versions.items()))
    _line(console, "config", manifest.config_digest[:12])
    console.print(Text(_yaml(manifest.config), "dim"))


def _line(console: Console, name: str, text: str) -> None:
    console.print(Text.assemble((f"{name:<9}", "bold"), text))


def _yaml(config: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(_stated(config), sort_keys=False, allow_unicode=True, width=100)
    return "".join(f"  {line}\n" for line in text.splitlines())


def _stated(value: Any) -> Any:
    """Without empty settings, which say nothing."""
    if isinstance(value, Mapping):
        inner = {key: _stated(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, {}, [])}
    return [_stated(item) for item in value] if isinstance(value, list) else value
