"""The page of a training run that has not finished, and what becomes of it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.pages.live import is_running, log_so_far, write_live
from posttrain.pages.write import TrainingPage, ensure_report, write_report
from posttrain.runs import Run, locked
from posttrain.training import output
from tests.pages.conftest import LOG, write_checkpoint
from tests.pages.reading import Reader, section, sections


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A training run at step 10, in the middle of writing a row."""
    out = tmp_path / "sft"
    Run.open(out, kind="checkpoint", config={"trainer": {"learning_rate": "<b>1e-3"}})
    (out / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG[:4]) + '{"lo')
    return out


def state_of(page: str) -> str:
    found = re.search(r'<p class="state"[^>]*>(.*?)</p>', page)
    assert found
    return found[1]


def test_a_run_at_work_shows_its_curves_and_reads_itself_again(begun: Path):
    write_live(begun, "Running, step 10 of 40", next_in=30)
    page = (begun / "report.html").read_text()
    assert state_of(page).startswith("Running, step 10 of 40. Written ")
    assert '<meta http-equiv="refresh" content="15">' in page
    assert re.search(r'data-due="\d{10}"', page)
    assert sections(page) == ["Training", "Recipe"]
    assert section(page, "Training").count("<svg") == 3
    assert "&lt;b&gt;1e-3" in section(page, "Recipe")
    assert Reader(page).loads == []


def test_a_log_that_is_none_is_named_and_one_cut_inside_of_a_letter_is_read(begun: Path):
    log = begun / "log.jsonl"
    whole = log.read_bytes().rpartition(b"\n")[0]
    log.write_bytes(whole + b'\n{"text": "\xe2\x80')
    assert len(log_so_far(begun)) == 4
    for bad in (b"[1]", b"3", b'{"st', b"\xff"):
        log.write_bytes(whole + b"\n" + bad + b"\n")
        with pytest.raises(DataError, match=r"log\.jsonl is damaged"):
            write_report(begun)
    (begun / "stage.json").unlink()  # another project's
    with pytest.raises(DataError, match="not an artifact"):
        write_report(begun)


def test_whoever_asks_learns_whether_it_goes_on(begun: Path):
    with locked(begun):
        assert state_of(write_report(begun).read_text()).startswith("Running: step 10, last")
    page = write_report(begun).read_text()
    assert state_of(page).startswith("Stopped: step 10, last written 20")
    assert "http-equiv" not in page


def test_the_report_of_the_finished_run_takes_its_place(begun: Path):
    write_live(begun, "Running, step 10 of 40")
    finished = write_checkpoint(begun.parent / "other", rows=[])
    (finished / "report.html").write_bytes((begun / "report.html").read_bytes())
    page = ensure_report(finished).read_text()
    assert "http-equiv" not in page
    assert 'class="state"' not in page
    (finished / "report.html").write_text("mine")
    assert ensure_report(finished).read_text() == "mine"


def states(*steps: int) -> list[Any]:
    return [SimpleNamespace(global_step=n, max_steps=40, is_world_process_zero=True) for n in steps]


def test_pages_take_a_small_share_of_the_time(begun: Path, monkeypatch: pytest.MonkeyPatch):
    now, written = [0.0], []

    def write(out: Path, about: str, *, next_in: int | None) -> None:
        written.append((now[0], about, next_in))
        now[0] += 0.9  # seconds that drawing takes: 3 % of 30

    monkeypatch.setattr(TrainingPage, "write_live", lambda page, *a, **k: write(page.out, *a, **k))
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    page = output.LivePage(TrainingPage(begun))
    start, *later = states(0, *range(1, 11))
    page.on_train_begin(None, start, None)
    for state in later:
        now[0] += 10
        page.on_log(None, state, None)
    assert [about for _, about, _ in written][:2] == [
        "Running, step 0 of 40",
        "Running, step 4 of 40, about 6 min left",
    ]
    times = [at for at, _, _ in written]
    assert all(later - before >= 30 for before, later in itertools.pairwise(times))
    for (at, _, next_in), (following, _, _) in itertools.pairwise(written[1:]):
        assert following - at <= next_in


def test_a_page_that_cannot_be_written_ends_no_run_and_other_processes_write_none(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (other,) = states(3)
    other.is_world_process_zero = False
    output.LivePage(TrainingPage(begun)).on_train_begin(None, other, None)
    assert not (begun / "report.html").exists()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(TrainingPage, "write_live", fail)
    page = output.LivePage(TrainingPage(begun))
    for state in states(0, 1, 2):
        (page.on_log if state.global_step else page.on_train_begin)(None, state, None)
    assert capsys.readouterr().out.count("no space left") == 1


def test_nobody_runs_in_a_directory_that_is_not_there_and_none_is_made(tmp_path: Path):
    assert not is_running(tmp_path / "none")
    assert [*tmp_path.iterdir()] == []
