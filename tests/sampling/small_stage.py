"""A recipe of the sampling stage over 12 questions, and a scripted model behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from posttrain.sampling.sampler import Request
from tests.data_builders.small_build import script, write_tokenizer
from tests.sampling.scripted import END, TOOLS, Adder, Scripted, call, opening


class Adding:
    """A toolkit of one tool."""

    def schemas(self, prompt: object) -> str:
        return TOOLS

    def open(self, prompt: object) -> Adder:
        return Adder()


def answer(request: Request, rng: random.Random) -> str:
    """Some call first; what is said depends on the request's own seed."""
    close = "</think>" if request.thinking else ""
    if request.tools and request.continues is None and rng.random() < 0.5:
        return f"hm{close}{call('add', a=rng.randrange(9), b=1)}{END}"
    return f"{rng.randrange(10**6)}{close}{rng.randrange(100)}{END}"


def write_recipe(folder: Path, **keys: Any) -> Path:
    """The recipe; `keys` replace its own."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = write_tokenizer(folder / "checkpoint")
    (checkpoint / "model.safetensors").touch()  # what answers is a script
    (checkpoint / "config.json").write_text('{"model_type": "qwen3"}')
    raw: dict[str, Any] = {
        "out": str(folder / "out"),
        "checkpoint": str(folder / "checkpoint"),
        "backend": {"kind": "transformers", "chat_template": "nemotron_3_nano"},
        "n": 3,
        "sampling": {"max_tokens": 400},
        "chunk": 10,
        "prompts": [{"name": "sums", "format": "question", "path": str(folder / "rows.jsonl"),
                     "count": 12, "grader": None}],
        "settings": [{"name": "no_tools", "thinking": 0.5},
                     {"name": "with_tools", "tools": "adding", "n": 2}],
        **keys,
    }  # fmt: skip
    path = folder / "sample.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def sample(recipe: Path, *overrides: str, sampler: Scripted | None = None) -> Scripted:
    """`python scripts/sample.py --config recipe …` in this process; errors are raised.

    The sampler stands behind every backend, and there is a toolkit that adds.
    """
    sampler = sampler or Scripted(answer)

    with (
        patch("posttrain.sampling.open.opened_sampler", opening(lambda _: sampler)),
        patch("data_builders.prompts.build.toolkits_for", lambda *_: {"adding": Adding()}),
        patch("data_builders.prompts.build.all_graders", dict),
    ):
        script("sample").main(["--config", str(recipe), *overrides])
    return sampler
