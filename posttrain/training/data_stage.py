"""A training stage whose recipe names a data artifact."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from posttrain.config.dpo import DpoConfig
from posttrain.config.sft import SftConfig
from posttrain.runs import Manifest, Parent, read_artifact
from posttrain.tokens.tokenizer import check_same_tokenizer, largest_id, load_tokenizer
from posttrain.training.stage import PolicyTokenizer, TrainingStage
from posttrain.training.trainer import Resumable

WithData = TypeVar("WithData", SftConfig, DpoConfig)
T = TypeVar("T", bound=Resumable)


class DataStage(TrainingStage[WithData, T]):
    """A stage whose recipe names a data artifact, of kind `data_kind`."""

    data_kind: str

    @cached_property
    def data(self) -> Manifest:
        """The data's manifest."""
        return read_artifact(self.recipe.data, kind=self.data_kind)

    def load_tokenizer(self, args: Any) -> PolicyTokenizer:
        """The data's own."""
        tokenizer = load_tokenizer(Path(self.recipe.data) / "tokenizer")
        check_same_tokenizer(tokenizer, self.recipe.model)
        return PolicyTokenizer(tokenizer, largest_id(tokenizer) + 1, self.data.template_digest)

    def identity(self) -> dict[str, Any]:
        """The recipe with inputs by digest, without paths that decide nothing."""
        config = self.recipe.model_dump(mode="json", exclude={"out", "data", "reference_cache"})
        config["data_digest"] = self.data.digest
        if self.policy is not None:
            config["model"]["path"] = self.policy.digest
        return config

    def data_parents(self) -> list[Parent]:
        """The data artifact."""
        return [self._parent(self.recipe.data, self.data)]
