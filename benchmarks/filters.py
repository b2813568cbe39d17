"""The filter against repetition beside two usual methods: loops found, texts lost, speed.

    python -m benchmarks filters [--shared ../shared] [--repeats 3]

The other methods are the compression ratio of the whole text and the rules of Gopher (Rae et al.
2021, table A1, as datatrove applies them, with words as runs of letters and digits).
"""

from __future__ import annotations

import os
import platform
import random
import re
import sysconfig
import time
import zlib
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.options import add_shared
from data_builders.filters.repetition import find_repetition
from posttrain.config.filters import RepetitionFilter
from tests.data_builders.repetition_steps import STEPS, step_by_step
from tests.data_builders.repetition_texts import honest_kinds, loops
from tests.data_builders.spoken import SETS, labels, spoken

BASES = {"seen": (("reasoning_ma_content",), 3000), "unseen": (("lf_dpo_en", "lf_kto_en"), 1200)}
LIMITS = RepetitionFilter()
SHORTEST = 300  # characters of a text that the comparison looks at


def compression_ratio(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    return len(data) / len(zlib.compress(data, 6))


def gopher(text: str) -> bool:
    """True if a rule of Gopher's table A1 objects to a text."""
    for separator in (r"\n{2,}", r"\n+"):
        parts = re.split(separator, text.strip())
        repeats = 0
        repeated_characters = 0
        for part, count in Counter(parts).items():
            repeats += count - 1
            repeated_characters += len(part) * (count - 1)
        if repeats > 0.3 * len(parts) or repeated_characters > 0.2 * len(text):
            return True
    words = re.findall(r"\w+|[^\w\s]", text)
    for n, share in ((2, 0.2), (3, 0.18), (4, 0.16)):
        grams = Counter(" ".join(words[k : k + n]) for k in range(len(words) - n + 1))
        for gram, count in grams.most_common(1):
            if len(gram) * count > share * len(text):
                return True
    return any(
        _duplicate_characters(words, n) > share * len(text)
        for n, share in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
    )


def _duplicate_characters(words: list[str], n: int) -> int:
    """Characters of the runs of `n` words that came before; such runs do not overlap."""
    earlier_grams: set[str] = set()
    characters = 0
    position = 0
    while position + n <= len(words):
        gram = "".join(words[position : position + n])
        if gram in earlier_grams:
            characters += len(gram)
            position += n
        else:
            position += 1
        earlier_grams.add(gram)
    return characters


METHODS: dict[str, Callable[[str], bool]] = {
    "ours": lambda text: find_repetition(text, LIMITS) is not None,
    "zlib above 5": lambda text: compression_ratio(text) > 5,
    "zlib above 10": lambda text: compression_ratio(text) > 10,
    "Gopher": gopher,
}


def add_arguments(parser: ArgumentParser) -> None:
    add_shared(parser)
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the best counts")


def main(options: Namespace) -> None:
    for line in report(options.shared, options.repeats):
        print(line, flush=True)


def report(shared: Path, repeats: int) -> Iterator[str]:
    """Lines of all tables."""
    machine = f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}"
    yield f"{machine}, zlib {zlib.ZLIB_RUNTIME_VERSION}; one thread."
    label_of = labels()
    texts_by_label: dict[str, list[str]] = {}
    for name in SETS:
        for text in spoken(shared, name):
            label = label_of.get((name, text.row, text.part), "not read")
            if label != "not read" or len(text.text) >= SHORTEST:
                texts_by_label.setdefault(label, []).append(text.text)
    yield "\nHonest texts, dropped:\n"
    yield from _table(_honest(texts_by_label))
    yield "\nLoops, found:\n"
    yield from _table(_loops(shared, texts_by_label))
    yield "\nMB a second:\n"
    yield from _speeds(shared, repeats)


def _table(rows: Iterator[tuple[str, Sequence[str]]]) -> Iterator[str]:
    yield f"| | texts | {' | '.join(METHODS)} |"
    yield "|---|" + "---|" * (len(METHODS) + 1)
    for name, texts in rows:
        cells = [str(sum(map(method, texts))) for method in METHODS.values()]
        yield f"| {name} | {len(texts):,} | {' | '.join(cells)} |"


def _honest(texts_by_label: dict[str, list[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    for half, kinds in STEPS.items():
        yield f"steps, {half} kinds", [t for kind in kinds for t in step_by_step(half, kind)]
    generated = [honest_kinds(random.Random(seed)) for seed in range(20)]
    for kinds in (
        ("table", "plain table", "sparse table", "grid", "zeros"),
        ("poem", "chinese"),
        ("listing", "list", "calls", "tests", "code", "json", "sums"),
        ("rulers", "base64", "hex", "long number"),
    ):
        yield ", ".join(kinds), [texts[kind] for texts in generated for kind in kinds]
    yield "files of the standard library", _library()
    yield "files of the installed `torch` and `pandas`", _packages()
    yield "shared sets, read as honest", texts_by_label["honest"]
    yield "shared sets, not read", texts_by_label["not read"]


def _library() -> list[str]:
    """Python's own files of 300 to 200,000 characters."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    return _read(f for f in files if "site-packages" not in f.parts)


def _packages() -> list[str]:
    """Texts of every third file of two packages: code that no threshold was chosen on."""
    root = Path(sysconfig.get_paths()["purelib"])
    files: list[Path] = []
    for name in ("torch", "pandas"):
        files += sorted((root / name).rglob("*.py"))[::3]
    return _read(files)


def _read(files: Iterable[Path]) -> list[str]:
    texts = (file.read_text("utf-8", "replace") for file in files)
    return [text for text in texts if SHORTEST <= len(text) <= 200_000]


def _loops(
    shared: Path, texts_by_label: dict[str, list[str]]
) -> Iterator[tuple[str, Sequence[str]]]:
    for half, (names, characters) in BASES.items():
        bases = [text.text for name in names for text in spoken(shared, name)]
        bases = [text[:20_000] for text in bases if len(text) > characters]
        random.Random(0).shuffle(bases)
        for kind, texts in loops(half, bases[:60]).items():
            yield f"{kind} ({half})", texts
    for label in ("loop", "short", "doubtful"):
        yield f"shared sets, read as {label}", texts_by_label[label]


def _speeds(shared: Path, repeats: int) -> Iterator[str]:
    yield f"| | MB | {' | '.join(METHODS)} |"
    yield "|---|" + "---|" * (len(METHODS) + 1)
    sets = {
        "`reasoning_ma_content`": ("reasoning_ma_content",),
        "`lf_dpo_en`, `lf_kto_en`, `lf_alpaca_en`": ("lf_dpo_en", "lf_kto_en", "lf_alpaca_en"),
        "`gsm8k_train`": ("gsm8k_train",),
        "`lf_alpaca_zh`": ("lf_alpaca_zh",),
        "`reasoning_gym_graded` (grids, loops)": ("reasoning_gym_graded",),
    }
    texts_by_set: dict[str, list[str]] = {}
    for heading, names in sets.items():
        texts_by_set[heading] = [text.text for name in names for text in spoken(shared, name)]
    traces = texts_by_set["`reasoning_ma_content`"]
    texts_by_set["long step-by-step traces"] = _long_steps(traces)
    texts_by_set["files of the standard library"] = _library()[::4]
    for name, texts in texts_by_set.items():
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / 1e6
        cells: list[str] = []
        for method in METHODS.values():
            seconds = _best(lambda m=method, t=texts: [m(text) for text in t], repeats)
            cells.append(f"{size / seconds:.1f}")
        yield f"| {name} | {size:.1f} | {' | '.join(cells)} |"


def _long_steps(traces: list[str]) -> list[str]:
    """Step-by-step texts, a real trace behind every second one: all need a close look."""
    rng = random.Random(0)
    steps: list[str] = []
    for half, kinds in STEPS.items():
        for kind in kinds:
            steps += step_by_step(half, kind)
    rng.shuffle(steps)
    parts: list[str] = []
    for n, text in enumerate(steps):
        parts.append(f"{text}\n\n{rng.choice(traces)}" if n % 2 else text)
    return ["\n\n".join(parts[n : n + 20]) for n in range(0, len(parts), 20)]


def _best(run: Callable[[], object], repeats: int) -> float:
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)
