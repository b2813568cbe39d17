"""NeMo Gym's rows: which environment reads them, and why a row is dropped."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.rollouts import Prompt, metadata_of
from reward.environments import ENVIRONMENTS
from reward.environments.base import admit
from reward.environments.gym_rows import SERVERS, gym_row
from tests.reward.environments.scoring import verify

SHARED = Path(__file__).parents[4] / "shared/data/nemo_gym_example_tasks.jsonl"


def row(server: str, text: Any = "Use \\boxed{}.", **fields: Any) -> dict[str, Any]:
    tools = fields.pop("tools", [])
    parameters = {"input": [{"role": "user", "content": text}], "tools": tools}
    agent = {"type": "responses_api_agents", "name": f"{server}_simple_agent"}
    return {"responses_create_params": parameters, "agent_ref": agent, **fields}


TOOL = {"type": "function", "name": "go", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "name": "go", "arguments": '{"to": "Bonn"}'}
PARTS = [{"type": "input_text", "text": "Use "}, {"type": "input_text", "text": "\\boxed{}."}]


@pytest.mark.parametrize(
    ("given", "environment", "gold"),
    [
        (row("math_with_judge", PARTS, expected_answer="4"), "math", "4"),
        (row("math_with_judge", expected_answer='["4"]'), "math", "4"),
        (row("mcqa", options=[{"A": "x"}, {"B": "y"}], expected_answer="B"), "multiple_choice", "B"),
        (row("single_step_tool_use_with_argument_comparison", tools=[TOOL], expected_action=CALL),
         "tool_call", {"calls": [{"name": "go", "arguments": {"to": "Bonn"}}]}),
        (row("xlam_fc", tools=[TOOL], expected_answers=[{"name": "go", "arguments": {}}]),
         "tool_call", {"calls": [{"name": "go", "arguments": {}}]}),
    ],
)  # fmt: skip
def test_a_row_is_read_by_its_servers_environment(
    given: dict[str, Any], environment: str, gold: Any
):
    own = gym_row(given)
    assert (own["environment"], own["gold"]) == (environment, gold)
    prompt = ENVIRONMENTS[environment]().prompt(own)
    assert prompt.messages[-1].content == "Use \\boxed{}."


def test_instructions_become_constraints():
    ids = ["length_constraints:number_words", "length_constraints:nth_paragraph_first_word"]
    given = [
        {"num_words": 40, "relation": "less than", "unused": None},
        {"num_paragraphs": 4, "nth_paragraph": 3, "first_word": "crash"},
    ]
    own = gym_row(row("instruction_following", instruction_id_list=ids, kwargs=given))
    prompt = ENVIRONMENTS["instruction_following"]().prompt(own)
    assert metadata_of(prompt)["constraints"] == [
        {"kind": "words", "at_most": 39},
        {"kind": "paragraphs", "exactly": 4},
        {"kind": "paragraph_start", "paragraph": 3, "word": "crash"},
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (row("openenv"), "unknown_environment"),
        (row("ifbench", instruction_id_list=[]), "evaluation_only"),
        (row("math_with_judge"), "malformed_row"),
        ({"expected_answer": "4"}, "unknown_environment"),
        (row("math_with_judge", [{"type": "input_image"}], expected_answer="4"), "malformed_row"),
        (row("instruction_following", instruction_id_list=["x:y"], kwargs=[{}]), "malformed_row"),
        (row("mcqa", options="AB", expected_answer="B"), "malformed_row"),
    ],
)
def test_a_row_that_is_not_understood_is_dropped_with_a_reason(given: dict[str, Any], reason: str):
    with pytest.raises(DataError) as caught:
        gym_row(given)
    assert str(caught.value).startswith(reason)


def unnamed(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != "agent_ref"}


def test_rows_without_an_agent_are_of_the_recipes_environment_or_server():
    xlam = unnamed(row("xlam_fc", tools=[TOOL], expected_answers=[{"name": "go", "arguments": {}}]))
    choice = unnamed(row("mcqa", options=[{"A": "x"}, {"B": "y"}], expected_answer="B"))
    assert gym_row(choice, environment="multiple_choice")["gold"] == "B"
    assert gym_row(xlam, environment="tool_call") == gym_row(xlam, server="xlam_fc")
    with pytest.raises(DataError, match="unknown_environment: no agent_ref"):
        gym_row(choice)
    with pytest.raises(DataError, match="malformed_row"):
        gym_row(choice, environment="tool_call")
    other = row("somebodys", options=[{"A": "x"}, {"B": "y"}], expected_answer="B")
    assert gym_row(other, server="mcqa")["gold"] == "B"
    with pytest.raises(DataError, match="unknown_environment: somebodys"):
        gym_row(other, environment="multiple_choice")
    with pytest.raises(DataError, match="evaluation_only"):
        gym_row(row("ifbench"), server="mcqa")
    # an agent that we know says what its row is
    assert gym_row(row("mcqa", **{k: choice[k] for k in ("options", "expected_answer")}),
                   server="xlam_fc")["environment"] == "multiple_choice"  # fmt: skip


def test_the_system_prompt_beside_the_input_is_read_and_the_input_may_be_a_text():
    given = row("math_with_judge", expected_answer="4")
    given["responses_create_params"] |= {"input": "2+2?", "instructions": "Be brief."}
    messages = gym_row(given)["messages"]
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "Be brief."),
        ("user", "2+2?"),
    ]


def leetcode(name: str, inputs: list[Any], outputs: list[Any]) -> Prompt:
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": name}
    fields = gym_row(row("code_gen", verifier_metadata={"unit_tests": tests}))
    return ENVIRONMENTS["code"]().prompt(fields)


METHOD = """```python
class Solution:
    def __init__(self):
        self.calls = 0

    def pairs(self, nums: List[int], name: str) -> List[Tuple[int, int]]:
        self.calls += 1
        return [(v, c) for v, c in sorted(Counter(nums).items())] if self.calls == 1 else name
```"""
FUNCTION = """```python
def pairs(nums, name):
    return [[v, c] for v, c in sorted(Counter(nums).items())]
```"""
MEAN = "```python\nclass Solution:\n    def mean(self, a):\n        return {}\n```"


def test_rows_of_leetcode_are_functions_or_methods_of_solution_with_an_argument_a_line():
    prompt = leetcode("pairs", ['[2, 1, 2]\n"x y"', "[]\nnull"], ["[[1, 1], [2, 2]]", "[]"])
    assert metadata_of(prompt)["tests"][0]["input"] == [[2, 1, 2], "x y"]
    scores = verify(ENVIRONMENTS["code"](), prompt, METHOD, FUNCTION,
                    METHOD.replace("sorted(", "("), METHOD.replace("pairs", "other"))  # fmt: skip
    assert [score.value for score in scores] == [1.0, 1.0, 0.0, 0.0]
    mean = leetcode("mean", ["[1, 1]", "[1, 2, 2]"], ["1", "1.66667"])
    answers = [MEAN.format(text) for text in ("sum(a) / len(a)", "1.667", "True", "1.66667")]
    scores = verify(ENVIRONMENTS["code"](), mean, *answers)
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.0]
    true = leetcode("mean", ["[1]"], ["true"])
    scores = verify(ENVIRONMENTS["code"](), true, MEAN.format("True"), MEAN.format("1.0"))
    assert [score.value for score in scores] == [1.0, 0.0]


@pytest.mark.skipif(not SHARED.exists(), reason="NVIDIA's example rows are not here")
def test_of_nvidias_examples_all_but_the_benchmarks_are_read_by_a_recipes_environment():
    listed = [json.loads(line) for line in SHARED.read_text("utf-8").splitlines()]
    own = [r for r in listed if r["env"] in SERVERS.keys() - {"lc_niah"}]
    assert len(own) == 78
    for one in own:
        assert gym_row(one["task"], environment=SERVERS[one["env"]][0])["messages"]


@pytest.mark.skipif(not SHARED.exists(), reason="NVIDIA's example rows are not here")
def test_nvidias_examples_are_read_or_dropped_and_none_is_lost():
    listed = [json.loads(line) for line in SHARED.read_text("utf-8").splitlines()]
    needs = {"equivalence_llm_judge", "multichallenge", "reasoning_gym", "code_gen"}
    own = [r["task"] for r in listed if r["env"] in SERVERS.keys() - needs]
    names = [r["env"] for r in listed if r["env"] in SERVERS.keys() - needs]
    servers = iter(names)
    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    convert = lambda given: gym_row(given, server=next(servers))  # noqa: E731 - rows in order
    admitted = asyncio.run(admit(iter(own), environments, convert=convert))
    assert len(admitted.prompts) + len(admitted.dropped) == len(own)
    assert len(admitted.prompts) >= 38
