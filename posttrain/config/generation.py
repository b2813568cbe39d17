"""Sampling values of a token choice, from a recipe or from a model's own generation config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from posttrain.config.base import Strict
from posttrain.config.load import validate
from posttrain.config.paths import is_hub_id
from posttrain.errors import ConfigError
from posttrain.rollouts import Parameters

GENERATION_CONFIG = "generation_config.json"


class TokenChoice(Strict):
    """Sampling values of a token; null takes the value of the model's generation config.

    temperature: 0 is greedy; 1 where nothing says otherwise.
    top_p: probability mass of the likeliest tokens to sample from; 1 where nothing says otherwise.
    top_k: number of the likeliest tokens to sample from; 0, which keeps all, where nothing says
        otherwise.
    """

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)

    def chosen(self) -> dict[str, Any]:
        """The values that are not null."""
        values = {name: getattr(self, name) for name in TokenChoice.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    def filled(self, values: Mapping[str, Any]) -> Self:
        """Copy with `values` in place of nulls."""
        return self.model_copy(update={**values, **self.chosen()})


# values where neither a recipe nor a model's generation config says anything
UNSTATED = {name: getattr(Parameters(), name) for name in TokenChoice.model_fields}


def generation_choice(checkpoint: str | None) -> TokenChoice:
    """Read the sampling values in the generation config of a directory or hub id.

    A checkpoint without such a file states no values.

    Raises:
        ConfigError: the file cannot be read, or holds values with which nothing can be sampled.
    """
    if checkpoint is None:
        return TokenChoice()
    folder = Path(checkpoint)
    file = folder / GENERATION_CONFIG
    if not folder.is_dir() and is_hub_id(checkpoint):
        file = _download(checkpoint)
    if file is None or not file.is_file():  # a missing checkpoint is refused where it is loaded
        return TokenChoice()
    try:
        generation_config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    values: dict[str, Any] = {}
    for name in TokenChoice.model_fields:
        if name in generation_config:
            values[name] = generation_config[name]
    return validate(values, TokenChoice, where=str(file))


def _download(hub_id: str) -> Path | None:
    """Fetch the generation config of a hub id, or take it from the cache; None if it has none."""
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError

    untyped: Any = hub
    try:
        return Path(untyped.hf_hub_download(hub_id, GENERATION_CONFIG))
    except EntryNotFoundError:  # offline, this means none in the cache
        return None
    except OSError as error:
        raise ConfigError(f"{hub_id}: {GENERATION_CONFIG} cannot be fetched: {error}") from error


def choice_line(recipe: TokenChoice, model: TokenChoice) -> str:
    """Line that says of each sampling value where it comes from."""
    sources = {
        "the recipe": recipe.chosen(),
        "the model's generation config": model.chosen(),
        "ours, since neither the recipe nor the model's generation config says": UNSTATED,
    }
    texts_by_source: dict[str, list[str]] = {source: [] for source in sources}
    for name in UNSTATED:
        source = next(source for source, values in sources.items() if name in values)
        texts_by_source[source].append(f"{name} {sources[source][name]:g}")
    return "; ".join(
        f"{', '.join(texts)} ({source})" for source, texts in texts_by_source.items() if texts
    )
