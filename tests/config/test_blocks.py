"""Blocks that recipes share: backends, judges, checkpoints, tokenizers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.backend import TransformersBackend
from posttrain.config.judge import JudgeConfig, PairingConfig
from posttrain.config.load import validate
from posttrain.config.paths import refuse_missing_checkpoint, refuse_missing_template
from posttrain.config.sample import SampleConfig
from posttrain.errors import ConfigError, DataError
from posttrain.runs import Run
from reward.judge.prompt import AUTO, LAYOUTS
from reward.pairing import STRATEGIES

CHAT = {"kind": "chat", "url": "http://localhost:8000/v1/", "model": "genrm"}
OWN = {"backend": {"kind": "transformers"}, "checkpoint": "c"}


def judge(*models: dict[str, Any], **fields: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({"models": models, **fields})


def test_the_names_are_those_that_exist():
    layouts = [judge({**OWN, "layout": layout}).models[0].layout for layout in (AUTO, *LAYOUTS)]
    assert layouts == [AUTO, *LAYOUTS]
    for strategy in STRATEGIES:
        assert PairingConfig.model_validate({"strategy": strategy}).strategy == strategy


def test_how_a_server_is_reached_and_when_to_stop_may_change():
    model = {"backend": CHAT, "layout": "roles"}
    moved = {**CHAT, "url": "http://elsewhere:1/v1", "concurrency": 7, "timeout": 3.0, "retries": 1}
    bound = judge(model).owner_config()
    other = judge({"backend": moved, "layout": "roles"}, max_failure_rate=0.5, cache="shared")
    assert other.owner_config() == bound
    for change in ({"principle": "p"}, {"sampling": {"top_p": 0.5}}, {"retries": 0}):
        assert judge(model, **change).owner_config() != bound
    assert judge(model, model).owner_config() != bound


def test_a_chat_server_that_cannot_switch_thinking_is_refused_for_both_modes():
    recipe: dict[str, Any] = {
        "out": "runs/x",
        "backend": CHAT,
        "prompts": [{"name": "p", "format": "chat", "path": "p.jsonl"}],
        "settings": [{"name": "s", "thinking": "both"}],
        "n": 1,
    }
    with pytest.raises(ConfigError, match=r"backend\.thinking: fixed"):
        validate(recipe, SampleConfig, where="r.yaml")
    recipe["backend"] = CHAT | {"server": "vllm", "thinking": "enable_thinking"}
    server = validate(recipe, SampleConfig, where="r.yaml").backend
    assert getattr(server, "url", None) == "http://localhost:8000/v1"
    recipe |= OWN
    own = validate(recipe, SampleConfig, where="r.yaml").backend
    assert own == TransformersBackend(kind="transformers")


def test_a_checkpoint_is_a_directory_or_may_be_a_hub_id(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a finished quickstart has a runs/tiny/sft
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: io.StringIO())
    with pytest.raises(ConfigError, match=r"holds no model, for it has no config\.json"):
        refuse_missing_checkpoint(str(tmp_path), key="checkpoint")
    Run.open(tmp_path / "samples", kind="samples", config={})
    with pytest.raises(DataError, match="its stage has not finished"):
        refuse_missing_checkpoint(str(tmp_path / "samples"), key="checkpoint")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no weights, for it has no \*\.safetensors"):
        refuse_missing_checkpoint(str(tmp_path), key="checkpoint")
    # the tokenizer of what a server has is no more than that
    refuse_missing_checkpoint(str(tmp_path), key="checkpoint", is_served=True)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigError, match=r"as pickle \(pytorch_model\.bin\)"):
        refuse_missing_checkpoint(str(tmp_path), key="checkpoint")
    (tmp_path / "model.safetensors").touch()
    for path in (None, str(tmp_path), "Qwen/Qwen3-0.6B", "gpt2"):
        refuse_missing_checkpoint(path, key="checkpoint")
    for path in ("runs/tiny/sft", "./sft", str(tmp_path / "sft")):
        with pytest.raises(ConfigError, match=r"checkpoints\.sft\.path: there is no directory"):
            refuse_missing_checkpoint(path, key="checkpoints.sft.path")


def test_a_hub_id_that_cannot_be_fetched_is_refused_at_once(tmp_path: Path, monkeypatch, capsys):
    def no_network(*_: Any, **__: Any) -> None:
        raise OSError(-3, "Temporary failure in name resolution")

    monkeypatch.setattr("socket.create_connection", no_network)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in (
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set: .* or name a local path"):
        refuse_missing_checkpoint("Qwen/Qwen3-0.6B", key="checkpoint")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(ConfigError, match=r"cannot be reached: Temporary .* HF_HUB_OFFLINE=1"):
        refuse_missing_checkpoint("Qwen/Qwen3-0.6B", key="checkpoint")
    (tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots").mkdir(parents=True)
    refuse_missing_checkpoint("Qwen/Qwen3-0.6B", key="checkpoint")
    # each of its files would be tried for half a minute
    assert "HF_HUB_OFFLINE=1 takes them from the cache at once" in capsys.readouterr().err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refuse_missing_checkpoint("Qwen/Qwen3-0.6B", key="checkpoint")
    assert not capsys.readouterr().err


def test_a_base_model_without_a_template_is_told_the_key(tmp_path: Path):
    def refuse(choice: str = "own") -> None:
        refuse_missing_template(str(tmp_path), choice, key="tokenizer.chat_template")

    refuse()  # no tokenizer here: another error's to say
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"eos_token": "</s>"}')
    with pytest.raises(ConfigError, match=r"set tokenizer\.chat_template to"):
        refuse()
    refuse("nemotron_3_nano")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    refuse()
    (tmp_path / "chat_template.jinja").unlink()
    settings.write_text('{"chat_template": "{{ messages }}"}')
    refuse()
