"""What the page of a quantised checkpoint says of NVIDIA's choice."""

from __future__ import annotations

import pytest

from posttrain.pages.quantization import kept_units, nano_agreement, variants, verdict
from posttrain.report.section import Table


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


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.001, 0.004, "held-out loss rises"),
        (-0.001, 0.004, "does not change beyond its interval"),
        (-0.004, -0.001, "held-out loss falls"),
    ],
)
def test_the_page_says_whether_the_loss_changes(low: float, high: float, words: str):
    assert words in str(verdict({"value": (low + high) / 2, "low": low, "high": high}))


def test_the_original_is_not_compared_with_itself():
    kl = {"value": 0.002, "low": 0.001, "high": 0.003}
    row = {"bits": 8, "kl": kl, "loss": kl, "change": kl}
    stats = {
        "format": "fp8", "kv_cache": "FP8", "calibrated": 10, "dtype": "float32", "measured": 5,
        "tensors_checked": 3, "variants": dict.fromkeys(("none", "all", "nano", "written"), row),
    }  # fmt: skip
    table = variants(stats).blocks[-1]
    assert isinstance(table, Table)
    original, quantised = table.rows[:2]
    assert (original[2], original[4]) == (None, None)
    assert quantised[2] == "2.000 (1.000 … 3.000)"


@pytest.mark.parametrize(
    ("kept", "keep", "words"),
    [
        ([], "auto", "0 of 2 units are kept in float32: the most sensitive units, as few as bring"),
        (["mlp.0"], "nano", "1 of 2 units are kept in float32: NVIDIA's choice for Nano. "),
        (["mlp.0"], ["mlp.*"], "1 of 2 units are kept in float32: mlp.*. "),
    ],
)
def test_the_page_counts_the_units_that_are_kept(kept: list[str], keep: object, words: str):
    units = ["mlp.0", "mlp.1"]
    formats = dict.fromkeys(units, "fp8")
    limit = 0.01 if keep == "auto" else None
    stats = {"keep": keep, "format": "fp8", "limit": limit, "units": units, "formats": formats}
    section = kept_units({**stats, "kept": kept, "dtype": "float32"})
    assert section.blocks[0].startswith(words)  # pyright: ignore[reportAttributeAccessIssue]
    if keep == "auto":
        assert "at most 10 (10⁻³ nats" in str(section.blocks[0]), "in the unit of the tables"
