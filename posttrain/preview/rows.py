"""Rows of an artifact's JSON Lines files: conversations turn by turn, anything else as JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from posttrain.artifacts import FileEntry, Manifest

_ROLE_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def preview_rows(
    console: Console, path: Path, manifest: Manifest, *, rows: int, seed: int, limit: int | None
) -> None:
    """Print some rows of every JSON Lines file, drawn by the seed.

    Args:
        rows: rows of each file.
        limit: characters shown of each text; `None` shows all.
    """
    for file in manifest.files:
        if file.path.endswith(".jsonl"):
            console.print(Text(f"{file.path}: {rows} of {file.rows or 0:,} rows", "bold"))
            for number, row in _drawn(path, file, rows, seed):
                console.print(Text(f"── row {number} ──", "bold cyan"))
                _print_row(console, row, limit)


def _drawn(path: Path, file: FileEntry, rows: int, seed: int) -> list[tuple[int, dict[str, Any]]]:
    count = file.rows or 0
    wanted = set(random.Random(f"{seed} {file.path}").sample(range(count), min(rows, count)))
    with (path / file.path).open(encoding="utf-8") as lines:
        return [(n, json.loads(line)) for n, line in enumerate(lines) if n in wanted]


def _print_row(console: Console, row: dict[str, Any], limit: int | None) -> None:
    rest = dict(row)
    messages = rest.pop("messages", None)
    if isinstance(messages, list):
        for message in messages:
            role = str(message.get("role"))
            console.print(Text(f"[{role}]", _ROLE_STYLES.get(role, "bold")))
            for key in ("reasoning_content", "content", "tool_calls"):
                if message.get(key):
                    console.print(Text(f"{key}: ", "dim").append(_short(message[key], limit)))
    if rest:
        console.print(Text(_short(rest, limit), "dim"))


def _short(value: object, limit: int | None) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if limit is None or len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
