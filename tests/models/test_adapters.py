from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from transformers import PhimoeConfig, PhimoeForCausalLM

from posttrain.config.sft import AdapterConfig
from posttrain.errors import ConfigError
from posttrain.models.adapters import (
    adapter_reach,
    lora_config,
    quantization_config,
)
from posttrain.models.load import find_routers, uses_sigmoid
from tests.training.tiny import attention_model, hybrid_model


def test_the_nemotron_preset_reaches_experts_mamba_and_attention():
    reach = {r.target: r for r in adapter_reach(AdapterConfig(preset="nemotron_h"), hybrid_model())}
    # one layer of each kind: 8 experts in one fused tensor, one Mamba mixer
    assert (reach["q_proj"].tensors, reach["up_proj"].tensors) == (1, 2)
    total = sum(p.numel() for p in hybrid_model().parameters())
    assert reach["experts.up_proj"].share == pytest.approx(8 * 32 * 32 / total)
    assert reach["in_proj"].share == pytest.approx(196 * 32 / total)


def test_the_usual_list_misses_the_experts():
    """What a hand-written LoRA list reaches on NemotronH: the point of the preset."""
    usual = adapter_reach(AdapterConfig(preset="attention_mlp"), hybrid_model())
    preset = adapter_reach(AdapterConfig(preset="nemotron_h"), hybrid_model())
    assert sum(r.share for r in usual) < 0.45 * sum(r.share for r in preset)


@pytest.mark.parametrize(
    "spec", [AdapterConfig(modules=("w_gate",)), AdapterConfig(preset="nemotron_h")]
)
def test_zero_coverage_of_a_named_target_fails(spec: AdapterConfig):
    with pytest.raises(ConfigError, match=r"reaches nothing in LlamaForCausalLM.*q_proj"):
        adapter_reach(spec, attention_model())


def test_gate_projections_are_taken_along_where_the_model_has_them():
    config = lora_config(AdapterConfig(), attention_model())
    assert "gate_proj" in set(config.target_modules or ())


def test_routers_cannot_be_adapted_and_stay_frozen():
    with pytest.raises(ConfigError, match="would train the router"):
        adapter_reach(AdapterConfig(parameters=("gate.weight",)), hybrid_model())
    with torch.device("meta"):  # its routers are linear modules
        linear = PhimoeForCausalLM(PhimoeConfig(num_hidden_layers=1))
    with pytest.raises(ConfigError, match="would train the router"):
        adapter_reach(AdapterConfig(modules=("router",)), linear)
    model = hybrid_model()
    adapted = get_peft_model(model, lora_config(AdapterConfig(preset="nemotron_h"), model))
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert all("lora_" in name for name in trained)
    assert any("experts" in name for name in trained)


def test_coverage_needs_no_weights():
    with torch.device("meta"):
        model = hybrid_model()
    assert adapter_reach(AdapterConfig(preset="nemotron_h"), model)


def test_qlora_without_a_gpu_says_what_it_needs():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match="qlora needs a CUDA GPU and bitsandbytes"):
        quantization_config(AdapterConfig(method="qlora"))
    assert quantization_config(AdapterConfig()) is None


def test_routers_are_found_by_what_they_are():
    routers = find_routers(hybrid_model())
    assert list(routers) == ["model.layers.1.mixer.gate"]
    assert uses_sigmoid(routers["model.layers.1.mixer.gate"])
    assert find_routers(attention_model()) == {}


def test_a_real_checkpoint_loads_and_stops(shared: Path):
    """A real trained Llama of 260 K parameters, as plain transformers loads it."""
    from posttrain.config.sft import ModelConfig
    from posttrain.models.load import load_model
    from posttrain.tokens.tokenizer import SpecialTokens

    special = SpecialTokens("</s>", 2, "<unk>", 0, (2,))
    path = str(shared / "models" / "stories260k")
    model = load_model(ModelConfig(path=path), special=special, vocabulary=512, seed=0)
    assert model.generation_config.eos_token_id == 2
    assert model.generation_config.pad_token_id == 0
    with pytest.raises(ConfigError, match="has 512 rows"):
        load_model(ModelConfig(path=path), special=special, vocabulary=513, seed=0)
