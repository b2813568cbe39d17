"""Digests of values and of files; both are sha256, as 64 hex digits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def digest_of(value: object) -> str:
    """sha256 of canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """sha256 of a file's bytes, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
