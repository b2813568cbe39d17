"""The judge's stages on a tiny policy: what it says at random becomes right, in both orders."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from posttrain.errors import ConfigError, DataError
from posttrain.runs import read_artifact
from tests.training.methods import script
from tests.training.rl.policy import TEMPLATE, TRAINER
from tests.training.tiny import attention_model, log_rows, make_tokenizer

# whole verdicts are single words, so that a policy without training says some at random
FIRST, SECOND = (
    json.dumps(
        dict(zip(("score_1", "score_2", "ranking"), said, strict=True)), separators=(",", ":")
    )
    for said in ((5, 1, 1), (1, 5, 6))
)
QUESTIONS = [f"q{n}" for n in range(40)]
SHOWN = [f"[A{n}]{word}[/A{n}]" for n in (1, 2) for word in ("good", "bad")]
WORDS = ["?", FIRST, SECOND, "hm", "[verdict]", *SHOWN, *(f"[U]{q}" for q in QUESTIONS)]


def run(name: str, path: Path, raw: dict[str, Any], *overrides: str) -> Path:
    """A stage with this recipe; returns where its output is."""
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    script(name).main(["--config", str(path), *overrides])
    return Path(raw["out"])


def write_policy(folder: Path) -> Path:
    tokenizer = make_tokenizer(words={word: 3 + n for n, word in enumerate(WORDS)})
    tokenizer.chat_template = TEMPLATE
    model = attention_model(3 + len(WORDS))
    warm_up(model, tokenizer)
    for part in (tokenizer, model):
        part.save_pretrained(str(folder))
    return folder


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """It learns to say some verdict, whatever it is asked."""
    rng, optimiser = random.Random(0), torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(40):
        requests = [
            f"<|im_start|> [U]{rng.choice(QUESTIONS)} {rng.choice(SHOWN[:2])}" for _ in range(32)
        ]
        texts = [
            f"{text} {rng.choice(SHOWN[2:])} [verdict] <|im_end|> <|im_start|> "
            f"{rng.choice((FIRST, SECOND))} <|im_end|>"
            for text in requests
        ]
        ids = torch.tensor(tokenizer(texts)["input_ids"])
        labels = torch.where(torch.arange(ids.shape[1]) < ids.shape[1] - 2, -100, ids)
        model(input_ids=ids, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()


def write_data(folder: Path, name: str = "data", **keys: Any) -> Path:
    """Pairs whose better response came first throughout."""
    same = {"response_1": "good", "response_2": "bad", "score_1": 5, "score_2": 1, "ranking": 1}
    rows = [{"prompt": question, **same} for question in QUESTIONS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {
        "out": str(folder / name),
        "layout": "compact",
        "held_out": 0.3,
        "thinking": False,
        "sources": [{"name": "words", "path": str(folder / "rows.jsonl")}],
        **keys,
    }
    return run("build_genrm", folder / "build.yaml", raw)


def recipe(folder: Path, **keys: Any) -> dict[str, Any]:
    """12 prompts × 8 judgements of at most 3 words."""
    return {
        "out": str(folder / "judge"),
        "data": str(folder / "data"),
        "model": {"path": str(folder / "policy")},
        "prompts_per_step": 12,
        "max_epochs": 100,
        "sampling": {"max_tokens": 3},
        # a random policy hardly ever stops
        "loss": {"overlong": "train"},
        "guard": {name: {} for name in ("truncated", "zero_variance", "entropy", "length")},
        "trainer": {
            **TRAINER,
            "learning_rate": 4e-3,
            "max_steps": 40,
            "per_device_train_batch_size": 96,
        },
        **keys,
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("genrm")
    write_policy(folder / "policy")
    write_data(folder)
    run("genrm", folder / "genrm.yaml", recipe(folder))
    return folder


def test_the_reward_rises_its_parts_are_logged_and_the_data_is_a_parent(trained: Path):
    rows = log_rows(trained / "judge", of="reward")
    first, last = (sum(r["reward"] for r in part) / 5 for part in (rows[:5], rows[-5:]))
    # a judge that guesses has -13 / 2, a right one 0, a mute one -10 - 4 - 4 - 5
    assert first < -6
    assert last > -3
    assert rows[-1]["part/right_order"] > 0.8
    assert rows[-1]["count/judgements"] == 96
    manifest, data = (read_artifact(trained / name) for name in ("judge", "data"))
    assert data.digest in {parent.digest for parent in manifest.parents}
    stats = {name: manifest.stats[name] for name in ("method", "layout", "num_generations")}
    assert stats == {"method": "genrm", "layout": "compact", "num_generations": 8}


def evaluate(folder: Path, out: str, **checkpoints: str) -> dict[str, Any]:
    """Figures of judges on what the data held out."""
    raw = {
        "out": str(folder / out),
        "data": str(folder / "data"),
        "checkpoints": {name: str(folder / path) for name, path in checkpoints.items()},
        "backend": {"kind": "transformers"},
        "sampling": {"temperature": 0.0, "max_tokens": 3},
    }
    return json.loads((run("eval_genrm", folder / "eval.yaml", raw) / "metrics.json").read_text())


def test_held_out_pairs_are_judged_better_than_before(trained: Path):
    metrics = evaluate(trained, "eval", before="policy", after="judge")
    before, after = metrics["cells"]
    assert before["pairwise_accuracy"]["value"] < 0.7
    assert after["pairwise_accuracy"]["value"] > 0.9
    assert after["position_consistency"]["value"] > 0.9
    (change,) = metrics["differences"]
    assert change["pairwise_accuracy"]["low"] > 0


def test_without_the_other_order_a_judge_learns_the_position(
    trained: Path, capsys: pytest.CaptureFixture[str]
):
    write_data(trained, "one_order", swap=False)
    raw = recipe(trained, out=str(trained / "skewed"), data=str(trained / "one_order"))
    raw["trainer"]["max_steps"] = 25
    run("genrm", trained / "skewed.yaml", raw)
    shown = capsys.readouterr().out
    for name in ("reward", "truncated"):
        assert re.search(rf"^{name} +-?\d+\.\d{{3}} → -?\d+\.\d{{3}}$", shown, re.MULTILINE)
    # its own training says all is well
    rows = log_rows(trained / "skewed", of="reward")
    assert rows[-1]["part/right_order"] > 0.9
    (cell,) = evaluate(trained, "eval_skewed", skewed="skewed")["cells"]
    assert cell["prefers_first"]["value"] > 0.9
    assert cell["position_consistency"]["value"] < 0.1
    assert 0.4 < cell["pairwise_accuracy"]["value"] < 0.6


def test_prompts_are_dropped_by_their_length_in_tokens(trained: Path):
    # <|im_start|>, question, two answers, [verdict], <|im_end|>, <|im_start|>: 7 tokens
    tokenizer = {"path": str(trained / "policy"), "chat_template": "own"}
    with pytest.raises(DataError, match="too_long 40"):
        write_data(trained, "short", tokenizer=tokenizer, max_tokens=6)
    data = write_data(trained, "long", tokenizer=tokenizer, max_tokens=7)
    assert read_artifact(data).counts.kept == 40
    with pytest.raises(ConfigError, match="max_tokens needs a tokenizer"):
        write_data(trained, "none", max_tokens=7)
