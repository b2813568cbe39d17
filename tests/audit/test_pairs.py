"""Preference pairs: each side is a sequence with its prompt, under its category."""

from __future__ import annotations

import json

from tests.data_builders.small_build import script
from tests.training.dpo.pairs import make_pairs, write_pairs


def test_both_sides_of_every_pair_are_counted(tmp_path):
    pairs = make_pairs(12)
    data = write_pairs(tmp_path / "pairs", pairs)
    script("audit").main(
        [str(data), f"out={tmp_path / 'audit'}", "limits.max_empty_answers=null"]
    )  # the ids are random
    body = json.loads((tmp_path / "audit" / "manifest.json").read_text("utf-8"))
    found = body["stats"]["supervision"]
    assert set(found) == {f"{p.category}/{side}" for p in pairs for side in ("chosen", "rejected")}
    for name, figures in found.items():
        category, side = name.split("/")
        own = [(p, getattr(p, side)) for p in pairs if p.category == category]
        assert figures["sequences"] == figures["end_trained"] == len(own)
        assert figures["trained"] == sum(sum(s.mask) for _, s in own)
        # an answer may be rejected because it is empty
        assert (figures["empty_answer"] is None) is (side == "rejected")
        assert figures["tokens"] == sum(len(p.prompt_ids) + len(s.ids) for p, s in own)
