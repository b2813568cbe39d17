"""Questions on long documents checked by another program, and SFT builds by length.

    python -m benchmarks long_context golds --tokenizer DIR [--lengths 4000 128000] [--count 70]
    python -m benchmarks long_context packs --tokenizer DIR [--lengths 4096 262144] [--tokens …]

golds: every family at every length; the gold is computed from the text by a program that shares
nothing with the one that wrote it, and again without each needed document, where it has to differ.
packs: the same number of tokens as rows of each length, in packs of that length, built, audited and
printed by one worker as a user does it. The seconds a million tokens are of three quarters of the
rows: those of a build of one quarter, with start-up and first checks, are taken off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks import ROOT
from data_builders.synthesis.kinds import open_kind
from data_builders.synthesis.long_documents import FAMILIES, LongQuestion
from posttrain.config.load import validate
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.runs import read_artifact
from tests.data_builders.synthesis import long_golds

_ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
_LENGTHS = (4096, 16_384, 65_536, 262_144)
_DISTINCT = 2  # questions whose copies, each with its number, are the rows
_ROOM = 256  # tokens of the question, the answer and the template


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a command with its processes, and the resident bytes of its largest."""

    cpu: float
    resident: int


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("part", choices=("golds", "packs"))
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=_LENGTHS)
    parser.add_argument("--count", type=int, default=70, help="golds: questions of each length")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="packs: of each length")


def main(options: Namespace) -> None:
    if options.part == "golds":
        _check_golds(options.tokenizer, options.lengths, options.count)
    else:
        _measure_packs(options.tokenizer, options.lengths, options.tokens)


def _questions(tokenizer: str, lengths: list[int], count: int) -> dict[str, LongQuestion]:
    make = {
        "kind": "long_documents",
        "tokenizer": tokenizer,
        "families": list(FAMILIES),
        "lengths": lengths,
        "count": count,
    }
    recipe = validate({"out": "unused", "make": make}, SynthesizeConfig, where="benchmark")
    return {seed.id: seed.content for seed in open_kind(recipe).seeds(Path()).seeds}


def _check_golds(tokenizer: str, lengths: list[int], count: int) -> None:
    print("| family | length | questions | documents each | gold found | documents needed |")
    print("|---|--:|--:|--:|--:|--:|")
    for length in lengths:
        right: Counter[str] = Counter()
        needed: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        all_needed: Counter[str] = Counter()
        documents_of: Counter[str] = Counter()
        for seed_id, question in _questions(tokenizer, [length], count).items():
            family = seed_id.partition("-")[0]
            documents, words = long_golds.split(question.text)
            gold = long_golds.stated(question.gold)
            asked[family] += 1
            documents_of[family] += len(documents)
            right[family] += long_golds.answer(documents, words) == gold
            for number in question.needed:
                remaining = documents[: number - 1] + documents[number:]
                all_needed[family] += 1
                needed[family] += long_golds.answer(remaining, words) != gold
        for family, total in asked.items():
            print(
                f"| {family} | {length:,} | {total} | {documents_of[family] / total:,.0f} "
                f"| {right[family]} | {needed[family]} of {all_needed[family]} |",
                flush=True,
            )


def _measure_packs(tokenizer: str, lengths: list[int], tokens: int) -> None:
    print("| tokens a row | rows | tokens | build: CPU s | a million tokens | peak MB ", end="")
    print("| audit: CPU s | peak MB | page MB | preview: CPU s | peak MB |")
    print("|--:" * 11 + "|")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for length in lengths:
            quarter = tokens // length // 4
            few, _, _ = _built(work, tokenizer, length, quarter)
            build, audit, preview = _built(work, tokenizer, length, 4 * quarter)
            found = read_artifact(work / "out", verify=False)
            total = sum(split["tokens"] for split in found.stats["splits"].values())
            seconds = (build.cpu - few.cpu) / (0.75 * total)
            page = (work / "audit" / "report.html").stat().st_size / 1e6
            print(
                f"| {length:,} | {found.counts.kept} | {total:,} | {build.cpu:.1f} "
                f"| {1e6 * seconds:.2f} | {_peak(build)} | {audit.cpu:.1f} "
                f"| {_peak(audit)} | {page:.1f} | {preview.cpu:.1f} | {_peak(preview)} |",
                flush=True,
            )


def _peak(cost: Cost) -> str:
    return f"{cost.resident / 1e6:,.0f}"


def _built(work: Path, tokenizer: str, length: int, rows: int) -> tuple[Cost, Cost, Cost]:
    """Build, audit and preview rows of one length."""
    data = work / "rows.jsonl"
    questions = [*_questions(tokenizer, [length - _ROOM], _DISTINCT).values()]
    with data.open("w", encoding="utf-8") as file:
        for number in range(rows):
            question = questions[number % len(questions)]
            answer = {"role": "assistant", "content": f"Answer: {question.gold}"}
            text = f"Case {number}.\n\n{question.text}"
            messages = [{"role": "user", "content": text}, answer]
            file.write(json.dumps({"messages": messages}) + "\n")
    recipe = {
        "out": str(work / "out"),
        "tokenizer": {"path": str(Path(tokenizer).resolve()), "chat_template": "chatml"},
        "packing": {"max_length": length},
        "sources": [{"name": "long", "path": str(data), "license": "MIT"}],
    }
    (work / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    for name in ("out", "audit"):
        shutil.rmtree(work / name, ignore_errors=True)
    return (
        _cost_of("scripts/build_sft.py", "--config", str(work / "recipe.yaml")),
        _cost_of("scripts/audit.py", str(work / "out"), f"out={work / 'audit'}"),
        _cost_of("scripts/preview.py", str(work / "out")),
    )


def _cost_of(*command: str) -> Cost:
    """Run Python. Returns what it and its processes cost; its output is shown if it fails."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **_ENVIRONMENT},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        # of this command alone, its own children included; `getrusage` has those before it too
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            output.seek(0)
            sys.exit(output.read())
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)
