"""The sampling stage: what it writes, that kills change nothing, and what it refuses."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ConfigError
from posttrain.runs import read_artifact
from posttrain.sampling.generate import read_completions
from posttrain.tokens.tokenizer import load_any_tokenizer
from tests.sampling.scripted import Mortal, Scripted
from tests.sampling.small_stage import answer, sample, write_recipe
from tests.training.forks import forked
from tests.training.rl.servers import stating

FILES = ("prompts.jsonl", "samples.jsonl", "manifest.json")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its finished output in `out`."""
    folder = tmp_path_factory.mktemp("done")
    sample(write_recipe(folder))
    return folder


def test_the_artifact(done: Path):
    manifest = read_artifact(done / "out", kind="samples")
    rows = {f.path: f.rows for f in manifest.files}
    assert (rows["prompts.jsonl"], rows["samples.jsonl"]) == (24, 60)
    assert (manifest.counts.rows_in, manifest.counts.kept) == (30, 12)
    assert manifest.counts.dropped == {"not_chosen": 18}
    stats = manifest.stats["settings"]["with_tools"]
    assert (stats["prompts"], stats["samples"], stats["finish"]["stop"]) == (12, 24, 24)
    assert 0 < stats["samples_with_calls"] == stats["tool_results"] < 24
    assert manifest.stats["sampler"] == {"backend": "scripted"}
    tokenizer = load_any_tokenizer(str(done / "out/tokenizer"))
    assert isinstance(tokenizer.chat_template, str)
    assert not (done / "out/work").exists()
    assert (done / "out/report.html").is_file()
    page = (done / "out/report.html").read_text("utf-8")
    assert all(text in page for text in ("24 → 60", "not_chosen", "&lt;function=add&gt;"))
    # a finished stage does nothing
    before = (done / "out/samples.jsonl").stat().st_mtime_ns
    assert sample(done / "sample.yaml").calls == []
    assert (done / "out/samples.jsonl").stat().st_mtime_ns == before


def test_what_was_truncated_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sample(write_recipe(tmp_path, sampling={"max_tokens": 1}))
    shown = capsys.readouterr().out
    assert "no_tools: 36 completions, 36 (100.0%) truncated (length 36), 0 failed" in shown
    assert "with_tools: 24 completions, 24 (100.0%) truncated" in shown
    page = (tmp_path / "out/report.html").read_text("utf-8")
    text = page.replace("\N{NO-BREAK SPACE}", " ")
    assert "<b>100.0 %</b><span>truncated</span><small>a limit ended 60 of 60</small>" in text


def test_killed_and_resumed_gives_the_same_bytes(done: Path, tmp_path: Path):
    recipe = done / "sample.yaml"
    for kind, kills in (("batched", (1, 3)), ("server", (20, 5))):
        out, batched = tmp_path / kind, kind == "batched"
        for kill_at in kills:
            mortal = Mortal(answer, batched=batched, kill_at=kill_at)
            run = partial(sample, recipe, f"out={out}", sampler=mortal)
            ended = forked(run, check=False)
            assert ended.codes == [-signal.SIGKILL], ended.text
        assert not (out / "manifest.json").exists()
        last = sample(recipe, f"out={out}", sampler=Scripted(answer, batched=batched))
        assert sum(r.continues is None for batch in last.calls for r in batch) < 60
        for name in FILES:
            assert (out / name).read_bytes() == (done / "out" / name).read_bytes(), name


def test_a_dry_run_refuses_tokens_beyond_the_servers_context(tmp_path: Path):
    with stating(500) as url:
        reached = {"kind": "completions", "url": url, "model": "m"}
        recipe = write_recipe(tmp_path, backend=reached | {"chat_template": "nemotron_3_nano"})
        with pytest.raises(ConfigError, match=r"behind a prompt of .* allows m"):
            sample(recipe, "--dry-run", "sampling.max_tokens=499")


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = write_recipe(tmp_path)
    assert sample(recipe, "--dry-run").calls == []
    assert not (tmp_path / "out").exists()
    shown = capsys.readouterr().out
    assert "14,400" in shown, "36 completions of at most 400 tokens"
    assert "76,800" in shown, "24 completions of at most 8 steps of 400 tokens"
    assert "first prompt of no_tools (sums-" in shown
    assert "<|im_start|>user\n" in shown
    assert "<function>\n<name>add</name>" in shown


def test_changed_prompts_are_not_mixed_with_unfinished_samples(tmp_path: Path):
    recipe = write_recipe(tmp_path)

    fails = Scripted(lambda request, rng: answer(request, rng) if len(fails.calls) < 2 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample(recipe, sampler=fails)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(rows.read_text().replace("1+1?", "one and one?"))
    with pytest.raises(ConfigError, match=r"it differs in: prompts"):
        sample(recipe)
    rows.write_text(rows.read_text().replace("one and one?", "1+1?"))
    other = Scripted(answer, identity={"backend": "another"})
    with pytest.raises(ConfigError, match=r"it differs in: sampler\.backend"):
        sample(recipe, sampler=other)
    sample(recipe)
    assert len(read_completions(tmp_path / "out/samples.jsonl")) == 60
    # nor are rows of a finished stage
    rows.write_text('{"question": "x", "answer": "y"}\n')
    with pytest.raises(ConfigError, match=r"its input changed \(rows\.jsonl\)"):
        sample(recipe)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"settings": [{"name": "a"}, {"name": "a"}]}, "found twice: a"),
        ({"settings": [{"name": "a", "sources": ["sum"]}]}, "there is no source 'sum'"),
        ({"backend": {"kind": "chat", "url": "http://localhost:1/v1", "model": "m"},
          "settings": [{"name": "a", "reasoning_budget": 4}]}, "cannot hold a reasoning budget"),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_meant(tmp_path: Path, keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        sample(write_recipe(tmp_path, **keys))
