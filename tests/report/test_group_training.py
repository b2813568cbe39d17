"""Reports of RLHF and of a judge's training: what they say, against the rollouts that were written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.report.curves import bins
from posttrain.report.write import write_report
from tests.report.conftest import write_rows
from tests.report.group_runs import write_run
from tests.report.reading import Reader, cells, page_of, section, sections

TIMING = [
    {"step": 1, "rollout": 50.0, "reward": 1.0},
    {"step": 1, "rollout": 3.0, "reward": 1.0},
    {"step": 2, "rollout": 3.0, "reward": 1.0},
]


@pytest.fixture(scope="module")
def rlhf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("runs") / "rlhf", method="rlhf")
    write_rows(run / "timing.jsonl", TIMING)
    return run


@pytest.fixture(scope="module")
def page(rlhf: Path) -> str:
    return page_of(rlhf)


def mean(run: Path, key: str) -> str:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return f"{sum(row[key] for row in rows) / len(rows):.3f}"


def test_means_are_those_of_the_log(rlhf: Path, page: str):
    assert Reader(page).loads == []
    assert len(sections(page)) == len(set(sections(page)))
    assert cells(page, "reward")[1] == mean(rlhf, "reward")
    assert cells(page, "accuracy on checkable prompts")[2] == mean(rlhf, "part/accuracy")


def test_the_judge_is_counted_as_the_rollouts_say(rlhf: Path, page: str):
    rows: list[dict[str, Any]] = [
        json.loads(line)
        for file in sorted((rlhf / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    judgements = [said for row in rows for said in row["judgements"]]
    failed = sum(said["failed"] for said in judgements)
    ties = sum(not j["failed"] and j["score_1"] == j["score_2"] for j in judgements)
    decided = [j["ranking"] for j in judgements if not j["failed"] and j["ranking"] != 3.5]
    first = sum(ranking < 3.5 for ranking in decided)
    assert min(failed, ties) > 0
    part = section(page, "The judge")
    for name, figure in {
        "matches": f"{len(judgements)}, {len(judgements) / 3:.1f} a batch",
        "failed": f"{100 * failed / len(judgements):.2f} %",
        "equal scores": f"{100 * ties / (len(judgements) - failed):.1f} %",
        f"first answer preferred, of {len(decided)}": f"{100 * first / len(decided):.1f} %",
    }.items():
        assert cells(part, name)[1] == figure


def test_groups_stand_side_by_side_with_their_verdicts(page: str):
    part = section(page, "Groups to read")
    assert part.count("<details") == 6
    assert "<b>0</b>" not in part
    assert "&lt;b&gt;0&lt;/b&gt; + 1?" in part
    group = part.partition("</details>")[0]
    rewards = [float(found) for found in re.findall(r"#\d · reward (-?[\d.]+)", group)]
    # both matches of the one that the judge could not read failed
    assert len(rewards) == 3
    assert rewards == sorted(rewards, reverse=True)
    for text in ("#2 · unscored", "not in the loss (length)", "failed: ", "#3 – #0"):
        assert text in group


def test_advantages_and_ratios_are_counted(page: str):
    part = section(page, "Advantages and importance weights of RLHF")
    assert "Advantages of 22 scored rollouts" in part
    assert "of the 16 rollouts given to the loss; median 1.0100" in part
    assert "0.5 to 2; 6 tokens and 2 whole rollouts were left out" in part


def test_seconds_are_of_the_last_run_of_each_batch(page: str):
    assert cells(section(page, "Seconds of RLHF"), "rollout")[1:] == ["6.0", "3.00", "75.0 %"]


def test_rollouts_that_changed_are_refused(tmp_path: Path):
    run = write_run(tmp_path / "genrm", method="genrm")
    file = run / "rollouts" / "step-00002.jsonl"
    file.write_text(file.read_text().replace('"index":0', '"index":9'))
    with pytest.raises(DataError, match="step-00002"):
        write_report(run)


def test_a_judges_training_is_held_against_gold(tmp_path: Path):
    genrm = write_run(tmp_path / "genrm", method="genrm")
    page = page_of(genrm)
    assert sections(page)[:2] == ["GenRM", "Verdicts against gold"]
    assert cells(page, "distance of the ranking")[1] == mean(genrm, "part/ranking_error")
    assert "[gold]</span> {&#34;score_1&#34;: 4" in section(page, "Groups to read")
    assert "genrm has no timing.jsonl" in section(page, "Not in this report")


def test_bins_hold_every_value_between_round_edges():
    found = bins([-1.31, -0.2, 0.0, 0.1, 0.1, 2.2], most=9)
    assert [low for low, _ in found] == pytest.approx([0.5 * k for k in range(-3, 5)])
    assert [count for _, count in found] == [1, 0, 1, 3, 0, 0, 0, 1]
