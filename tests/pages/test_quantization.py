"""What the page of a quantised checkpoint says of NVIDIA's choice."""

from __future__ import annotations

import pytest

from posttrain.pages.quantization import nano_agreement


def component(name: str, low: float, high: float) -> dict:
    kl = {"value": (low + high) / 2, "low": low, "high": high}
    return {"kind": "component", "name": name, "only": {"kl": kl}}


@pytest.mark.parametrize(
    ("attention", "sentence"),
    [
        ((0.04, 0.05), "agrees: all that it keeps costs more than anything else with weights"),
        ((0.02, 0.05), "neither agrees nor contradicts: the intervals overlap"),
        ((0.001, 0.002), "does not agree: mlp costs more than attention"),
    ],
)
def test_the_page_says_whether_the_measurement_agrees_with_nvidia(attention, sentence: str):
    # keys and values cost most of all, and have no weights to keep
    rows = [component("kv_cache", 0.8, 0.9), component("mlp", 0.01, 0.03)]
    text = nano_agreement([*rows, component("attention", *attention)])
    assert text is not None
    assert f"(attention): the measurement {sentence} (attention " in text
    assert nano_agreement(rows) is None
