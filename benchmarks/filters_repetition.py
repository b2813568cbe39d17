"""How good the filter against repetition is: on real texts, texts that were read, planted loops.

Parts of `benchmarks/filters.py`; each yields lines of Markdown.
"""

from __future__ import annotations

import importlib.util
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_builders.filters.repetition import Repetition, find_repetitions, rules_on
from data_builders.filters.suspects import suspects
from data_builders.filters.words import split_texts
from posttrain.config.filters import RepetitionFilter
from tests.data_builders.loops import Plan, honest_kinds, planted
from tests.data_builders.spoken import SETS, Spoken, labels, spoken

LIMITS = RepetitionFilter()
HONEST = ("reasoning_ma_content", "reasoning_ma_inline", "deepseek_math_v2_proofs", "gsm8k_train")
CODE = ("torch", "pandas")  # installed packages, looked at only after the thresholds were set
CYCLES = (3, 10, 30, 100, 300)
DRIFTS = (0.0, 0.02, 0.05, 0.10, 0.15)
_CODE_SIZE = 15_000_000  # characters of a package
_SEEDS = 20  # of made-up honest kinds


def by_set(shared: Path) -> tuple[list[str], list[tuple[Spoken, Repetition | None]]]:
    """A table of what is dropped from every set, and the texts with their verdicts."""
    read = labels()
    lines = [
        "| set | texts | M characters | dropped | read as loops | as honest | not read |",
        "|---|---|---|---|---|---|---|",
    ]
    judged = list[tuple[Spoken, Repetition | None]]()
    for name in SETS:
        texts = list(spoken(shared, name))
        loops = find_repetitions([text.text for text in texts], LIMITS)
        judged += zip(texts, loops, strict=True)
        kinds = Counter(
            read.get((name, text.row, text.part), "not read")
            for text, loop in zip(texts, loops, strict=True)
            if loop is not None
        )
        cells = (kinds["loop"] + kinds["short"], kinds["honest"], kinds["not read"])
        size = sum(len(text.text) for text in texts) / 1e6
        lines.append(
            f"| {name} | {len(texts):,} | {size:.2f} | {kinds.total()} "
            f"| {' | '.join(map(str, cells))} |"
        )
    return lines, judged


def losses(judged: Sequence[tuple[Spoken, Repetition | None]]) -> Iterator[str]:
    """Every text that is dropped from the sets that should hold honest ones."""
    for text, loop in judged:
        if text.set in HONEST and loop is not None:
            share = (loop.end - loop.start) / len(text.text)
            yield (
                f"- `{text.set}` row {text.row}, {text.part}: {loop.rule}, {loop.detail} "
                f"({share:.0%} of the text)"
            )


def labelled(judged: Sequence[tuple[Spoken, Repetition | None]]) -> Iterator[str]:
    """Texts that were read, and how many of them are dropped; what is missed."""
    read = labels()
    seen, dropped = Counter[str](), Counter[str]()
    missed = list[str]()
    for text, loop in judged:
        label = read.get((text.set, text.row, text.part))
        if label is not None:
            seen[label] += 1
            dropped[label] += loop is not None
            if label == "loop" and loop is None:
                missed.append(f"{text.set} {text.row} {text.part}")
    yield "| read as | texts | dropped |"
    yield "|---|---|---|"
    yield from (f"| {label} | {count} | {dropped[label]} |" for label, count in seen.items())
    yield ""
    yield f"Missed loops: {'; '.join(missed)}."


def compression(judged: Sequence[tuple[Spoken, Repetition | None]]) -> Iterator[str]:
    """What a threshold on the ratio of compression alone would do (zlib, level 6)."""
    read = labels()
    ratios = [
        (len(text.text.encode()) / len(zlib.compress(text.text.encode(), 6)), text, loop)
        for text, loop in judged
        if len(text.text) >= 160
    ]
    label = [read.get((text.set, text.row, text.part), "honest") for _, text, _ in ratios]
    loops = sorted(r for (r, _, _), kind in zip(ratios, label, strict=True) if kind == "loop")
    honest = [r for (r, _, _), kind in zip(ratios, label, strict=True) if kind == "honest"]
    found = sum(x is not None for (_, _, x), k in zip(ratios, label, strict=True) if k == "loop")
    lost = sum(x is not None for (_, _, x), k in zip(ratios, label, strict=True) if k == "honest")
    as_many = loops[len(loops) - found]
    yield "| | loops found | others dropped |"
    yield "|---|---|---|"
    yield f"| the filter | {found} of {len(loops)} | {lost} of {len(honest):,} |"
    for what, threshold in (
        ("as many loops as the filter", as_many),
        ("no other text", max(honest)),
        ("ratio above 5", 5.0),
    ):
        hits = sum(r >= threshold if what[0] == "a" else r > threshold for r in loops)
        false = sum(r >= threshold if what[0] == "a" else r > threshold for r in honest)
        name = f"compression, {what}" + ("" if what[0] == "r" else f" ({threshold:.1f})")
        yield f"| {name} | {hits} of {len(loops)} | {false} of {len(honest):,} |"


def made_up(shared: Path, per_cell: int) -> Iterator[str]:
    """Loops planted into real texts: recall by length of the round and by drift."""
    plan = Plan(1, 0)
    yield (
        f"A stretch of a text is said {plan.rounds} times or more, {plan.words} words at least, "
        "each round with a share of the words of the one before replaced by others of the text; it "
        "stands anywhere and is 20, 50 or 90 % of the whole."
    )
    for name, bases in _bases(shared).items():
        yield f"\n{name.capitalize()}, {len(bases)} texts, {per_cell} loops a cell:\n"
        yield f"| words in a round | {' | '.join(f'{d:.0%} drift' for d in DRIFTS)} |"
        yield "|---|" + "---|" * len(DRIFTS)
        for cycle in CYCLES:
            long = [text for text in bases if len(text.split()) > 2 * cycle]
            cells = [
                f"{_recall([_loop(long, cycle, drift, n) for n in range(per_cell)]):.0%}"
                for drift in DRIFTS
            ]
            yield f"| {cycle} | {' | '.join(cells)} |"


def by_place(shared: Path, per_cell: int) -> Iterator[str]:
    """The same, by where in the text the loop stands and how much of the text it is."""
    bases = _bases(shared)["prose"]
    yield "| share of the text | at the beginning | in the middle | at the end |"
    yield "|---|---|---|---|"
    for share in (0.1, 0.3, 0.6, 0.95):
        cells = []
        for position in (0.0, 0.5, 1.0):
            texts = [
                planted(
                    bases[n % len(bases)],
                    Plan(CYCLES[n % 4], 0.03, position=position, share=share),
                    random.Random(n),
                )
                for n in range(per_cell)
            ]
            cells.append(f"{_recall(texts):.0%}")
        yield f"| {share:.0%} | {' | '.join(cells)} |"


def honest() -> Iterator[str]:
    """Texts that repeat themselves as they should: made up, and the code of installed packages."""
    dropped, seen = Counter[str](), Counter[str]()
    for seed in range(_SEEDS):
        kinds = honest_kinds(random.Random(seed))
        loops = find_repetitions(list(kinds.values()), LIMITS)
        seen.update(kinds.keys())
        dropped.update(kind for kind, loop in zip(kinds, loops, strict=True) if loop is not None)
    listed = ", ".join(f"{kind} {dropped[kind]}" for kind in seen)
    yield f"Made up, {_SEEDS} of each, dropped: {listed}."
    for package in CODE:
        texts = list(_code(package))
        loops = find_repetitions([text for _, text in texts], LIMITS)
        hit = [f"`{name}`" for (name, _), loop in zip(texts, loops, strict=True) if loop]
        yield (
            f"\nPython files of the installed `{package}`, {len(texts):,} of them, "
            f"{sum(len(text) for _, text in texts) / 1e6:.1f} M characters: {len(hit)} dropped"
            f"{' (' + ', '.join(hit) + ')' if hit else ''}."
        )


def first_pass(shared: Path, judged: Sequence[tuple[Spoken, Repetition | None]]) -> Iterator[str]:
    """Whether every text that the rules object to is among those the first pass names."""
    bases = _bases(shared)["prose"]
    texts = [text.text for text, _ in judged if len(text.text) >= LIMITS.shortest]
    texts += [_loop(bases, CYCLES[n % 5], DRIFTS[n % 4], n) for n in range(200)]
    flagged = missed = 0
    for text in texts:
        words = split_texts([text])
        if rules_on(words, LIMITS) is not None:
            flagged += 1
            missed += suspects(words, LIMITS) != [0]
    yield (
        f"Of {len(texts):,} texts (all of the sets above and 200 with a planted loop) the rules, "
        f"run on each, object to {flagged}; of these {missed} were no suspects of the first pass."
    )


def _bases(shared: Path) -> dict[str, list[str]]:
    """Honest texts to plant loops into."""
    sets = {
        "prose": (("reasoning_ma_content",), 1500),
        "formulas": (("deepseek_math_v2_proofs",), 900),
        "answers (texts on which no threshold was chosen)": (("lf_dpo_en", "lf_kto_en"), 300),
    }
    return {
        kind: [
            text.text
            for name in names
            for text in spoken(shared, name)
            if len(text.text.split()) > words and find_repetitions([text.text], LIMITS) == [None]
        ]
        for kind, (names, words) in sets.items()
    }


def _loop(bases: Sequence[str], cycle: int, drift: float, number: int) -> str:
    rng = random.Random(f"{cycle} {drift} {number}")
    if not bases:
        return ""
    plan = Plan(cycle, drift, position=rng.random(), share=rng.choice([0.2, 0.5, 0.9]))
    return planted(bases[number % len(bases)], plan, rng)


def _recall(texts: Sequence[str]) -> float:
    loops = find_repetitions(texts, LIMITS)
    return sum(loop is not None for loop in loops) / len(texts)


def _code(package: str) -> Iterator[tuple[str, str]]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root, size = Path(spec.origin).parent, 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text("utf-8", "replace")
        if 200 <= len(text) <= 200_000:
            size += len(text)
            yield str(path.relative_to(root.parent)), text
        if size > _CODE_SIZE:
            return
