"""Artifacts: finished or refused, and bound to their content."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.base import Strict
from posttrain.config.command import run_command
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of
from posttrain.runs import (
    Counts,
    Run,
    atomic_write_text,
    locked,
    open_run,
    parent_of,
    read_artifact,
)


def make(path: Path, config: dict, text: str = "row\n", **extra):
    stage = Run.open(path, kind="toy", config=config)
    (path / "rows.txt").write_text(text)
    return stage.finish(counts=Counts(2, 1, {"empty": 1}), files={"rows.txt": 1}, **extra)


def test_a_manifest_reads_back_and_its_counts_add_up(tmp_path):
    made = make(tmp_path / "a", {"x": 1}, seed=3, stats={"fill": 0.5})
    assert read_artifact(tmp_path / "a", kind="toy") == made
    body = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert body["counts"] == {"in": 2, "kept": 1, "dropped": {"empty": 1}}
    with pytest.raises(AssertionError, match="1 rows neither kept nor dropped"):
        Counts(3, 1, {"empty": 1})


def test_digest_depends_on_content_and_lineage_and_not_on_place(tmp_path):
    parent = make(tmp_path / "p", {})
    near = parent_of(tmp_path / "p", relative_to=tmp_path / "a", manifest=parent)
    far = parent_of(tmp_path / "p", relative_to=tmp_path / "deep" / "b", manifest=parent)
    a = make(tmp_path / "a", {"x": 1}, parents=[near])
    b = make(tmp_path / "deep" / "b", {"x": 1}, parents=[far])
    c = make(tmp_path / "c", {"x": 1}, text="other\n", parents=[near])
    assert near.path != far.path
    assert a.digest == b.digest != c.digest


def test_another_config_is_refused_by_name_and_the_same_one_resumes(tmp_path):
    Run.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 2}})
    assert not Run.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 2}}).complete
    with pytest.raises(ConfigError, match=r"they differ in: in\.y"):
        Run.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 3}})
    with pytest.raises(ConfigError, match=r"they differ in: in\.new"):
        Run.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 2, "new": None}})
    with pytest.raises(ConfigError, match="holds a 'toy' artifact"):
        Run.open(tmp_path / "a", kind="sft_data", config={"x": 1, "in": {"y": 2}})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="not made by a stage of ours"):
        Run.open(tmp_path / "mine", kind="toy", config={})


class Block(Strict):
    y: int
    new: float = 0.5


class Toy(Strict):
    x: int = 1
    new: int | None = None
    blocks: tuple[Block, ...] = ()
    named: dict[str, Block]
    free: dict[str, Any]


def test_a_key_that_an_older_version_did_not_have_counts_where_it_is_set(tmp_path):
    older: dict[str, Any] = {
        "x": 1,
        "blocks": [{"y": 2}],
        "named": {"a": {"y": 3}},
        "free": {"y": 4},
        "rows_digest": "abc",
        "reward": {"named": {"a": {"y": 3}}},
    }
    Run.open(tmp_path, kind="toy", config=older)
    one = Block(y=2)
    toy = Toy(blocks=(one,), named={"a": Block(y=3)}, free={"y": 4})

    def reopened(recipe: Toy, **changes: Any) -> Run:
        config = recipe.model_dump(mode="json") | {"rows_digest": "abc"}
        config["reward"] = {"named": config["named"]}
        return Run.open(tmp_path, kind="toy", config={**config, **changes}, recipe=recipe)

    run = reopened(toy)
    assert (run.config, run.config_digest) == (older, digest_of(older))
    for change, name in (
        ({"new": 0}, "new"),
        ({"blocks": (one.model_copy(update={"new": 0.6}),)}, "blocks"),
        ({"blocks": (one, one)}, "blocks"),
        ({"free": {"y": 4, "new": 0.5}}, r"free\.new"),
        ({"x": 2}, "x"),
    ):
        with pytest.raises(ConfigError, match=rf"they differ in: {name}\)"):
            reopened(toy.model_copy(update=change))
    with pytest.raises(ConfigError, match=r"they differ in: limit\)"):
        reopened(toy, limit=None)


def test_unfinished_tampered_and_foreign_inputs_are_refused(tmp_path):
    def refused(name: str, match: str, kind: str | None = None) -> None:
        with pytest.raises(DataError, match=match):
            read_artifact(tmp_path / name, kind=kind)

    refused("none", "no such directory")
    Run.open(tmp_path / "half", kind="toy", config={})
    refused("half", "has not finished")
    make(tmp_path / "a", {})
    refused("a", "'sft_data' is needed here", "sft_data")
    (tmp_path / "a" / "rows.txt").write_text("rwo\n")
    refused("a", "has changed since")
    # what is cut off is seen without hashing it again
    (tmp_path / "a" / "rows.txt").write_text("ro")
    with pytest.raises(DataError, match=r"rows\.txt has changed since"):
        read_artifact(tmp_path / "a", verify=False)
    (tmp_path / "a" / "rows.txt").unlink()
    refused("a", "is missing")
    make(tmp_path / "b", {})
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    refused("b", "was edited")


def test_a_second_worker_is_refused_while_the_first_works(tmp_path):
    out = tmp_path / "a b" / "ö"
    with open_run(out, kind="toy", config={"x": 1}):
        before = (out / "stage.json").read_bytes()
        second = open_run(out, kind="toy", config={"x": 2})
        with pytest.raises(ConfigError, match=r"another process is at work in .*ö"):
            second.__enter__()
        assert (out / "stage.json").read_bytes() == before
    with open_run(out, kind="toy", config={"x": 1}) as stage:
        assert stage.config == {"x": 1}


def fail(out, *, made: str | None, scratch: str | None = None) -> None:
    def attempt() -> None:
        with open_run(out, kind="toy", config={"x": 1}, scratch=scratch):
            if made:
                (out / made).parent.mkdir(exist_ok=True)
                (out / made).write_text("row")
            raise DataError("the recipe was wrong")

    with pytest.raises(DataError):
        attempt()


def test_a_failed_stage_keeps_its_directory_if_it_made_something(tmp_path):
    fail(tmp_path / "a", made=None)
    fail(tmp_path / "b", made="work/part", scratch="work")
    for name in ("a", "b"):
        with pytest.raises(ConfigError, match="holds a 'toy'"):
            Run.open(tmp_path / name, kind="other", config={"x": 2})
        Run.open(tmp_path / name, kind="toy", config={"x": 2})
    fail(tmp_path / "c", made="packed/shard", scratch="work")
    with pytest.raises(ConfigError, match="differ in: x"):
        Run.open(tmp_path / "c", kind="toy", config={"x": 2})


def test_a_dry_run_refuses_what_the_real_one_would_and_writes_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    Run.open(tmp_path / "empty", kind="toy", config={}, dry_run=True)
    Run.open(tmp_path / "absent", kind="toy", config={}, dry_run=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]
    fail(tmp_path / "free", made=None)
    Run.open(tmp_path / "free", kind="toy", config={"x": 2}, dry_run=True)
    assert json.loads((tmp_path / "free" / "stage.json").read_text())["config"] == {"x": 1}
    (tmp_path / "notes").write_text("")
    for out in (tmp_path / "notes", tmp_path / "notes" / "below"):
        with pytest.raises(ConfigError, match="is a file"):
            Run.open(out, kind="toy", config={}, dry_run=True)
        with pytest.raises(ConfigError, match=r"notes.* is a file"), locked(out):
            pytest.fail("no directory")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', '{"kind": "toy"}', "[" * 9999, "\udcff"])
def test_a_damaged_file_is_named(tmp_path, text):
    for name in ("manifest.json", "stage.json"):
        out = tmp_path / name[:5]
        out.mkdir()
        (out / name).write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        read_artifact(tmp_path / "manif")
    with pytest.raises(DataError, match=r"stage\.json is missing or damaged"):
        Run.open(tmp_path / "stage", kind="toy", config={})


@pytest.mark.parametrize("name", ["a/../../secret", "/etc/hostname"])
def test_a_manifest_lists_nothing_outside_of_its_directory(tmp_path, name):
    (tmp_path / "secret").write_text("x")
    run = Run.open(tmp_path / "out", kind="toy", config={})
    (run.path / "a").mkdir()
    run.finish(counts=Counts(0, 0), files={name: None})
    with pytest.raises(DataError, match="lies outside"):
        read_artifact(run.path)


def test_mistakes_and_interrupts_end_a_command_in_one_line(tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    for path, why in ((tmp_path / ("x" * 300), "too long"), (tmp_path / "taken", "taken: Is a")):
        with pytest.raises(SystemExit, match=why):
            run_command(lambda path=path: atomic_write_text(path, "x"))
    with pytest.raises(FileNotFoundError):  # which may be a fault of ours
        run_command(lambda: Path(tmp_path / "gone").unlink())

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        run_command(interrupted)
    assert stopped.value.code == 130
    assert "rerun the same command to resume" in capsys.readouterr().err

    def terminated() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as stopped:
        run_command(terminated)
    assert stopped.value.code == 143
    said = "ended by SIGTERM; rerun the same command to resume\n"
    assert capsys.readouterr().err == said
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def full_disk() -> None:
        with open_run(tmp_path / "out", kind="test", config={}):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(SystemExit, match=f"DataError: {tmp_path / 'out'}: the disk is full"):
        run_command(full_disk)


def test_a_signal_while_an_event_loop_runs_leaves_no_task_behind(capsys, request):
    # in a job that a shell began in the background SIGINT is ignored, and asyncio leaves it so
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(wait("task"))  # such as a verification beside the rollouts
        # between two callbacks: an exception there would end the loop and no task
        loop.call_soon(loop.call_soon, signal.raise_signal, signal.SIGTERM)
        await wait("work")
        await task

    async def close() -> None:
        ended.append("closed")

    def main() -> None:
        with asyncio.Runner() as runner:
            try:
                runner.run(work())
            finally:
                runner.run(close())

    with pytest.raises(SystemExit) as stopped:
        run_command(main)
    gc.collect()
    assert stopped.value.code == 143
    assert capsys.readouterr().err == "ended by SIGTERM; rerun the same command to resume\n"
    assert ended == ["work", "closed", "task"]


def test_behind_accelerates_launcher_the_reason_says_that_it_is_the_line_to_read(monkeypatch):
    def mistaken() -> None:
        raise ConfigError("no such file")

    monkeypatch.delenv("POSTTRAIN_LAUNCH", raising=False)  # a launch of another test leaves it
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with pytest.raises(SystemExit, match=r"no such file \(this line is the reason; .*launch`"):
        run_command(mistaken)
    monkeypatch.setenv("POSTTRAIN_LAUNCH", "1")
    with pytest.raises(SystemExit, match=r"no such file$"):
        run_command(mistaken)


def test_a_file_in_the_place_of_an_artifact_names_who_writes_one(tmp_path):
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(DataError, match="is a file; here goes the directory that build_sft wrote"):
        read_artifact(tmp_path / "rows.jsonl", kind="sft_data")
