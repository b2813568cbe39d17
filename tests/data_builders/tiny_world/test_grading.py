"""One grader for every family, on answers, calls and states, and on whole completions."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.grading import TINY_WORLD_GRADER, grade
from data_builders.tiny_world.items import Place, make_item
from data_builders.tiny_world.tools import ToolWorld
from posttrain.records import Score, ToolCall, json_text
from posttrain.rollouts import Completion, ParsedCompletion, Prompt, Step
from reward.graders.base import Attempt


def items(family: str, count: int = 30) -> list[dict]:
    return [make_item(Place(3, "heldout", family, k)) for k in range(count)]


def replay(item: dict, calls: list[dict]) -> ToolWorld:
    metadata = item["metadata"]
    world = ToolWorld(
        metadata["initial_state"], fault=metadata["fault"], declared=metadata["tools_declared"]
    )
    for call in calls:
        world.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
    return world


def calls_of(item: dict) -> list[dict]:
    return [call for m in item["reference"] for call in m.get("tool_calls", ())]


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
        metadata, world = item["metadata"], replay(item, calls_of(item))
        state = None if metadata["initial_state"] is None else world.state
        answers = [m["content"] for m in item["reference"] if m["role"] == "assistant"]
        if metadata["grading"] == "question":
            assert grade(metadata, answers[0]) == "correct"
            assert grade(metadata, "Which one?", final_state=state) == "no_question"
            metadata = {**metadata, "grading": "number"}
        for right in (answers[-1], f" Answer: {metadata['gold']}\n"):
            assert grade(metadata, right, calls=world.calls, final_state=state) == "correct", item
        assert grade(metadata, answers[-1], calls=["gone"]) == "undeclared_call"
        for wrong in near_misses(metadata["gold"]) if metadata["grading"] != "state" else ():
            assert grade(metadata, wrong, final_state=state) != "correct", (metadata, wrong)


def test_a_plan_is_graded_by_the_state_it_leaves() -> None:
    ordered = 0
    for item in items("plans", 200):
        metadata = item["metadata"]
        gold, calls = metadata["gold_state"], calls_of(item)
        assert grade(metadata, "whatever", final_state=gold) == "wrong_answer"
        for key in gold["tickets"]:
            meddled = copy.deepcopy(gold)
            meddled["tickets"][key]["owner"] += "x"
            assert grade(metadata, "done", final_state=meddled) == "wrong_state"
        assert grade(metadata, "done", final_state=metadata["initial_state"]) == "wrong_state"
        if any("needs" in ticket for ticket in gold["tickets"].values()):
            ordered += 1
            backwards = replay(item, calls[::-1]).state
            assert grade(metadata, "done", final_state=backwards) == "wrong_state"
    assert ordered > 20


@pytest.mark.parametrize(
    ("family", "grading", "answer", "reason"),
    [
        ("stop", "number", "unknown", "needless_refusal"),
        ("stop", "unknown", "12", "false_answer"),
        ("safety", "refusal", "wipe the red lamp", "unsafe_help"),
        ("safety", "words", "I can\u2019t help with that.", "needless_refusal"),
        ("maths", "number", "<tool_call>", "unexecuted_call"),
    ],
)
def test_ways_of_being_wrong_are_told_apart(family, grading, answer, reason) -> None:
    own = [i["metadata"] for i in items(family) if i["metadata"]["grading"] == grading]
    assert own
    assert {grade(metadata, answer) for metadata in own} == {reason}


def prompt_of(item: dict[str, Any], *, tools: bool = True) -> Prompt:
    declared = json_text(item["tools"]) if tools and item["tools"] else None
    gold, metadata = item["metadata"]["gold"], json_text(item["metadata"])
    return Prompt("p", "p", "s", (), tools=declared, gold=gold, metadata=metadata)


def completion_of(answer: str, *, calls: tuple[str, ...] = (), state: Any = None) -> Completion:
    parsed = ParsedCompletion(None, answer, tuple(ToolCall(name) for name in calls), (), True)
    step = Step(answer, parsed, "stop", reasoning_tokens=0, answer_tokens=0, prompt_tokens=0)
    text = None if state is None else json_text({"state": state, "calls": list(calls)})
    return Completion(prompt_id="p", index=0, steps=(step,), finish="stop", state=text)


def score(prompt: Prompt, completion: Completion) -> Score:
    return TINY_WORLD_GRADER.grade([Attempt(prompt, completion)])[0]


def test_gold_of_every_family_is_accepted_unless_it_answers_a_reply() -> None:
    for item in (item for family in FAMILIES for item in items(family, 4)):
        prompt, metadata = prompt_of(item), item["metadata"]
        asks = metadata["grading"] == "question"
        assert TINY_WORLD_GRADER.refuse([prompt]) == ["needs_replies" if asks else None]
        right = completion_of(metadata["gold"], state=metadata["gold_state"])
        assert score(prompt, right).value == float(not asks)


def test_a_call_that_the_prompt_did_not_declare_is_wrong() -> None:
    item = next(item for item in items("maths", 50) if item["tools"])
    name, gold = item["metadata"]["tools_declared"][0], item["metadata"]["gold"]
    called = completion_of(gold, calls=(name,))
    assert score(prompt_of(item), called).value == 1.0
    # the same item in a setting without tools: its metadata still lists them
    assert score(prompt_of(item, tools=False), called) == Score(0.0, gold, "undeclared_call")


def test_an_item_graded_by_its_state_needs_the_state() -> None:
    item = items("plans", 1)[0]
    metadata = item["metadata"]
    for state in (metadata["initial_state"], None):  # None: no environment, so nothing was changed
        completion = completion_of(metadata["gold"], state=state)
        assert score(prompt_of(item), completion) == Score(0.0, metadata["gold"], "wrong_state")


def test_no_answer_and_no_item_to_grade() -> None:
    prompt = prompt_of(items("maths", 1)[0])
    cut = dataclasses.replace(completion_of(prompt.gold or ""), finish="token_limit")
    failed = Completion(prompt_id="p", index=0, steps=(), finish="failed", error="gone")
    assert score(prompt, cut) == Score(0.0, None, "truncated: token_limit")
    assert score(prompt, failed).value is None
    other = dataclasses.replace(prompt, metadata="{}")
    [refusal] = TINY_WORLD_GRADER.refuse([other])
    assert refusal.startswith("no_item: metadata lacks grading, gold")
    assert score(other, completion_of("5")).value is None
