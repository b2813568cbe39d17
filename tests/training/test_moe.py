"""Balance of experts: the loss term against the formula, and which way the bias moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, set_seed

from posttrain.errors import ConfigError
from posttrain.models.load import find_routers
from posttrain.training.document_masking import make_collator, sequence_ids
from posttrain.training.moe import BIAS, ExpertBalance, ExpertBias, Routing, layer_balance
from tests.training.test_document_masking import packs
from tests.training.tiny import attention_model, hybrid_model

ALONE: Any = SimpleNamespace(reduce=lambda tensor, _how: tensor)


def softmax_model():
    set_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
            num_experts_per_tok=2, max_position_embeddings=128,
        )
    )  # fmt: skip


def naive(logits, chosen, sigmoid: bool, spans) -> list[float]:
    """Eq. 17-20 of DeepSeek-V3 written out with loops."""
    losses = []
    experts, k = logits.size(1), chosen.size(1)
    for start, end in spans:
        length = end - start
        total = 0.0
        for expert in range(experts):
            hits = sum(expert in chosen[t].tolist() for t in range(start, end))
            share = 0.0
            for t in range(start, end):
                row = logits[t].double()
                scores = row.sigmoid() if sigmoid else row.exp()
                share += float(scores[expert] / scores.sum())
            total += experts / (k * length) * hits * share / length
        losses.append(total)
    return losses


@pytest.mark.parametrize("sigmoid", [True, False])
def test_one_layer_equals_the_formula(sigmoid):
    torch.manual_seed(0)
    logits = torch.randn(17, 6, requires_grad=True)
    chosen = (logits.detach() + torch.randn(6)).topk(2).indices  # a bias decides with the scores
    ids = torch.tensor([0] * 5 + [-1] * 2 + [1] * 7 + [2] * 3)
    losses, _ = layer_balance(Routing(logits, chosen, sigmoid), ids, 3)
    expected = naive(logits.detach(), chosen, sigmoid, [(0, 5), (7, 14), (14, 17)])
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad[5:7].abs().max() == 0


def test_perfect_balance_is_one_and_collapse_is_the_number_of_experts_over_k():
    ids = torch.zeros(4, dtype=torch.long)
    even = Routing(torch.zeros(4, 4), torch.tensor([[0, 1], [2, 3], [0, 1], [2, 3]]), True)
    assert float(layer_balance(even, ids, 1)[0]) == pytest.approx(1.0)
    logits = torch.tensor([[20.0, 20.0, -20.0, -20.0]]).expand(4, 4)
    collapsed = Routing(logits, torch.tensor([[0, 1]] * 4), True)
    losses, worst = layer_balance(collapsed, ids, 1)
    assert float(losses) == pytest.approx(2.0, rel=1e-4)
    assert worst == pytest.approx(1.0)


def run(model, layout: str, rows, checkpointing: bool = False):
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    balance = ExpertBalance(model)
    batch = make_collator(layout, 0)(rows)
    ids, count = sequence_ids(batch)
    with balance.collect():
        out = model(**batch, use_cache=False)
    total, _ = balance.take(ids, count)
    (out.loss * 0 + total / count).backward()
    grads = [p.grad.clone() for n, p in model.named_parameters() if n.endswith("gate.weight")]
    return float(total.detach()), torch.cat(grads)


@pytest.mark.parametrize(
    ("make", "layout"), [(hybrid_model, "unpacked"), (softmax_model, "varlen")]
)
def test_gradient_checkpointing_changes_nothing(make, layout):
    plain, grads = run(make(), layout, packs())
    again, checked = run(make(), layout, packs(), checkpointing=True)
    assert again == pytest.approx(plain, rel=1e-6)
    assert grads.abs().max() > 0
    assert torch.allclose(grads, checked, atol=1e-7)


def test_packed_sequences_count_one_by_one():
    """The term of a pack is the sum of the terms of its sequences run alone."""
    rows = packs(2)
    together, grads = run(softmax_model(), "block_diagonal", rows)
    alone, apart = run(softmax_model(), "unpacked", rows)
    assert together == pytest.approx(alone, rel=1e-5)
    assert torch.allclose(grads, apart, atol=1e-6)


def test_a_balance_without_routers_or_without_their_graph_is_an_error_not_a_silent_zero():
    with pytest.raises(ConfigError, match="has no top-k router"):
        ExpertBalance(attention_model())
    model = softmax_model().train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    balance = ExpertBalance(model)
    batch = make_collator("varlen", 0)(packs(1))
    with balance.collect(), pytest.raises(ConfigError, match="use_reentrant"):
        model(**batch, use_cache=False)


# ---- the moving bias ----


def test_overloaded_experts_fall_and_idle_ones_rise_and_padding_is_not_counted():
    model = hybrid_model().eval()
    [router] = find_routers(model).values()
    chosen: list[torch.Tensor] = []
    router.register_forward_hook(lambda _m, _i, output: chosen.append(output[2]))
    bias = ExpertBias(model, rate=0.01)
    ids = torch.randint(3, 40, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with torch.no_grad():
        model(ids)  # not counted
        with bias.counting(mask):
            model(ids, attention_mask=mask)
    told = bias.move(ALONE)
    loads = torch.zeros(8, dtype=torch.float64)
    for token in chosen[1].reshape(2, 9, 2)[mask.bool()]:
        loads[token] += 1
    assert loads.sum() == 14 * 2
    expected = 0.01 * torch.sign(loads.mean() - loads)
    torch.testing.assert_close(router.get_buffer(BIAS).double(), expected, atol=1e-9, rtol=0)
    assert told["max_violation"] == pytest.approx(float(loads.max() / loads.mean()) - 1)
    # counting starts anew: without loads nobody is over or under the mean
    before = router.get_buffer(BIAS).clone()
    bias.move(ALONE)
    assert torch.equal(router.get_buffer(BIAS), before)


@pytest.mark.parametrize(("make", "rate"), [(attention_model, 0.01), (hybrid_model, 0.0)])
def test_without_routers_or_rate_nothing_is_counted(make: Any, rate: float):
    model = make()
    bias = ExpertBias(model, rate=rate)
    with torch.no_grad(), bias.counting(torch.ones(1, 4)):
        model(torch.ones(1, 4, dtype=torch.long))
    assert bias.move(ALONE) == {}
