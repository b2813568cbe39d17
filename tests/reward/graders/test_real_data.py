"""Graders on real data: every gold is accepted, near misses are not, others' grades are met."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from reward.graders.choice import MultipleChoice
from reward.graders.math import Math
from tests.reward.graders.attempts import near_misses, prompt_of, values

PHRASINGS = (
    "{0}", "\\boxed{{{0}}}", "The answer is {0}.", "So she has {0} apples left.", "#### {0}",
    "**Answer:** {0}", "Therefore they spent ${0} in total.", "x = {0}", "It costs **{0}** dollars.",
    "The final answer is $\\boxed{{{0}}}$.", "The total is \\({0}\\).", "Answer:\n{0} dollars",
)  # fmt: skip

# families of reasoning-gym whose answer is a number, a list of numbers or a formula, and whose own
# grader looks at its value; `tolerance` where it asks for no exact value
FAMILIES: dict[str, float | None] = {
    **dict.fromkeys([
        "basic_arithmetic", "chain_sum", "complex_arithmetic", "count_bits", "count_primes",
        "decimal_chain_sum", "dice", "gcd", "gsm_symbolic", "intermediate_integration", "lcm",
        "leg_counting", "letter_counting", "number_format", "number_sequence",
        "polynomial_equations", "polynomial_multiplication", "products", "rectangle_count",
        "rotten_oranges", "largest_island", "simple_equations", "simple_integration",
        "base_conversion", "binary_alternation", "self_reference", "aiw", "maze",
    ]),
    "decimal_arithmetic": 2.5e-4,
    "advanced_geometry": 1e-4,
    "power_function": 5e-3,
}  # fmt: skip
# (family, gold, answer) → why we accept what their grader does not
DISAGREEMENTS = {
    ("decimal_arithmetic", "-481.765010792", "-481.797578712"): "their tolerance is absolute",
    ("leg_counting", "254", "20 + 24 + 44 + 28 + 54 +"): "they want the total alone",
    ("polynomial_multiplication", "-16905418503090264597300", "(-7339*x**3 - 2070*x**2)"): "equal",
    ("polynomial_multiplication", "-9513138278827260*x**16", "-x**6*(6841*x + 22241)*("): "equal",
    ("power_function", "1.0", "1.00e+0"): "their grader is wrong",
    ("simple_equations", "52", "s = 52"): "they want the number alone",
    ("simple_equations", "94", "t = 94"): "they want the number alone",
    ("simple_equations", "10", "i = 10"): "they want the number alone",
}  # fmt: skip


def rows_of(shared: Path, name: str, *, one_in: int) -> list[dict[str, Any]]:
    """A fixed sample of rows; `python -m benchmarks graders` grades all."""
    lines = (shared / "data" / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if zlib.crc32(line.encode()) % one_in == 0]


@pytest.fixture(scope="module")
def golds(shared: Path) -> list[tuple[str, str]]:
    """Golds of GSM8K and the solutions that end in them: all that are no plain digits, some others."""
    rows = [row["answer"] for row in rows_of(shared, "gsm8k_train.jsonl", one_in=1)]
    pairs = [(row.rsplit("####", 1)[1].strip(), row) for row in rows]
    rare = [pair for pair in pairs if not pair[0].isdigit()]
    assert len(rare) == 82
    return [*rare, *pairs[::40]]


@pytest.mark.parametrize("grader", [Math(), Math(numbers_only=True)], ids=["math", "numeric"])
def test_gsm8k_golds_are_accepted_and_near_misses_are_not(golds, grader: Math):
    prompts = [prompt_of(gold) for gold, _ in golds]
    assert set(grader.refuse(prompts)) == {None}
    right = [(prompt, row) for prompt, (_, row) in zip(prompts, golds, strict=True)]
    right += [(prompt_of(g), phrasing.format(g)) for phrasing in PHRASINGS for g, _ in golds[::3]]
    assert set(values(grader, right)) == {1.0}
    wrong = [
        (prompt_of(gold), PHRASINGS[k % len(PHRASINGS)].format(answer))
        for k, (gold, _) in enumerate(golds[::2])
        for answer in near_misses(gold).values()
    ]
    wrong += [(prompt_of(f"{gold} km"), f"\\boxed{{{gold} m}}") for gold, _ in golds[:30]]
    wrong += [(prompt_of(f"${gold}"), f"Answer: {gold} cents") for gold, _ in golds[30:60]]
    accepted = [w for w, value in zip(wrong, values(grader, wrong), strict=True) if value != 0.0]
    assert accepted == []


def test_grades_agree_with_those_of_reasoning_gym(shared: Path):
    """Where they differ, it is listed: by the value of the answer, ours is the right one."""
    rows = rows_of(shared, "reasoning_gym_graded.jsonl", one_in=3)
    rows = [row for row in rows if row["name"] in FAMILIES]
    assert len({row["name"] for row in rows}) > 20
    prompts = [_prompt(row) for row in rows]
    assert set(Math().refuse(prompts)) == {None}
    graded = [(p, row, c) for p, row in zip(prompts, rows, strict=True) for c in row["completions"]]
    ours = values(Math(), [(p, c["full_model_response"] or "") for p, _, c in graded])
    differ = {
        (row["name"], row["expected_answer"][:24].strip(), str(completion["model_answer"])[:24])
        for (_, row, completion), value in zip(graded, ours, strict=True)
        if (value == 1.0) != (completion["score"] == 1.0)
    }
    assert None not in ours
    assert differ <= {(name, gold[:24].strip(), a[:24]) for name, gold, a in DISAGREEMENTS}


def _prompt(row: dict[str, Any]) -> Any:
    tolerance = FAMILIES[row["name"]]
    metadata = {} if tolerance is None else {"tolerance": tolerance}
    return prompt_of(str(row["expected_answer"]), **metadata)


CHOICES = (
    "\\boxed{{{0}}}", "The answer is ({0}).", "**Answer: {0}**", "{0}", "({0}) {1}", "{0}. {1}",
    "I first thought A, then B. Final answer: \\boxed{{\\text{{{0}}}}}", "<answer>{0}</answer>",
    "Therefore, the answer is option {0}: {1}", "The correct option is {0}.", "\\boxed{{{0}. {1}}}",
    "The answer is {0} because the others fail.", "Answer:\n\n{0}", "#### {0}", "\\boxed{{{1}}}",
    "The answer is: {1}", "Is it A? No, the best choice is B.\n\nAnswer: **{0}**",
)  # fmt: skip


def test_mmlu_golds_are_accepted_and_no_other_letter(shared: Path):
    rows = rows_of(shared, "mmlu_dev_val.jsonl", one_in=8)
    prompts = [prompt_of(row["answer"], options={k: row[k] for k in "ABCD"}) for row in rows]
    grader = MultipleChoice()
    assert set(grader.refuse(prompts)) == {None}
    for phrasing in CHOICES:
        requests = [
            (prompt, phrasing.format(letter, row[letter]))
            for prompt, row in zip(prompts, rows, strict=True)
            for letter in "ABCD"
        ]
        right = [letter == row["answer"] for row in rows for letter in "ABCD"]
        given = values(grader, requests)
        assert [value == 1.0 for value in given] == right, phrasing
        # the text of two options alike, and one "(A) -$1,000"
        assert given.count(None) <= 4, phrasing
