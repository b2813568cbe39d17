"""Defects planted into tokenised data: each is found, with its exact count, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from posttrain.chat import nemotron_3_nano_template
from posttrain.errors import ConfigError, DataError
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import script, write_tokenizer
from tests.pages.reading import tiles_of
from tests.training.dpo.pairs import make_pairs, write_pairs

IGNORED = -100
PAD, OPEN, CLOSE = 256, 259, 260  # of `write_tokenizer`


@dataclass(frozen=True)
class Sound:
    """One sequence: ids, and for each whether it is trained."""

    ids: list[int]
    mask: list[bool]

    @property
    def labels(self) -> list[int]:
        return [i if m else IGNORED for i, m in zip(self.ids, self.mask, strict=True)]


def sound(folder: Path, count: int = 40) -> list[Sound]:
    """Sequences as they should be, all different; every other one reasons."""
    path = write_tokenizer(folder / "tokenizer")
    (path / "chat_template.jinja").write_text(nemotron_3_nano_template().source)
    encode = encoder_of(load_any_tokenizer(str(path))).encode
    found: list[Sound] = []
    for k in range(count):
        think = "<think>\n" if k % 2 else "<think></think>"
        trace = f"{k} is a number.\n</think>\n" if k % 2 else ""
        prompt = f"<|im_start|>system\n<|im_end|>\n<|im_start|>user\nSay {k}<|im_end|>\n<|im_start|>assistant\n{think}"
        asked, said = encode([prompt, f"{trace}{'so ' * (1 + k % 7)}{k}<|im_end|>\n"])
        found.append(Sound(asked + said, [False] * len(asked) + [True] * len(said)))
    return found


def empty_answer(one: Sound) -> Sound:
    first = one.mask.index(True)
    close = one.ids.index(CLOSE) + 1 if CLOSE in one.ids[first:] else 0
    keep = max(first, close)
    return Sound(one.ids[:keep] + one.ids[-2:], one.mask[:keep] + one.mask[-2:])


def think_header(one: Sound) -> Sound:
    first, opened = one.mask.index(True), len(one.ids) - 1 - one.ids[::-1].index(OPEN)
    return Sound(one.ids, [k >= min(first, opened) for k in range(len(one.ids))])


def user_trained(one: Sound) -> Sound:
    say, mask = one.ids.index(ord("S")), list(one.mask)
    mask[say : say + 3] = [True] * 3
    return Sound(one.ids, mask)


PLANTS: dict[str, Callable[[Sound], Sound]] = {
    "nothing wrong": lambda one: one,
    "everything trained": lambda one: Sound(one.ids, [True] * len(one.ids)),
    "nothing trained": lambda one: Sound(one.ids, [False] * len(one.ids)),
    "end token and line end not trained": lambda one: Sound(
        one.ids, [*one.mask[:-2], False, False]
    ),
    "end token alone not trained": lambda one: Sound(one.ids, [*one.mask[:-2], False, True]),
    "words not trained": lambda one: Sound(one.ids, [False] * (len(one.mask) - 2) + [True, True]),
    "nothing but its end behind the trace": empty_answer,
    "the prompt's trace trained": think_header,
    "no end token": lambda one: Sound([*one.ids[:-2], one.ids[-1]], [*one.mask[:-2], one.mask[-1]]),
    "cut off": lambda one: Sound(one.ids[:-3], one.mask[:-3]),
    "the user's words trained": user_trained,
    "padding trained": lambda one: Sound([*one.ids, PAD], [*one.mask, True]),
}
NOTHING_WRONG = {
    "nothing_trained": 0, "end_trained": 40, "end_masked": 0, "no_end": 0, "empty_think": 20,
    "everything_trained": 0, "empty_answer": 0, "think_header": 0, "turn_tokens": 0, "prompt_trained": 0, "cut_trace": None,
    "clipped": None, "duplicated": 0,
}  # fmt: skip
# of 40 sequences, six of them with the defect
DEFECTS = {
    "nothing wrong": {},
    "everything trained": {"everything_trained": 6, "turn_tokens": 6, "prompt_trained": 6},
    "nothing trained": {"nothing_trained": 6, "end_trained": 34, "empty_think": 17},
    "end token and line end not trained": {"end_masked": 6, "end_trained": 34},
    "end token alone not trained": {"end_masked": 6, "end_trained": 34},
    "words not trained": {"empty_answer": 6, "empty_think": 17},
    "nothing but its end behind the trace": {"empty_answer": 6},
    "the prompt's trace trained": {"think_header": 6},
    "no end token": {"no_end": 6, "end_trained": 34},
    "cut off": {"no_end": 6, "end_trained": 34},
    "the user's words trained": {"prompt_trained": 6},
    "padding trained": {"turn_tokens": 6, "end_trained": 34, "no_end": 6},
}


def write_sources(path: Path, sources: dict[str, list[Sound]]) -> Path:
    """One sequence a row, with labels and its source."""
    rows = [(name, one) for name, own in sources.items() for one in own]
    columns = {"source": [name for name, _ in rows]}
    columns["input_ids"] = [one.ids for _, one in rows]
    columns["labels"] = [one.labels for _, one in rows]
    pq.write_table(pa.table(columns), path)
    return path


def figures(manifest: Path) -> dict[str, dict[str, int]]:
    """The figures of a written audit."""
    return json.loads((manifest / "manifest.json").read_text("utf-8"))["stats"]["supervision"]


NO_LIMIT = ("min_end_trained", "max_turn_tokens", "max_empty_answers", "max_think_header")
LAX = ["nothing_trained=1.0", *(f"{key}=null" for key in (*NO_LIMIT, "max_prompt_trained"))]


def audit(path: Path, *keys: str, lax: bool = True) -> Path:
    """The audit of a data set."""
    out = path.parent / f"audit-{path.name}"
    limits = [f"limits.{key}" for key in LAX] if lax else []
    tokenizer = f"tokenizer.path={path.parent / 'tokenizer'}"
    script("audit").main([str(path), tokenizer, f"out={out}", *limits, *keys])
    return out


def only(path: Path) -> dict[str, int]:
    """The figures of the only source of a data set."""
    (found,) = figures(audit(path)).values()
    return found


def test_each_defect_is_counted_exactly(tmp_path):
    rows = sound(tmp_path, 40 * len(PLANTS))
    sources = {}
    for k, (name, plant) in enumerate(PLANTS.items()):
        own = rows[40 * k : 40 * (k + 1)]
        sources[name] = [*map(plant, own[:6]), *own[6:]]
    found = figures(audit(write_sources(tmp_path / "rows.parquet", sources)))
    for name, own in sources.items():
        seen = found[name]
        assert {key: seen[key] for key in NOTHING_WRONG} == NOTHING_WRONG | DEFECTS[name], name
        assert seen["sequences"] == 40
        assert seen["tokens"] == sum(len(r.ids) for r in own)
        assert seen["trained"] == sum(sum(r.mask) for r in own)
        assert seen["longest"] == max(len(r.ids) for r in own)


def read_rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "supervision.jsonl").open("r", encoding="utf-8")]


def test_the_worst_are_shown_with_their_masks_and_the_most_repeated(tmp_path):
    rows = sound(tmp_path)
    long = Sound(rows[0].ids[:-2] + [65] * 900 + rows[0].ids[-2:], rows[0].mask + [True] * 900)
    rows[:2] = [long, PLANTS["end token and line end not trained"](rows[1])]
    rows += [rows[3]] * 4 + [rows[8]] * 2 + [rows[5]]
    out = audit(write_sources(tmp_path / "rows.parquet", {"a": rows}))
    assert figures(out)["a"]["duplicated"] == 7
    shown = read_rows(out)
    times = [(row["times"], row["about"]) for row in shown if row["kind"] == "repeated"]
    assert times == [
        (5, "rows.parquet, row 3"), (3, "rows.parquet, row 8"), (2, "rows.parquet, row 5")
    ]  # fmt: skip
    (ends,) = (row for row in shown if row["kind"] == "end_masked")
    assert [trained for _, trained, _ in ends["segments"]] == [False, True, False]
    assert ends["segments"][2][2] == "<|im_end|>\n"
    longest = next(row for row in shown if row["kind"] == "longest")
    assert longest["tokens"] == len(long.ids)
    assert any(role == "gap" for role, _, _ in longest["segments"])
    page = (out / "report.html").read_text("utf-8")
    assert "Worst offenders" in page
    assert "the end token is there and not trained" in page
    kept, audited = tiles_of(out)[:2]
    assert kept[:2] == ("0", "limits crossed")
    assert audited[:2] == (f"{len(rows)} → {len(rows)}", "rows audited")


def packed(rows: list[Sound], **columns: list[list[int]]) -> dict[str, list[list[int]]]:
    """Packs of five sequences each."""
    groups = [rows[k : k + 5] for k in range(0, len(rows), 5)]
    ids = [[i for one in group for i in one.ids] for group in groups]
    labels = [[i for one in group for i in one.labels] for group in groups]
    return {"input_ids": ids, "labels": labels, **columns}


def lengths_of(rows: list[Sound]) -> list[list[int]]:
    return [[len(one.ids) for one in rows[k : k + 5]] for k in range(0, len(rows), 5)]


def test_sequences_end_where_lengths_positions_or_padding_say(tmp_path):
    rows = sound(tmp_path)
    lengths = lengths_of(rows)
    longest = max(map(max, lengths))
    room = [longest - len(r.ids) for r in rows]
    tables = {
        "lengths": packed(rows, seq_lengths=lengths),
        "positions": packed(rows, position_ids=[[p for n in own for p in range(n)] for own in lengths]),
        "padded": {
            "input_ids": [r.ids + [PAD] * n for r, n in zip(rows, room, strict=True)],
            "labels": [r.labels + [IGNORED] * n for r, n in zip(rows, room, strict=True)],
            "attention_mask": [[1] * len(r.ids) + [0] * n for r, n in zip(rows, room, strict=True)],
        },
    }  # fmt: skip
    for name, table in tables.items():
        Dataset.from_dict(table).save_to_disk(tmp_path / name)
        found = only(tmp_path / name)
        assert {key: found[key] for key in NOTHING_WRONG} == NOTHING_WRONG, name
        assert found["longest"] == longest
        assert found["tokens"] == sum(len(r.ids) for r in rows)


def test_packs_whose_lengths_do_not_add_up_are_left_out(tmp_path):
    rows = sound(tmp_path)
    lengths = [[*own[:-1], own[-1] - 4 * (k < 2)] for k, own in enumerate(lengths_of(rows))]
    pa_file(tmp_path / "stale.arrow", packed(rows, seq_lengths=lengths))
    assert only(tmp_path / "stale.arrow")["sequences"] == 30
    body = json.loads((tmp_path / "audit-stale.arrow" / "manifest.json").read_text("utf-8"))
    assert body["counts"] == {"in": 8, "kept": 6, "dropped": {"seq_lengths_do_not_add_up": 2}}


def pa_file(path: Path, table: dict) -> None:
    with pa.ipc.new_file(str(path), pa.table(table).schema) as file:
        file.write_table(pa.table(table))


def test_masks_are_read_as_trl_reads_them(tmp_path):
    """`labels` alone if there; else both masks; else everything is trained."""
    rows = sound(tmp_path)
    ids = [r.ids for r in rows]
    masks = [[int(m) for m in r.mask] for r in rows]
    half = [[0] * len(m) if k < 10 else m for k, m in enumerate(masks)]
    for name, columns, trained in (
        ("one", {"assistant_masks": masks}, 40),
        ("both", {"assistant_masks": masks, "completion_mask": half}, 30),
        ("labels", {"labels": [r.labels for r in rows], "completion_mask": half}, 40),
        ("none", {}, 40),
    ):
        Dataset.from_dict({"input_ids": ids, **columns}).save_to_disk(tmp_path / name)
        found = only(tmp_path / name)
        assert found["end_trained"] == trained
        assert found["everything_trained"] == (0 if columns else 40)


def test_rows_that_cannot_be_looked_at_are_counted_by_reason(tmp_path):
    rows = sound(tmp_path)
    labels = [r.labels for r in rows]
    ids: list = [r.ids for r in rows]
    labels[0] = labels[0][:-1]
    labels[1] = [*labels[1][1:], IGNORED]  # shifted by hand, as the trainer does itself
    ids[2] = None
    ids[3] = [99_999] * len(labels[3])
    labels[3] = [IGNORED] * len(labels[3])
    ids[4], labels[4] = [], []
    Dataset.from_dict({"input_ids": ids, "labels": labels}).save_to_disk(tmp_path / "rows")
    assert only(tmp_path / "rows")["sequences"] == 35
    body = json.loads((tmp_path / "audit-rows" / "manifest.json").read_text("utf-8"))
    reasons = ["empty_row", "ids_beyond_the_vocabulary", "labels_differ_from_ids"]
    dropped = dict.fromkeys([*reasons, "length_of_labels", "null_ids"], 1)
    assert body["counts"] == {"in": 40, "kept": 35, "dropped": dropped}


CROSSED = {
    "everything trained": r"limits.max_turn_tokens allows at most 1.00%",
    "nothing trained": r"nothing is trained in 15.00% of 40 sequences \(6\)",
    "end token and line end not trained": r"end token is trained in 85.00% .*at least 95.00%",
    "the user's words trained": r"limits.max_prompt_trained",
}


def test_a_crossed_limit_names_source_figure_limit_and_advice(tmp_path):
    rows = sound(tmp_path)
    sources = {name: [*map(PLANTS[name], rows[:6]), *rows[6:]] for name in CROSSED}
    path = write_sources(tmp_path / "rows.parquet", sources)
    for _ in range(2):  # a finished audit says the same again
        with pytest.raises(DataError) as found:
            audit(path, lax=False)
        for name, pattern in CROSSED.items():
            assert re.search(f"{name}.*{pattern}", str(found.value)), pattern


def test_nothing_audited_is_a_failure(tmp_path):
    rows = [Sound([99_999], [False]) for _ in sound(tmp_path)]
    with pytest.raises(DataError, match="none of its 40 rows could be audited"):
        audit(write_sources(tmp_path / "rows.parquet", {"a": rows}))
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    pa_file(tmp_path / "none.arrow", {"input_ids": pa.array([], schema.field(0).type)})
    with pytest.raises(DataError, match="nothing was audited"):
        audit(tmp_path / "none.arrow")


def test_data_without_a_tokenizer_or_without_tokens_is_refused(tmp_path):
    path = write_sources(tmp_path / "rows.parquet", {"a": sound(tmp_path)})
    with pytest.raises(ConfigError, match=r"carries no tokenizer: name it with tokenizer.path"):
        script("audit").main([str(path)])
    Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "text")
    with pytest.raises(DataError, match=r"no column input_ids, found text"):
        audit(tmp_path / "text")
    with pytest.raises(ConfigError, match=r"unknown key 'dta' \(did you mean 'data'"):
        script("audit").main(["dta=x"])


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
