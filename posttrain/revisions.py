"""Commits of the hub: which one an id names now, and which one was loaded."""

from __future__ import annotations

import re
from typing import Any, Literal

from posttrain.errors import ConfigError

_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/")


def loaded_commit(
    hub_id: str, *, revision: str | None = None, file: str = "tokenizer_config.json"
) -> str | None:
    """Commit that a model's files were loaded from, by the hub's cache and without a network.

    None for a directory, or where the cache does not say.

    Args:
        file: one that was loaded.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(hub_id, file, revision=revision)
    except HFValidationError:  # a path
        return None
    match = _SNAPSHOT.search(path) if isinstance(path, str) else None
    return match[1] if match else None


def newest_commit(hub_id: str, *, kind: Literal["model", "dataset"], key: str) -> str:
    """Commit of the hub's main branch; for a model, while the hub is out of reach, of its cache.

    Args:
        key: what named the id, for messages.

    Raises:
        ConfigError: the hub does not have it, or cannot be asked.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    # of httpx or httpx2, by the client's version: a broken connection is another of its kind
    http_error: Any = HfHubHTTPError.__mro__[1]
    try:
        return str(HfApi().repo_info(hub_id, repo_type=kind).sha)
    except (http_error, OSError) as error:
        cached = loaded_commit(hub_id) if kind == "model" else None
        if cached is not None:
            return cached
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{key}: there is no file or directory {hub_id!r}, and the hub does not give it: "
            f"{reason}"
        ) from error
