"""The SFT data stage from rows to shards."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from posttrain.chat import nemotron_3_nano_template
from posttrain.errors import DataError
from posttrain.runs import Counts, Run, read_artifact
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import (
    build,
    dropped_lines,
    index,
    manifest,
    packs,
    plain_rows,
    reasoning_rows,
    source_of,
    write_recipe,
    write_rows,
)


def test_counts_balance_and_agree_with_the_shards(world):
    body = manifest(world / "out")
    counts = body["counts"]
    assert counts["in"] == 420 == counts["kept"] + sum(counts["dropped"].values())
    stats = body["stats"]["sources"]
    for name, source in stats.items():
        rows = [
            r for s in ("train", "eval") for r in index(world / "out", s) if r["source"] == name
        ]
        assert len({r["record_id"] for r in rows}) == source["kept"]
        train = [r for r in index(world / "out") if r["source"] == name]
        assert sum(r["length"] for r in train) == source["realised"]["tokens"]
        assert sum(r["trained"] for r in train) == source["realised"]["trained"]
        assert source["in"] == source["kept"] + sum(source["dropped"].values())
    assert stats["reasoning"]["shares"]["tokens"] == pytest.approx(0.8, abs=0.02)
    files = {f["path"]: f["rows"] for f in body["files"]}
    train = [rows for path, rows in sorted(files.items()) if path.startswith("packed/train-")]
    assert train[:-1] == [7] * (len(train) - 1) != []
    assert not (world / "out" / "work").exists()
    read_artifact(world / "out", kind="sft_data")


@pytest.mark.parametrize("split", ["train", "eval"])
def test_index_says_where_every_sequence_lies(world, split):
    rows, all_packs = index(world / "out", split), packs(world / "out", split)
    by_pack: dict[int, list[dict]] = {}
    for row in rows:
        by_pack.setdefault(row["pack"], []).append(row)
    assert sorted(by_pack) == list(range(len(all_packs)))
    for number, pack in enumerate(all_packs):
        own = by_pack[number]
        lengths = [row["length"] for row in own]
        assert pack["seq_lengths"] == lengths
        assert [row["offset"] for row in own] == [sum(lengths[:k]) for k in range(len(own))]
        assert len(pack["input_ids"]) == len(pack["labels"]) == sum(lengths) <= 4096
        assert len({row["record_id"] for row in own}) == len(own), "a record twice in one pack"
        for row in own:
            part = slice(row["offset"], row["offset"] + row["length"])
            ids, labels = pack["input_ids"][part], pack["labels"][part]
            assert all(label in (-100, i) for i, label in zip(ids, labels, strict=True))
            assert sum(label != -100 for label in labels) == row["trained"] > 0
        if split == "eval":
            assert {f"{row['source']}/{row['reasoning']}" for row in own} == {pack["group"]}


def test_sequences_are_what_the_template_renders(world):
    tokenizer = load_any_tokenizer(str(world / "out" / "tokenizer"))
    decode = encoder_of(tokenizer).decode
    template = nemotron_3_nano_template()
    rendered = {
        template.text(
            [
                {"role": "user", "content": row["instruction"]},
                {"role": "assistant", "content": row["output"]},
            ],
            enable_thinking=False,
        )
        for row in plain_rows(300)
    }
    found = [r for r in index(world / "out") if r["source"] == "plain"]
    all_packs = packs(world / "out")
    assert found
    for row in found:
        pack, part = all_packs[row["pack"]], slice(row["offset"], row["offset"] + row["length"])
        assert decode(pack["input_ids"][part]) in rendered
        answer = decode([i for i in pack["labels"][part] if i != -100])
        assert answer.endswith("<|im_end|>\n")
        assert "<think>" not in answer
    assert tokenizer.chat_template == template.source


def test_a_shard_closes_with_the_pack_that_reaches_its_bytes(world, tmp_path):
    limit = 40_000
    build(world / "recipe.yaml", f"out={tmp_path}", f"shards.bytes={limit}")
    assert packs(tmp_path) == packs(world / "out")
    sizes = iter(8 * len(pack["input_ids"]) for pack in packs(tmp_path))
    files = sorted((f["path"], f["rows"]) for f in manifest(tmp_path)["files"])
    for rows in [rows for path, rows in files if path.startswith("packed/train-")][:-1]:
        own = [next(sizes) for _ in range(rows)]
        assert sum(own[:-1]) < limit <= sum(own)


def test_a_conversation_held_out_in_one_source_is_trained_in_none(tmp_path):
    rows = plain_rows(60)
    sources = [
        source_of(tmp_path, rows, held_out={"rows": 12}),
        source_of(tmp_path, rows + rows[:30], "b"),
    ]
    build(write_recipe(tmp_path, sources=sources, held_out={"rate": 0.0}))
    out = tmp_path / "out"
    held_out = {r["record_id"] for r in index(out, "eval")}
    assert len(held_out) == 12
    assert not held_out & {r["record_id"] for r in index(out)}
    counts = manifest(out)["counts"]
    assert counts["in"] == 150
    assert counts["dropped"]["held_out_duplicate"] == 150 - counts["kept"] >= 12


def test_no_sequence_that_is_held_out_is_trained_on(tmp_path):
    """Conversations of their own, that give the same tokens once a trace is stripped."""

    def row(k: int, trace: int) -> dict[str, object]:
        asked = {"role": "user", "content": f"Which river is number {k}?"}
        thought = f"Attempt {trace} at river {k}."
        said = {"role": "assistant", "content": f"The {k}th.", "reasoning_content": thought}
        return {"messages": [asked, said]}

    rows = [row(k, trace) for k in range(30) for trace in range(4)]
    build(
        write_recipe(
            tmp_path, sources=[source_of(tmp_path, rows, rows=30)], held_out={"rate": 0.2},
            reasoning={"strip": 0.5, "truncate": 0.0}, mixture={"tolerance": 0.1}, write_dropped=True,
        )
    )  # fmt: skip
    out = tmp_path / "out"
    trained, held_out = (set(_sequences(packs(out, split))) for split in ("train", "eval"))
    assert len(held_out) > 10
    assert not trained & held_out
    counts, dropped = manifest(out)["counts"], dropped_lines(out)
    assert counts["in"] == 120 == counts["kept"] + sum(counts["dropped"].values())
    assert Counter(line["reason"] for line in dropped) == counts["dropped"]
    assert counts["dropped"].keys() == {"held_out_duplicate", "not_sampled"}
    assert len({line["line"] for line in dropped}) == len(dropped)
    kept = {row["record_id"] for split in ("train", "eval") for row in index(out, split)}
    assert not kept & {line["record_id"] for line in dropped}


def _sequences(rows):
    for row in rows:
        ends = list(itertools.accumulate(row["seq_lengths"], initial=0))
        yield from (tuple(row["input_ids"][a:b]) for a, b in itertools.pairwise(ends))


def test_rows_are_dropped_clipped_and_masked_by_name(tmp_path, capsys):
    """Too long, half a surrogate pair, a special token in a text, a loss mask, a column unread."""
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one"}]
    masked = [turn[0], turn[1] | {"weight": 0}, turn[0], turn[1] | {"content": "two"}]
    pad = [turn[0], turn[1] | {"content": "a <|pad|> b"}]
    rows = [
        *plain_rows(40),
        {"instruction": "q", "input": "", "output": " ".join(map(str, range(900)))},
        {"instruction": "q", "input": "", "output": "half a pair: \ud83d"},
        *({"messages": m, "level": 3} for m in (masked, pad)),
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"name": "mixed", "path": str(path), "filters": {"bad_unicode": False}}
    recipe = write_recipe(
        tmp_path, sources=[source], packing={"max_length": 256}, write_dropped=True
    )
    build(recipe, "held_out.rate=0.0")
    lines = dropped_lines(tmp_path / "out")
    found = [(line["reason"], line["line"], line["source"]) for line in lines]
    assert found == [
        ("overlong", 41, "mixed"),
        ("render_error", 42, "mixed"),
        ("special_token", 44, "mixed"),
    ]
    assert "a pack holds 256" in lines[0]["detail"]
    assert "'<|pad|>'" in lines[2]["detail"]
    assert ["level", 2, "3"] in manifest(tmp_path / "out")["stats"]["sources"]["mixed"]["unread"]
    assert "level" in capsys.readouterr().out
    # the byte tokenizer trains "two", the end token and the line end behind it
    (row,) = (row for row in index(tmp_path / "out") if row["dialect"] == "openai")
    assert row["trained"] == len("two") + 2

    clipped = tmp_path / "clipped"
    build(recipe, f"out={clipped}", "packing.overlong=truncate", "held_out.rate=0.0")
    body = manifest(clipped)
    assert "overlong" not in body["counts"]["dropped"]
    assert body["stats"]["sources"]["mixed"]["sequences_clipped"] == 1
    assert max(r["length"] for r in index(clipped)) == 256


def test_losing_too_many_samples_stops_the_build(tmp_path):
    prompts = [{"instruction": "q" * 400, "input": "", "output": "a"} for _ in range(5)]
    packing = {"max_length": 256, "overlong": "truncate"}
    sources = [source_of(tmp_path, plain_rows(90) + prompts)]
    recipe = write_recipe(tmp_path, sources=sources, packing=packing)
    with pytest.raises(DataError, match=r"'a': nothing_trained took 5.3% of 95 rows.*1.0%"):
        build(recipe)
    build(recipe, "limits.nothing_trained=0.1")
    assert manifest(tmp_path / "out")["counts"]["dropped"] == {"nothing_trained": 5}


def test_a_build_of_which_nothing_is_left_says_where_the_rows_went(tmp_path):
    asked = [{"instruction": f"which of the {k} rivers is the longest one"} for k in range(10)]
    rows = [{**row, "output": "the first"} for row in asked]
    evaluation = {"path": str(write_rows(tmp_path / "e.jsonl", asked))}
    files = {"files": [evaluation | {"fields": ["instruction"]}], "common": 100, "ngram": 5}
    for given, keys, pattern in (
        (rows, {"decontamination": files}, "of 10 rows: 10 contaminated$"),
        (rows, {"held_out": {"rows": 10}}, "of 10 rows: 10 held out$"),
        ([], {}, "of 0 rows"),
    ):
        with pytest.raises(DataError, match=f"nothing is left to train on, {pattern}"):
            build(write_recipe(tmp_path, sources=[source_of(tmp_path, given)], **keys))
        assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_close_of_a_truncated_trace_is_trained_or_masked(tmp_path):
    budgets = {"kind": "log_uniform", "low": 2}
    recipe = write_recipe(
        tmp_path,
        reasoning={"strip": 0.0, "truncate": 1.0, "budgets": budgets},
        held_out={"rate": 0.0},
        sources=[source_of(tmp_path, reasoning_rows(20))],
    )
    for close in ("trained", "masked"):
        out = tmp_path / close
        build(recipe, f"out={out}", f"reasoning.truncated_close={close}")
        close_id = load_any_tokenizer(str(out / "tokenizer")).get_vocab()["</think>"]
        all_packs = packs(out)
        rows = [r for r in index(out) if r["truncated_budget"] is not None and r["turn"] == 0]
        found = {
            close_id in all_packs[r["pack"]]["labels"][r["offset"] : r["offset"] + r["length"]]
            for r in rows
        }
        assert found == {close == "trained"}


def test_inputs_that_belong_to_an_artifact_are_its_parents(tmp_path):
    stage = Run.open(tmp_path / "world", kind="rows", config={})
    source = source_of(tmp_path / "world", plain_rows(30))
    made = stage.finish(counts=Counts(30, 30), files={"a.jsonl": 30})
    recipe = write_recipe(tmp_path, sources=[source])
    build(recipe)
    [parent] = manifest(tmp_path / "out")["parents"]
    assert (parent["digest"], parent["kind"]) == (made.digest, "rows")
    source_of(tmp_path / "world", plain_rows(31))
    with pytest.raises(DataError, match=r"a\.jsonl has changed"):
        build(recipe, f"out={tmp_path / 'other'}")
