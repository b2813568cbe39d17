"""How a token is chosen, and what a model's own generation config says of it."""

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
    """How a token is chosen; what is null is as the model's generation config says.

    temperature: 0 is greedy; 1 where nothing says otherwise.
    top_p: the tokens that share so much of the probability; 1 where nothing says otherwise.
    top_k: 0, which keeps all, where nothing says otherwise.
    """

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)

    def chosen(self) -> dict[str, Any]:
        """The values that are not null."""
        values = {name: getattr(self, name) for name in TokenChoice.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    def filled(self, values: Mapping[str, Any]) -> Self:
        """The same with values in the place of what is null."""
        return self.model_copy(update={**values, **self.chosen()})


# where neither a recipe nor a model says anything
UNSTATED = {name: getattr(Parameters(), name) for name in TokenChoice.model_fields}


def generation_choice(checkpoint: str | None) -> TokenChoice:
    """What the generation config of a directory or hub id says; nothing where there is none.

    Raises:
        ConfigError: it cannot be read, or holds values with which nothing can be sampled.
    """
    if checkpoint is None:
        return TokenChoice()
    folder = Path(checkpoint)
    file = folder / GENERATION_CONFIG
    if not folder.is_dir() and is_hub_id(checkpoint):
        file = _of_the_hub(checkpoint)
    if file is None or not file.is_file():  # what is not there is refused where it is loaded
        return TokenChoice()
    try:
        stated: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    named = {name: stated[name] for name in TokenChoice.model_fields if name in stated}
    return validate(named, TokenChoice, where=str(file))


def _of_the_hub(hub_id: str) -> Path | None:
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError

    untyped: Any = hub
    try:
        return Path(untyped.hf_hub_download(hub_id, GENERATION_CONFIG))
    except EntryNotFoundError:  # there is none; offline, none in the cache
        return None
    except OSError as error:
        raise ConfigError(f"{hub_id}: {GENERATION_CONFIG} cannot be fetched: {error}") from error


def choice_line(recipe: TokenChoice, model: TokenChoice) -> str:
    """Each value that is sampled with, and where it comes from."""
    sources = {
        "the recipe": recipe.chosen(),
        "the model's generation config": model.chosen(),
        "ours, since neither the recipe nor the model's generation config says": UNSTATED,
    }
    words: dict[str, list[str]] = {source: [] for source in sources}
    for name in UNSTATED:
        source = next(source for source, values in sources.items() if name in values)
        words[source].append(f"{name} {sources[source][name]:g}")
    return "; ".join(
        f"{', '.join(values)} ({source})" for source, values in words.items() if values
    )
