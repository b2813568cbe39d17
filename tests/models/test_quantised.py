"""Weights that ModelOpt has quantised are never loaded without their scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.adapters import adapted_model
from posttrain.models.inference import load_for_inference
from posttrain.models.load import load_checkpoint, load_pretrained
from scripts.chat import main as chat
from scripts.merge import main as merge
from scripts.quantize import main as quantize
from scripts.sft import main as sft
from tests.sampling.test_open import write_checkpoint

REFUSED = r"quantised by ModelOpt, .* without their scales: serve the folder"


def write_quantised(folder: Path, sign: str) -> Path:
    """A checkpoint with one of the two signs of ModelOpt's export, or with that of another tool."""
    write_checkpoint(folder)
    if sign == "hf_quant_config.json":
        (folder / sign).write_text(json.dumps({"producer": {"name": "modelopt"}}))
        return folder
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": sign, "quant_algo": "FP8"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def infer(folder: str) -> Any:
    return load_for_inference(folder, dtype="auto", device="cpu", attention="auto", vocabulary=8)


def train(folder: str) -> Any:
    return load_checkpoint(ModelConfig(path=folder), "sdpa")


def adapt(folder: str) -> Any:
    return adapted_model(Path(folder), ModelConfig(path=folder))


@pytest.mark.parametrize("sign", ["hf_quant_config.json", "modelopt", "modelopt_mixed"])
@pytest.mark.parametrize("load", [infer, train, adapt, load_pretrained])
def test_no_load_leaves_scales_out(load: Callable[[str], Any], sign: str, tmp_path: Path):
    folder = write_quantised(tmp_path / "quantised", sign)
    with pytest.raises(ConfigError, match=REFUSED):
        load(str(folder))


def test_commands_refuse_a_quantised_folder(tmp_path: Path):
    from tests.publish.test_merge import write_adapter

    folder = write_quantised(tmp_path / "quantised", "hf_quant_config.json")
    with pytest.raises(ConfigError, match="quantised to an unnamed format; only FP8 and"):
        chat([str(folder)])
    adapter = write_adapter(tmp_path / "adapter", folder)
    with pytest.raises(ConfigError, match=REFUSED):
        merge([str(adapter), str(tmp_path / "out")])
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_training_by_name_refuses_it_before_the_data_are_built(tmp_path: Path, dry_run: list[str]):
    folder = write_quantised(tmp_path / "quantised", "hf_quant_config.json")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=REFUSED):
        sft(["--model", str(folder), "--data", str(rows), "--output", str(out), *dry_run])
    assert not out.exists()


def test_without_modelopt_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scripts.quantize.find_spec", lambda _: None)
    paths = [f"out={tmp_path / 'out'}", "checkpoint=model", "data=data"]
    with pytest.raises(ConfigError, match=r"needs ModelOpt: pip install 'posttrain\[quantize\]'"):
        quantize(["--config", "tiny/quantize", *paths])
    assert not (tmp_path / "out").exists()


def test_a_format_that_is_not_simulated_is_named(tmp_path: Path):
    folder = write_quantised(tmp_path / "quantised", "hf_quant_config.json")
    described: dict[str, Any] = {"quantization": {"quant_algo": "NVFP4_AWQ"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="quantised to NVFP4_AWQ; only FP8 and NVFP4 by"):
        load_pretrained(folder, simulate=True)
    layers = {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "W4A16_AWQ"}}
    described["quantization"] = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    (folder / "hf_quant_config.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="quantised to W4A16_AWQ; only FP8 and NVFP4 by"):
        load_pretrained(folder, simulate=True)


def test_every_load_passes_the_one_place():
    """A second call of transformers would load what the first refuses."""
    root = Path(__file__).parents[2]
    callers = [
        f"{file.relative_to(root)}"
        for folder in ("posttrain", "scripts", "reward", "data_builders")
        for file in (root / folder).rglob("*.py")
        for _ in range(file.read_text("utf-8").count("AutoModelForCausalLM.from_pretrained("))
    ]
    assert callers == ["posttrain/models/load.py"]
