"""Commits of the hub, from its cache: no network is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.inference import weights_digest
from posttrain.revisions import loaded_commit, newest_commit
from posttrain.training.dpo.reference import initial_weights

OLD, NEW = "ab" * 20, "cd" * 20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two commits of one model, whose main is at the newer."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--org--tiny"
    for ref, commit in (("main", NEW), ("v1", OLD)):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json"):
            (repository / "snapshots" / commit / name).write_text("{}")
    return tmp_path


def test_the_commit_that_was_loaded(cache: Path):
    assert loaded_commit("org/tiny") == NEW
    assert loaded_commit("org/tiny", revision="v1") == OLD
    assert loaded_commit("org/tiny", revision=OLD, file="config.json") == OLD
    assert loaded_commit("org/other") is None
    assert loaded_commit("runs/tiny/sft/of/mine") is None


def test_what_identifies_weights_of_the_hub(cache: Path):
    """Two revisions are two checkpoints, to samples and to the reference of DPO."""
    assert weights_digest("org/tiny") == f"org/tiny@{NEW}"
    new, old = ModelConfig(path="org/tiny"), ModelConfig(path="org/tiny", revision="v1")
    assert initial_weights(new, None) == f"org/tiny@{NEW}"
    assert initial_weights(old, None) == f"org/tiny@{OLD}"
    with pytest.raises(ConfigError, match="the hub's cache names no commit"):
        initial_weights(ModelConfig(path="org/other"), None)


def test_the_newest_commit_without_a_network_is_that_of_the_cache(cache: Path):
    assert newest_commit("org/tiny", kind="model", key="--model") == NEW
    with pytest.raises(ConfigError, match=r"--data: .*'org/tiny', and the hub does not give it"):
        newest_commit("org/tiny", kind="dataset", key="--data")


def test_a_broken_connection_to_the_hub_is_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch
):
    """The client's own error is no OSError: it was a traceback."""

    def repo_info(*_: object, **__: object) -> None:
        raise HfHubHTTPError.__mro__[1]("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", repo_info)
    assert newest_commit("org/tiny", kind="model", key="--model") == NEW
    with pytest.raises(ConfigError, match=r"--data: .*: Name or service not known$"):
        newest_commit("org/tiny", kind="dataset", key="--data")
