"""Twenty mistakes of a first hour: the message of each and its CPU seconds, as a table.

    python -m benchmarks mistakes

Every command runs in a process of its own, in a folder with a small world of rows and a tokenizer.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from benchmarks import ROOT

OWN = ["--config", "own.yaml", "--dry-run"]
TINY_DATA = ["--config", "tiny/build_sft", "--dry-run"]
MISTAKES: list[tuple[str, list[str]]] = [
    ("a misspelt stage", ["stf"]),
    ("a misspelt recipe", ["sft", "--config", "tiny/stf"]),
    ("no recipe", ["sft", "out=runs/x"]),
    ("a misspelt option", ["sft", "--config", "tiny/sft", "--dryrun"]),
    ("an override without =", ["sft", "--config", "tiny/sft", "out", "runs/x"]),
    ("a misspelt key", ["build_sft", *OWN, "packing.max_lenght=512"]),
    ("a misspelt key of trainer", ["sft", "--config", "tiny/sft", "trainer.learning_rat=1e-3"]),
    ("a text for a number", ["build_sft", *OWN, "seed=two"]),
    ("a key by its old name", ["build_sft", *OWN, "packing.capacity=512"]),
    ("a file that is not there", ["build_sft", *OWN, "sources.0.path=data/chats.jsonl"]),
    ("shares that sum to 1.2", ["build_sft", *TINY_DATA, "sources.0.share=0.33"]),
    ("the wrong dialect", ["build_sft", *OWN, "sources.0.dialect=sharegpt"]),
    ("rows of no dialect", ["build_sft", *OWN, "sources.0.path=notes.jsonl"]),
    ("a base model without a template", ["build_sft", *OWN, "tokenizer.path=base"]),
    ("packs shorter than the prompts", ["build_sft", *OWN, "packing.max_length=16"]),
    ("a share that repeats its source", ["build_sft", "--config", "shares.yaml", "--dry-run"]),
    ("a checkpoint that is not there", ["sample", "--config", "tiny/sample", "--dry-run"]),
    ("the wrong folder as data", ["sft", "--config", "tiny/sft", "data=runs/tiny/world"]),
    ("a misspelt grader", ["eval", "--config", "tiny/eval", "prompts.0.grader=maths"]),
    ("two origins of one model", ["sft", "--config", "tiny/sft", "model.path=Qwen/Qwen3-0.6B"]),
]
OWN_RECIPE = """
out: runs/own
tokenizer: {path: runs/tiny/world/tokenizer, chat_template: own}
packing: {max_length: 512}
sources: [{name: own, path: own.jsonl}]
"""
SHARES = OWN_RECIPE.replace(
    "sources: [{name: own, path: own.jsonl}]",
    "sources: [{name: own, path: own.jsonl, share: 0.5}, {name: few, path: few.jsonl, share: 0.5}]",
)


def write_world(folder: Path) -> None:
    """Rows, two recipes, a tokenizer with a template and one without, in `folder`."""
    rows = "families.maths={train: 80, heldout: 8}"
    status, message, _ = run(folder, ["tiny_world", "--config", "tiny/world", rows])
    assert status == 0, message
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} plus {n}?"},
                {"role": "assistant", "content": f"It is {2 * n}."},
            ]
        }
        for n in range(40)
    ]
    lines = [json.dumps(chat) + "\n" for chat in chats]
    (folder / "own.jsonl").write_text("".join(lines))
    (folder / "few.jsonl").write_text("".join(lines[:4]))
    notes = [json.dumps({"title": f"note {n}", "body": "words"}) + "\n" for n in range(40)]
    (folder / "notes.jsonl").write_text("".join(notes))
    (folder / "own.yaml").write_text(OWN_RECIPE)
    (folder / "shares.yaml").write_text(SHARES)
    base = folder / "base"
    base.mkdir()
    for file in (folder / "runs/tiny/world/tokenizer").iterdir():
        if file.name != "chat_template.jinja":
            (base / file.name).write_bytes(file.read_bytes())


def run(folder: Path, arguments: list[str]) -> tuple[int, str, float]:
    """Run a command in a folder. Returns its exit status, its message and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        [sys.executable, str(ROOT / "scripts"), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return process.returncode, process.stderr.strip() or process.stdout.strip(), seconds


def add_arguments(parser: ArgumentParser) -> None:
    """Add none."""


def main(options: Namespace) -> None:
    print("| mistake | command | CPU seconds | message |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_world(Path(folder))
        for mistake, arguments in MISTAKES:
            status, message, seconds = run(Path(folder), arguments)
            assert status != 0, f"{mistake} was taken"
            text = "<br>".join(message.replace("|", "\\|").splitlines())
            print(f"| {mistake} | `posttrain {' '.join(arguments)}` | {seconds:.2f} | {text} |")
