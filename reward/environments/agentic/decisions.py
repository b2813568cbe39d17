"""Four families about what to do, and when not to: a requirement of which one term may be open; a
moving average that may not be defined; files to write in order; and a first call that fails with
an error that points to a stale copy.
"""

from __future__ import annotations

import datetime
import itertools
import random

from reward.environments.agentic.base import Family, Final, Fixture, Wrong, answers
from reward.environments.agentic.workspace import Call, read, sh, write, write_json

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
        prose = {"asks_in_prose": [look, f"Which {term} do you mean?"]}
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
            unfinished={} if open_term is not None else prose,
            told={} if open_term is None else prose,
            in_prose="" if open_term is None else rf"\b{open_term}\b[^.!]*\?",
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


_TOO_LITTLE = (
    r"\b(?:insufficient|incomplete|too (?:little|few)|not (?:enough|defined|possible|sufficient)"
    r"|missing|undefined|cannot be|can't be|lacks?)\b"
)
ANSWER = "answer.json"
SERIES = ("revenue", "visitors", "output", "returns", "calls")


class KnowWhenToStop(Family):
    name = "know_when_to_stop"

    def build(self, rng: random.Random) -> Fixture:
        window, series = rng.randint(6, 12), rng.choice(SERIES)
        variant = rng.choice(("answerable", "answerable", "few_rows", "gaps"))
        days = rng.randint(3, window - 2) if variant == "few_rows" else window + rng.randint(0, 4)
        first = datetime.date(2031, rng.randint(1, 12), rng.randint(1, 28))
        rows = [(first + datetime.timedelta(n), rng.randint(900, 9900)) for n in range(days)]
        inner = range(days - window + 1, days - 1)
        gaps: set[int] = set()
        if variant == "gaps":
            gaps.update(rng.sample(inner, min(len(inner), rng.randint(1, 3))))
        cut = days if variant == "few_rows" or rng.random() < 0.4 else days - rng.randint(2, 5)
        lines = [f"{day},{'' if n in gaps else value}" for n, (day, value) in enumerate(rows)]
        names = (f"data/{series}-1.csv", f"data/{series}-2.csv")
        files = {
            name: "\n".join(["day," + series, *part]) + "\n"
            for name, part in zip(names, (lines[:cut], lines[cut:]), strict=True)
            if part
        }
        last = rows[-1][0]
        held = [value for n, (_, value) in enumerate(rows) if n >= days - window and n not in gaps]
        enough = variant == "answerable"
        average = round(sum(held) / len(held), 2)
        some = round(sum(held[1:]) / len(held[1:]), 2)

        async def check(final: Final) -> None:
            final.unchanged("data")
            status = final.object(ANSWER).get("status")
            if status != ("answered" if enough else "insufficient"):
                raise Wrong(f"{ANSWER}: status is {str(status)[:80]!r}")
            if not enough:
                final.answer(ANSWER, status="insufficient", available=len(held))
                return
            value = final.object(ANSWER).get("value")
            final.answer(ANSWER, status="answered", value=value)
            if type(value) not in (int, float) or abs(float(str(value)) - average) > 0.0051:
                raise Wrong(f"{ANSWER}: value is {str(value)[:80]!r}")

        answered = write_json(ANSWER, status="answered", value=average)
        refused = write_json(ANSWER, status="insufficient", available=len(held))
        look = sh("tail -n +1 data/*")
        prose = {"explains_in_prose": [look, "There is too little data for a moving average."]}
        opposite = "refuses_needlessly" if enough else "gives_a_false_number"
        return Fixture(
            task=(
                f"What is the {window}-day moving average of {series} on {last}, the mean of the "
                f"observations of that day and the {window - 1} days before it? data/ has all "
                f"there is. It is defined only if all {window} days have an observation. Write "
                f'{ANSWER}: {{"status": "answered", "value": the mean, rounded to two decimals}}, '
                'or, if it is not defined, {"status": "insufficient", "available": the number of '
                "days among them that have an observation}."
            ),
            files=files,
            check=check,
            deliverables=(ANSWER,),
            variant=variant,
            oracle=[look, answered if enough else refused],
            wrong={
                opposite: [look, refused if enough else answered],
                "answers_with_no_number": [
                    look, write_json(ANSWER, status="answered", value="NaN")
                ],
                "leaves_a_day_out": [look, write_json(ANSWER, status="answered", value=some)],
            },
            unfinished=prose if enough else {},
            told={} if enough else prose,
            in_prose="" if enough else _TOO_LITTLE,
        )  # fmt: skip


PREFIXES = ("step", "stage", "part", "phase")
FOLDERS = ("steps", "plan", "work", "out")
WORDS = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "grove", "harbor", "iris", "juniper")


class MultiStepPlan(Family):
    name = "multi_step_plan"

    def build(self, rng: random.Random) -> Fixture:
        count, folder, prefix = rng.randint(4, 6), rng.choice(FOLDERS), rng.choice(PREFIXES)
        words, number = rng.sample(WORDS, count), rng.randint(10, 99)
        paths = [f"{folder}/{prefix}{n}.txt" for n in range(1, count + 1)]
        lines = [f'{paths[0]}: the line "{words[0]} {number}".']
        contents = [f"{words[0]} {number}\n"]
        for place in range(1, count):
            add, times = rng.randint(3, 40), rng.choice((1, 2, 3))
            number = number * times + add
            contents.append(f"{words[place]} {number}\n")
            factor = f"{times} times " if times > 1 else ""
            rule = f"{factor}the number in {paths[place - 1]} plus {add}"
            lines.append(f'{paths[place]}: the line "{words[place]} N", where N is {rule}.')
        wanted = dict(zip(paths, contents, strict=True))

        async def check(final: Final) -> None:
            if extra := final.files.keys() - wanted.keys() - final.initial.keys():
                raise Wrong(f"files that the plan does not have: {', '.join(sorted(extra))[:200]}")
            for path, content in wanted.items():
                if final.text(path).rstrip("\n") != content.rstrip("\n"):
                    raise Wrong(f"{path} has another content")
            if [path for path in final.order if path in wanted] != paths:
                raise Wrong("the files were not written in their order")

        made: list[Call] = [write(path, content) for path, content in wanted.items()]
        swapped = [made[1], made[0], *made[2:]]
        stale = [*made[:-1], write(paths[-1], f"{words[-1]} {int(contents[-2].split()[1])}\n")]
        listed = "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1))
        return Fixture(
            task=f"Write these files one after the other, in this order, and no others.\n{listed}",
            files={"PLAN.md": f"Files go to {folder}/.\n"},
            check=check,
            deliverables=tuple(paths),
            oracle=made,
            wrong={
                "out_of_order": swapped,
                "skips_a_rule": stale,
                "adds_a_file": [*made, write(f"{folder}/summary.txt", "Done.\n")],
            },
            unfinished={"stops_before_the_end": made[:-1]},
        )


TOTAL = "total.json"
GOODS = ("lamps", "desks", "chairs", "shelves", "rugs", "stools", "mirrors")
SITES = ("east", "west", "harbor", "hill", "plant-2", "annex")
COPIES = ("archive", "cache", "mirror", "old")


class RecoverFromToolError(Family):
    name = "recover_from_tool_error"

    def build(self, rng: random.Random) -> Fixture:
        folder, copies = rng.choice(("exports", "data", "incoming")), rng.choice(COPIES)
        month = f"2031-{rng.randint(1, 12):02}"
        path, copy = f"{folder}/orders-{month}.csv", f"{copies}/orders-{month}.csv"
        site = rng.choice(SITES)
        sites = [None] * rng.randint(20, 40) + [site] * 3
        rows = [(s or rng.choice(SITES), rng.choice(GOODS), rng.randint(2, 60)) for s in sites]
        rng.shuffle(rows)
        last = max(n for n, row in enumerate(rows) if row[0] == site)
        stale = rows[: min(last, len(rows) - rng.randint(3, 6))]
        total, old_total = (sum(q for s, _, q in part if s == site) for part in (rows, stale))
        error = rng.choice(
            (
                f"{path}: no such file or directory; {copy} exists",
                f"{path}: the device timed out; a copy is at {copy}",
                f"{path}: resource temporarily unavailable. Did you mean {copy}?",
            )
        )

        summed: Call = sh(f"awk -F, '$1 == \"{site}\" {{ s += $3 }} END {{ print s }}' {path}")
        right, wrong = write_json(TOTAL, total=total), write_json(TOTAL, total=old_total)
        return Fixture(
            task=(
                f'How many pieces were ordered for the site "{site}" in {path}? Write {TOTAL} with '
                'one field, "total". The file is there; a tool may fail for a moment.'
            ),
            files={path: _table(rows), copy: _table(stale)},
            check=answers(TOTAL, {"total": total}, unchanged=[folder, copies], exactly=True),
            deliverables=(TOTAL,),
            first_error=error,
            oracle=[read(path), read(path), summed, right],
            wrong={
                "takes_the_stale_copy": [read(path), read(copy), wrong],
                "invents_a_number": [read(path), write_json(TOTAL, total=0)],
                "restores_the_copy": [read(path), sh(f"cp {copy} {path}"), wrong],
            },
            unfinished={"stops_at_the_error": [read(path)]},
        )


def _table(rows: list[tuple[str, str, int]]) -> str:
    return "site,goods,pieces\n" + "".join(f"{s},{g},{q}\n" for s, g, q in rows)
