"""Graders on labelled answers: replies, phrasings, public cases, others' verdicts, speed.

    python -m benchmarks graders replies [replies.json]
    python -m benchmarks graders phrasings
    python -m benchmarks graders cases cases.json
    python -m benchmarks graders gsm8k ../shared/data/gsm8k_train.jsonl
    python -m benchmarks graders reasoning-gym ../shared/data/reasoning_gym_graded.jsonl

`replies` reads tests/reward/graders/replies.yaml, or a JSON file of its form: half → set → replies.
`cases` reads a JSON list of {"gold", "pred", "expected", "kind"}: the literals in the parametrised
tests of huggingface/Math-Verify and huggingface/lighteval, which are not part of this repository.
A hash of a phrasing or case puts it in one of two halves; rules were written with `seen` in view.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from math_verify import parse, verify

from benchmarks import ROOT
from reward.graders import GRADERS
from tests.reward.graders.attempts import near_misses, prompt_of, values

CASES = ROOT / "tests/reward/graders"
PHRASINGS = yaml.safe_load((CASES / "phrasings.yaml").read_text("utf-8"))
NUMBERS = (
    "18", "7", "1", "240", "1,234", "12,500", "1,000,000", "0.5", "3.25", "-5",
    "-12", "0", "99", "100", "2024", "64", "31", "0.125", "365", "1,050",
)  # fmt: skip
OPTIONS = (
    {"A": "Paris", "B": "Rome", "C": "Lisbon", "D": "Madrid"},
    {"A": "12", "B": "14", "C": "16", "D": "18"},
    {"A": "a rise in prices", "B": "A fall in prices", "C": "no change", "D": "none of the above"},
    {"A": "$x^2$", "B": "$2x$", "C": "$\\frac{1}{x}$", "D": "0"},
    {"A": "True, True", "B": "False, False", "C": "True, False", "D": "False, True"},
)


def half_of(*texts: str) -> str:
    """`seen` or `unseen`, by a hash."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return "seen" if int(digest, 16) % 2 else "unseen"


def math_verify(gold: str, answer: str) -> float:
    """math-verify's own verdict, with its defaults."""
    return float(verify(parse(gold), parse(answer)))


def print_table(counts: dict[str, Counter[float | None]]) -> None:
    """Print how many of each group are right, wrong and unscored."""
    for name, values_of_group in sorted(counts.items()):
        right = values_of_group[1.0]
        wrong = values_of_group[0.0]
        unscored = values_of_group[None]
        print(f"{name:60} right {right:7,}  wrong {wrong:7,}  unscored {unscored:7,}")


def measure_replies(file: Path | None, hidden: str | None) -> None:
    """Grade replies that are right, wrong or no answer; what is not met is listed."""
    file = file or CASES / "replies.yaml"
    parse_file = json.loads if file.suffix == ".json" else yaml.safe_load
    document = parse_file(file.read_text("utf-8"))
    counts: dict[str, Counter[float | None]] = {}
    for half in ("seen", "unseen"):
        for name, rows in document[half].items():
            for grader in ("math", "multiple_choice"):
                chosen_rows = [r for r in rows if ("options" in r) == (grader == "multiple_choice")]
                prompts = [
                    prompt_of(r["gold"], options=document["options"].get(r.get("options")))
                    for r in chosen_rows
                ]
                replies = [row["reply"] for row in chosen_rows]
                our_values = values(GRADERS[grader](), list(zip(prompts, replies, strict=True)))
                for row, value in zip(chosen_rows, our_values, strict=True):
                    counts.setdefault(f"{name}, {half}: {row['label']}", Counter())[value] += 1
                    if half != hidden and (value == 1.0) != (row["label"] == "right"):
                        print(half, name, value, {**row, "reply": row["reply"][-300:]})
    print_table(counts)


def measure_phrasings(hidden: str | None) -> None:
    """Grade each phrasing with right answers and with near misses of them."""
    counts: dict[str, Counter[float | None]] = {}
    cases: list[tuple[str, str, Any, Any]] = []
    for phrasing in PHRASINGS["numbers"]:
        right = [(prompt_of(n.replace(",", "")), phrasing.format(n)) for n in NUMBERS]
        wrong = [
            (prompt_of(n.replace(",", "")), phrasing.format(w))
            for n in NUMBERS
            for w in near_misses(n).values()
        ]
        cases.append(("math", phrasing, right, wrong))
    for phrasing in PHRASINGS["choices"]:
        right = []
        wrong = []
        for options in OPTIONS:
            for gold, letter in itertools.product(options, options):
                answers = right if gold == letter else wrong
                answer = phrasing.format(letter, options[letter])
                answers.append((prompt_of(gold, options=options), answer))
        cases.append(("multiple_choice", phrasing, right, wrong))
    for grader, phrasing, right, wrong in cases:
        half = half_of(phrasing)
        right_values = values(GRADERS[grader](), right)
        wrong_values = values(GRADERS[grader](), wrong)
        counts.setdefault(f"{grader} {half}: right answers", Counter()).update(right_values)
        counts.setdefault(f"{grader} {half}: near misses", Counter()).update(wrong_values)
        if half != hidden and (set(right_values) != {1.0} or 1.0 in wrong_values):
            figures = f"{Counter(right_values)}, near misses {Counter(wrong_values)}"
            print(f"{grader} {half} {phrasing!r}: {figures}")
            refused: list[str] = []
            for (_, answer), value in zip(right, right_values, strict=True):
                if value != 1.0:
                    refused.append(answer)
            accepted: list[tuple[str | None, str]] = []
            for (prompt, answer), value in zip(wrong, wrong_values, strict=True):
                if value == 1.0:
                    accepted.append((prompt.gold, answer))
            print("   ", refused[:3])
            print("   ", accepted[:3])
        if grader == "math":
            by_math_verify = Counter(math_verify(p.gold or "", answer) for p, answer in right)
            group = f"math-verify {half}: right answers"
            counts.setdefault(group, Counter()).update(by_math_verify)
    print_table(counts)


def measure_cases(file: Path, hidden: str | None) -> None:
    """Compare verdicts with those of the public cases; each disagreement is listed."""
    counts: dict[str, Counter[float | None]] = {}
    cases = [case for case in json.loads(file.read_text("utf-8")) if case["kind"] == "math"]
    our_values = values(GRADERS["math"](), [(prompt_of(c["gold"]), c["pred"]) for c in cases])
    shown: set[tuple[str, str]] = set()
    for case, value in zip(cases, our_values, strict=True):
        half = half_of(case["gold"], case["pred"])
        expected = f"expected {case['expected']}"
        by_math_verify = math_verify(case["gold"], case["pred"])
        groups = [half, "all"]
        if not case["dup"]:
            groups.append("unique")
        for group in groups:
            counts.setdefault(f"ours {group} {expected}", Counter())[value] += 1
            counts.setdefault(f"math-verify {group} {expected}", Counter())[by_math_verify] += 1
        key = (case["gold"], case["pred"])
        if value != case["expected"] and half != hidden and key not in shown:
            shown.add(key)
            print(f"{half} {expected}, ours {value}, math-verify {by_math_verify}: {key}"[:1200])
    print_table(counts)


def measure_gsm8k(file: Path) -> None:
    """Grade each gold in the solution that it ends, in 30 phrasings, and its near misses."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    golds = [row["answer"].rsplit("####", 1)[1].strip() for row in rows]
    grader = GRADERS["math"]()
    counts: dict[str, Counter[float | None]] = {}
    solutions = [(prompt_of(gold), row["answer"]) for gold, row in zip(golds, rows, strict=True)]
    counts["whole solutions"] = Counter(values(grader, solutions))
    chosen = sorted(PHRASINGS["numbers"], key=lambda p: hashlib.sha256(p.encode()).digest())[:30]
    started = time.perf_counter()
    for phrasing in chosen:
        right_values = values(grader, [(prompt_of(gold), phrasing.format(gold)) for gold in golds])
        counts.setdefault("30 phrasings", Counter()).update(right_values)
        refused = [g for g, value in zip(golds, right_values, strict=True) if value != 1.0]
        if refused:
            print(repr(phrasing), refused[:5])
    seconds = time.perf_counter() - started
    for k, gold in enumerate(golds):
        wrong = [chosen[(k + j) % 30].format(w) for j, w in enumerate(near_misses(gold).values())]
        wrong_values = values(grader, [(prompt_of(gold), answer) for answer in wrong])
        counts.setdefault("near misses", Counter()).update(wrong_values)
    print_table(counts)
    print(f"{30 * len(golds) / seconds:,.0f} grades/s in process")


def measure_reasoning_gym(file: Path) -> None:
    """Compare verdicts with the families' own graders (full marks or not), beside math-verify."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    grader = GRADERS["math"]()
    prompts = [prompt_of(str(row["expected_answer"])) for row in rows]
    answers: list[tuple[Any, str]] = []
    scores: list[float] = []
    for row, prompt, reason in zip(rows, prompts, grader.refuse(prompts), strict=True):
        if reason is not None:
            continue
        for completion in row["completions"]:
            answers.append((prompt, completion["full_model_response"] or ""))
            scores.append(completion["score"])
    started = time.perf_counter()
    our_values = values(grader, answers)
    rate = len(answers) / (time.perf_counter() - started)
    print(f"{len(answers):,} completions, {rate:,.0f} grades/s")
    counts: dict[str, Counter[float | None]] = {}
    for (prompt, answer), score, value in zip(answers, scores, our_values, strict=True):
        marks = "full marks" if score == 1.0 else "other marks"
        by_math_verify = math_verify(prompt.gold or "", answer)
        counts.setdefault(f"ours, their {marks}", Counter())[value] += 1
        counts.setdefault(f"math-verify, their {marks}", Counter())[by_math_verify] += 1
    print_table(counts)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=["replies", "phrasings", "cases", "gsm8k", "reasoning-gym"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--hide", choices=["seen", "unseen"], help="list no failure of this half")


def main(arguments: Namespace) -> None:
    """Run one measurement."""
    if arguments.what == "replies":
        measure_replies(arguments.file, arguments.hide)
    elif arguments.what == "phrasings":
        measure_phrasings(arguments.hide)
    elif arguments.what == "cases":
        measure_cases(arguments.file, arguments.hide)
    elif arguments.what == "gsm8k":
        measure_gsm8k(arguments.file)
    else:
        measure_reasoning_gym(arguments.file)
