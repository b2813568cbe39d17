"""Families answered through tools: look-ups, plans that write, and a tool that fails."""

from __future__ import annotations

import random
from typing import Any

from data_builders.tiny_world.drafts import (
    CITIES,
    COLOURS,
    PEOPLE,
    THINGS,
    Draft,
    ItemDraw,
    Transcript,
    worded,
    worked_out,
)
from data_builders.tiny_world.families.working import add_steps

# lookups

FACTS = ("price", "stock", "owner", "city")
LOOKUPS_WORDINGS = {
    "one": "What is the {f} of the {a}?|Tell me the {f} of the {a}.|{f} of {a}?",
    "compare": (
        "Which has more {f}, the {a} or the {b}?|More {f}: {a} or {b}?|"
        "Is the {f} of the {a} or the {b} higher?"
    ),
    "total": (
        "What is the {f} of the {a} and the {b} together?|Total {f} of {a} and {b}?|"
        "Add the {f} of the {a} and the {b}."
    ),
}
LOOKUPS_TASKS = {1: "one", 2: "compare", 3: "total"}


def shop(rng: random.Random) -> dict[str, Any]:
    """A small shop: every fact about four things; no two prices and no two stocks are equal."""
    things = [f"{rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, 4)]
    prices, stocks = rng.sample(range(11, 100), 4), rng.sample(range(11, 100), 4)
    return {
        "price": dict(zip(things, prices, strict=True)),
        "stock": dict(zip(things, stocks, strict=True)),
        "owner": {thing: rng.choice(PEOPLE) for thing in things},
        "city": {thing: rng.choice(CITIES) for thing in things},
    }


def _conclude(task: str, a: str, b: str, results: list[str]) -> tuple[str, list[str]]:
    if task == "one":
        return results[0], [results[0]]
    left, right = int(results[0]), int(results[1])
    if task == "compare":
        winner = a if left > right else b
        return winner, [f"{a} {left} {b} {right}", f"{max(left, right)} is {winner}"]
    return str(left + right), [f"{left}+{right}", *add_steps(left, right)]


def lookups(draw: ItemDraw) -> Draft:
    """Look-ups through tools; difficulty 1 asks for one fact, 2 compares two, 3 adds two up.

        "What is the price of the red lamp?"  →  get_price(red lamp) → 42  →  42

    Without tools nobody can know: the right answer is then "unknown", and a call is an error.
    """
    rng = draw.rng
    task = LOOKUPS_TASKS[min(draw.difficulty, 3)]
    state = shop(rng)
    fact = rng.choice(FACTS if task == "one" else FACTS[:2])
    a, b = rng.sample(sorted(state["price"]), 2)
    requested = [a] if task == "one" else [a, b]
    other = rng.choice([name for name in FACTS if name != fact])
    names = [f"get_{fact}", f"get_{other}"]
    rng.shuffle(names)
    key = f"lookup {fact} {' '.join(requested)}"
    question = worded(draw, LOOKUPS_WORDINGS[task], f=fact, a=a, b=b)
    if not draw.with_tools:
        steps, about = [f"no tool for {fact}"], {"key": key, "task": task, "question": question}
        opening = f"{fact} of {a}."
        return worked_out(draw, steps, "unknown", opening=opening, grading="unknown", **about)
    script, tool = Transcript(draw, state, tools=names), f"get_{fact}"
    results = [
        script.call(tool, {"item": thing}, f"{tool} {thing}", opening=f"{fact} of {thing}.")
        for thing in requested
    ]
    gold, steps = _conclude(task, a, b, results)
    script.answer(gold, "\n".join(steps))
    return script.draft(key=key, task=task, question=question, gold=gold)


# plans

PLANS_WORDINGS = {
    "ordered": (
        "Close {x}.{needs}|Please close tickets {x}.{needs}|"
        "Tickets {x} are done: close them.{needs}"
    ),
    "move": "Give {x} to {name}.|Move tickets {x} to {name}.|{name} takes over {x}.",
    "owner": (
        "{name} goes to {city}: close all tickets of {name}.|"
        "Close every ticket of {name}, now in {city}.|{name} is in {city}. Close what {name} has."
    ),
}
CLOSED = {"status": "closed"}


def plans(draw: ItemDraw) -> Draft:
    """Ordered plans that write to a small database of tickets; difficulty is the number of writes.

        "Close 4 and 7. 4 needs 7."  →  set_status(7, closed), set_status(4, closed)  →  done

    Graded by the state they leave: a ticket that needs another cannot be closed before it.
    """
    rng = draw.rng
    task = rng.choice(("ordered", "move", "owner"))
    keys = sorted(str(key) for key in rng.sample(range(10, 100), 5))
    names = rng.sample(PEOPLE, 2)
    tickets: dict[str, dict[str, Any]] = {
        key: {"owner": rng.choice(names), "status": "open"} for key in keys
    }
    chosen = rng.sample(sorted(tickets), min(draw.difficulty, len(tickets)))
    owners = {ticket["owner"] for ticket in tickets.values()}
    name = rng.choice([person for person in PEOPLE if person not in owners])
    city = rng.choice(CITIES)
    needs = ""
    if task == "ordered" and len(chosen) > 1:
        first, second = rng.sample(chosen, 2)
        tickets[second]["needs"] = first
        needs = f" {second} needs {first}."
    if task == "owner":
        name = tickets[chosen[0]]["owner"]
    about = {
        "ordered": f"{' '.join(chosen)}{needs}",
        "move": f"{' '.join(chosen)} {name}",
        "owner": f"{name} {city}",
    }[task]
    words = {"x": " ".join(chosen), "needs": needs, "name": name, "city": city}
    question = worded(draw, PLANS_WORDINGS[task], **words)
    names = ["list_tickets", "set_status", "set_owner"]
    rng.shuffle(names)
    script = Transcript(draw, {"tickets": tickets}, tools=names)
    _carry_out_plans(script, task, chosen=chosen, name=name)
    script.answer("done", "all done")
    return script.draft(
        key=f"plan {task} {about}",
        task=task,
        question=question,
        gold="done",
        grading="state",
        gold_state=script.world.state,
    )


def _carry_out_plans(script: Transcript, task: str, *, chosen: list[str], name: str) -> None:
    """Make the calls of the reference, each with its reason."""
    if task == "owner":
        opening = f"tickets of {name}."
        chosen = script.call(
            "list_tickets", {"owner": name}, f"list {name}", opening=opening, result="list"
        ).split()
    tickets = script.world.state["tickets"]
    chosen = sorted(
        chosen, key=lambda key: (tickets[key].get("needs") in chosen, chosen.index(key))
    )
    tool, value = ("set_owner", {"owner": name}) if task == "move" else ("set_status", CLOSED)
    for done, key in enumerate(chosen):
        step = f"left {' '.join(chosen[done:])}"
        script.call(tool, {"ticket": key, **value}, step, opening=f"{task}.", result=key)


# recover

RECOVER_WORDINGS = (
    "What is the price of the {a} for {who}? Check it.|Give {who} the checked price of the {a}.|"
    "Find and check the price of the {a} for {who}."
)


def recover(draw: ItemDraw) -> Draft:
    """The first calls fail, and another tool succeeds with the wrong value.

        get_price(red lamp) → error: busy; get_price(red lamp) → 42;
        check_price(red lamp, 42) → right

    `cached_price` always answers, and its answer is old. The reference tries again and checks; in a
    third of the items it first falls for the lure. Difficulty is how often the tool is busy.
    """
    rng = draw.rng
    state = shop(rng)
    item = rng.choice(sorted(state["price"]))
    price = state["price"][item]
    lure = rng.choice([number for number in range(11, 100) if number != price])
    state["cached_price"] = {item: lure}
    names = ["get_price", "cached_price", "check_price"]
    rng.shuffle(names)
    times = min(draw.difficulty, 3)
    fault = {"tool": "get_price", "kind": "busy", "times": times}
    falls = rng.random() < 1 / 3
    who = rng.choice(PEOPLE)
    question = worded(draw, RECOVER_WORDINGS, a=item, who=who)
    script = Transcript(draw, state, tools=names, fault=fault)
    _carry_out_recover(script, item, falls=falls)
    return script.draft(
        key=f"recover {item} {who}",
        task="lured" if falls else "retry",
        question=question,
        gold=str(price),
        minimum_calls=times + 2,
    )


def _carry_out_recover(script: Transcript, item: str, *, falls: bool) -> None:
    def call(tool: str, step: str, **more: str) -> str:
        given = {"item": item, **more}
        return script.call(tool, given, step, opening=f"price of {item}.", result=step)

    price = call("get_price", "get_price")
    if falls:
        price = call("cached_price", "busy, cached_price")
        call("check_price", "check_price", price=price)
        price = call("get_price", "wrong, get_price")
    while price.startswith("error"):
        price = call("get_price", "busy, get_price")
    call("check_price", "check_price", price=price)
    script.answer(price, f"{price} is right")
