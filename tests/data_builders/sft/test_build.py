"""The SFT data stage from rows to shards."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from posttrain.chat import nemotron_3_nano_template
from posttrain.errors import DataError
from posttrain.runs import Counts, Run, read_artifact
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import (
    build,
    index,
    manifest,
    packs,
    plain_rows,
    reasoning_rows,
    shard_bytes,
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
    assert {f["path"]: f["rows"] for f in body["files"]}["packed/train-00000.arrow"] == 7
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
    rendered = set()
    for row in plain_rows(300):
        messages = [
            {"role": "user", "content": row["instruction"]},
            {"role": "assistant", "content": row["output"]},
        ]
        rendered.add(template.text(messages, enable_thinking=False))
    found = [r for r in index(world / "out") if r["source"] == "plain"]
    all_packs = packs(world / "out")
    assert found
    for row in found:
        part = slice(row["offset"], row["offset"] + row["length"])
        ids, labels = (
            all_packs[row["pack"]]["input_ids"][part],
            all_packs[row["pack"]]["labels"][part],
        )
        assert decode(ids) in rendered
        answer = decode([i for i in labels if i != -100])
        assert answer.endswith("<|im_end|>\n")
        assert "<think>" not in answer
    assert tokenizer.chat_template == template.source


def test_a_conversation_held_out_in_one_source_is_trained_in_none(tmp_path):
    rows = plain_rows(60)
    sources = [
        {
            "name": "a",
            "path": str(write_rows(tmp_path / "a.jsonl", rows)),
            "held_out": {"rows": 12},
        },
        {"name": "b", "path": str(write_rows(tmp_path / "b.jsonl", rows + rows[:30]))},
    ]
    build(write_recipe(tmp_path, sources=sources, held_out={"rate": 0.0}))
    out = tmp_path / "out"
    held_out = {r["record_id"] for r in index(out, "eval")}
    assert len(held_out) == 12
    assert not held_out & {r["record_id"] for r in index(out)}
    counts = manifest(out)["counts"]
    assert counts["in"] == 150
    assert counts["dropped"]["held_out_duplicate"] == 150 - counts["kept"] >= 12


def test_same_bytes_again_and_from_shuffled_input(world, tmp_path):
    recipe = world / "recipe.yaml"
    build(recipe, f"out={tmp_path / 'again'}")
    assert manifest(tmp_path / "again")["digest"] == manifest(world / "out")["digest"]

    shuffled = write_recipe(tmp_path, shards={"packs": 7})
    for name in ("reasoning.jsonl", "plain.jsonl"):
        lines = (tmp_path / name).read_text("utf-8").splitlines(keepends=True)
        random.Random(3).shuffle(lines)
        (tmp_path / name).write_text("".join(lines), "utf-8")
    build(shuffled)
    assert shard_bytes(tmp_path / "out") == shard_bytes(world / "out")


def test_shards_close_at_a_number_of_packs_or_bytes(world, tmp_path):
    files = {f["path"]: f["rows"] for f in manifest(world / "out")["files"]}
    train = [rows for path, rows in sorted(files.items()) if path.startswith("packed/train-")]
    assert len(train) > 1
    assert train[:-1] == [7] * (len(train) - 1)
    limit = 40_000
    build(world / "recipe.yaml", f"out={tmp_path / 'bytes'}", f"shards.bytes={limit}")
    all_packs = packs(tmp_path / "bytes")
    assert all_packs == packs(world / "out")
    sizes = iter(8 * len(pack["input_ids"]) for pack in all_packs)
    shards = [r for p, r in sorted(_rows(tmp_path / "bytes")) if p.startswith("packed/train-")]
    for rows in shards[:-1]:
        own = [next(sizes) for _ in range(rows)]
        assert sum(own[:-1]) < limit <= sum(own), "a shard closes with the pack that reaches it"


def _rows(out: Path) -> list[tuple[str, int]]:
    return [(f["path"], f["rows"]) for f in manifest(out)["files"]]


def test_overlong_sequences_are_dropped_or_clipped_and_counted(tmp_path):
    long = [{"instruction": "q", "input": "", "output": " ".join(map(str, range(900)))}]
    rows = write_rows(tmp_path / "mixed.jsonl", plain_rows(40) + long)
    sources = [{"name": "mixed", "path": str(rows)}]
    recipe = write_recipe(
        tmp_path, sources=sources, packing={"max_length": 256}, write_dropped=True
    )
    build(recipe)
    assert manifest(tmp_path / "out")["counts"]["dropped"] == {"overlong": 1}
    [line] = (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()
    dropped = json.loads(line)
    assert (dropped["reason"], dropped["line"], dropped["source"]) == ("overlong", 41, "mixed")
    assert "a pack holds 256" in dropped["detail"]

    build(recipe, f"out={tmp_path / 'clipped'}", "packing.overlong=truncate")
    body = manifest(tmp_path / "clipped")
    assert body["counts"]["dropped"] == {}
    assert body["stats"]["sources"]["mixed"]["sequences_clipped"] == 1
    assert (
        max(r["length"] for s in ("train", "eval") for r in index(tmp_path / "clipped", s)) == 256
    )


def test_losing_too_many_samples_stops_the_build(tmp_path):
    prompts = [{"instruction": "q" * 400, "input": "", "output": "a"} for _ in range(5)]
    rows = write_rows(tmp_path / "mixed.jsonl", plain_rows(90) + prompts)
    sources = [{"name": "mixed", "path": str(rows)}]
    recipe = write_recipe(
        tmp_path, sources=sources, packing={"max_length": 256, "overlong": "truncate"}
    )
    with pytest.raises(DataError, match=r"'mixed': nothing_trained took 5.3% of 95 rows.*1.0%"):
        build(recipe)
    build(recipe, f"out={tmp_path / 'allowed'}", "limits.nothing_trained=0.1")
    assert manifest(tmp_path / "allowed")["counts"]["dropped"] == {"nothing_trained": 5}


def test_the_close_of_a_truncated_trace_is_trained_or_masked(tmp_path):
    keys = {
        "reasoning": {
            "strip": 0.0,
            "truncate": 1.0,
            "budgets": {"kind": "log_uniform", "low": 2},
        },
        "held_out": {"rate": 0.0},
        "sources": [
            {"name": "one", "path": str(write_rows(tmp_path / "r.jsonl", reasoning_rows(20)))}
        ],
    }
    recipe = write_recipe(tmp_path, **keys)
    trained: dict[str, bool] = {}
    for close in ("trained", "masked"):
        build(recipe, f"out={tmp_path / close}", f"reasoning.truncated_close={close}")
        out = tmp_path / close
        close_id = load_any_tokenizer(str(out / "tokenizer")).get_vocab()["</think>"]
        all_packs = packs(out)
        rows = [r for r in index(out) if r["truncated_budget"] is not None and r["turn"] == 0]
        found = {
            close_id in all_packs[r["pack"]]["labels"][r["offset"] : r["offset"] + r["length"]]
            for r in rows
        }
        assert len(found) == 1
        trained[close] = found.pop()
    assert trained == {"trained": True, "masked": False}


def test_inputs_that_belong_to_an_artifact_are_its_parents(tmp_path):
    stage = Run.open(tmp_path / "world", kind="rows", config={})
    write_rows(tmp_path / "world" / "train.jsonl", plain_rows(30))
    made = stage.finish(counts=Counts(30, 30), files={"train.jsonl": 30})
    sources = [{"name": "plain", "path": str(tmp_path / "world" / "train.jsonl")}]
    recipe = write_recipe(tmp_path, sources=sources)
    build(recipe)
    [parent] = manifest(tmp_path / "out")["parents"]
    assert (parent["digest"], parent["kind"]) == (made.digest, "rows")

    write_rows(tmp_path / "world" / "train.jsonl", plain_rows(31))
    with pytest.raises(DataError, match=r"train\.jsonl has changed"):
        build(recipe, f"out={tmp_path / 'other'}")


def test_text_that_cannot_be_tokenised_is_dropped_by_name(tmp_path):
    rows = plain_rows(50)
    rows[7]["output"] = "half a pair: \ud83d"
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = str(tmp_path / "bad.jsonl")
    sources = [{"name": "bad", "path": bad, "filters": {"bad_unicode": False}}]
    build(write_recipe(tmp_path, sources=sources))
    assert manifest(tmp_path / "out")["counts"]["dropped"] == {"render_error": 1}


def test_loss_masks_special_tokens_and_unread_columns(tmp_path, capsys):
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one"}]
    masked = [turn[0], turn[1] | {"weight": 0}, turn[0], turn[1] | {"content": "two"}]
    pad = [turn[0], turn[1] | {"content": "a<|pad|>b"}]
    chats = [{"messages": m, "level": 3} for m in (masked, pad)]
    rows = write_rows(tmp_path / "chats.jsonl", plain_rows(40))
    rows.write_text(rows.read_text() + "".join(json.dumps(row) + "\n" for row in chats))
    recipe = write_recipe(
        tmp_path, sources=[{"name": "chats", "path": str(rows)}], write_dropped=True
    )
    build(recipe, "held_out.rate=0.0")
    body = manifest(tmp_path / "out")
    assert body["counts"]["dropped"] == {"special_token": 1}
    [line] = (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()
    assert "'<|pad|>'" in json.loads(line)["detail"]
    assert ["level", 2, "3"] in body["stats"]["sources"]["chats"]["unread"]
    assert "level" in capsys.readouterr().out
    # the byte tokenizer trains "two", the end token and the line end behind it
    (row,) = (row for row in index(tmp_path / "out", "train") if row["dialect"] == "openai")
    assert row["trained"] == len("two") + 2
