"""Commands as a user types them, in processes of their own, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 1500


def begin(folder: Path, stage: str, recipe: dict[str, Any], *flags: str) -> subprocess.Popen[str]:
    """Start a stage; its recipe and its output are files of `folder`."""
    file = folder / f"{stage}.yaml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    with (folder / f"{stage}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "scripts", stage, "--config", str(file), *flags],
            cwd=ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


def output(folder: Path, stage: str) -> str:
    return (folder / f"{stage}.log").read_text()


def run(folder: Path, stage: str, recipe: dict[str, Any], *flags: str, code: int = 0) -> str:
    """Run a stage to its end; returns what it printed."""
    process = begin(folder, stage, recipe, *flags)
    try:
        ended = process.wait(_SECONDS)
    finally:
        process.kill()
        process.wait()
    text = output(folder, stage)
    assert ended == code, text[-3000:]
    return text


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def questions(folder: Path, count: int) -> Path:
    """Sums, in a file of questions; `outputs` are what `contains_any` looks for."""
    rows = [
        {
            "question": f"What is {n} + {n % 7}? Answer with a number.",
            "answer": str(n + n % 7),
            "outputs": list("0123456789"),
        }
        for n in range(3, 3 + count)
    ]
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
