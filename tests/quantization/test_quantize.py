"""A tiny model of each family in FP8: what is written is what was measured, and is never loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("modelopt", reason="needs the extra `quantize` (nvidia-modelopt)")

from modelopt.torch import quantization as mtq  # pyright: ignore[reportMissingImports]
from modelopt.torch.export import export_hf_checkpoint  # pyright: ignore[reportMissingImports]

from posttrain.config.quantize import QuantizeConfig
from posttrain.errors import ConfigError
from posttrain.models.load import build_model, load_pretrained
from posttrain.pages.write import write_report
from posttrain.quantization import stage
from posttrain.quantization.measure import FigureLog, measure, part_variants
from posttrain.quantization.rows import draw_sequences
from posttrain.quantization.simulate import Simulated
from posttrain.quantization.stage import plan
from posttrain.runs import Run, read_artifact
from scripts.quantize import main
from tests.training.rl.policy import write_policy
from tests.training.tiny import WORDS, make_tokenizer, write_artifact

FORMATS = [
    {"format": "fp8", "keep": ("attention.*",)},
    {"format": "nvfp4", "keep": ("attention.*",)},
    {"format": "mixed", "bits": 7.0},
]
HYBRID_UNITS = ["mamba.0", "experts.1", "shared_experts.1", "attention.2", "kv_cache", "mlp.3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantize")
    write_artifact(folder / "data")
    for kind in ("attention", "hybrid"):
        write_policy(folder / kind, kind)
        halved = folder / f"{kind}_bfloat16"
        write_policy(halved, kind)
        load_pretrained(folder / kind, dtype=torch.bfloat16).save_pretrained(halved)
    return folder


def recipe(folder: Path, checkpoint: str, out: Path, **keys: Any) -> QuantizeConfig:
    paths = {"checkpoint": f"{folder / checkpoint}", "data": f"{folder / 'data'}", "out": f"{out}"}
    return QuantizeConfig(**paths, samples=12, measured=6, **keys)


def quantize(recipe: QuantizeConfig, *options: str) -> Mapping[str, Any]:
    """Run the command. Returns the stats of the manifest."""
    file = Path(f"{recipe.out}.yaml")
    file.write_text(recipe.model_dump_json())
    main(["--config", str(file), *options])
    return read_artifact(recipe.out, verify=False).stats


def original_of(name: str, original: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weight that a tensor of a quantised folder was made from."""
    tail = name[name.index("layers.") :]
    weight = next((w for key, w in original.items() if key.endswith(tail)), None)
    if weight is None:  # one expert of a fused matrix
        before, _, after = tail.partition(".experts.")
        number, matrix, _ = after.split(".")
        fused = f"{before}.experts.{matrix}"
        weight = next(w for key, w in original.items() if key.endswith(fused))[int(number)]
    return weight


@pytest.mark.parametrize("checkpoint", ["attention", "attention_bfloat16", "hybrid_bfloat16"])
def test_what_is_written_dequantises_to_what_was_measured(folder, tmp_path, checkpoint):
    """The stage compares every tensor with its simulation to the bit, and stops where one differs;
    here the files are compared with the checkpoint that they were made from."""
    stats = quantize(recipe(folder, checkpoint, tmp_path / "out", keep=()))
    original = load_pretrained(folder / checkpoint).state_dict()
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    quantised = [name for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn]
    assert len(quantised) == stats["tensors_checked"]
    for name in quantised:
        weight = original_of(name, original)
        dequantised = tensors[name].float() * tensors[f"{name}_scale"]
        # a step of E4M3 is an eighth of a power of two, below 2^-6 of the scale it is 2^-9
        allowed = weight.float().abs() / 16 + tensors[f"{name}_scale"] * 2**-10
        assert ((dequantised - weight.float()).abs() <= allowed * 1.001).all(), name
    others = {
        t.dtype for name, t in tensors.items() if name not in quantised and "scale" not in name
    }
    kept_dtype = torch.bfloat16 if checkpoint.endswith("bfloat16") else torch.float32
    assert kept_dtype in others
    assert others <= {kept_dtype, torch.float32}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Values of NVFP4: two a byte, the lower half first, its highest bit the sign."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).int()
    return E2M1[codes % 8] * torch.where(codes < 8, 1.0, -1.0)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """The nearest values of E2M1; of two as near the one whose last bit is 0."""
    even_first = torch.cat([E2M1[::2], E2M1[1::2]])
    nearest = (values.abs()[..., None] - even_first).abs().argmin(-1)
    return even_first[nearest] * values.sign()


@pytest.mark.parametrize("checkpoint", ["attention", "attention_bfloat16", "hybrid_bfloat16"])
def test_nvfp4_is_written_as_the_format_says(folder: Path, tmp_path: Path, checkpoint: str):
    out = tmp_path / "out"
    stats = quantize(recipe(folder, checkpoint, out, format="nvfp4", keep=()))
    original = load_pretrained(folder / checkpoint).state_dict()
    tensors = load_file(out / "model.safetensors")
    names = [name for name, tensor in tensors.items() if tensor.dtype == torch.uint8]
    assert len(names) == stats["tensors_checked"]
    for name in names:
        weight = original_of(name, original).float()
        scale, scale_2 = tensors[f"{name}_scale"], tensors[f"{name}_scale_2"]
        blocks = weight.unflatten(-1, (-1, 16))
        # the scale of a tensor is the largest of the matrices that servers fuse with it
        assert scale_2 * 448 * 6 * (1 + 1e-6) >= blocks.abs().max()
        block_scale = blocks.abs().amax(-1) / (6 * scale_2)
        assert torch.equal(scale, block_scale.to(torch.float8_e4m3fn)), name
        expected = rounded(blocks / (scale.float() * scale_2)[..., None])
        assert torch.equal(unpack(tensors[name]), expected.flatten(-2)), name
    described = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert described["quant_algo"] == "NVFP4"
    assert described["group_size"] == 16
    assert described["kv_cache_quant_algo"] == "FP8"
    # ModelOpt alone, with no code of ours, writes these scales
    alone = load_pretrained(folder / checkpoint).float().eval()
    rows = draw_sequences(folder / "data", "train", 12, seed=0, reasoning=True)
    mtq.quantize(
        alone, mtq.NVFP4_DEFAULT_CFG, lambda model: [model(row.ids_T[None]) for row in rows]
    )
    export_hf_checkpoint(alone, dtype=torch.float32, export_dir=tmp_path / "alone")
    scales = load_file(tmp_path / "alone" / "model.safetensors")
    for name in names:
        for kind in ("weight_scale_2", "input_scale"):
            key = name.replace("weight", kind)
            torch.testing.assert_close(tensors[key], scales[key], rtol=1e-3, atol=0)


@pytest.mark.parametrize(("checkpoint", "bits"), [("attention", 6.0), ("hybrid", 9.0)])
def test_mixed_gives_each_unit_a_format_within_the_bits(folder, tmp_path, checkpoint, bits):
    out = tmp_path / "out"
    stats = quantize(recipe(folder, checkpoint, out, format="mixed", bits=bits))
    tensors = load_file(out / "model.safetensors")
    original = load_pretrained(folder / checkpoint).state_dict()
    described = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert described["quant_algo"] == "MIXED_PRECISION"
    algorithms = {
        name: layer["quant_algo"] for name, layer in described["quantized_layers"].items()
    }
    dtypes = {"NVFP4": torch.uint8, "FP8": torch.float8_e4m3fn}
    assert {*algorithms.values()} == {*dtypes}
    assert len(algorithms) == stats["tensors_checked"]
    spent, elements = 0.0, 0
    for name, algorithm in algorithms.items():
        assert tensors[f"{name}.weight"].dtype == dtypes[algorithm]
        count = original_of(f"{name}.weight", original).numel()
        elements += count
        spent += count * (4.5 if algorithm == "NVFP4" else 8)
    for unit in stats["kept"]:
        layer = unit.partition(".")[2]
        for key, weight in original.items():
            if f"layers.{layer}." in key and "proj" in key and weight.ndim > 1:
                elements += weight.numel()
                spent += 16 * weight.numel()
    assert stats["bits"]["reached"] == pytest.approx(spent / elements, abs=1e-3)
    assert spent / elements <= bits
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["quantized_layers"] == described["quantized_layers"]
    groups = [group["targets"] for group in config["config_groups"].values()]
    assert sorted(name for group in groups for name in group) == sorted(algorithms)
    page = write_report(out).read_text("utf-8")
    assert f"{stats['bits']['reached']:.2f} reached" in page
    for text in ("NVFP4", "FP8", *(["float32"] if stats["kept"] else [])):
        assert text in page


def test_formats_that_were_chosen_outlive_a_kill(folder: Path, tmp_path: Path, monkeypatch):
    made = recipe(folder, "attention", tmp_path / "out", format="mixed", bits=6.0)
    with monkeypatch.context() as killing:
        killing.setattr(stage, "measure", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            quantize(made)
    monkeypatch.setattr(stage, "choose_formats", lambda *_, **__: 1 / 0)
    killed = quantize(made)
    monkeypatch.undo()
    other = recipe(folder, "attention", tmp_path / "other", format="mixed", bits=6.0)
    assert quantize(other) == killed


@pytest.mark.parametrize("kv_cache", [True, False])
def test_bits_that_keep_every_unit_are_refused(folder: Path, tmp_path: Path, kv_cache: bool):
    made = recipe(
        folder, "attention", tmp_path / "out", format="mixed", bits=16.0, kv_cache=kv_cache
    )
    for _ in range(2):  # the second reads what the first has chosen
        with pytest.raises(ConfigError, match=r"bits 16: .* lower `bits`"):
            quantize(made)


@pytest.mark.parametrize("keep", [("*",), ("attention.*", "mlp.*")])
def test_a_keep_that_leaves_no_weights_is_refused_before_it_is_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: tuple[str, ...]
):
    monkeypatch.setattr(stage, "measure", lambda *_, **__: 1 / 0)
    made = recipe(folder, "attention", tmp_path / "out", keep=keep)
    with pytest.raises(ConfigError, match=r"with weights is kept, .* `keep`"):
        quantize(made)
    with pytest.raises(ConfigError, match=r"with weights is kept, .* `keep`"):
        list(plan(made))


def test_a_limit_that_leaves_keys_and_values_alone_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def all_but_keys_and_values(simulated: Simulated, *_: object, **__: object) -> list[str]:
        return [unit for unit in simulated.units if unit != "kv_cache"]

    monkeypatch.setattr(stage, "most_sensitive", all_but_keys_and_values)
    with pytest.raises(ConfigError, match=r"with weights is kept, .* raise `limit`"):
        quantize(recipe(folder, "attention", tmp_path / "out"))


def test_keys_that_a_format_does_not_read_are_refused(folder: Path, tmp_path: Path):
    for keys in ({"format": "mixed", "keep": "nano"}, {"format": "mixed", "limit": 0.1}):
        with pytest.raises(ValueError, match=r"(keep|limit) does not go with format: mixed"):
            recipe(folder, "attention", tmp_path, **keys)
    with pytest.raises(ValueError, match=r"bits does not go with format: nvfp4"):
        recipe(folder, "attention", tmp_path, format="nvfp4", bits=5.0)
    with pytest.raises(ValueError, match="limit is for keep: auto"):
        recipe(folder, "attention", tmp_path, keep="nano", limit=0.1)


def test_a_matrix_that_blocks_do_not_fit_is_refused(folder: Path, tmp_path: Path):
    narrow = tmp_path / "narrow"
    write_policy(narrow)
    config = load_pretrained(narrow).config
    config.intermediate_size = 24
    type(load_pretrained(narrow))(config).save_pretrained(narrow)
    made = recipe(folder, "attention", tmp_path / "out", format="nvfp4")
    with pytest.raises(ConfigError, match=r"every 16 values that a matrix reads, .* reads 24"):
        quantize(made.model_copy(update={"checkpoint": str(narrow)}))


def test_a_hybrid_names_what_is_kept_matrix_by_matrix(folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    stats = quantize(recipe(folder, "hybrid", out, keep=("mamba.*", "attention.2")))
    assert stats["units"] == HYBRID_UNITS
    assert stats["kept"] == ["mamba.0", "attention.2"]
    described = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    excluded = described["exclude_modules"]
    assert {f"backbone.layers.2.mixer.{name}_proj" for name in "qkvo"} <= {*excluded}
    assert "backbone.layers.0.mixer.conv1d" in excluded
    assert not any("*" in name or "\0" in name for name in excluded)
    assert described["kv_cache_quant_algo"] == "FP8"
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == excluded
    with pytest.raises(ConfigError, match="without their scales"):
        load_pretrained(out)
    manifest = read_artifact(out, kind="checkpoint")
    assert [parent.kind for parent in manifest.parents] == ["sft_data"]
    assert "transformers serve" not in (out / "README.md").read_text()
    page = write_report(out).read_text("utf-8")
    for heading in ("Quantised and original", "Sensitivity", "Precision of each unit"):
        assert heading in page


def test_auto_keeps_the_most_sensitive_until_the_limit_holds(folder: Path, tmp_path: Path):
    loose = quantize(recipe(folder, "hybrid", tmp_path / "loose", limit=1.0))
    assert loose["kept"] == []
    whole = loose["variants"]["all"]["kl"]["value"]
    tight = quantize(recipe(folder, "hybrid", tmp_path / "tight", limit=whole / 2))
    assert tight["kept"]
    assert tight["variants"]["written"]["kl"]["value"] <= whole / 2
    assert tight["variants"]["written"]["bits"] > loose["variants"]["written"]["bits"]
    components = {row["name"]: row for row in tight["sensitivity"] if row["kind"] == "component"}
    worst = max(components.values(), key=lambda row: row["only"]["kl"]["value"])
    assert worst["name"] == tight["kept"][0].partition(".")[0]
    assert components["kv_cache"]["only"]["bits"] == 32


def test_nanos_choice_and_a_finished_run(folder: Path, tmp_path: Path):
    made = recipe(folder, "hybrid", tmp_path / "out", keep="nano", kv_cache=False)
    first = quantize(made)
    assert first["kept"] == ["attention.2"]
    assert first["kv_cache"] == "float32"
    digest = read_artifact(tmp_path / "out").digest
    assert quantize(made) == first
    assert read_artifact(tmp_path / "out").digest == digest


def test_a_cache_that_is_kept_has_no_scale(folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    stats = quantize(recipe(folder, "attention", out, keep=("kv_cache",)))
    assert stats["kv_cache"] == "float32"
    serving = (out / "README.md").read_text()
    assert "--dtype bfloat16" in serving
    names = load_file(out / "model.safetensors").keys()
    assert not [name for name in names if name.endswith(("k_scale", "v_scale", "_amax"))]
    described = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert described["kv_cache_quant_algo"] is None


def test_a_unit_that_is_not_there_is_named(folder: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no unit 'atention.0'.*attention\.0"):
        quantize(recipe(folder, "attention", tmp_path / "o", keep=("atention.0",)))
    with pytest.raises(ConfigError, match="every unit with weights is kept"):
        quantize(recipe(folder, "attention", tmp_path / "o", keep=("*",)))


SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
# layer norms, and convolutions under a name that ModelOpt does not know
OPT = {
    "model_type": "opt", "vocab_size": 64, "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "word_embed_proj_dim": 32, "pad_token_id": 0,
}  # fmt: skip
LFM2 = {"model_type": "lfm2", **SMALL, "layer_types": ["conv", "full_attention"]}
QWEN3_MOE = {
    "model_type": "qwen3_moe", **SMALL, "num_experts": 2, "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}


@pytest.mark.parametrize("config", [OPT, LFM2], ids=["opt", "lfm2"])
def test_norms_and_convolutions_stay_whatever_their_names(folder: Path, config: dict[str, Any]):
    rows = draw_sequences(folder / "data", "train", 2, seed=0, reasoning=False)
    model = build_model(config).eval()
    model.config.architectures = [type(model).__name__]  # as `save_pretrained` writes
    simulated = Simulated(model, rows, kv_cache=True)
    assert {*simulated.components()} == {"attention", "kv_cache", "mlp"}
    for name in simulated.quantisers:
        if not name.endswith("_bmm_quantizer"):
            module = simulated.model.get_submodule(name.rpartition(".")[0])
            assert isinstance(module, torch.nn.Linear), name


@pytest.mark.parametrize(
    ("config", "message"),
    [(QWEN3_MOE, "gate and up of its experts in one matrix"), (GPT2, "has no list `layers`")],
    ids=["qwen3_moe", "gpt2"],
)
def test_a_model_whose_files_cannot_be_compared_is_refused_before_it_is_measured(
    folder: Path, tmp_path: Path, config: dict[str, Any], message: str
):
    other = write_policy(tmp_path / "other")
    build_model(config).save_pretrained(other)
    made = recipe(folder, "attention", tmp_path / "out")
    with pytest.raises(ConfigError, match=message):
        list(plan(made.model_copy(update={"checkpoint": str(other)})))


def test_data_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path):
    """The ids would be other words to this model, or none of its ids."""
    words = {**WORDS, "w5": WORDS["w6"], "w6": WORDS["w5"]}
    make_tokenizer(words=words).save_pretrained(str(write_policy(tmp_path / "other")))
    made = recipe(folder, "attention", tmp_path / "out")
    with pytest.raises(ConfigError, match="'w5' is 6 in the model and 5 in the data"):
        list(plan(made.model_copy(update={"checkpoint": str(tmp_path / "other")})))


def test_a_head_tied_to_the_embedding_is_excluded(folder: Path, tmp_path: Path):
    tied = tmp_path / "tied"
    write_policy(tied)
    model = load_pretrained(tied)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tied)
    made = recipe(folder, "attention", tmp_path / "out", keep=())
    quantize(made.model_copy(update={"checkpoint": str(tied)}))
    described = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head" in described["quantization"]["exclude_modules"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "lm_head" in config["quantization_config"]["ignore"]


@pytest.mark.parametrize("checkpoint", ["attention", "hybrid"])
def test_shared_layers_change_no_figure(folder: Path, checkpoint: str):
    rows = draw_sequences(folder / "data", "train", 4, seed=0, reasoning=False)
    simulated = Simulated(load_pretrained(folder / checkpoint).eval(), rows, kv_cache=True)
    variants = part_variants(simulated)
    together = measure(simulated, rows, variants)
    for name, units in variants.items():
        # alone, a variant has no earlier pass of another variant to start from
        assert measure(simulated, rows, {name: units})[name] == together[name], name
    simulated.switch_on(())
    original = load_pretrained(folder / checkpoint).state_dict()
    restored = simulated.model.state_dict()
    assert all(torch.equal(restored[name], weight) for name, weight in original.items())


@pytest.mark.parametrize("checkpoint", ["attention", "hybrid"])
@pytest.mark.parametrize("keys", FORMATS, ids=lambda keys: keys["format"])
def test_a_written_folder_is_simulated_as_it_was_measured(folder, tmp_path, keys, checkpoint):
    out = tmp_path / "out"
    stats = quantize(recipe(folder, checkpoint, out, **keys))
    units = [unit for unit in stats["units"] if unit not in stats["kept"]]
    rows = draw_sequences(folder / "data", "train", 12, seed=0, reasoning=True)
    nvfp4 = [unit for unit, name in stats["formats"].items() if name == "nvfp4"]
    model = load_pretrained(folder / checkpoint).eval()
    measured = Simulated(model, rows, kv_cache=True, nvfp4=nvfp4)
    ids_1_T = rows[0].ids_T[None]
    measured.switch_on(())
    with torch.inference_mode():
        full = measured.model(ids_1_T).logits
        measured.switch_on(units)
        expected = measured.model(ids_1_T).logits
        loaded = load_pretrained(out, simulate=True).eval()(ids_1_T).logits
    assert torch.equal(loaded, expected)
    assert not torch.equal(loaded, full)


def test_a_scale_that_nothing_here_reads_is_refused(folder: Path, tmp_path: Path):
    """As of a folder by another exporter: half of its rounding would be missing."""
    out = tmp_path / "out"
    quantize(recipe(folder, "attention", out, keep=("attention.*",)))
    [file] = out.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("input_scale"))
    save_file({**tensors, name.replace("layers.0.", "layers.9."): tensors[name].clone()}, file)
    with pytest.raises(ConfigError, match=r"1 scales belong .* such as layers\.9\..*input_scale"):
        load_pretrained(out, simulate=True)


def test_a_killed_run_measures_nothing_twice(folder: Path, tmp_path: Path):
    rows = draw_sequences(folder / "data", "train", 3, seed=0, reasoning=False)
    simulated = Simulated(load_pretrained(folder / "attention").eval(), rows, kv_cache=True)
    passes: list[object] = []
    simulated.model.register_forward_hook(lambda *_: passes.append(None))
    variants = part_variants(simulated)
    file = tmp_path / "work" / "figures.jsonl"
    first = measure(simulated, rows, variants, journal=FigureLog(file))
    assert passes
    passes.clear()
    assert measure(simulated, rows, variants, journal=FigureLog(file)) == first
    assert not passes
    # a line that was cut, and one that is missing
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2]) + lines[-2][:20])
    assert measure(simulated, rows, variants, journal=FigureLog(file)) == first
    assert passes
    measure(simulated, rows, variants, journal=FigureLog(file), draw=1)
    assert len(file.read_text().splitlines()) == 2 * len(lines)


def test_draws_of_calibrating_rows(folder: Path, tmp_path: Path):
    stats = quantize(recipe(folder, "hybrid", tmp_path / "out", seeds=3))
    components = {row["name"]: row for row in stats["sensitivity"] if row["kind"] == "component"}
    assert len(stats["seeds"]) == 3
    for name, row in components.items():
        assert stats["seeds"][0][name] == row["only"]["kl"]["value"]
        mean = stats["over_seeds"][name]
        assert mean["low"] <= mean["value"] <= mean["high"]
    assert not (tmp_path / "out" / "work").exists()
    assert "3 draws" in write_report(tmp_path / "out").read_text("utf-8")
    every = recipe(folder, "hybrid", tmp_path / "all", seeds=2).model_copy(update={"samples": 999})
    with pytest.raises(ConfigError, match="every draw of samples 999 has all training sequences"):
        quantize(every)


def test_a_dry_run_names_rows_units_time_and_memory(folder: Path, tmp_path: Path):
    lines = [*plan(recipe(folder, "hybrid", tmp_path / "out", seeds=2))]
    assert lines[0].startswith("calibrate on 12 sequences")
    assert lines[1].startswith("6 units: mamba, experts, shared_experts, attention, kv_cache, mlp")
    assert "other draws" in lines[2]
    assert lines[3].endswith("GiB of memory")
    with pytest.raises(ConfigError, match="there is no unit"):
        [*plan(recipe(folder, "hybrid", tmp_path / "out", keep=("atention.2",)))]
    assert not (tmp_path / "out").exists()
    Run.open(tmp_path / "out", kind="sft_data", config={})
    with pytest.raises(ConfigError, match="holds a 'sft_data' artifact"):
        quantize(recipe(folder, "hybrid", tmp_path / "out"), "--dry-run")


def test_a_dry_run_counts_the_search_of_formats(folder: Path, tmp_path: Path):
    lines = [*plan(recipe(folder, "attention", tmp_path / "out", format="mixed", bits=7.0))]
    assert re.search(r"on this machine: formats [^,]+, calibrate", lines[2])
