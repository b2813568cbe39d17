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
    pick_wording,
    reasoned_draft,
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
    """Draw a small shop: fact → item → value for four items.

    No two prices and no two stocks are equal, so that every comparison has one answer.
    """
    items = [f"{rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, 4)]
    prices = rng.sample(range(11, 100), 4)
    stocks = rng.sample(range(11, 100), 4)
    return {
        "price": dict(zip(items, prices, strict=True)),
        "stock": dict(zip(items, stocks, strict=True)),
        "owner": {item: rng.choice(PEOPLE) for item in items},
        "city": {item: rng.choice(CITIES) for item in items},
    }


def _conclude_lookups(task: str, a: str, b: str, results: list[str]) -> tuple[str, list[str]]:
    """Derive the gold answer and the steps of the reasoning from the results of the look-ups.

    Args:
        a, b: items that were looked up, `b` unless the task is "one".
    """
    if task == "one":
        return results[0], [results[0]]
    value_a = int(results[0])
    value_b = int(results[1])
    if task == "compare":
        winner = a if value_a > value_b else b
        steps = [f"{a} {value_a} {b} {value_b}", f"{max(value_a, value_b)} is {winner}"]
        return winner, steps
    steps = [f"{value_a}+{value_b}", *add_steps(value_a, value_b)]
    return str(value_a + value_b), steps


def lookups(draw: ItemDraw) -> Draft:
    """Look-ups through tools; difficulty 1 asks for one fact, 2 compares two, 3 adds two up.

        "What is the price of the red lamp?"  →  get_price(red lamp) → 42  →  42

    Without tools nobody can know: the right answer is then "unknown", and a call is an error.
    """
    rng = draw.rng
    task = LOOKUPS_TASKS[min(draw.difficulty, 3)]
    state = shop(rng)
    # only the first two facts are numbers, which can be compared and added
    fact = rng.choice(FACTS if task == "one" else FACTS[:2])
    a, b = rng.sample(sorted(state["price"]), 2)
    requested_items = [a] if task == "one" else [a, b]
    unneeded_fact = rng.choice([name for name in FACTS if name != fact])
    tool_names = [f"get_{fact}", f"get_{unneeded_fact}"]
    rng.shuffle(tool_names)
    key = f"lookup {fact} {' '.join(requested_items)}"
    question = pick_wording(draw, LOOKUPS_WORDINGS[task], f=fact, a=a, b=b)
    if not draw.with_tools:
        return reasoned_draft(
            draw,
            [f"no tool for {fact}"],
            "unknown",
            opening=f"{fact} of {a}.",
            grading="unknown",
            key=key,
            task=task,
            question=question,
        )
    transcript = Transcript(draw, state, tools=tool_names)
    tool = f"get_{fact}"
    results: list[str] = []
    for item in requested_items:
        step = f"{tool} {item}"
        results.append(transcript.call(tool, {"item": item}, step, opening=f"{fact} of {item}."))
    gold, steps = _conclude_lookups(task, a, b, results)
    transcript.answer(gold, "\n".join(steps))
    return transcript.draft(key=key, task=task, question=question, gold=gold)


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


def plans(draw: ItemDraw) -> Draft:
    """Ordered plans that write to a small database of tickets; difficulty is the number of writes.

        "Close 4 and 7. 4 needs 7."  →  set_status(7, closed), set_status(4, closed)  →  done

    Graded by the state they leave: a ticket that needs another cannot be closed before it.
    """
    rng = draw.rng
    task = rng.choice(("ordered", "move", "owner"))
    keys = sorted(str(key) for key in rng.sample(range(10, 100), 5))
    owner_pool = rng.sample(PEOPLE, 2)
    tickets: dict[str, dict[str, Any]] = {
        key: {"owner": rng.choice(owner_pool), "status": "open"} for key in keys
    }
    chosen_keys = rng.sample(sorted(tickets), min(draw.difficulty, len(tickets)))
    owners = {ticket["owner"] for ticket in tickets.values()}
    # the new owner has no ticket yet, so that every move changes the state
    name = rng.choice([person for person in PEOPLE if person not in owners])
    city = rng.choice(CITIES)
    needs = ""
    if task == "ordered" and len(chosen_keys) > 1:
        needed_key, blocked_key = rng.sample(chosen_keys, 2)
        tickets[blocked_key]["needs"] = needed_key
        needs = f" {blocked_key} needs {needed_key}."
    if task == "owner":
        name = tickets[chosen_keys[0]]["owner"]
    key_text = " ".join(chosen_keys)
    content = {
        "ordered": f"{key_text}{needs}",
        "move": f"{key_text} {name}",
        "owner": f"{name} {city}",
    }[task]
    question = pick_wording(
        draw, PLANS_WORDINGS[task], x=key_text, needs=needs, name=name, city=city
    )
    tool_names = ["list_tickets", "set_status", "set_owner"]
    rng.shuffle(tool_names)
    transcript = Transcript(draw, {"tickets": tickets}, tools=tool_names)
    _carry_out_plan(transcript, task, chosen_keys=chosen_keys, name=name)
    transcript.answer("done", "all done")
    return transcript.draft(
        key=f"plan {task} {content}",
        task=task,
        question=question,
        gold="done",
        grading="state",
        gold_state=transcript.world.state,
    )


def _carry_out_plan(
    transcript: Transcript, task: str, *, chosen_keys: list[str], name: str
) -> None:
    """Write the calls of the reference into the transcript, each with its reasoning.

    Args:
        chosen_keys: tickets of the question; for the task "owner" a call finds them.
        name: new owner, or the one whose tickets are closed.
    """
    if task == "owner":
        opening = f"tickets of {name}."
        listed = transcript.call(
            "list_tickets", {"owner": name}, f"list {name}", opening=opening, result="list"
        )
        chosen_keys = listed.split()
    tickets = transcript.world.state["tickets"]

    def position(key: str) -> tuple[bool, int]:
        is_blocked = tickets[key].get("needs") in chosen_keys
        return is_blocked, chosen_keys.index(key)

    # a ticket that needs another is closed after it
    ordered_keys = sorted(chosen_keys, key=position)
    for done, key in enumerate(ordered_keys):
        step = f"left {' '.join(ordered_keys[done:])}"
        if task == "move":
            tool = "set_owner"
            arguments = {"ticket": key, "owner": name}
        else:
            tool = "set_status"
            arguments = {"ticket": key, "status": "closed"}
        transcript.call(tool, arguments, step, opening=f"{task}.", result=key)


# recover

RECOVER_WORDINGS = (
    "What is the price of the {a} for {who}? Check it.|Give {who} the checked price of the {a}.|"
    "Find and check the price of the {a} for {who}."
)


def recover(draw: ItemDraw) -> Draft:
    """Calls that fail at first, beside a tool that succeeds with the wrong value.

        get_price(red lamp) → error: busy; get_price(red lamp) → 42;
        check_price(red lamp, 42) → right

    `cached_price` always answers, and its answer is old. The reference tries again and checks; in a
    third of the items it first falls for the lure. Difficulty is how often the tool is busy.
    """
    rng = draw.rng
    state = shop(rng)
    item = rng.choice(sorted(state["price"]))
    price = state["price"][item]
    old_price = rng.choice([number for number in range(11, 100) if number != price])
    state["cached_price"] = {item: old_price}
    tool_names = ["get_price", "cached_price", "check_price"]
    rng.shuffle(tool_names)
    failures = min(draw.difficulty, 3)
    fault = {"tool": "get_price", "kind": "busy", "times": failures}
    is_lured = rng.random() < 1 / 3
    person = rng.choice(PEOPLE)
    question = pick_wording(draw, RECOVER_WORDINGS, a=item, who=person)
    transcript = Transcript(draw, state, tools=tool_names, fault=fault)
    _retry_and_check(transcript, item, is_lured=is_lured)
    return transcript.draft(
        key=f"recover {item} {person}",
        task="lured" if is_lured else "retry",
        question=question,
        gold=str(price),
        minimum_calls=failures + 2,  # the price that arrives at last, and its check
    )


def _retry_and_check(transcript: Transcript, item: str, *, is_lured: bool) -> None:
    """Write the reference into the transcript: calls until the price is checked, and its answer.

    Args:
        is_lured: take the cached price first, and find it wrong.
    """

    def call(tool: str, step: str, **more_arguments: str) -> str:
        arguments = {"item": item, **more_arguments}
        return transcript.call(tool, arguments, step, opening=f"price of {item}.", result=step)

    price = call("get_price", "get_price")
    if is_lured:
        price = call("cached_price", "busy, cached_price")
        call("check_price", "check_price", price=price)
        price = call("get_price", "wrong, get_price")
    while price.startswith("error"):
        price = call("get_price", "busy, get_price")
    call("check_price", "check_price", price=price)
    transcript.answer(price, f"{price} is right")
