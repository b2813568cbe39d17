"""Generated texts for the repetition filter: prose that runs into a loop, and honest texts.

loop("a word changes", "seen", base, random.Random(0))  → an honest text that runs into a loop
honest_kinds(random.Random(0))["poem"]                  → a text that repeats itself as it should
"""

from __future__ import annotations

import base64
import random

Rng = random.Random
_SYLLABLES = [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("an", "el", "ior", "uta", "ery", "os")]
_COMMON = [
    "the", "of", "a", "and", "to", "is", "in", "that", "it", "so", "we", "for", "with", "not",
    "this",
]  # fmt: skip
_IDEOGRAPHS = "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经头面"


def sentences(count: int, rng: Rng) -> list[str]:
    """Sentences without sense, of common words and a large vocabulary."""
    pool = [a + b for a in _SYLLABLES for b in ("", "ta", "ric")]
    return [
        " ".join(
            rng.choice(_COMMON if rng.random() < 0.4 else pool) for _ in range(rng.randint(7, 18))
        ).capitalize()
        + "."
        for _ in range(count)
    ]


def chinese(count: int, rng: Rng) -> str:
    return "".join(rng.choices(_IDEOGRAPHS, k=count))


def _repeat(unit: str, characters: int, rng: Rng, rounds: int = 8) -> str:
    """Rounds of the unit, the last one cut off anywhere."""
    whole = unit * max(rounds, characters // len(unit) + 1)
    return whole[: len(whole) - rng.randrange(len(unit))]


def _drifting(words: list[str], rng: Rng, every: int, rounds: int) -> str:
    """Rounds of which each changes one word, or one in `every` rounds; changes stay."""
    pool, result = " ".join(sentences(30, rng)).split(), list[str]()
    for k in range(rounds):
        if k % every == 0:
            words = [*words]
            words[rng.randrange(len(words))] = rng.choice(pool)
        result += words
    return " ".join(result)


def _unit(length: int, rng: Rng) -> str:
    """A stretch of prose of so many characters."""
    if length < 4:
        return rng.choice([" !", "ha ", "0", "=", "no "])[:length] or "0"
    return " ".join(sentences(length // 30 + 2, rng))[: length - 1].rstrip() + " "


PERIODS = {"seen": (1, 2, 7, 16, 40, 120, 300, 1000, 3000),
           "unseen": (1, 3, 5, 11, 25, 75, 200, 600, 2000)}  # fmt: skip
COUNTERS = {
    "seen": ["Attempt {k}: {s} ", "{k}. {s}\n", "Wait, check {k}. {s} "],
    "unseen": ["Try number {k}: {s} ", "({k}) {s}\n", "{s} That was round {k}.\n"],
}
OPENINGS = {
    "seen": ["Wait, let me reconsider.", "Hmm, that is not right.", "But wait.", "Let me re-read it.",
             "Hold on, maybe I misread.", "Okay, so once more.", "Alternatively, think again."],
    "unseen": ["Not so fast.", "On second thought:", "I should double-check this.", "One moment.",
               "Going back to the start,", "Perhaps I got that wrong.", "That cannot be it."],
}  # fmt: skip
LOOPS = ("exact", "three to five long rounds", "chinese", "a word changes",
         "a word changes in a third of the rounds", "one of a few words fills a place",
         "rounds of sentences in changing order", "doubts in changing words",
         "sentences in changing order", "long rounds with a counter",
         "short rounds with a counter")  # fmt: skip


def loop(kind: str, half: str, base: str, rng: Rng, period: int = 0) -> str:
    """An honest text that runs into a loop, at its very end or with a closing line behind it."""
    if kind == "exact":
        text = _repeat(_unit(period, rng), 4500 if period < 16 else 2000, rng)
    elif kind == "chinese":
        text = _repeat(chinese(rng.choice([4, 9, 25, 60, 150]), rng) + "。", 600, rng)
    elif kind.startswith("a word changes"):
        words = " ".join(sentences(30, rng)).split()[: rng.choice([12, 25, 50, 100])]
        text = _drifting(words, rng, 3 if "third" in kind else 1, max(10, 400 // len(words)))
    elif kind.startswith("three"):
        text = _unit(rng.randint(800, 2500), rng) * rng.randint(3, 5)
    elif kind.startswith("one of"):
        words = " ".join(sentences(4, rng)).split()[: rng.randint(14, 24)]
        few, place = " ".join(sentences(2, rng)).split()[:10], rng.randrange(len(words))
        rounds = ([*words[:place], rng.choice(few), *words[place:]] for _ in range(30))
        text = "\n".join(" ".join(each) for each in rounds)
    elif kind.startswith("rounds of"):
        few = sentences(rng.randint(4, 7), rng)
        text = " ".join(" ".join(rng.sample(few, len(few))) for _ in range(12))
    elif kind.startswith("doubts"):
        core = sentences(rng.randint(3, 6), rng)
        doubts = ([s for s in core if rng.random() < 0.8] for _ in range(30))
        text = "\n\n".join(" ".join([rng.choice(OPENINGS[half]), *each]) for each in doubts)
    elif kind == "sentences in changing order":
        few = sentences(rng.randint(4, 7), rng)
        text = " ".join(rng.choice(few) for _ in range(120))
    else:
        many = 4 if kind.startswith("short") else 80
        words = " ".join(sentences(20, rng)).split()[: many + rng.randint(0, many)]
        form = rng.choice(COUNTERS[half])
        text = "".join(form.format(k=k, s=" ".join(words)) for k in range(1, 600 // many + 10))
    return f"{base} {text}" if rng.random() < 0.5 else f"{base} {text}\nSo the answer is 7."


def loops(half: str, bases: list[str], count: int = 20) -> dict[str, list[str]]:
    """Loops by kind; exact ones by the length of a round in characters."""
    result = dict[str, list[str]]()
    for kind in LOOPS:
        for period in PERIODS[half] if kind == "exact" else (0,):
            name = f"exact, {period} characters" if period else kind
            rng = random.Random(f"{half} {name}")
            result[name] = [
                loop(kind, half, rng.choice(["", *bases]), rng, period) for _ in range(count)
            ]
    return result


def honest_kinds(rng: Rng) -> dict[str, str]:
    """Texts that repeat themselves as they should: tables, code, lists, poems, sums, data."""
    names = [f"{a}{b}{c}" for a in "bdfklmnprst" for b in "aeiou" for c in ("n", "ra", "los", "mi")]
    rng.shuffle(names)
    rows = range(40)
    refrain = "Sing it low, sing it high,\nthe river goes by, the river goes by.\n"
    return {
        "table": "| name | game | score |\n|---|---|---|\n" + "\n".join(
            f"| {names[k]} | Lions vs. {names[-k]} | {rng.randint(0, 40)}-10 |" for k in rows),
        "plain table": "\n".join(
            f"{names[k]:<40}{rng.choice(['yes', 'no']):<40}{rng.randint(0, 9):>40}" for k in rows),
        "sparse table": "\n".join(
            "| " + " | ".join("x" if rng.random() < 0.02 else " " for _ in range(20)) + " |"
            for _ in rows),
        "rulers": "\n".join(f"{'-' * 200}\n{names[k]}\n{'=' * 200}" for k in rows),
        "calls": "\n".join(
            f'crm.update_customer(customer_id="{rng.randrange(10**8):08d}", field="assigned_to", '
            f'new_value="nia@example.com")' for _ in range(12)),
        "tests": "def check(candidate):\n" + "\n".join(
            f"    assert candidate({rng.randint(1, 99)}, {k}) == {rng.random() < 0.5}, "
            f'"This prints if this assert fails (good for debugging!)"' for k in range(12)),
        "code": "\n".join(
            f"    elif kind == {name!r}:\n        return make_{name}(value, depth=depth + 1)"
            for name in names[:30]),
        "json": "[" + ",\n ".join(
            f'{{"id": {k}, "name": "{names[k]}", "tags": [], "active": true}}' for k in rows) + "]",
        "list": "\n".join(
            f"{k}. The {names[k]} of {names[-k]} must be {names[k + 50]}." for k in rows),
        "poem": "\n".join(
            f"{' '.join(rng.choices(names, k=6))},\n{' '.join(rng.choices(names, k=6))},\n{refrain}"
            for _ in range(8)),
        "sums": "\n".join(f"{k} + {k * 7 % 13} = {k + k * 7 % 13}" for k in range(1, 80)),
        "base64": base64.b64encode(bytes(600) + rng.randbytes(3000) + bytes(600)).decode(),
        "hex": "\n".join(rng.randbytes(16).hex(" ") for _ in rows),
        "long number": f"3^9000 = {3**4000}, 10^1000 = {10**1000}, 1/8 = 0.125{'0' * 400}",
        "grid": "[" + ",\n ".join(
            "[" + ",".join(str(int(rng.random() < 0.01)) for _ in range(50)) + "]"
            for _ in range(50)) + "]",
        "zeros": "\n".join(" ".join("0" * 40) for _ in range(40)),
        "listing": "\n".join(
            f"-rw-r--r-- 1 root root {rng.randint(100, 9999)} Jan {k % 28 + 1} 12:00 {names[k]}.txt"
            for k in rows),
        "chinese": "".join(f"第{k}步：{chinese(24, rng)}。" for k in rows),
    }  # fmt: skip
