"""What a recipe names and is not there is found from names and small files alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.config.paths import refuse_missing_checkpoint, refuse_missing_template
from posttrain.errors import ConfigError


def test_a_checkpoint_is_a_directory_or_may_be_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # a finished quickstart has a runs/tiny/sft
    for path in (None, str(tmp_path), "Qwen/Qwen3-0.6B", "gpt2"):
        refuse_missing_checkpoint(path, key="checkpoint")
    for path in ("runs/tiny/sft", "./sft", str(tmp_path / "sft")):
        with pytest.raises(ConfigError, match=r"checkpoints\.sft\.path: there is no directory"):
            refuse_missing_checkpoint(path, key="checkpoints.sft.path")


def test_a_base_model_without_a_template_is_told_the_key(tmp_path: Path):
    def refuse(choice: str = "own") -> None:
        refuse_missing_template(str(tmp_path), choice, key="tokenizer.chat_template")

    refuse()  # no tokenizer here: another error's to say
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(ConfigError, match=r"set tokenizer\.chat_template to"):
        refuse()
    refuse("nemotron_3_nano")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    refuse()
    (tmp_path / "chat_template.jinja").unlink()
    settings.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    refuse()
