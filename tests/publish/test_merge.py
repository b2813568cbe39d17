"""A merged checkpoint says what base and adapter said, and carries along all that serving needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError
from posttrain.models.adapters import adapted_model
from posttrain.publish import merge as merging
from posttrain.runs import Counts, Run, parent_of, read_artifact
from scripts.merge import main
from tests.sampling.small_models import CONFIGS, build_model, byte_tokenizer, small_model
from tests.sampling.test_open import write_checkpoint


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("merge") / "base")


def write_adapter(folder: Path, base: Path | str, *, strength: float = 0.1) -> Path:
    model: Any = small_model("attention", vocabulary=288, spread=0.05)
    model.name_or_path = str(base)
    torch.manual_seed(1)
    spec = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
    adapted = get_peft_model(model, spec)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=strength)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path) -> Path:
    return write_adapter(base.parent / "adapter", base)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_checkpoint_is_plain_and_says_the_same(base, adapter, tmp_path, capsys, dtype):
    out = tmp_path / "out"
    main([str(adapter), str(out), "--dtype", dtype])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{adapter} into {base}, in {dtype}"
    assert printed[-1] == str(out / "report.html")
    page = (out / "report.html").read_text()
    assert "merged weights, from base and adapter" in page
    assert "no log.jsonl" not in page
    merged = AutoModelForCausalLM.from_pretrained(out)
    assert merged.dtype == getattr(torch, dtype)
    ids = torch.randint(0, 288, (2, 20), generator=torch.Generator().manual_seed(9))
    with torch.inference_mode():
        truth = adapted_model(adapter, ModelConfig(path=str(base)))(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(base)(ids).logits
        found = merged.float()(ids).logits
    scale = truth.square().mean().sqrt()
    moved, wrong = ((x - truth).square().mean().sqrt() / scale for x in (plain, found))
    assert moved > 0.1
    assert wrong < merging.TOLERANCE[dtype]  # ids that the tool did not look at
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (base / name).read_bytes()
    stops = GenerationConfig.from_pretrained(out).eos_token_id
    assert stops == GenerationConfig.from_pretrained(base).eos_token_id
    manifest = read_artifact(out, kind="checkpoint")
    assert manifest.stats["dtype"] == dtype
    assert {"model.safetensors", "generation_config.json"} <= {f.path for f in manifest.files}
    assert ModelCard((out / "README.md").read_text()).data.license == "unknown"
    main([str(adapter), str(out), "--dtype", dtype])  # up to date
    assert read_artifact(out) == manifest
    with pytest.raises(ConfigError, match="another config"):
        main([str(adapter), str(out), "--dtype", "float32" if dtype == "bfloat16" else "bfloat16"])


def as_artifact(folder: Path, *, parents: list[Path]) -> Path:
    run = Run.open(folder.parent / f"{folder.name}_", kind="checkpoint", config={})
    folder.rename(run.path / "x")
    for path in [*(run.path / "x").iterdir()]:
        path.rename(run.path / path.name)
    (run.path / "x").rmdir()
    files = [p for p in run.path.rglob("*") if p.is_file() and p.name != "stage.json"]
    run.finish(
        counts=Counts(0, 0),
        files={str(p.relative_to(run.path)): None for p in files},
        parents=[parent_of(p, relative_to=run.path, manifest=read_artifact(p)) for p in parents],
    )
    return run.path


def test_a_checkpoint_of_ours_merges_onto_the_base_it_was_trained_on(tmp_path):
    base = as_artifact(write_checkpoint(tmp_path / "base"), parents=[])
    folder = write_checkpoint(tmp_path / "lora")
    write_adapter(folder / "adapter", base)
    trained = as_artifact(folder, parents=[base])
    main([str(trained), str(tmp_path / "out")])
    manifest = read_artifact(tmp_path / "out")
    main([str(trained / "adapter"), str(tmp_path / "same")])
    assert read_artifact(tmp_path / "same").digest == manifest.digest
    assert [p.digest for p in manifest.parents] == [
        read_artifact(p).digest for p in (trained, base)
    ]
    assert (manifest.stats["dtype"], manifest.template_digest) == ("float32", None)
    (tmp_path / "other").mkdir()
    other = write_checkpoint(tmp_path / "other" / "base")
    byte_tokenizer().save_pretrained(other)
    with pytest.raises(ConfigError, match="was trained on checkpoint"):
        main([str(trained), str(tmp_path / "no"), "--base", str(other)])
    (trained / "config.json").write_text("{}")
    with pytest.raises(DataError, match="has changed"):
        main([str(trained), str(tmp_path / "no")])


def test_a_merge_that_does_not_hold_leaves_nothing(base, adapter, tmp_path, monkeypatch):
    monkeypatch.setitem(merging.TOLERANCE, "bfloat16", 1e-6)
    with pytest.raises(ConfigError, match=r"differ by .* merge in float32"):
        main([str(adapter), str(tmp_path / "out"), "--dtype", "bfloat16"])
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["stage.json"]
    main([str(adapter), str(tmp_path / "out")])  # the folder was given back
    weak = write_adapter(tmp_path / "weak", base, strength=1e-5)
    with pytest.raises(ConfigError, match="half of what the adapter changes"):
        main([str(weak), str(tmp_path / "weak_out"), "--dtype", "bfloat16"])


def test_a_wrong_base_is_told_in_a_line(base, adapter, tmp_path):
    narrow = build_model({**CONFIGS["attention"], "vocab_size": 288, "hidden_size": 16})
    narrow.save_pretrained(str(tmp_path / "narrow"))
    byte_tokenizer().save_pretrained(tmp_path / "narrow")
    with pytest.raises(ConfigError, match=r"other tensors do not fit, either$") as refused:
        main([str(adapter), str(tmp_path / "out"), "--base", str(tmp_path / "narrow")])
    assert str(refused.value).count("size mismatch") == 1
    with pytest.raises(ConfigError, match="--base: there is no directory"):
        main([str(adapter), str(tmp_path / "out"), "--base", str(tmp_path / "gone")])


def test_what_cannot_be_merged_is_refused(base, adapter, tmp_path):
    with pytest.raises(ConfigError, match="there is no directory"):
        main([str(base / "misspelt"), str(tmp_path / "out")])
    with pytest.raises(ConfigError, match="holds no adapter"):
        main([str(base), str(tmp_path / "out")])
    copy = write_adapter(tmp_path / "copy", base)
    text = (copy / "adapter_config.json").read_text()
    (copy / "adapter_config.json").write_text(text.replace('"LORA"', '"IA3"'))
    with pytest.raises(ConfigError, match="IA3"):
        main([str(copy), str(tmp_path / "out")])
    (copy / "adapter_config.json").write_text(text.replace(str(base), str(tmp_path / "gone")))
    with pytest.raises(ConfigError, match="gone"):
        main([str(copy), str(tmp_path / "out")])
    for broken in ("{", "[]", '{"peft_type": "LORA", "base_model_name_or_path": 5}'):
        (copy / "adapter_config.json").write_text(broken)
        with pytest.raises(ConfigError, match="copy"):
            main([str(copy), str(tmp_path / "out")])
    (copy / "adapter_model.safetensors").rename(copy / "adapter_model.bin")
    with pytest.raises(ConfigError, match="pickled"):
        main([str(copy), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
