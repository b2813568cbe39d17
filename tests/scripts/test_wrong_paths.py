"""A path that is not there is answered with the key of the recipe that led to it, in every stage."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from posttrain.config.command import run_command
from posttrain.errors import ConfigError, PosttrainError

# stage, recipe, and the key of the first input that is looked for
FIRST_INPUTS = [
    ("build_sft", "tiny/build_sft", "sources.0.path, sources.1.path, sources.2.path"),
    ("sft", "tiny/sft", "data"),
    ("build_dpo", "tiny/build_dpo", "samples.0"),
    ("build_dpo", "one-gpu/build_dpo_offline", "tokenizer.path"),
    ("dpo", "tiny/dpo", "data"),
    ("build_genrm", "tiny/build_genrm", "sources.0.path"),
    ("genrm", "tiny/genrm", "data"),
    ("eval_genrm", "tiny/eval_genrm", "data"),
    ("rlhf", "tiny/rlhf", "prompts.0.path"),
    ("rlvr", "tiny/rlvr", "pass_rates"),
    ("distill", "tiny/distill", "teachers.verified.path"),
    ("sample", "tiny/sample", "checkpoint"),
    ("profile_prompts", "tiny/profile", "checkpoint"),
    ("eval", "tiny/eval", "checkpoints.sft"),
    ("win_rate", "tiny/win_rate", "before"),
    ("synthesize", "tiny/twins/synthesize", "make.sources.0.path"),
    ("synthesize", "tiny/genselect/synthesize_heldout", "make.samples"),
    ("synthesize", "one-gpu/synthesize_instructions", "make.personas.0.path"),
    ("synthesize", "one-gpu/synthesize_long_context", "make.tokenizer"),
    ("synthesize", "one-gpu/synthesize_safety", "make.requests.0.path"),
]


@pytest.mark.parametrize(("stage", "recipe", "key"), FIRST_INPUTS)
def test_the_key_of_a_missing_input_is_named(
    stage: str, recipe: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [stage])
    script = importlib.import_module(f"scripts.{stage}")
    with pytest.raises(SystemExit) as ended:
        run_command(lambda: script.main(["--config", recipe, "--dry-run"]))
    assert str(ended.value.code).partition("Error: ")[2].startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("stage", "recipe", "key", "backend"),
    [
        ("sample", "tiny/sample", "checkpoint", "backend"),
        ("profile_prompts", "tiny/profile", "checkpoint", "backend"),
        ("eval", "tiny/eval", "checkpoints.sft", "backend"),
        (
            "synthesize",
            "tiny/genselect/synthesize",
            "models.generator.checkpoint",
            "models.generator.backend",
        ),
    ],
)
def test_weights_are_asked_for_unless_a_server_has_them(
    stage: str, recipe: str, key: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("tokenizer").mkdir()
    Path("tokenizer/tokenizer_config.json").write_text("{}")
    script = importlib.import_module(f"scripts.{stage}")
    arguments = ["--config", recipe, f"{key}=tokenizer", "--dry-run"]
    with pytest.raises(ConfigError, match=f"^{key}: 'tokenizer' has no weights"):
        script.main(arguments)
    server = {"kind": "completions", "url": "http://localhost:1/v1", "model": "m"}
    # the rows, which are looked for next
    with pytest.raises(PosttrainError, match="runs/tiny"):
        script.main([*arguments, f"{backend}={json.dumps(server)}"])


def test_the_key_of_a_data_set_that_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Any other fault of an artifact too, with the path however it is spelt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    script = importlib.import_module("scripts.sft")
    with pytest.raises(SystemExit, match=r"^DataError: data: runs has no manifest\.json"):
        run_command(lambda: script.main(["--config", "tiny/sft", "data=./runs/", "--dry-run"]))
