"""`scripts/build_dpo.py` on a small sampling artifact: counts, shares, resume, the same bytes."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import data_builders.pairs.build as stage
from data_builders.pairs.shards import read_pairs
from posttrain.chat import nemotron_3_nano_template, parse_completion, render
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import write_jsonl
from posttrain.records import Message, json_text
from posttrain.rollouts import Completion, Prompt, Step, completion_to_row, prompt_to_row
from posttrain.runs import Counts, Run, read_artifact
from posttrain.sampling.progress import SampleStats
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import script, write_tokenizer

END = "<|im_end|>"
CALL = "\n<tool_call>\n<function=calculate>\n<parameter=expression>\n7*8\n</parameter>\n</function>\n</tool_call>\n"
SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "calculate", "parameters": SCHEMA}}


def write_samples(
    folder: Path, *, prompts: int = 30, n: int = 6, seed: int = 0, cut: float = 0.05, hide=False
) -> Path:
    """A sampling artifact as `scripts/sample.py` writes it, its completions made up; with `hide` as
    of a server that hides ids, whose model reasons every other time."""
    template = nemotron_3_nano_template()
    artifact = Run.open(folder, kind="samples", config={"seed": seed})
    tokenizer = load_any_tokenizer(str(write_tokenizer(folder / "tokenizer")))
    tokenizer.chat_template = template.source
    tokenizer.save_pretrained(folder / "tokenizer")
    text = encoder_of(tokenizer)
    rng = random.Random(seed)
    asked = [_prompt(k) for k in range(prompts)]
    rows: list[dict[str, Any]] = []
    stats = SampleStats()
    for prompt in asked:
        how = {"add_generation_prompt": True, "enable_thinking": prompt.thinking}
        ids = text.encode([render(prompt.messages, template, tools=prompt.tools, **how)])[0]
        for index in range(n):
            said = _said(rng, prompt)
            if hide and index % 2:
                said = said.replace("so\n", "")
            step = Step(
                text=said,
                parsed=parse_completion(said, thinking=prompt.thinking, tools=prompt.tools),
                finish="stop",
                reasoning_tokens=4 if prompt.thinking else 0,
                answer_tokens=len(said) // 2,
                prompt_tokens=len(ids),
                ids=None if hide else tuple(text.encode([said])[0]),
            )
            finish = "length" if rng.random() < cut else "stop"
            given = None if hide else tuple(ids)
            done = Completion(prompt.id, index, (step,), finish, prompt_ids=given)
            rows.append(completion_to_row(done))
            stats.add(prompt, rows[-1])
    files = {"prompts.jsonl": write_jsonl(folder / "prompts.jsonl", [*map(prompt_to_row, asked)])}
    files["samples.jsonl"] = write_jsonl(folder / "samples.jsonl", rows)
    tokens = {str(p.relative_to(folder)): None for p in (folder / "tokenizer").iterdir()}
    artifact.finish(
        counts=Counts(prompts, prompts),
        files=files | tokens,
        template_digest=template.digest,
        stats={"tokenizer": {"digest": text.digest}, "settings": stats.by_setting()},
    )
    return folder


def _prompt(k: int) -> Prompt:
    setting, mode = ("with_tools" if k % 3 == 0 else "no_tools"), k % 2 == 0
    return Prompt(
        id=f"t{k}/{setting}/{'on' if mode else 'off'}",
        task=f"t{k}",
        setting=setting,
        messages=(Message("user", f"{k}*2?"),),
        tools=json_text([TOOL]) if setting == "with_tools" else None,
        thinking=mode,
        grader="exact",
        gold=str(2 * k),
        source="sums",
    )


def _said(rng: random.Random, prompt: Prompt) -> str:
    think = "so\n</think>\n" if prompt.thinking else ""
    calls = prompt.tools is None and rng.random() < 0.2
    right = prompt.gold if rng.random() < 0.5 else str(rng.randrange(1000, 9999))
    return f"{think}{'' if calls else right}{CALL if calls else ''}{END}"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("dpo") / "samples")


def build(made: Path, out: Path, *flags: str, **more: Any):
    recipe = {
        "out": str(out),
        "samples": [str(made)],
        "categories": {"no_tools": 0.3, "with_tools": 0.3, "hallucination_penalty": 0.4},
        "write_dropped": True,
    }
    path = out.parent / f"{out.name}.yaml"
    path.write_text(yaml.safe_dump(recipe | more))
    script("build_dpo").main(["--config", str(path), *flags])
    return None if flags else read_artifact(out, kind="dpo_data")


@pytest.fixture(scope="module")
def built(samples: Path):
    """A build for all that only read it."""
    return build(samples, samples.parent / "built"), samples.parent / "built"


def test_the_three_categories_and_their_counts(built):
    manifest, out = built
    pairs = list(read_pairs(out / "pairs", "train"))
    stats = manifest.stats
    assert stats["pairs"]["total"] == len(pairs)
    assert {p.category for p in pairs} == {"no_tools", "with_tools", "hallucination_penalty"}
    for pair in pairs:
        if pair.category != "with_tools":
            assert pair.chosen.calls == 0
        if pair.category == "hallucination_penalty":
            assert pair.rejected.calls > 0
        else:
            assert (pair.chosen.score, pair.rejected.score) == (1.0, 0.0)
        assert pair.chosen.ids != pair.rejected.ids
        assert len(pair.chosen.ids) == len(pair.chosen.mask)
    counts = manifest.counts
    assert counts.rows_in == 180
    used = {(p.task, s.index) for p in pairs for s in (p.chosen, p.rejected)}
    assert counts.kept == len(used)
    counts = stats["pair_counts"]
    assert counts["in"] == counts["kept"] + sum(counts["dropped"].values())
    scores = [json.loads(line) for line in (out / "scores.jsonl").open()]
    assert len(scores) == 180
    rates = sum(map(Counter, stats["samples"].values()), Counter[str]())
    assert rates["right"] == sum(row["value"] == 1 for row in scores) > 0
    assert rates["with_call"] == sum(bool(row["calls"]) for row in scores)
    assert all(row["calls"][0]["kind"] == "undeclared" for row in scores if row["calls"])


def test_sides_that_are_rendered_with_different_prompts_are_no_pair(tmp_path: Path):
    made = write_samples(tmp_path / "samples", hide=True)
    manifest = build(made, tmp_path / "dpo")
    assert manifest.stats["pair_counts"]["dropped"]["different_prompts"] > 0
    for pair in read_pairs(tmp_path / "dpo" / "pairs", "train"):
        reasons = {"so" in side.text for side in (pair.chosen, pair.rejected)}
        assert len(reasons) == 1


def test_a_dry_run_counts_what_would_be_dropped_and_writes_nothing(
    samples: Path, built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pairs = [p for p in read_pairs(built[1] / "pairs", "train") if p.category == "no_tools"]
    lengths = sorted(len(pair.prompt_ids) + len(pair.chosen.ids) for pair in pairs)
    change = {"max_length": lengths[len(lengths) // 2], "categories": {"no_tools": 1.0}}
    capsys.readouterr()
    build(samples, tmp_path / "x", "--dry-run", **change)
    printed = capsys.readouterr().out
    assert not (tmp_path / "x").exists()
    dropped = build(samples, tmp_path / "x", **change).counts.dropped
    assert dropped["overlong"] > 0
    assert f"overlong {dropped['overlong']}" in " ".join(printed.split())


def test_the_same_samples_give_the_same_bytes_also_after_an_interruption(
    samples: Path, built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = stage.selected_pairs

    def stopped(*args: Any, **kwargs: Any):
        for number, pair in enumerate(real(*args, **kwargs)):
            if number == 5:
                raise KeyboardInterrupt
            yield pair

    with monkeypatch.context() as patch:
        patch.setattr(stage, "selected_pairs", stopped)
        with pytest.raises(KeyboardInterrupt):
            build(samples, tmp_path / "b")
    assert not (tmp_path / "b" / "manifest.json").exists()
    assert list((tmp_path / "b" / "work").rglob("scores-*.jsonl"))
    second = build(samples, tmp_path / "b")
    assert built[0].digest == second.digest
    assert not (tmp_path / "b" / "work").exists()


def test_shares_and_offline_pairs_are_what_was_asked(samples: Path, tmp_path: Path):
    rows = [{"prompt": f"q{k}", "chosen": "yes", "rejected": "no"} for k in range(10)]
    equal = {"prompt": "q", "chosen": "yes", "rejected": "yes"}
    write_jsonl(tmp_path / "given.jsonl", [*rows, equal])
    found = build(
        samples,
        tmp_path / "out",
        total=20,
        categories={"no_tools": 0.5, "hallucination_penalty": 0.5},
    ).stats["pairs"]
    assert found["by_category"] == {"no_tools": 10, "hallucination_penalty": 10}
    assert sum(found["by_mode"].values()) == 20
    found = build(
        samples,
        tmp_path / "both",
        categories={"no_tools": 0.5, "offline": 0.5},
        offline=[{"name": "hh", "path": str(tmp_path / "given.jsonl")}],
    ).stats["pairs"]
    assert found["by_category"] == {"offline": 10, "no_tools": 10}
    pairs = [p for p in read_pairs(tmp_path / "both" / "pairs", "train") if p.category == "offline"]
    assert {p.chosen.text for p in pairs} == {f"yes{END}\n"}
    assert all(p.source == "hh" and all(p.chosen.mask) for p in pairs)
    dropped = [json.loads(line) for line in (tmp_path / "both" / "dropped.jsonl").open()]
    assert [row["reason"] for row in dropped if row.get("source") == "hh"] == ["identical"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": {"no_tools": 0.5, "with_tools": 0.4}}, "sum to 0.9, they must sum to 1"),
        ({"categories": {"no_toolz": 1.0}}, "no_tool"),
        ({"samples": []}, "built from samples"),
        ({"categories": {"offline": 1.0}, "samples": []}, "both,? or neither"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(samples: Path, tmp_path: Path, change, message: str):
    with pytest.raises(ConfigError, match=message):
        build(samples, tmp_path / "out", **change)


def test_what_was_truncated_is_said(built, tmp_path: Path):
    manifest, out = built
    cut = sum(found["truncated"] for found in manifest.stats["samples"].values())
    assert 0 < cut < 20
    page = (out / "report.html").read_text("utf-8")
    assert f"of the samples truncated</span><small>{cut} of 180</small>" in page
    every = write_samples(tmp_path / "every", cut=1.0, prompts=10)
    with pytest.raises(DataError, match=r"no pairs of .* 60 \(100\.0%\) truncated.*max_tokens"):
        build(every, tmp_path / "none")


def test_another_config_or_changed_samples_are_refused(samples: Path, built, tmp_path: Path):
    with pytest.raises(ConfigError, match="differ in: total"):
        build(samples, built[1], total=12)
    other = write_samples(tmp_path / "other", seed=1, prompts=3)
    with pytest.raises(ConfigError, match="samples_digests"):
        build(other, built[1])
    with (other / "samples.jsonl").open("a") as handle:
        handle.write("{}\n")
    with pytest.raises(DataError, match="has changed"):
        build(other, tmp_path / "new")
