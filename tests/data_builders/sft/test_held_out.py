"""Evaluation measures nothing that was trained on, token for token."""

from __future__ import annotations

import itertools
import json
from collections import Counter

from tests.data_builders.small_build import build, index, manifest, packs, write_recipe, write_rows


def test_no_sequence_that_is_held_out_is_trained_on(tmp_path):
    """Conversations of their own, that give the same tokens once a trace is stripped."""

    def row(k: int, trace: int) -> dict[str, object]:
        asked = {"role": "user", "content": f"Which river is number {k}?"}
        thought = f"Attempt {trace} at river {k}."
        said = {"role": "assistant", "content": f"The {k}th.", "reasoning_content": thought}
        return {"messages": [asked, said]}

    rows = [row(k, trace) for k in range(30) for trace in range(4)]
    path = write_rows(tmp_path / "rivers.jsonl", rows)
    build(
        write_recipe(
            tmp_path, sources=[{"name": "rivers", "path": str(path), "license": "MIT", "rows": 30}],
            held_out={"rate": 0.2}, reasoning={"strip": 0.5, "truncate": 0.0},
            mixture={"tolerance": 0.1}, write_dropped=True,
        )
    )  # fmt: skip
    trained, held_out = (
        {
            tuple(pack["input_ids"][end - length : end])
            for pack in packs(tmp_path / "out", split)
            for length, end in zip(
                pack["seq_lengths"], itertools.accumulate(pack["seq_lengths"]), strict=True
            )
        }
        for split in ("train", "eval")
    )
    assert len(held_out) > 10
    assert not trained & held_out
    counts = manifest(tmp_path / "out")["counts"]
    assert counts["dropped"]["held_out_duplicate"] > 0
    assert counts["in"] == 120 == counts["kept"] + sum(counts["dropped"].values())
    lines = (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()
    dropped = [json.loads(line) for line in lines]
    assert Counter(line["reason"] for line in dropped) == counts["dropped"]
    assert counts["dropped"].keys() == {"held_out_duplicate", "not_sampled"}
    assert len({line["line"] for line in dropped}) == len(dropped)
    splits = [index(tmp_path / "out", split) for split in ("train", "eval")]
    kept = {row["record_id"] for split in splits for row in split}
    assert not kept & {line["record_id"] for line in dropped}
