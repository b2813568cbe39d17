"""The family "handle_ambiguous_requirement": four terms of a request, of which one may be open.

Passes: where the project's terms leave one open, `decision.json` has a question about that term, or
an assumption about it with a total that follows from it; where they settle all, no question and the
right total. A total as if nothing were open, and a question about a settled term, do not pass.
"""

from __future__ import annotations

import itertools
import random

from reward.environments.agentic.base import Family, Final, Fixture, Wrong, sh, write_json

DECISION, RESULT = "decision.json", "result.json"
# term → its two readings, each with what it means
TERMS = {
    "amount": {"gross": "with tax", "net": "without tax"},
    "month": {"ordered": "by the day of the order", "shipped": "by the day of shipping"},
    "region": {"billing": "by the address of the bill", "delivery": "by the address of delivery"},
    "orders": {"all": "returned ones too", "kept": "without returned ones"},
}
REGIONS = ("north", "south", "lakes")
Row = dict[str, str | int]
Readings = dict[str, str]


class HandleAmbiguousRequirement(Family):
    name = "handle_ambiguous_requirement"

    def build(self, rng: random.Random) -> Fixture:
        settled = {term: rng.choice(list(readings)) for term, readings in TERMS.items()}
        open_term = None if rng.random() < 0.25 else rng.choice(list(TERMS))
        month, region = rng.randint(2, 11), rng.choice(REGIONS)
        rows = [_row(rng, month) for _ in range(40)]
        # every reading of every term has a total of its own
        while len({_total(rows, r, month, region) for r in _every()}) < len(_every()):
            rows.append(_row(rng, month))
        columns = list(rows[0])
        table = [",".join(columns), *(",".join(str(row[c]) for c in columns) for row in rows)]
        terms = [
            f"- {term}: {settled[term]} ({TERMS[term][settled[term]]})"
            for term in TERMS if term != open_term
        ]  # fmt: skip
        rng.shuffle(terms)
        total = _total(rows, settled, month, region)

        async def check(final: Final) -> None:
            final.unchanged("sales.csv", "terms.md")
            given = final.object(DECISION)
            readings = dict(settled)
            match given.get("kind"):
                case "none" if open_term is None:
                    final.answer(DECISION, kind="none")
                case "question" if open_term is not None:
                    final.answer(DECISION, kind="question", term=open_term)
                    if RESULT in final.files:
                        raise Wrong(f"a question, and yet {RESULT}")
                    return
                case "assumption" if open_term is not None:
                    reading = given.get("reading")
                    final.answer(DECISION, kind="assumption", term=open_term, reading=reading)
                    if not isinstance(reading, str) or reading not in TERMS[open_term]:
                        raise Wrong(f"{DECISION}: reading is {str(reading)[:80]!r}")
                    readings[open_term] = reading
                case kind:
                    raise Wrong(f"{DECISION}: kind is {str(kind)[:80]!r}")
            final.answer(RESULT, total=_total(rows, readings, month, region))

        look, result = sh("cat terms.md; head -5 sales.csv"), write_json(RESULT, total=total)
        # a term that is settled, and the two decisions that the task allows about the open one
        other = next(term for term in TERMS if term != open_term)
        plain = write_json(DECISION, kind="none")
        assumed = write_json(
            DECISION, kind="assumption", term=open_term, reading=settled.get(open_term or "")
        )
        question = write_json(DECISION, kind="question", term=open_term or other)
        oracles = [[look, question], [look, assumed, result]]
        flipped = dict(settled)
        term = open_term or other
        flipped[term] = next(reading for reading in TERMS[term] if reading != settled[term])
        unlike = write_json(RESULT, total=_total(rows, flipped, month, region))
        opposite = "asks_needlessly" if open_term is None else "guesses_silently"
        decided = plain if open_term is None else assumed
        listed = "; ".join(f"{name}: {' or '.join(TERMS[name])}" for name in TERMS)
        return Fixture(
            task=(
                f"Report the amount of the orders of the month {month} in the region {region}, "
                f"from sales.csv. Each of these terms has two readings ({listed}); terms.md says "
                "which of them hold here. If it leaves one open, either ask, with "
                f'{DECISION} {{"kind": "question", "term": the open term}} and no {RESULT}, or '
                f'assume, with {DECISION} {{"kind": "assumption", "term": …, "reading": …}} and '
                f'{RESULT} {{"total": the amount in cents}}. If it settles all, write {DECISION} '
                f'{{"kind": "none"}} and {RESULT}.'
            ),
            files={"sales.csv": "\n".join(table) + "\n", "terms.md": "\n".join(terms) + "\n"},
            check=check,
            deliverables=(DECISION,),
            variant="settled" if open_term is None else "open",
            oracle=[look, plain, result] if open_term is None else rng.choice(oracles),
            wrong={
                opposite: [look, question] if open_term is None else [look, plain, result],
                "asks_about_a_settled_term": [
                    look, write_json(DECISION, kind="question", term=other)
                ],
                "total_of_another_reading": [look, decided, unlike],
                "decides_without_a_total": [look, decided],
            },
            unfinished={"asks_in_prose": [look, f"Which {term} do you mean?"]},
        )  # fmt: skip


def _row(rng: random.Random, month: int) -> Row:
    net = rng.randint(500, 90_000)
    ordered = month + rng.choice((-1, 0, 0))
    return {
        "ordered": f"2031-{ordered:02}-{rng.randint(1, 28):02}",
        "shipped": f"2031-{ordered + rng.choice((0, 0, 1)):02}-{rng.randint(1, 28):02}",
        "billing": rng.choice(REGIONS),
        "delivery": rng.choice(REGIONS),
        "net": net,
        "gross": net + net // 5,
        "returned": rng.choice(("no", "no", "yes")),
    }


def _every() -> list[Readings]:
    return [dict(zip(TERMS, r, strict=True)) for r in itertools.product(*TERMS.values())]


def _total(rows: list[Row], readings: Readings, month: int, region: str) -> int:
    return sum(
        int(row[readings["amount"]])
        for row in rows
        if str(row[readings["month"]])[5:7] == f"{month:02}"
        and row[readings["region"]] == region
        and (readings["orders"] == "all" or row["returned"] == "no")
    )
