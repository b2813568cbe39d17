"""The same rows give the same bytes: however they are cut, ordered and stored, whoever prepares
them, with whichever library, after kills and from parts that were kept."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from data_builders.rows.inputs import open_part, scan_inputs
from data_builders.sft import part, shards
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.errors import ConfigError
from posttrain.hashing import digest_of
from posttrain.runs import read_artifact
from posttrain.tokens.tiktoken import PATTERNS
from tests.data_builders.small_build import (
    SPECIAL,
    build,
    dropped_lines,
    manifest,
    plain_rows,
    reasoning_rows,
    shard_bytes,
    source_of,
    write_recipe,
    write_rows,
    write_tokenizer,
)
from tests.training.forks import forked

PART = 8000


def check_same(out: Path, world: Path) -> None:
    assert manifest(out)["digest"] == manifest(world / "out")["digest"]
    assert shard_bytes(out) == shard_bytes(world / "out")
    assert dropped_lines(out) == dropped_lines(world / "out")
    assert not (out / "work").exists()


def test_parts_change_nothing(world, tmp_path):
    build(world / "recipe.yaml", f"out={tmp_path / 'out'}", part_bytes=PART)
    check_same(tmp_path / "out", world)


def test_workers_change_nothing_and_know_templates_by_name(world, tmp_path):
    hermes = ("tokenizer.chat_template=hermes", "tokenizer.allow_left_out=[reasoning]")
    recipe = world / "recipe.yaml"
    build(recipe, f"out={tmp_path / 'serial' / 'out'}", *hermes)
    build(recipe, f"out={tmp_path / 'workers' / 'out'}", *hermes, "workers=2", part_bytes=PART)
    check_same(tmp_path / "workers" / "out", tmp_path / "serial")


def test_a_ray_pipeline_gives_the_same_bytes(world, tmp_path):
    """On a Ray that is started here, with one actor, and ended with the build."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    build(world / "recipe.yaml", f"out={tmp_path / 'out'}", "executor=ray", part_bytes=PART)
    assert not ray.is_initialized()
    check_same(tmp_path / "out", world)


def test_shuffled_rows_give_the_same_shards(world, tmp_path):
    raw = yaml.safe_load((world / "recipe.yaml").read_text())
    for source in raw["sources"]:
        lines = Path(source["path"]).read_text("utf-8").splitlines(keepends=True)
        random.Random(3).shuffle(lines)
        source["path"] = str(tmp_path / f"{source['name']}.jsonl")
        Path(source["path"]).write_text("".join(lines), "utf-8")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
    build(tmp_path / "recipe.yaml", f"out={tmp_path / 'out'}", part_bytes=PART)
    assert shard_bytes(tmp_path / "out") == shard_bytes(world / "out")


def test_killed_twice_and_resumed_gives_the_same_bytes(world, tmp_path, monkeypatch):
    recipe, out = world / "recipe.yaml", tmp_path / "killed"
    prepared: list[int] = []
    # in the third part of the first source; in the second shard
    for module, name, number in ((part, "prepare", 3), (shards, "_record_batch", 2)):

        def killed(module=module, name=name, number=number) -> None:
            calls, original = itertools.count(1), getattr(module, name)
            end = lambda *args: os._exit(9) if next(calls) == number else original(*args)  # noqa: E731
            setattr(module, name, end)
            build(recipe, f"out={out}", part_bytes=PART)

        ended = forked(killed, check=False)
        assert ended.codes == [9], ended.text[-2000:]
        assert not (out / "manifest.json").exists()
        prepared.append(len(list(out.glob("work/parts/*/*/counts.json"))))
    assert prepared[0] == 2, "finished parts are kept"
    assert prepared[1] > 6
    # all parts were there before the second kill: no row is prepared again
    monkeypatch.setattr(part, "prepare", None)
    build(recipe, f"out={out}", part_bytes=PART)
    check_same(out, world)


def test_a_finished_build_is_left_alone_until_its_input_changes(tmp_path, capsys):
    recipe = write_recipe(tmp_path, sources=[source_of(tmp_path, plain_rows(30))])
    build(recipe)
    # blocks that are not given leave no trace in a digest
    assert not {"deduplication", "decontamination"} & manifest(tmp_path / "out")["config"].keys()
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    build(recipe)
    assert "nothing to do" in capsys.readouterr().out
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before
    source_of(tmp_path, plain_rows(29))
    with pytest.raises(ConfigError, match=r"before its input changed \(a.jsonl\)"):
        build(recipe)


def test_only_the_parts_that_changed_are_prepared_again(tmp_path, monkeypatch):
    """Kept parts: more rows at the end of a file leave its earlier parts as they are."""
    prepared: list[int] = []
    original = part.prepare

    def counting(examples: Any, preparer: Any) -> Any:
        prepared.append(len(examples))
        return original(examples, preparer)

    monkeypatch.setattr(part, "prepare", counting)
    recipe = write_recipe(tmp_path, sources=[source_of(tmp_path, plain_rows(150))])
    keep = f"parts_dir={tmp_path / 'parts'}"
    build(recipe, f"out={tmp_path / 'a'}", keep, part_bytes=3000)
    assert sum(prepared) == 150
    prepared.clear()
    source_of(tmp_path, plain_rows(170))
    build(recipe, f"out={tmp_path / 'b'}", keep, part_bytes=3000)
    assert 20 <= sum(prepared) < 70
    build(recipe, f"out={tmp_path / 'fresh'}")
    assert shard_bytes(tmp_path / "fresh") == shard_bytes(tmp_path / "b")
    assert manifest(tmp_path / "fresh")["digest"] == manifest(tmp_path / "b")["digest"]


def _files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_parts_that_are_not_as_they_were_written_are_done_again(tmp_path, monkeypatch):
    """After a kill, a full disk, a machine that went down; what another build works on is left."""
    folder, out = tmp_path / "parts", tmp_path / "out"
    recipe = write_recipe(tmp_path, parts_dir=str(folder), write_dropped=True)
    done: list[str] = []
    original = part.PartJob.run

    def run(job: part.PartJob, *args: Any) -> None:
        done.append(job.folder)
        original(job, *args)

    monkeypatch.setattr(part.PartJob, "run", run)
    build(recipe, part_bytes=5000)
    assert len(done) > 16
    whole = _files(folder)
    cut, bare, garbled, gone, *_ = sorted((folder / "plain").iterdir())
    (cut / "tokens.bin").write_bytes((cut / "tokens.bin").read_bytes()[:-4])
    (bare / "counts.json").unlink()
    (garbled / "counts.json").write_text((garbled / "counts.json").read_text()[:100])
    (gone / "texts.bin").unlink()
    own = digest_of(str(out))[:12]
    mine, other = (gone.with_name(f"{gone.name}.{name}-0") for name in (own, "theirs"))
    for partial in (mine, other):
        partial.mkdir()
        (partial / "records.bin").write_bytes(b"half")
    shutil.rmtree(out)
    done.clear()
    build(recipe, part_bytes=5000)
    assert sorted(done) == [str(path) for path in (cut, bare, garbled, gone)]
    assert not mine.exists()
    assert (other / "records.bin").read_bytes() == b"half"
    shutil.rmtree(other)
    assert _files(folder) == whole


def _stored(folder: Path, rows: list[dict[str, Any]]) -> dict[str, str]:
    """The rows in files of every kind."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for k in range(7):
        write_rows(folder / f"part{k}.jsonl", rows[len(rows) * k // 7 : len(rows) * (k + 1) // 7])
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "rows.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=40)
    Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    names = ("part*.jsonl", "rows.jsonl.gz", "rows.json", "rows.parquet", "saved")
    return {name: str(folder / name) for name in names}


def test_the_same_rows_in_other_files_give_the_same_shards(tmp_path):
    """Parts differ, file names differ; rows do not, nor `packed/` and `index/`."""
    rows = plain_rows(150)
    recipe = write_recipe(tmp_path, sources=[source_of(tmp_path, rows)])
    build(recipe, part_bytes=3000)
    for name, path in _stored(tmp_path, rows).items():
        given = f"sources.0.path={path}"
        config = load_recipe(recipe, BuildSftConfig, [given])
        inputs, parts = scan_inputs(config.sources, Path("."), part_bytes=3000, threads=1)
        read = [raw for own in parts["a"] for raw in open_part(own, config.sources[0])]
        assert [getattr(raw, "row", raw) for raw in read] == rows, name
        assert all(file.sha256 for file in inputs)
        assert len(parts["a"]) > (1 if name in ("part*.jsonl", "saved") else 0)
    again = (f"sources.0.path={tmp_path / 'saved'}", f"out={tmp_path / 'again'}")
    build(recipe, *again, part_bytes=3000)
    assert shard_bytes(tmp_path / "again") == shard_bytes(tmp_path / "out")


def test_a_where_that_no_part_meets_is_refused(tmp_path):
    source = source_of(tmp_path, plain_rows(60), where={"inputt": ""})
    with pytest.raises(ConfigError, match=r"'inputt', which none of 60 rows has.*'input'"):
        build(write_recipe(tmp_path, sources=[source]), part_bytes=1000)


def trained_tokenizer(folder: Path) -> Path:
    """A vocabulary of merges, with a pattern that tiktoken can express."""
    tokenizer = Tokenizer(models.BPE())
    pattern = pre_tokenizers.Split(Regex(PATTERNS["cl100k, llama_3"]), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pattern, level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[AddedToken(token, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    traces = (m["reasoning_content"] for r in reasoning_rows(60) for m in r["messages"][1::2])
    tokenizer.train_from_iterator([*traces, *(r["output"] for r in plain_rows(60))], trainer)
    write_tokenizer(folder)  # its configuration; the vocabulary is replaced
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_both_libraries_build_the_same_bytes(tmp_path, monkeypatch):
    """Traces are cut by tokens as well: at the same places, then."""
    recipe = write_recipe(tmp_path, reasoning={"strip": 0.1, "truncate": 0.8})
    tokenizer = trained_tokenizer(tmp_path / "trained")
    manifests = {}
    for name in ("tiktoken", "tokenizers"):
        build(recipe, f"out={tmp_path / name}", f"tokenizer.path={tokenizer}")
        manifests[name] = read_artifact(tmp_path / name)
        assert manifests[name].run["tokenizer"] == name
        # a reason why tiktoken could give other ids
        monkeypatch.setattr("posttrain.tokens.tokenizer.ranks_of", lambda *_: "not this time")
    assert manifests["tiktoken"].stats["control"]["truncated"] > 50
    assert manifests["tiktoken"].digest == manifests["tokenizers"].digest
    assert shard_bytes(tmp_path / "tiktoken") == shard_bytes(tmp_path / "tokenizers")


def test_columns_of_shards_are_those_of_arrow_without_pandas_and_casts():
    program = (
        "import sys, numpy as np, pyarrow as pa\n"
        "from data_builders.sft.shards import _integer_array, _text_array\n"
        "numbers, texts = np.arange(-1, 12, dtype=np.int32)[::2], ['', 'a', 'zwölf', '😀']\n"
        "ours = [_integer_array(numbers, pa.int16()), _integer_array(numbers, pa.int32(), numbers > 0)]\n"
        "ours += [_text_array(texts), _text_array([])]\n"
        "assert not {'pandas', 'pyarrow.compute'} & {*sys.modules}\n"
        "theirs = [pa.array(numbers, pa.int16()), pa.array(numbers, mask=numbers <= 0), pa.array(texts)]\n"
        "assert ours == [*theirs, pa.array([], pa.string())]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
