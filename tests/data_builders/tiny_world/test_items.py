from __future__ import annotations

import functools
import json

import pytest

from data_builders.tiny_world.families import CHAINED, FAMILIES, PAIRED
from data_builders.tiny_world.items import Choices, Place, make_item
from data_builders.tiny_world.tools import TOOLS

METADATA = {
    "family", "task", "split", "seed", "index", "difficulty", "verbosity", "paraphrase", "twin",
    "turns", "answerable", "gold", "grading", "options", "replies", "with_tools", "tools_declared",
    "initial_state", "gold_state", "fault", "minimum_calls",
}  # fmt: skip


@functools.cache
def items(family: str, split: str = "train", count: int = 120, seed: int = 1) -> list[dict]:
    return [make_item(Place(seed, split, family, k)) for k in range(count)]


def calls_of(item: dict) -> list[str]:
    calls = (call for m in item["reference"] for call in m.get("tool_calls", ()))
    return [call["function"]["name"] for call in calls]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_item_is_the_same_alone_and_in_sequence_and_another_with_another_seed(family: str):
    sequence, other = items(family), items(family, seed=2)
    for index in (19, 0, 7):
        alone = make_item(Place(1, "train", family, index))
        assert json.dumps(alone) == json.dumps(sequence[index])
    assert [item["prompt"] for item in sequence] != [item["prompt"] for item in other]


@pytest.mark.parametrize("family", FAMILIES)
def test_heldout_questions_never_appear_in_training_under_any_seed(family: str) -> None:
    def questions(item: dict) -> list[str]:
        return [m["content"] for m in item["prompt"] if m["role"] == "user"]

    train = {q for seed in (1, 2) for i in items(family, seed=seed) for q in questions(i)}
    heldout = {q for item in items(family, "heldout", 200, seed=7) for q in questions(item)}
    assert len(heldout) > 80
    assert not train & heldout


@pytest.mark.parametrize("family", FAMILIES)
def test_metadata_is_complete_and_steps_reason_in_three_lengths(family: str) -> None:
    lengths: dict[str, list[int]] = {"terse": [], "plain": [], "chatty": []}
    for item in items(family):
        metadata, calls = item["metadata"], calls_of(item)
        assert set(metadata) == METADATA
        assert metadata["family"] == family
        assert (metadata["twin"] is None) == (family not in PAIRED)
        declared = [tool["function"]["name"] for tool in item["tools"] or []]
        assert metadata["tools_declared"] == declared
        assert metadata["with_tools"] == bool(declared)
        assert set(calls) <= set(declared) <= set(TOOLS)
        assert (metadata["gold_state"] is None) == (metadata["initial_state"] is None)
        assert len(calls) >= metadata["minimum_calls"]
        steps = [m for m in item["reference"] if m["role"] == "assistant"]
        assert all(step["reasoning_content"].strip() for step in steps)
        lengths[metadata["verbosity"]].append(len(steps[0]["reasoning_content"]))
    terse, plain, chatty = (sum(found) / len(found) for found in lengths.values())
    assert terse < plain < chatty


@pytest.mark.parametrize("family", sorted(PAIRED))
def test_twins_point_at_each_other_and_differ(family: str) -> None:
    for even, odd in zip(*[iter(items(family))] * 2, strict=True):
        assert even["metadata"]["twin"] == odd["id"]
        assert odd["metadata"]["twin"] == even["id"]
        assert even["metadata"]["difficulty"] == odd["metadata"]["difficulty"]
        assert [even["prompt"], even["tools"]] != [odd["prompt"], odd["tools"]]


@pytest.mark.parametrize("family", sorted(CHAINED))
def test_the_share_of_several_turns_is_the_one_asked_for(family: str) -> None:
    choices = Choices(tools_declared=0.0, several_turns=0.3)
    made = (make_item(Place(1, "train", family, index), choices) for index in range(400))
    assert 80 < sum(item["metadata"]["turns"] == 2 for item in made) < 160


@pytest.mark.parametrize("family", ["logs", "steps"])
def test_tools_of_no_use_are_declared_and_not_called(family: str) -> None:
    for index in range(50):
        place = Place(1, "train", family, index)
        idle = make_item(place, Choices(tools_declared=1.0))
        bare = make_item(place, Choices(tools_declared=0.0, several_turns=0.0))
        assert len(set(idle["metadata"]["tools_declared"])) == 2
        assert bare["tools"] is None
        # the same question and the same answer: only the declaration differs
        assert (idle["prompt"], idle["reference"]) == (bare["prompt"], bare["reference"])
        assert not calls_of(idle)


def test_a_sum_is_worked_by_hand_where_no_calculator_is_declared() -> None:
    called = 0
    for index in range(200):
        item = make_item(Place(1, "train", "maths", index), Choices(tools_declared=1.0))
        calculator = "calculate" in item["metadata"]["tools_declared"]
        assert len(set(item["metadata"]["tools_declared"])) == 2
        assert bool(calls_of(item)) == calculator == (item["metadata"]["minimum_calls"] == 1)
        called += calculator
    assert 70 < called < 110
