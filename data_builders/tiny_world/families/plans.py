"""Ordered plans that write to a small database of tickets, graded by the state they leave.

    "Close 4 and 7. 4 needs 7."  →  set_status(7, closed), set_status(4, closed)  →  done

A ticket that needs another cannot be closed before it, so the order matters; whatever else was
changed on the way also counts. Difficulty is the number of writes, at least 1.
"""

from __future__ import annotations

import random
from typing import Any

from data_builders.tiny_world.drafts import Draft, ItemDraw, Transcript, worded
from data_builders.tiny_world.vocabulary import CITIES, PEOPLE

WORDINGS = {
    "ordered": (
        "Close {x}.{needs}",
        "Please close tickets {x}.{needs}",
        "Tickets {x} are done: close them.{needs}",
    ),
    "move": ("Give {x} to {name}.", "Move tickets {x} to {name}.", "{name} takes over {x}."),
    "owner": (
        "{name} goes to {city}: close all tickets of {name}.",
        "Close every ticket of {name}, now in {city}.",
        "{name} is in {city}. Close what {name} has.",
    ),
}
CLOSED = {"status": "closed"}


def _tickets(rng: random.Random, size: int = 5) -> dict[str, dict[str, Any]]:
    keys = sorted(str(key) for key in rng.sample(range(10, 100), size))
    names = rng.sample(PEOPLE, 2)
    return {key: {"owner": rng.choice(names), "status": "open"} for key in keys}


def make(draw: ItemDraw) -> Draft:
    """One request of 1…5 writes; the tools are always declared."""
    rng = draw.rng
    task = rng.choice(("ordered", "move", "owner"))
    tickets = _tickets(rng)
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
    question = worded(draw, WORDINGS[task], **words)
    names = ["list_tickets", "set_status", "set_owner"]
    rng.shuffle(names)
    script = Transcript(draw, {"tickets": tickets}, tools=names)
    _carry_out(script, task, chosen=chosen, name=name)
    script.answer("done", "all done")
    return script.draft(
        key=f"plan {task} {about}",
        task=task,
        question=question,
        gold="done",
        grading="state",
        gold_state=script.world.state,
    )


def _carry_out(script: Transcript, task: str, *, chosen: list[str], name: str) -> None:
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
