"""Graders on labelled answers: phrasings, public cases, near misses, others' verdicts, speed.

    python benchmarks/graders.py phrasings
    python benchmarks/graders.py cases cases.json
    python benchmarks/graders.py gsm8k ../shared/data/gsm8k_train.jsonl
    python benchmarks/graders.py reasoning-gym ../shared/data/reasoning_gym_graded.jsonl

`cases` reads a JSON list of {"gold", "pred", "expected", "kind"}: the literals in the parametrised
tests of huggingface/Math-Verify and huggingface/lighteval, which are not part of this repository.
A hash of a phrasing or case puts it in one of two halves; rules were written with `seen` in view.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from math_verify import parse, verify

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reward.graders import GRADERS
from tests.reward.graders.attempts import near_misses, prompt_of, values

PHRASINGS = yaml.safe_load(Path(__file__).with_name("graders_phrasings.yaml").read_text("utf-8"))
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


def half(*texts: str) -> str:
    """`seen` or `unseen`, by a hash."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return "seen" if int(digest, 16) % 2 else "unseen"


def math_verify(gold: str, answer: str) -> float:
    """math-verify's own verdict, with its defaults."""
    return float(verify(parse(gold), parse(answer)))


def print_table(counts: dict[str, Counter[float | None]]) -> None:
    """One line a group: how many are right, wrong and unscored."""
    for name, found in sorted(counts.items()):
        print(f"{name:40} right {found[1.0]:7,}  wrong {found[0.0]:7,}  unscored {found[None]:7,}")


def measure_phrasings(hidden: str | None) -> None:
    """Each phrasing with right answers and with near misses of them."""
    counts: dict[str, Counter[float | None]] = {}
    numbers, choices = PHRASINGS["numbers"], PHRASINGS["choices"]
    cases: list[tuple[str, str, Any, Any]] = []
    for phrasing in numbers:
        right = [(prompt_of(n.replace(",", "")), phrasing.format(n)) for n in NUMBERS]
        wrong = [
            (prompt_of(n.replace(",", "")), phrasing.format(w))
            for n in NUMBERS
            for w in near_misses(n).values()
        ]
        cases.append(("math", phrasing, right, wrong))
    for phrasing in choices:
        every = [(o, gold, letter) for o in OPTIONS for gold in o for letter in o]
        right, wrong = (
            [
                (prompt_of(gold, options=o), phrasing.format(letter, o[letter]))
                for o, gold, letter in every
                if (gold == letter) is equal
            ]
            for equal in (True, False)
        )
        cases.append(("multiple_choice", phrasing, right, wrong))
    for grader, phrasing, right, wrong in cases:
        which = half(phrasing)
        given, missed = (values(GRADERS[grader](), rows) for rows in (right, wrong))
        counts.setdefault(f"{grader} {which}: right answers", Counter()).update(given)
        counts.setdefault(f"{grader} {which}: near misses", Counter()).update(missed)
        if which != hidden and (set(given) != {1.0} or 1.0 in missed):
            print(f"{grader} {which} {phrasing!r}: {Counter(given)}, near misses {Counter(missed)}")
            print("   ", [a for (_, a), v in zip(right, given, strict=True) if v != 1.0][:3])
            print(
                "   ",
                [(p.gold, a) for (p, a), v in zip(wrong, missed, strict=True) if v == 1.0][:3],
            )
        if grader == "math":
            plain = Counter(math_verify(p.gold or "", a) for p, a in right)
            counts.setdefault(f"math-verify {which}: right answers", Counter()).update(plain)
    print_table(counts)


def measure_cases(file: Path, hidden: str | None) -> None:
    """Verdicts beside those of the public cases; each disagreement is listed."""
    counts: dict[str, Counter[float | None]] = {}
    cases = [case for case in json.loads(file.read_text("utf-8")) if case["kind"] == "math"]
    given = values(GRADERS["math"](), [(prompt_of(c["gold"]), c["pred"]) for c in cases])
    shown: set[tuple[str, str]] = set()
    for case, value in zip(cases, given, strict=True):
        which, expected = half(case["gold"], case["pred"]), f"expected {case['expected']}"
        plain = math_verify(case["gold"], case["pred"])
        for group in (which, "all", *([] if case["dup"] else ["unique"])):
            counts.setdefault(f"ours {group} {expected}", Counter())[value] += 1
            counts.setdefault(f"math-verify {group} {expected}", Counter())[plain] += 1
        key = (case["gold"], case["pred"])
        if value != case["expected"] and which != hidden and key not in shown:
            shown.add(key)
            print(f"{which} {expected}, ours {value}, math-verify {plain}: {key}"[:1200])
    print_table(counts)


def measure_gsm8k(file: Path) -> None:
    """Every gold in the solution it ends, in 30 phrasings, and its near misses; grades a second."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    golds = [row["answer"].rsplit("####", 1)[1].strip() for row in rows]
    grader, counts = GRADERS["math"](), dict[str, Counter[float | None]]()
    whole = [(prompt_of(gold), row["answer"]) for gold, row in zip(golds, rows, strict=True)]
    counts["whole solutions"] = Counter(values(grader, whole))
    chosen = sorted(PHRASINGS["numbers"], key=lambda p: hashlib.sha256(p.encode()).digest())[:30]
    started = time.perf_counter()
    for phrasing in chosen:
        found = values(grader, [(prompt_of(gold), phrasing.format(gold)) for gold in golds])
        counts.setdefault("30 phrasings", Counter()).update(found)
        if set(found) != {1.0}:
            print(repr(phrasing), [g for g, v in zip(golds, found, strict=True) if v != 1.0][:5])
    seconds = time.perf_counter() - started
    for k, gold in enumerate(golds):
        wrong = [chosen[(k + j) % 30].format(w) for j, w in enumerate(near_misses(gold).values())]
        found = values(grader, [(prompt_of(gold), answer) for answer in wrong])
        counts.setdefault("near misses", Counter()).update(found)
    print_table(counts)
    print(f"{30 * len(golds) / seconds:,.0f} grades/s in process")


def measure_reasoning_gym(file: Path) -> None:
    """Agreement with the families' own graders (full marks or not), beside plain math-verify."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    grader = GRADERS["math"]()
    prompts = [prompt_of(str(row["expected_answer"])) for row in rows]
    usable = [reason is None for reason in grader.refuse(prompts)]
    graded = [
        (row["name"], prompt, completion)
        for row, prompt, use in zip(rows, prompts, usable, strict=True)
        for completion in row["completions"]
        if use
    ]
    started = time.perf_counter()
    given = values(grader, [(p, c["full_model_response"] or "") for _, p, c in graded])
    print(
        f"{len(given):,} completions, {len(given) / (time.perf_counter() - started):,.0f} grades/s"
    )
    counts: dict[str, Counter[float | None]] = {}
    for (_, prompt, completion), value in zip(graded, given, strict=True):
        expected = f"their {'full marks' if completion['score'] == 1.0 else 'other marks'}"
        plain = math_verify(prompt.gold or "", completion["full_model_response"] or "")
        counts.setdefault(f"ours, {expected}", Counter())[value] += 1
        counts.setdefault(f"math-verify, {expected}", Counter())[plain] += 1
    print_table(counts)


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["phrasings", "cases", "gsm8k", "reasoning-gym"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--hide", choices=["seen", "unseen"], help="list no failure of this half")
    arguments: Any = parser.parse_args()
    if arguments.what == "phrasings":
        measure_phrasings(arguments.hide)
    elif arguments.what == "cases":
        measure_cases(arguments.file, arguments.hide)
    elif arguments.what == "gsm8k":
        measure_gsm8k(arguments.file)
    else:
        measure_reasoning_gym(arguments.file)


if __name__ == "__main__":
    main()
