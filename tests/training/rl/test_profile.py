"""`profile_prompts` as a command: pass rates, contaminated prompts, kills."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_builders.prompts.profile import read_profile
from posttrain.errors import ConfigError, DataError
from posttrain.records import Score
from posttrain.runs import read_artifact
from tests.pages.reading import tiles_of
from tests.training.forks import forked
from tests.training.methods import die, script
from tests.training.rl.conftest import N, Words
from tests.training.rl.servers import stating


def test_pass_rates_are_those_of_the_samples(root: Path):
    profile = read_profile(root / "profile")
    samples: dict[str, list[Score]] = {}
    for line in (root / "profile" / "samples.jsonl").read_text().splitlines():
        row = json.loads(line)
        words = row["steps"][-1]["parsed"]["answer"].split()
        samples.setdefault(row["prompt_id"], []).append(Words()._grade(words))
    for rate in profile.rates:
        scores = samples[rate.prompt_id]
        values = [s.value for s in scores if s.value is not None]
        assert (rate.passes, rate.scored) == (sum(values), len(values))
        assert sum(rate.unscored.values()) == N - len(values)
        expected = "unscored" if not values else "solved" if min(values) == 1 else None
        assert rate.dropped == expected
        if expected is None:
            assert 0 <= rate.bucket(N) < N
    counts = profile.manifest.counts
    assert counts.rows_in == 80 == counts.kept + sum(counts.dropped.values())
    stats = profile.manifest.stats["rates"]
    assert all(sum(own["buckets"]) == own["prompts"] == 40 for own in stats.values())
    assert any(own["unscored"].get("timeout") for own in stats.values())
    assert "Pass rates" in (root / "profile" / "report.html").read_text()
    shown = {label: figure for figure, label, _ in tiles_of(root / "profile")}
    scored, passes = sum(r.scored for r in profile.rates), sum(r.passes for r in profile.rates)
    assert shown["prompts profiled → for training"] == f"80 → {counts.kept}"
    assert shown["of the rollouts pass"] == f"{100 * passes / scored:.1f} %"
    assert shown["unscored"] == f"{100 * (1 - scored / (80 * N)):.2f} %"


def test_a_dry_run_refuses_tokens_beyond_the_servers_context(root: Path):
    argv = ["--config", str(root / "profile.yaml"), "out=out", "--dry-run"]
    with stating(20) as url:
        reached = json.dumps({"kind": "completions", "url": url, "model": "m"})
        with pytest.raises(ConfigError, match=r"behind a prompt of .* allows m"):
            script("profile_prompts").main([*argv, f"backend={reached}", "sampling.max_tokens=19"])


def test_prompts_of_evaluation_files_are_not_sampled(root: Path, tmp_path: Path):
    """A question of eight words and more that stands in an evaluation file."""
    words = "w1 w2 w4 w5 w6 w1 w4 w2 w6 w5 w2 w1"
    for name, texts in (("train", [words, "w1 w2"]), ("test", [words])):
        rows = "".join(json.dumps({"question": text, "answer": "x"}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    source = json.dumps([{"name": "a", "format": "question", "path": str(tmp_path / "train.jsonl"),
                          "grader": "words", "template": "{question}"}])  # fmt: skip
    files = json.dumps([{"path": str(tmp_path / "test.jsonl"), "fields": ["question"]}])
    argv = ["--config", str(root / "profile.yaml"), f"out={tmp_path / 'out'}",
            f"decontamination.files={files}"]  # fmt: skip
    with pytest.raises(DataError, match="all 1 overlap"):
        script("profile_prompts").main([*argv, f"prompts={source.replace('train', 'test')}"])
    script("profile_prompts").main([*argv, f"prompts={source}"])
    manifest = read_artifact(tmp_path / "out")
    assert manifest.counts.rows_in == 2
    assert manifest.counts.dropped["contaminated"] == 1
    assert [r.prompt_id for r in read_profile(tmp_path / "out").rates] == [
        p.id for p in read_profile(tmp_path / "out").prompts if p.messages[0].content == "w1 w2"
    ]


RUBRIC = {"question": "x", "metadata": {"rubric": [{"question": "y?", "pass_criteria": "YES"}]}}
ROWS = "prompts=[{name: e, format: environment, environment: NAME, path: rows.jsonl}]"


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("checkpoint=missing", "missing"),
        ("sampling.max_tokens=250", "more than the model's 256 positions"),
        ("settings=[{name: x, tools: calc}]", "setting 'x': .*'calc'"),
        (ROWS.replace("NAME", "rubrc"), "source 'e'.*did you mean 'rubric'"),
        (ROWS.replace("NAME", "rubric"), "'rubric' needs a judge"),
        (ROWS.replace("NAME", "rubric").replace("rows", "none"), "no rows in none.jsonl"),
    ],
)
def test_a_dry_run_refuses_what_the_profile_would(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, match: str
):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps(RUBRIC) + "\n")
    Path("none.jsonl").touch()
    with pytest.raises(ConfigError, match=match):
        script("profile_prompts").main(
            ["--config", str(root / "profile.yaml"), "out=out", "--dry-run", key]
        )
    assert not Path("out").exists()


def test_a_profile_killed_while_it_verifies_ends_the_same(root: Path, tmp_path: Path):
    import data_builders.prompts.profile as module

    def command(killed: bool) -> None:
        module.BATCH = 16
        if killed:
            calls: list[int] = []
            whole = module.verify_all

            async def dying(*args: Any) -> Any:
                calls.append(1)
                return die() if len(calls) == 3 else await whole(*args)

            module.verify_all = dying
        script("profile_prompts").main(
            ["--config", str(root / "profile.yaml"), f"out={tmp_path / 'out'}"]
        )

    with pytest.raises(DataError, match="max_unscored"):
        script("profile_prompts").main(
            ["--config", str(root / "profile.yaml"), f"out={tmp_path / 'out'}", "max_unscored=0.0"]
        )
    shutil.rmtree(tmp_path / "out" / "work")
    assert forked(lambda: command(True), check=False).codes == [-9]
    assert len(list((tmp_path / "out" / "work").glob("rates-*"))) == 2
    forked(lambda: command(False))
    assert read_artifact(tmp_path / "out").digest == read_artifact(root / "profile").digest
