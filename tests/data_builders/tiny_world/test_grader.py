"""The tiny world's grader on whole completions: answers, calls, states, and what is no answer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.grading import TinyWorldGrader
from data_builders.tiny_world.items import Choices, Place, make_item
from posttrain.chat.parse import ParsedCompletion
from posttrain.records import Score, ToolCall, json_text
from posttrain.rollouts import Completion, Prompt, Step
from reward.graders.base import Attempt


def item_of(family: str, index: int = 0) -> dict[str, Any]:
    return make_item(Place(seed=3, split="train", family=family, index=index), Choices())


def prompt_of(item: dict[str, Any], *, tools: bool = True) -> Prompt:
    declared = json_text(item["tools"]) if tools and item["tools"] else None
    metadata = json_text(item["metadata"])
    return Prompt(
        id="p",
        task="p",
        setting="s",
        messages=(),
        tools=declared,
        gold=item["metadata"]["gold"],
        metadata=metadata,
    )


def completion_of(answer: str, *, calls: tuple[str, ...] = (), state: Any = None) -> Completion:
    parsed = ParsedCompletion(None, answer, tuple(ToolCall(name) for name in calls), (), True)
    step = Step(answer, parsed, "stop", reasoning_tokens=0, answer_tokens=0, prompt_tokens=0)
    text = None if state is None else json_text({"state": state, "calls": list(calls)})
    return Completion(prompt_id="p", index=0, steps=(step,), finish="stop", state=text)


def grade(prompt: Prompt, completion: Completion) -> Score:
    return TinyWorldGrader().grade([Attempt(prompt, completion)])[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_gold_passes_and_another_answer_does_not(family: str):
    for index in range(6):
        item = item_of(family, index)
        prompt, metadata = prompt_of(item), item["metadata"]
        reason = TinyWorldGrader().refuse([prompt])[0]
        if metadata["grading"] == "question":
            assert reason == "needs_replies"
            continue
        assert reason is None
        state = metadata["gold_state"]
        assert grade(prompt, completion_of(metadata["gold"], state=state)).value == 1.0
        wrong = grade(prompt, completion_of("quite another answer", state=state))
        assert wrong.value == 0.0
        assert wrong.answer == "quite another answer"


def test_a_call_that_the_prompt_did_not_declare_is_wrong():
    item = next(i for i in (item_of("maths", k) for k in range(50)) if i["tools"])
    name, gold = item["metadata"]["tools_declared"][0], item["metadata"]["gold"]
    called = completion_of(gold, calls=(name,))
    assert grade(prompt_of(item), called).value == 1.0
    # the same item in a setting without tools: its metadata still lists them
    assert grade(prompt_of(item, tools=False), called) == Score(0.0, gold, "undeclared_call")
    assert grade(prompt_of(item), completion_of(gold, calls=("search",))).value == 0.0


def test_an_item_graded_by_its_state_needs_the_state():
    items = (item_of(family, k) for family in FAMILIES for k in range(8))
    item = next(i for i in items if i["metadata"]["grading"] == "state")
    metadata = item["metadata"]
    for state in (metadata["initial_state"], None):  # None: no environment, so nothing was changed
        score = grade(prompt_of(item), completion_of(metadata["gold"], state=state))
        assert score == Score(0.0, metadata["gold"], "wrong_state")


def test_no_answer_to_grade():
    prompt = prompt_of(item_of("maths"))
    cut = dataclasses.replace(completion_of(prompt.gold or ""), finish="token_limit")
    failed = Completion(prompt_id="p", index=0, steps=(), finish="failed", error="gone")
    assert grade(prompt, cut) == Score(0.0, None, "truncated: token_limit")
    assert grade(prompt, failed) == Score(None, None, "failed: gone")


def test_a_prompt_of_another_kind_is_refused_and_unscored():
    prompt = dataclasses.replace(prompt_of(item_of("maths")), metadata="{}")
    assert TinyWorldGrader().refuse([prompt]) == [
        "no_item: metadata lacks grading, gold, gold_state, options, tools_declared"
    ]
    assert grade(prompt, completion_of("5")).value is None
    assert json.loads(prompt.metadata) == {}
