"""Reports of RLHF and of a judge's training: what they say, against the rollouts that were written."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.report import write_report
from posttrain.report.curves import bins
from tests.report.group_runs import write_run
from tests.report.test_report import Reader, cells, page_of, section, sections


@pytest.fixture(scope="module")
def rlhf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "rlhf", method="rlhf")


@pytest.fixture(scope="module")
def genrm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "genrm", method="genrm")


@functools.cache
def shown(run: Path) -> str:
    """The report of a run that no test changes."""
    return page_of(run)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_the_page_is_whole_and_the_same_every_time(rlhf: Path, genrm: Path):
    for run in (rlhf, genrm):
        page = shown(run)
        assert Reader(page).loads == []
        assert page_of(run) == page
        assert len(sections(page)) == len(set(sections(page)))


def test_means_are_those_of_the_log(rlhf: Path):
    page, log = shown(rlhf), log_of(rlhf)
    assert "the first and the last 3 of 3 batches" in page
    mean = sum(row["reward"] for row in log) / len(log)
    assert cells(page, "reward")[1] == f"{mean:.3f}"
    accuracy = sum(row["part/accuracy"] for row in log) / len(log)
    assert cells(page, "accuracy on checkable prompts")[2] == f"{accuracy:.3f}"


def test_the_judge_is_counted_as_the_rollouts_say(rlhf: Path):
    rows = [
        json.loads(line)
        for file in sorted((rlhf / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    judgements = [said for row in rows for said in row["judgements"]]
    failed = sum(said["failed"] for said in judgements)
    ties = sum(not j["failed"] and j["score_1"] == j["score_2"] for j in judgements)
    decided = [j["ranking"] for j in judgements if not j["failed"] and j["ranking"] != 3.5]
    first = sum(ranking < 3.5 for ranking in decided)
    assert failed > 0
    assert ties > 0
    part = section(shown(rlhf), "The judge")
    for name, figure in {
        "matches": f"{len(judgements)}, {len(judgements) / 3:.1f} a batch",
        "failed": f"{100 * failed / len(judgements):.2f} %",
        "equal scores": f"{100 * ties / (len(judgements) - failed):.1f} %",
        f"first answer preferred, of {len(decided)}": f"{100 * first / len(decided):.1f} %",
    }.items():
        assert cells(part, name)[1] == figure


def test_groups_stand_side_by_side_with_their_verdicts(rlhf: Path):
    part = section(shown(rlhf), "Groups to read")
    assert part.count("<details") >= 3
    assert "<b>0</b>" not in part
    assert "&lt;b&gt;0&lt;/b&gt; + 1?" in part
    group = part.partition("</details>")[0]
    rewards = [float(found) for found in re.findall(r"· reward (-?[\d.]+)", group)]
    # both matches of the one that the judge could not read failed
    assert len(rewards) == 3
    assert rewards == sorted(rewards, reverse=True)
    assert "#2 · unscored" in group
    assert "not in the loss (length)" in group
    assert "failed: " in group
    assert "#3 – #0" in group


def test_advantages_and_ratios_are_counted(rlhf: Path):
    part = section(shown(rlhf), "Advantages and importance weights of RLHF")
    assert "Of 3 of 3 batches of rollouts" in part
    assert "Advantages of 22 scored rollouts" in part
    assert "of the 16 rollouts given to the loss; median 1.0100" in part
    assert "0.5 to 2; 6 tokens and 2 whole rollouts were left out" in part


def test_seconds_are_of_the_last_run_of_each_batch(tmp_path: Path):
    run = write_run(tmp_path / "rlhf", method="rlhf")
    assert "rlhf has no timing.jsonl" in page_of(run)
    rows = [
        {"step": 1, "rollout": 50.0, "reward": 1.0},
        {"step": 1, "rollout": 3.0, "reward": 1.0},
        {"step": 2, "rollout": 3.0, "reward": 1.0},
    ]
    (run / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = cells(section(page_of(run), "Seconds of RLHF"), "rollout")
    assert shown[1:] == ["6.0", "3.00", "75.0 %"]


def test_rollouts_that_changed_are_refused(tmp_path: Path):
    run = write_run(tmp_path / "rlhf", method="rlhf")
    file = run / "rollouts" / "step-00002.jsonl"
    file.write_text(file.read_text().replace('"index":0', '"index":9'))
    with pytest.raises(DataError, match="step-00002"):
        write_report(run)


def test_a_judges_training_is_told_by_source(genrm: Path):
    page = shown(genrm)
    assert sections(page)[:2] == ["GenRM", "Verdicts against gold"]
    log = log_of(genrm)
    error = sum(row["part/ranking_error"] for row in log) / len(log)
    assert cells(page, "distance of the ranking")[1] == f"{error:.3f}"
    assert "[gold]</span> {&#34;score_1&#34;: 4" in section(page, "Groups to read")


def test_bins_hold_every_value_between_round_edges():
    values = [-1.31, -0.2, 0.0, 0.1, 0.1, 2.2]
    found = bins(values, most=9)
    assert [low for low, _ in found] == pytest.approx([0.5 * k for k in range(-3, 5)])
    assert [count for _, count in found] == [1, 0, 1, 3, 0, 0, 0, 1]
