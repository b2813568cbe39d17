"""The routers' bias: which way it moves, and what is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.models.load import find_routers
from posttrain.training.moe import BIAS, ExpertBias
from tests.training.tiny import attention_model, hybrid_model

ALONE: Any = SimpleNamespace(reduce=lambda tensor, _how: tensor)


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


def test_a_steady_imbalance_is_evened_out():
    """Moved again and again, the loads of a fixed batch come near their mean."""
    model = hybrid_model().eval()
    bias = ExpertBias(model, rate=0.003)
    ids = torch.randint(3, 40, (8, 24), generator=torch.Generator().manual_seed(0))
    violations: list[float] = []
    for _ in range(60):
        with torch.no_grad(), bias.counting(torch.ones_like(ids)):
            model(ids)
        violations.append(bias.move(ALONE)["max_violation"])
    assert sum(violations[-5:]) / 5 < violations[0] / 2


@pytest.mark.parametrize(("model", "rate"), [(attention_model, 0.01), (hybrid_model, 0.0)])
def test_without_routers_or_rate_nothing_is_counted(model: Any, rate: float):
    made = model()
    bias = ExpertBias(made, rate=rate)
    with torch.no_grad(), bias.counting(torch.ones(1, 4)):
        made(torch.ones(1, 4, dtype=torch.long))
    assert bias.move(ALONE) == {}
