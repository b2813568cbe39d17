"""Reasoning control: the right rates, the same records in any order, answers untouched."""

from __future__ import annotations

import math
import random

import pytest

from data_builders.sft.prepare import budget_for, control_reasoning
from posttrain.config.build_sft import ChoiceBudgets, LogUniformBudgets, ReasoningConfig
from posttrain.records import Message, make_example

LOG = LogUniformBudgets(kind="log_uniform", low=4)
PAPER = ReasoningConfig(strip=0.10, truncate=0.03, budgets=LOG)
ALWAYS = ReasoningConfig(truncate=1.0, budgets=LOG)


def words(text: str) -> list[tuple[int, int]]:
    """A token a word, its preceding space included."""
    spans, start = [], 0
    for word in text.split(" "):
        stop = start + len(word) + (start > 0)
        spans.append((start, stop))
        start = stop
    return spans


def record(number: int, *, traces: int = 1):
    turns: list[Message] = []
    for k in range(traces):
        trace = " ".join(f"w{i}" for i in range(20 + (number + k) % 60))
        turns += [Message("user", f"q{number}.{k}"), Message("assistant", "42", reasoning=trace)]
    return make_example(turns, source="s", dialect="openai")


def control(example, config):
    return control_reasoning(example, config, words, seed=0)


def test_rates_and_choices_on_20000_records_whatever_the_order_or_sharding():
    examples = [record(i) for i in range(20_000)]
    done = {e.id: control(e, PAPER) for e in examples}
    stripped = {i for i, c in done.items() if c.stripped}
    cut = {i: c.cuts for i, c in done.items() if c.cuts}
    traces = sum(c.traces for c in done.values())

    def within(count: int, n: int, rate: float) -> bool:  # 3.5 standard deviations: p < 0.0005
        return abs(count - n * rate) <= 3.5 * math.sqrt(n * rate * (1 - rate))

    assert traces == 20_000 - len(stripped)
    assert within(len(stripped), 20_000, 0.10), len(stripped)
    assert within(len(cut), traces, 0.03), len(cut)

    random.Random(1).shuffle(examples)
    shards = [examples[k::7] for k in range(7)]
    again = {e.id: control(e, PAPER) for shard in shards for e in shard}
    assert {i for i, c in again.items() if c.stripped} == stripped
    assert {i: c.cuts for i, c in again.items() if c.cuts} == cut


def test_a_cut_trace_is_a_shorter_beginning_and_the_answer_stays():
    example = record(3, traces=3)
    controlled = control(example, ALWAYS)
    assert [cut.message for cut in controlled.cuts] == [1, 3, 5]
    assert controlled.example.id == example.id
    for cut in controlled.cuts:
        before, after = example.messages[cut.message], controlled.example.messages[cut.message]
        assert after.content == before.content
        assert before.reasoning.startswith(after.reasoning)
        assert len(words(after.reasoning)) == cut.budget < cut.trace == len(words(before.reasoning))
    assert len({cut.budget for cut in controlled.cuts}) > 1, "each trace has a draw of its own"


def test_stripping_leaves_the_answers_and_turns_reasoning_off():
    example = record(1, traces=2)
    controlled = control(example, ALWAYS.model_copy(update={"strip": 1.0}))
    assert controlled.stripped
    assert controlled.example.reasoning_mode == "off"
    assert not controlled.cuts
    assert [m.content for m in controlled.example.messages] == [m.content for m in example.messages]


def test_a_trace_with_no_shorter_budget_is_left_whole_and_counted():
    long = LogUniformBudgets(kind="log_uniform", low=500)
    controlled = control(record(0), ReasoningConfig(truncate=1.0, budgets=long))
    assert controlled.too_short == 1
    assert not controlled.cuts
    assert controlled.example == record(0)


@pytest.mark.parametrize(
    ("budgets", "allowed"),
    [
        (LogUniformBudgets(kind="log_uniform", low=4), range(4, 100)),
        (LogUniformBudgets(kind="log_uniform", low=4, high=12), range(4, 13)),
        (ChoiceBudgets(kind="choices", choices=(8, 32, 200)), (8, 32)),
    ],
)
def test_budgets_cover_their_range_below_the_trace(budgets, allowed):
    assert {budget_for(100, budgets, i / 6000) for i in range(6000)} == set(allowed)
