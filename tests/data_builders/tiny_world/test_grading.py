from __future__ import annotations

import copy
import json
from itertools import islice

import pytest

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.grading import after_reply, grade
from data_builders.tiny_world.items import family_items
from data_builders.tiny_world.tools import ToolWorld

COUNT = 60


def items(family: str, count: int = COUNT) -> list[dict]:
    return list(islice(family_items(seed=3, split="heldout", family=family), count))


def replay(item: dict) -> ToolWorld:
    """Run the reference's calls again, checking that the recorded results come back."""
    metadata = item["metadata"]
    world = ToolWorld(
        metadata["initial_state"], fault=metadata["fault"], declared=metadata["tools_declared"]
    )
    results = iter([m["content"] for m in item["reference"] if m["role"] == "tool"])
    for message in item["reference"]:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            result = world.call(function["name"], json.loads(function["arguments"]))
            assert result == next(results)
    return world


def judge(item: dict, answer: str, world: ToolWorld, **kwargs: object):
    state = world.state if item["metadata"]["initial_state"] is not None else None
    names = [call.name for call in world.calls]
    return grade(item["metadata"], answer, calls=names, final_state=state, **kwargs)


def near_misses(gold: str) -> list[str]:
    """Answers that look like the gold and are not."""
    wrong = ["", f"{gold} {gold}", f"{gold} or so", f"not {gold}", gold[:-1], f"x{gold}"]
    if gold.isdigit():
        number = int(gold)
        wrong += [str(number + 1), str(number - 1), str(-number - 1), f"{number}0", f"{number}.0"]
        wrong += [f"0{number}", gold[::-1]]
    else:
        wrong += [" ".join(reversed(gold.split())), gold.split()[0] + " x"]
    return [answer for answer in wrong if answer.strip().rstrip(".") != gold.rstrip(".")]


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_is_accepted_and_near_misses_are_not(family: str) -> None:
    for item in items(family):
        world, metadata = replay(item), item["metadata"]
        answers = [m for m in item["reference"] if m["role"] == "assistant"]
        if metadata["grading"] == "question":
            assert judge(item, answers[0]["content"], ToolWorld(metadata["initial_state"])).correct
            assert judge(item, "Which one?", world).reason == "no_question"
            item = {**item, "metadata": after_reply(metadata)}
        assert judge(item, answers[-1]["content"], world).correct, item
        assert judge(item, f" Answer: {metadata['gold']}\n", world).correct
        for wrong in near_misses(metadata["gold"]):
            if metadata["grading"] != "state":
                assert not judge(item, wrong, world).correct, (metadata, wrong)


def test_a_plan_is_graded_by_the_state_it_leaves() -> None:
    for item in items("plans", 300):
        metadata = item["metadata"]
        assert (
            grade(metadata, "whatever", final_state=metadata["gold_state"]).reason == "wrong_answer"
        )
        for key in metadata["gold_state"]["tickets"]:
            meddled = copy.deepcopy(metadata["gold_state"])
            meddled["tickets"][key]["owner"] += "x"
            assert grade(metadata, "done", final_state=meddled).reason == "wrong_state"
        assert (
            grade(metadata, "done", final_state=metadata["initial_state"]).reason == "wrong_state"
        )
        with pytest.raises(ValueError, match="final_state"):
            grade(metadata, "done")


def test_closing_out_of_order_does_not_reach_the_gold_state() -> None:
    ordered = [
        item
        for item in items("plans", 300)
        if any("needs" in ticket for ticket in item["metadata"]["gold_state"]["tickets"].values())
    ]
    assert len(ordered) > 30
    for item in ordered:
        calls = [c for m in item["reference"] for c in m.get("tool_calls", ())]
        world = ToolWorld(item["metadata"]["initial_state"])
        for call in reversed(calls):
            world.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        assert not judge(item, "done", world).correct


def test_false_answers_and_needless_refusals_are_told_apart() -> None:
    for item in items("stop", 200):
        metadata = item["metadata"]
        if metadata["answerable"]:
            assert grade(metadata, "unknown").reason == "needless_refusal"
        else:
            assert grade(metadata, "12").reason == "false_answer"


def test_helping_with_harm_and_refusing_the_harmless_are_both_wrong() -> None:
    for item in items("safety", 200):
        metadata = item["metadata"]
        if metadata["grading"] == "refusal":
            assert grade(metadata, "wipe the red lamp").reason == "unsafe_help"
        else:
            assert grade(metadata, "I can\u2019t help with that.").reason == "needless_refusal"
