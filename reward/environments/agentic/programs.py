"""Small functions with a line that a seed may break: what the families about code are made of.

    function = choose(random.Random(0), count=3)[0]
    function.source(broken=True)  → "def share_cents(amounts, people):\\n …"
    function.expected([100, 3])  → [34, 33, 33]

The reference is the right source itself, run in this process: it is ours.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = list[Any]


@dataclass(frozen=True, slots=True)
class _Template:
    """`body` has constants, {k}, {k3}, {m}, and a {line} that may be wrong."""

    names: tuple[str, ...]
    parameters: str
    purpose: str
    body: str
    right: str
    wrong: tuple[str, ...]
    arguments: Callable[[random.Random, Mapping[str, int]], Arguments]


def _numbers(rng: random.Random, count: int, low: int = 0, high: int = 60) -> list[int]:
    return [rng.randint(low, high) for _ in range(count)]


def _spans(rng: random.Random) -> list[list[int]]:
    starts = _numbers(rng, rng.randint(3, 7), 0, 60)
    return [[start, start + rng.randint(1, 6)] for start in starts]


_TEMPLATES = (
    _Template(
        ("share_cents", "split_amount", "divide_bill"), "total, people",
        "Shares of an amount in cents: equal, the remainder cent by cent to the first ones.",
        "    base, rest = divmod(total, people)\n    shares = []\n    for place in range(people):\n"
        "{line}\n        shares.append(base + extra)\n    return shares",
        "        extra = 1 if place < rest else 0",
        ("        extra = 1 if place <= rest else 0", "        extra = rest if place == 0 else 0"),
        lambda rng, c: [rng.randint(100, 900) * 7 + rng.randint(1, 5), rng.randint(3, 7)],
    ),
    _Template(
        ("shipping_fee", "handling_fee", "delivery_fee"), "weight",
        "A fee by weight in grams: {m} up to and including {k} grams, then {m} for each begun {k}.",
        "    if weight <= 0:\n        return 0\n{line}\n    return {m} * steps",
        "    steps = -(-weight // {k})",
        ("    steps = weight // {k} + 1", "    steps = max(1, weight // {k})"),
        lambda rng, c: [c["k"] * rng.randint(1, 12) + rng.choice((0, 0, 1, -1, 40))],
    ),
    _Template(
        ("window_sums", "moving_totals", "sliding_sums"), "values",
        "The sums of all runs of {k3} neighbouring values, in their order.",
        "    sums = []\n{line}\n        sums.append(sum(values[start : start + {k3}]))\n"
        "    return sums",
        "    for start in range(len(values) - {k3} + 1):",
        ("    for start in range(len(values) - {k3}):", "    for start in range(len(values)):"),
        lambda rng, c: [_numbers(rng, rng.randint(6, 10), 1)],
    ),
    _Template(
        ("merge_spans", "join_ranges", "combine_slots"), "spans",
        "Spans [start, end] in ascending order, those that overlap or touch joined to one.",
        "    merged = []\n    for start, end in sorted(spans):\n{line}\n"
        "            merged[-1][1] = max(merged[-1][1], end)\n        else:\n"
        "            merged.append([start, end])\n    return merged",
        "        if merged and start <= merged[-1][1]:",
        ("        if merged and start < merged[-1][1] - 1:",
         "        if merged and start == merged[-1][1]:"),
        lambda rng, c: [_spans(rng)],
    ),
    _Template(
        ("late_charge", "overdue_charge", "storage_charge"), "days, per_day",
        "A charge for the days beyond {k3} free ones, at most {m} in all.",
        "{line}\n    return min({m}, billable * per_day)",
        "    billable = max(0, days - {k3})",
        ("    billable = days if days > {k3} else 0", "    billable = max(0, days - {k3} - 1)"),
        lambda rng, c: [c["k3"] + rng.randint(1, 9), rng.randint(1, c["m"] // 20)],
    ),
    _Template(
        ("latest_by_key", "newest_entries", "current_values"), "entries",
        "Of entries [key, version, value] the value with the highest version of each key, by key.",
        "    best = {{}}\n    for key, version, value in entries:\n{line}\n"
        "            best[key] = (version, value)\n"
        "    return [[key, best[key][1]] for key in sorted(best)]",
        "        if key not in best or version > best[key][0]:",
        ("        if key not in best:", "        if key not in best or version < best[key][0]:"),
        lambda rng, c: [[[rng.choice("abc"), version, rng.randint(1, 99)]
                            for version in rng.sample(range(20), 9)]],
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """One function with its constants chosen. `wrong_line`: what stands there when it is broken."""

    name: str
    template: _Template
    constants: Mapping[str, int]
    right_line: str
    wrong_line: str

    def source(self, *, broken: bool = False) -> str:
        """The function as text."""
        line = self.wrong_line if broken else self.right_line
        purpose = self.template.purpose.format(**self.constants)
        body = self.template.body.format(line=line, **self.constants)
        return f'def {self.name}({self.template.parameters}):\n    """{purpose}"""\n{body}\n'

    def expected(self, arguments: Arguments, *, broken: bool = False) -> Any:
        """What the right source (or the broken one) gives."""
        space: dict[str, Any] = {}
        exec(self.source(broken=broken), space)  # noqa: S102 - our own text
        return space[self.name](*json.loads(json.dumps(arguments)))

    def cases(self, rng: random.Random, count: int) -> list[tuple[Arguments, Any]]:
        """Distinct arguments and results; the first half tells right from broken."""
        telling: list[tuple[Arguments, Any]] = []
        plain: list[tuple[Arguments, Any]] = []
        seen: set[str] = set()
        while len(telling) < count // 2 or len(telling) + len(plain) < count:
            arguments = self.template.arguments(rng, self.constants)
            if (key := json.dumps(arguments)) in seen:
                continue
            seen.add(key)
            right = self.expected(arguments)
            differs = right != self.expected(arguments, broken=True)
            (telling if differs else plain).append((arguments, right))
        return (telling + plain)[:count]


def choose(rng: random.Random, count: int) -> list[Function]:
    """So many different functions."""
    functions: list[Function] = []
    for template in rng.sample(_TEMPLATES, count):
        k = rng.randrange(200, 900, 50)
        constants = {"k": k, "m": rng.randrange(90, 400, 10), "k3": k // 50 % 4 + 2}
        wrong = rng.choice(template.wrong)
        lines = [line.format(**constants) for line in (template.right, wrong)]
        functions.append(Function(rng.choice(template.names), template, constants, *lines))
    return functions
