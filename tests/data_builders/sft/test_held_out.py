"""Evaluation measures nothing that was trained on, token for token."""

from __future__ import annotations

import itertools

from tests.data_builders.small_build import build, manifest, packs, write_recipe, write_rows


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
            tmp_path, sources=[{"name": "rivers", "path": str(path), "license": "MIT"}],
            held_out={"rate": 0.2}, reasoning={"strip": 0.5, "truncate": 0.0},
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
