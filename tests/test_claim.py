"""An output directory has one worker at a time, and a failed first try does not block it."""

from __future__ import annotations

import json

import pytest

from posttrain.artifacts import StageDir
from posttrain.claim import claimed, exclusive, run_command
from posttrain.errors import ConfigError, DataError


def test_a_second_worker_is_refused_while_the_first_works(tmp_path):
    out = tmp_path / "a b" / "ö"
    with claimed(out, kind="toy", config={"x": 1}):
        before = (out / "stage.json").read_bytes()
        second = claimed(out, kind="toy", config={"x": 2})
        with pytest.raises(ConfigError, match=r"another process is at work in .*ö"):
            second.__enter__()
        assert (out / "stage.json").read_bytes() == before
    with claimed(out, kind="toy", config={"x": 1}) as stage:
        assert stage.config == {"x": 1}


def fail(out, *, made: str | None, scratch: str | None = None) -> None:
    def attempt() -> None:
        with claimed(out, kind="toy", config={"x": 1}, scratch=scratch):
            if made:
                (out / made).parent.mkdir(exist_ok=True)
                (out / made).write_text("row")
            raise DataError("the recipe was wrong")

    with pytest.raises(DataError):
        attempt()


def test_a_stage_that_made_nothing_gives_its_directory_back(tmp_path):
    fail(tmp_path / "a", made=None)
    fail(tmp_path / "b", made="work/spool", scratch="work")
    for name in ("a", "b"):
        with pytest.raises(ConfigError, match="holds a 'toy'"):
            StageDir.open(tmp_path / name, kind="other", config={"x": 2})
        StageDir.open(tmp_path / name, kind="toy", config={"x": 2})
        with pytest.raises(ConfigError, match="differ in: x"):
            StageDir.open(tmp_path / name, kind="toy", config={"x": 1})


def test_a_stage_that_made_something_keeps_it(tmp_path):
    fail(tmp_path / "a", made="packed/shard", scratch="work")
    with pytest.raises(ConfigError, match="differ in: x"):
        StageDir.open(tmp_path / "a", kind="toy", config={"x": 2})


def test_asking_whether_a_directory_could_be_had_writes_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    StageDir.open(tmp_path / "empty", kind="toy", config={}, claim=False)
    StageDir.open(tmp_path / "absent", kind="toy", config={}, claim=False)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]
    fail(tmp_path / "free", made=None)
    StageDir.open(tmp_path / "free", kind="toy", config={"x": 2}, claim=False)
    assert json.loads((tmp_path / "free" / "stage.json").read_text())["config"] == {"x": 1}


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "notes").write_text("")
    for out in (tmp_path / "notes", tmp_path / "notes" / "below"):
        with pytest.raises(ConfigError, match=r"notes.* is a file"), exclusive(out):
            pytest.fail("no directory")


def test_mistakes_and_interrupts_end_a_command_in_one_line(capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    def mistaken() -> None:
        raise ConfigError("no recipe at x")

    with pytest.raises(SystemExit) as stopped:
        run_command(interrupted)
    assert stopped.value.code == 130
    assert "the same command takes it up again" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        run_command(mistaken)
    assert stopped.value.code == "ConfigError: no recipe at x"
