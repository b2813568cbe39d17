"""Who grades a completion, what is measured of it, and the figures of a cell."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from posttrain.chat import parse_completion
from posttrain.evaluation.metrics import cell_rows, measure, select_examples
from posttrain.evaluation.run import Record, grade_completions, record_from_row, record_to_row
from posttrain.records import Score
from posttrain.rollouts import Completion, Step
from tests.evaluation.scripted import CALL, exact, prompt, turn


def record(text: str, *, asked=None, value: float | None = 1.0, index=0, **step) -> Record:
    asked = asked or prompt(0)
    parsed = parse_completion(text, thinking=asked.thinking, tools=asked.tools)
    made = Step(
        text=text,
        parsed=parsed,
        finish="stop" if parsed.finished else "length",
        reasoning_tokens=len(parsed.reasoning or ""),
        answer_tokens=len(parsed.answer),
        prompt_tokens=9,
        ids=tuple(range(5)),
    )
    made = replace(made, **step)
    completion = Completion(asked.id, index, (made,), made.finish)
    score = Score(value, "56", "compared", None if value is not None else "timeout")
    return grade_completions("sft", [(asked, completion)], lambda name, attempts: [score])[0]


def failed(index=0) -> Record:
    completion = Completion(prompt(0).id, index, (), "failed", error="gone")
    return grade_completions("sft", [(prompt(0), completion)], lambda name, attempts: [])[0]


OFF, TOOLS = prompt(0, thinking=False), prompt(0, tools=True)
BUDGET = replace(prompt(0), reasoning_budget=4)


@pytest.mark.parametrize(
    ("made", "figures"),  # None: the figure does not apply
    [
        (record(turn("56")), {"adherence": 1, "hallucination": 0, "forced_close": None}),
        (record(turn("56", reasoning=" \n")), {"adherence": 0}),
        (record("and so on"), {"adherence": 0, "truncated": 1, "malformed": 0}),
        (record(turn("56", thinking=False), asked=OFF), {"adherence": 1}),
        (record("<think>hm</think>56<|im_end|>", asked=OFF), {"adherence": 0}),
        (record("56</think><|im_end|>", asked=OFF), {"adherence": 0}),
        (record(turn(CALL)), {"hallucination": 1, "hallucination_answer": 1,
                              "hallucination_reasoning": 0, "called_tool": None}),
        (record(turn("56", reasoning=f"let me\n{CALL}")),
         {"hallucination": 1, "hallucination_answer": 0, "hallucination_reasoning": 1}),
        (record(turn(CALL), asked=TOOLS),
         {"called_tool": 1, "nonexistent_tool": 0, "hallucination": None}),
        (record(turn(CALL.replace("calculate", "search")), asked=TOOLS),
         {"called_tool": 0, "nonexistent_tool": 1}),
        (record(turn(CALL.replace("=expression", "=formula")), asked=TOOLS),
         {"fabricated_arguments": 1}),
        (record("a</think><tool_call>\n<function=f>"), {"truncated": 1, "malformed": 1}),
        (record(turn("56"), asked=BUDGET, forced=(2, 4)), {"forced_close": 1}),
        (record(turn("56"), asked=BUDGET), {"forced_close": 0}),
        (record(turn("56"), value=None), {"accuracy": None, "truncated": 0}),
        (failed(), {"accuracy": None, "truncated": None}),
    ],
)  # fmt: skip
def test_what_is_measured(made: Record, figures: dict[str, float | None]):
    found = measure(made)
    assert {name: found.get(name) for name in figures} == figures


def test_what_failed_or_was_not_scored_is_counted():
    rows = [record(turn("56")), record(turn("56"), value=None, index=1), failed(2)]
    (cell,) = cell_rows(rows, seed=0)
    assert (cell["samples"], cell["failed"], cell["unscored"]) == (3, 1, 1)
    assert cell["rates"]["accuracy"]["samples"] == 1
    assert cell["rates"]["truncated"]["samples"] == 2
    assert cell["finish"] == {"stop": 2, "failed": 1}


SILENT = Score(None, None, "unscored: no answer found; the prompt asks for no format")


def test_silence_is_wrong_and_raises_no_accuracy():
    right = [record(turn("56"), asked=prompt(n)) for n in range(90)]
    wrong = [record(turn("57"), asked=prompt(n), value=0.0) for n in range(90, 200)]
    asked = [prompt(n) for n in range(90, 200)]
    silent = [
        grade_completions("sft", [(p, r.completion)], lambda name, attempts: [SILENT])[0]
        for p, r in zip(asked, wrong, strict=True)
    ]
    (before,), (after,) = cell_rows(right + wrong, seed=0), cell_rows(right + silent, seed=0)
    assert before["rates"]["accuracy"] == after["rates"]["accuracy"]
    assert after["unscored"] == 0
    assert after["pass"] == before["pass"]
    # runs that were graded when silence was unscored are read alike
    row = record_to_row(silent[0]) | {"score": asdict(SILENT)}
    assert record_from_row(row).score.value == 0.0


def test_a_prompt_without_a_grader_has_no_accuracy_and_is_not_unscored():
    asked = prompt(0, grader=None)
    (made,) = grade_completions("sft", [(asked, record(turn("56")).completion)], exact)
    (cell,) = cell_rows([made], seed=0)
    assert made.score.value is None
    assert cell["unscored"] == 0
    assert "accuracy" not in cell["rates"]


def test_pass_at_k_leaves_out_prompts_with_too_few_scores():
    one = [record(turn("56"), value=v, index=k) for k, v in enumerate([1.0, 0.0, 0.0, 0.0])]
    asked = prompt(1)
    two = [
        record(turn("56"), asked=asked, value=v, index=k)
        for k, v in enumerate([1.0, 0.5, None, None])
    ]
    (cell,) = cell_rows(one + two, seed=0)
    assert set(cell["pass"]) == {"1", "2", "4"}
    assert cell["pass"]["1"]["value"] == pytest.approx((0.25 + 0.5) / 2)
    assert cell["pass"]["2"]["value"] == pytest.approx((0.5 + 1.0) / 2)
    assert (cell["pass"]["4"]["value"], cell["pass"]["4"]["questions"]) == (1.0, 1)
    assert cell["rates"]["accuracy"]["value"] == pytest.approx((0.25 + 0.75) / 2)


def test_settings_modes_and_tasks_are_apart_and_tasks_also_together():
    rows = [
        record(turn("56"), asked=prompt(0)),
        record(turn("56", thinking=False), asked=prompt(0, thinking=False)),
        record(turn("56"), asked=prompt(0, source="logs")),
    ]
    cells = [(c["task"], c["thinking"], c["questions"]) for c in cell_rows(rows, seed=0)]
    assert cells == [("maths", "on", 1), ("maths", "off", 1), ("logs", "on", 1), ("all", "on", 2)]


def test_forms_and_problems_are_counted():
    (cell,) = cell_rows([record(turn(CALL)), record("x", index=1)], seed=0)
    assert list(cell["call_forms"].values()) == [1]
    assert cell["problems"] == {"unclosed_think": 1}


def test_examples_are_few_and_of_each_kind():
    rows = [
        record(turn(CALL if k % 3 == 0 else "56"), value=float(k % 2), index=k) for k in range(40)
    ]
    shown = select_examples(rows)
    assert [r.completion.index for r in shown] == [0, 1, 2, 3, 4, 5]
    assert sum(r.verdict.any for r in shown) == 2
    # a single task may have the name of the row over all tasks
    named = [replace(row, prompt=replace(row.prompt, source="all")) for row in rows]
    assert len(select_examples(named)) == len(shown)


def test_each_is_graded_by_the_grader_that_it_names_and_failures_by_none():
    sizes: list[int] = []

    def counting(name, attempts):
        sizes.append(len(attempts))
        return exact(name, attempts)

    prompts = [prompt(k, grader=None if k == 0 else "exact") for k in range(5)]
    attempts = [(p, Completion(p.id, 0, (), "stop")) for p in prompts]
    attempts[3] = (prompts[3], Completion(prompts[3].id, 0, (), "failed", error="it went away"))
    records = grade_completions("sft", attempts, counting)
    assert sizes == [3]
    assert [r.score.value for r in records] == [None, 0.0, 0.0, None, 0.0]
    assert [r.failed for r in records] == [False, False, False, True, False]
    assert records[0].score.explanation == "no grader"
    assert records[3].score.explanation == "failed: it went away"
