from __future__ import annotations

import pytest
import torch

from posttrain.errors import ConfigError
from posttrain.models.load import build_model
from tests.models.tiny import TINY_ATTENTION, TINY_HYBRID

SIZES = {"vocab_size": 1024, "pad_token_id": 0, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("config", "name"),
    [(TINY_ATTENTION, "Qwen3"), (TINY_HYBRID, "NemotronH")],
)
def test_tiny_models_are_tiny_learn_and_follow_the_seed(config: dict, name: str) -> None:
    torch.manual_seed(0)
    model = build_model({**config, **SIZES})
    assert type(model).__name__.startswith(name)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 300_000 <= count <= 2_000_000
    ids = torch.randint(3, 1000, (2, 40))
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert abs(loss.item() - 6.93) < 1.5  # ln 1024: nothing is known yet
    gradients = [p.grad is not None for p in model.parameters() if p.requires_grad]
    assert sum(gradients) > 0.8 * len(gradients)  # an expert that no token chose has none
    torch.manual_seed(0)
    again = build_model({**config, **SIZES})
    pairs = zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": None}, "no model of transformers"),
        ({"hiden_size": 64}, "did you mean 'hidden_size'"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"attention_dropout": "high"}, "cannot be built"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model({**TINY_ATTENTION, **SIZES, **change})


def test_heads_that_do_not_divide_are_refused_at_once() -> None:
    fields = {**TINY_ATTENTION, **SIZES, "num_attention_heads": 3, "num_key_value_heads": 2}
    with pytest.raises(ConfigError, match="3 is no multiple of num_key_value_heads 2"):
        build_model(fields)
