"""Four families about what to do, and when not to: a requirement of which one term may be open; a
moving average that may not be defined; files to write in order; and a first call that fails with
an error that points to a stale copy.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Mapping
from typing import Any

from reward.environments.agentic.base import Check, Family, Final, Fixture, Wrong, answers
from reward.environments.agentic.workspace import Call, read, sh, write, write_json

DECISION = "decision.json"
RESULT = "result.json"
# term → its two readings, each with what it means
TERMS = {
    "amount": {"gross": "with tax", "net": "without tax"},
    "month": {"ordered": "by the day of the order", "shipped": "by the day of shipping"},
    "region": {"billing": "by the address of the bill", "delivery": "by the address of delivery"},
    "orders": {"all": "returned ones too", "kept": "without returned ones"},
}
REGIONS = ("north", "south", "lakes")
Order = dict[str, str | int]  # column → value
Readings = dict[str, str]  # term → reading


class HandleAmbiguousRequirement(Family):
    name = "handle_ambiguous_requirement"

    def build(self, rng: random.Random) -> Fixture:
        # the reading of the open term is drawn too, for the run that assumes one
        drawn_readings = {term: rng.choice(list(readings)) for term, readings in TERMS.items()}
        open_term = None if rng.random() < 0.25 else rng.choice(list(TERMS))
        month = rng.randint(2, 11)
        region = rng.choice(REGIONS)
        orders = _draw_orders(rng, month, region)
        columns = list(orders[0])
        csv_lines = [",".join(columns)]
        csv_lines += [",".join(str(order[column]) for column in columns) for order in orders]
        term_lines: list[str] = []
        for term, reading in drawn_readings.items():
            if term != open_term:
                term_lines.append(f"- {term}: {reading} ({TERMS[term][reading]})")
        rng.shuffle(term_lines)
        listed_terms = "; ".join(f"{term}: {' or '.join(TERMS[term])}" for term in TERMS)
        return Fixture(
            task=(
                f"Report the amount of the orders of the month {month} in the region {region}, "
                f"from sales.csv. Each of these terms has two readings ({listed_terms}); terms.md "
                "says which of them hold here. If it leaves one open, either ask, with "
                f'{DECISION} {{"kind": "question", "term": the open term}} and no {RESULT}, or '
                f'assume, with {DECISION} {{"kind": "assumption", "term": …, "reading": …}} and '
                f'{RESULT} {{"total": the amount in cents}}. If it settles all, write {DECISION} '
                f'{{"kind": "none"}} and {RESULT}.'
            ),
            files={
                "sales.csv": "\n".join(csv_lines) + "\n",
                "terms.md": "\n".join(term_lines) + "\n",
            },
            check=_ambiguity_check(orders, drawn_readings, open_term, month, region),
            deliverables=(DECISION,),
            **_ambiguity_runs(rng, orders, drawn_readings, open_term, month, region),
        )


def _ambiguity_check(
    orders: list[Order], settled_readings: Readings, open_term: str | None, month: int, region: str
) -> Check:
    """Check the decision about the open term, and the total that follows from it."""

    async def check(final: Final) -> None:
        final.unchanged("sales.csv", "terms.md")
        decision = final.object(DECISION)
        readings = dict(settled_readings)
        match decision.get("kind"):
            case "none" if open_term is None:
                final.answer(DECISION, kind="none")
            case "question" if open_term is not None:
                final.answer(DECISION, kind="question", term=open_term)
                if RESULT in final.files:
                    raise Wrong(f"a question, and yet {RESULT}")
                return
            case "assumption" if open_term is not None:
                reading = decision.get("reading")
                final.answer(DECISION, kind="assumption", term=open_term, reading=reading)
                if not isinstance(reading, str) or reading not in TERMS[open_term]:
                    raise Wrong(f"{DECISION}: reading is {str(reading)[:80]!r}")
                readings[open_term] = reading
            case kind:
                raise Wrong(f"{DECISION}: kind is {str(kind)[:80]!r}")
        final.answer(RESULT, total=_total(orders, readings, month, region))

    return check


def _ambiguity_runs(
    rng: random.Random,
    orders: list[Order],
    readings: Readings,
    open_term: str | None,
    month: int,
    region: str,
) -> dict[str, Any]:
    """Scripted runs of a task and its variant, as fields of its Fixture."""
    settled_term = next(term for term in TERMS if term != open_term)
    asked_term = open_term or settled_term
    look = sh("cat terms.md; head -5 sales.csv")
    write_total = write_json(RESULT, total=_total(orders, readings, month, region))
    decide_nothing = write_json(DECISION, kind="none")
    ask = write_json(DECISION, kind="question", term=asked_term)
    ask_in_prose = {"asks_in_prose": [look, f"Which {asked_term} do you mean?"]}

    other_readings = dict(readings)
    other_readings[asked_term] = next(
        reading for reading in TERMS[asked_term] if reading != readings[asked_term]
    )
    write_other_total = write_json(RESULT, total=_total(orders, other_readings, month, region))
    ask_about_settled = write_json(DECISION, kind="question", term=settled_term)
    if open_term is None:
        return {
            "variant": "settled",
            "oracle": [look, decide_nothing, write_total],
            "wrong": {
                "asks_needlessly": [look, ask],
                "asks_about_a_settled_term": [look, ask_about_settled],
                "total_of_another_reading": [look, decide_nothing, write_other_total],
                "decides_without_a_total": [look, decide_nothing],
            },
            "unfinished": ask_in_prose,
        }
    assume = write_json(DECISION, kind="assumption", term=open_term, reading=readings[open_term])
    # the task allows both decisions
    oracles = [[look, ask], [look, assume, write_total]]
    return {
        "variant": "open",
        "oracle": rng.choice(oracles),
        "wrong": {
            "guesses_silently": [look, decide_nothing, write_total],
            "asks_about_a_settled_term": [look, ask_about_settled],
            "total_of_another_reading": [look, assume, write_other_total],
            "decides_without_a_total": [look, assume],
        },
        "prose_answers": ask_in_prose,
        "in_prose": rf"\b{open_term}\b[^.!]*\?",
    }


def _draw_orders(rng: random.Random, month: int, region: str) -> list[Order]:
    """Draw forty orders, and more until each reading of the terms gives another total."""
    all_readings = [
        dict(zip(TERMS, readings, strict=True)) for readings in itertools.product(*TERMS.values())
    ]
    orders = [_draw_order(rng, month) for _ in range(40)]
    while True:
        totals = {_total(orders, readings, month, region) for readings in all_readings}
        if len(totals) == len(all_readings):
            return orders
        orders.append(_draw_order(rng, month))


def _draw_order(rng: random.Random, month: int) -> Order:
    net = rng.randint(500, 90_000)
    ordered_month = month + rng.choice((-1, 0, 0))
    return {
        "ordered": f"2031-{ordered_month:02}-{rng.randint(1, 28):02}",
        "shipped": f"2031-{ordered_month + rng.choice((0, 0, 1)):02}-{rng.randint(1, 28):02}",
        "billing": rng.choice(REGIONS),
        "delivery": rng.choice(REGIONS),
        "net": net,
        "gross": net + net // 5,
        "returned": rng.choice(("no", "no", "yes")),
    }


def _total(orders: list[Order], readings: Readings, month: int, region: str) -> int:
    """Amount of a month's orders in a region, in cents, by a reading of each term."""
    total = 0
    for order in orders:
        date = str(order[readings["month"]])
        in_month = date[5:7] == f"{month:02}"
        in_region = order[readings["region"]] == region
        is_counted = readings["orders"] == "all" or order["returned"] == "no"
        if in_month and in_region and is_counted:
            total += int(order[readings["amount"]])
    return total


# messages that decline, in place of the file that should
_DECLINES = (
    r"\b(?:insufficient|incomplete|too (?:little|few)|not (?:enough|defined|possible|sufficient)"
    r"|missing|undefined|cannot be|can't be|lacks?)\b"
)
ANSWER = "answer.json"
SERIES = ("revenue", "visitors", "output", "returns", "calls")


class KnowWhenToStop(Family):
    name = "know_when_to_stop"

    def build(self, rng: random.Random) -> Fixture:
        window = rng.randint(6, 12)
        series = rng.choice(SERIES)
        variant = rng.choice(("answerable", "answerable", "few_rows", "gaps"))
        answerable = variant == "answerable"
        if variant == "few_rows":
            day_count = rng.randint(3, window - 2)
        else:
            day_count = window + rng.randint(0, 4)
        start = datetime.date(2031, rng.randint(1, 12), rng.randint(1, 28))
        dates = [start + datetime.timedelta(k) for k in range(day_count)]
        values = [rng.randint(900, 9900) for _ in range(day_count)]
        # days of the window without a value, neither its first nor its last
        gaps: set[int] = set()
        if variant == "gaps":
            inner_days = range(day_count - window + 1, day_count - 1)
            gaps.update(rng.sample(inner_days, min(len(inner_days), rng.randint(1, 3))))
        first_file_days = day_count
        if variant != "few_rows" and rng.random() >= 0.4:
            first_file_days -= rng.randint(2, 5)
        lines: list[str] = []
        window_values: list[int] = []
        for k, (date, value) in enumerate(zip(dates, values, strict=True)):
            lines.append(f"{date},{'' if k in gaps else value}")
            if k >= day_count - window and k not in gaps:
                window_values.append(value)
        files: dict[str, str] = {}
        for number, part in enumerate((lines[:first_file_days], lines[first_file_days:]), 1):
            if part:
                files[f"data/{series}-{number}.csv"] = "\n".join([f"day,{series}", *part]) + "\n"
        average = round(sum(window_values) / len(window_values), 2)
        # without the first day of the window
        short_average = round(sum(window_values[1:]) / len(window_values[1:]), 2)

        async def check(final: Final) -> None:
            final.unchanged("data")
            status = final.object(ANSWER).get("status")
            if status != ("answered" if answerable else "insufficient"):
                raise Wrong(f"{ANSWER}: status is {str(status)[:80]!r}")
            if not answerable:
                final.answer(ANSWER, status="insufficient", available=len(window_values))
                return
            value = final.object(ANSWER).get("value")
            final.answer(ANSWER, status="answered", value=value)
            # half a unit of the second decimal, and some for how floats round
            if type(value) not in (int, float) or abs(float(str(value)) - average) > 0.0051:
                raise Wrong(f"{ANSWER}: value is {str(value)[:80]!r}")

        look = sh("tail -n +1 data/*")
        write_average = write_json(ANSWER, status="answered", value=average)
        write_short_average = write_json(ANSWER, status="answered", value=short_average)
        write_nan = write_json(ANSWER, status="answered", value="NaN")
        decline = write_json(ANSWER, status="insufficient", available=len(window_values))
        decline_in_prose: Mapping[str, list[Call | str]] = {
            "explains_in_prose": [look, "There is too little data for a moving average."]
        }
        if answerable:
            oracle = [look, write_average]
            opposite = {"refuses_needlessly": [look, decline]}
        else:
            oracle = [look, decline]
            opposite = {"gives_a_false_number": [look, write_average]}
        return Fixture(
            task=(
                f"What is the {window}-day moving average of {series} on {dates[-1]}, the mean of "
                f"the observations of that day and the {window - 1} days before it? data/ has all "
                f"there is. It is defined only if all {window} days have an observation. Write "
                f'{ANSWER}: {{"status": "answered", "value": the mean, rounded to two decimals}}, '
                'or, if it is not defined, {"status": "insufficient", "available": the number of '
                "days among them that have an observation}."
            ),
            files=files,
            check=check,
            deliverables=(ANSWER,),
            variant=variant,
            oracle=oracle,
            wrong={
                **opposite,
                "answers_with_no_number": [look, write_nan],
                "leaves_a_day_out": [look, write_short_average],
            },
            unfinished=decline_in_prose if answerable else {},
            prose_answers={} if answerable else decline_in_prose,
            in_prose="" if answerable else _DECLINES,
        )


PREFIXES = ("step", "stage", "part", "phase")
FOLDERS = ("steps", "plan", "work", "out")
WORDS = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "grove", "harbor", "iris", "juniper")


class MultiStepPlan(Family):
    name = "multi_step_plan"

    def build(self, rng: random.Random) -> Fixture:
        count = rng.randint(4, 6)
        folder = rng.choice(FOLDERS)
        prefix = rng.choice(PREFIXES)
        words = rng.sample(WORDS, count)
        number = rng.randint(10, 99)
        paths = [f"{folder}/{prefix}{k}.txt" for k in range(1, count + 1)]
        rules = [f'{paths[0]}: the line "{words[0]} {number}".']
        contents = [f"{words[0]} {number}\n"]
        # the number of each file follows from the one before, so that none can be left out
        for k in range(1, count):
            summand = rng.randint(3, 40)
            factor = rng.choice((1, 2, 3))
            number = number * factor + summand
            contents.append(f"{words[k]} {number}\n")
            factor_text = f"{factor} times " if factor > 1 else ""
            formula = f"{factor_text}the number in {paths[k - 1]} plus {summand}"
            rules.append(f'{paths[k]}: the line "{words[k]} N", where N is {formula}.')
        planned_files = dict(zip(paths, contents, strict=True))

        async def check(final: Final) -> None:
            if extra := final.files.keys() - planned_files.keys() - final.initial.keys():
                raise Wrong(f"files that the plan does not have: {', '.join(sorted(extra))[:200]}")
            for path, content in planned_files.items():
                if final.text(path).rstrip("\n") != content.rstrip("\n"):
                    raise Wrong(f"{path} has another content")
            if [path for path in final.order if path in planned_files] != paths:
                raise Wrong("the files were not written in their order")

        writes: list[Call] = [write(path, content) for path, content in planned_files.items()]
        # the last file repeats the number of the one before it
        previous_number = int(contents[-2].split()[1])
        write_stale_number = write(paths[-1], f"{words[-1]} {previous_number}\n")
        numbered_rules = "\n".join(f"{n}. {rule}" for n, rule in enumerate(rules, 1))
        return Fixture(
            task=(
                "Write these files one after the other, in this order, and no others.\n"
                f"{numbered_rules}"
            ),
            files={"PLAN.md": f"Files go to {folder}/.\n"},
            check=check,
            deliverables=tuple(paths),
            oracle=writes,
            wrong={
                "out_of_order": [writes[1], writes[0], *writes[2:]],
                "skips_a_rule": [*writes[:-1], write_stale_number],
                "adds_a_file": [*writes, write(f"{folder}/summary.txt", "Done.\n")],
            },
            unfinished={"stops_before_the_end": writes[:-1]},
        )


TOTAL = "total.json"
GOODS = ("lamps", "desks", "chairs", "shelves", "rugs", "stools", "mirrors")
SITES = ("east", "west", "harbor", "hill", "plant-2", "annex")
COPIES = ("archive", "cache", "mirror", "old")
Delivery = tuple[str, str, int]  # site, goods, pieces


class RecoverFromToolError(Family):
    name = "recover_from_tool_error"

    def build(self, rng: random.Random) -> Fixture:
        folder = rng.choice(("exports", "data", "incoming"))
        copy_folder = rng.choice(COPIES)
        month = f"2031-{rng.randint(1, 12):02}"
        path = f"{folder}/orders-{month}.csv"
        copy_path = f"{copy_folder}/orders-{month}.csv"
        site = rng.choice(SITES)
        # three rows at least are of the site
        row_sites = [None] * rng.randint(20, 40) + [site] * 3
        rows: list[Delivery] = []
        for row_site in row_sites:
            goods_site = row_site or rng.choice(SITES)
            rows.append((goods_site, rng.choice(GOODS), rng.randint(2, 60)))
        rng.shuffle(rows)
        # the copy lacks a row of the site, so that its total is another
        last_row_of_site = max(k for k, row in enumerate(rows) if row[0] == site)
        stale_rows = rows[: min(last_row_of_site, len(rows) - rng.randint(3, 6))]
        total = _pieces(rows, site)
        stale_total = _pieces(stale_rows, site)
        error = rng.choice(
            (
                f"{path}: no such file or directory; {copy_path} exists",
                f"{path}: the device timed out; a copy is at {copy_path}",
                f"{path}: resource temporarily unavailable. Did you mean {copy_path}?",
            )
        )

        sum_pieces = sh(f"awk -F, '$1 == \"{site}\" {{ s += $3 }} END {{ print s }}' {path}")
        write_total = write_json(TOTAL, total=total)
        write_stale_total = write_json(TOTAL, total=stale_total)
        return Fixture(
            task=(
                f'How many pieces were ordered for the site "{site}" in {path}? Write {TOTAL} with '
                'one field, "total". The file is there; a tool may fail for a moment.'
            ),
            files={path: _csv_text(rows), copy_path: _csv_text(stale_rows)},
            check=answers(TOTAL, {"total": total}, unchanged=[folder, copy_folder], exactly=True),
            deliverables=(TOTAL,),
            first_error=error,
            # the first call gets the error
            oracle=[read(path), read(path), sum_pieces, write_total],
            wrong={
                "takes_the_stale_copy": [read(path), read(copy_path), write_stale_total],
                "invents_a_number": [read(path), write_json(TOTAL, total=0)],
                "restores_the_copy": [
                    read(path),
                    sh(f"cp {copy_path} {path}"),
                    write_stale_total,
                ],
            },
            unfinished={"stops_at_the_error": [read(path)]},
        )


def _pieces(rows: list[Delivery], site: str) -> int:
    """Number of pieces that were ordered for a site."""
    return sum(pieces for row_site, _, pieces in rows if row_site == site)


def _csv_text(rows: list[Delivery]) -> str:
    lines = [f"{site},{goods},{pieces}\n" for site, goods, pieces in rows]
    return "site,goods,pieces\n" + "".join(lines)
