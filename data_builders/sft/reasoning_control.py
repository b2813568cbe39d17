"""Reasoning off for some records, a reasoning budget for some traces (paper 3.1.4).

    control_reasoning(example, plan, offsets)
    → Controlled(example', stripped=False, cuts=(Cut(message=1, trace=212, budget=37),), …)

Which records and traces, and which budgets, follows from a keyed hash of the record's id (and of
the message's position in it), so order, sharding and workers change nothing. The answer after a
cut trace stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from data_builders.keyed import unit
from posttrain.chat import strip_reasoning, truncate_reasoning
from posttrain.config.build_sft import ChoiceBudgets, LogUniformBudgets
from posttrain.records import Example, with_messages

# text → the character span of each of its tokens
Offsets = Callable[[str], Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """The rates that hold for one source, and where budgets come from."""

    strip: float
    truncate: float
    budgets: LogUniformBudgets | ChoiceBudgets
    seed: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A trace of `trace` tokens that was cut to `budget`."""

    message: int
    trace: int
    budget: int


@dataclass(frozen=True, slots=True)
class Controlled:
    """A record after reasoning control, with what was done to it.

    `reasoned`: it came with reasoning. `traces`: traces it could have been cut in, 0 once stripped.
    `too_short`: traces chosen for a cut for which no budget is short enough; left whole.
    """

    example: Example
    reasoned: bool
    stripped: bool
    traces: int
    cuts: tuple[Cut, ...]
    too_short: int


def untouched(example: Example) -> Controlled:
    """A record that reasoning control leaves alone, and counts nowhere."""
    return Controlled(example, False, False, 0, (), 0)


def control_reasoning(example: Example, plan: ControlPlan, offsets: Offsets) -> Controlled:
    """Strip a record, or cut some of its traces, or leave it alone.

    Args:
        example: the record; its id decides.
        plan: rates and budgets.
        offsets: the tokenizer's spans of a text; only called for traces that are cut.
    """
    if example.reasoning_mode == "off":
        return untouched(example)
    if unit(plan.seed, "strip", example.id) < plan.strip:
        return Controlled(strip_reasoning(example), True, True, 0, (), 0)
    messages = list(example.messages)
    traces, cuts, too_short = 0, list[Cut](), 0
    for position, message in enumerate(messages):
        if message.role != "assistant" or not message.reasons:
            continue
        traces += 1
        if unit(plan.seed, "truncate", example.id, position) >= plan.truncate:
            continue
        trace = message.reasoning or ""
        spans = offsets(trace)
        length = len(spans)
        budget = budget_for(length, plan, example.id, position)
        known = partial(_given, spans)  # tokenised once, not once more for the cut
        short = budget and truncate_reasoning(trace, budget=budget, offsets=known)
        if not budget or not short:
            too_short += 1
            continue
        messages[position] = replace(message, reasoning=short)
        cuts.append(Cut(position, length, budget))
    changed = with_messages(example, messages) if cuts else example
    return Controlled(changed, True, False, traces, tuple(cuts), too_short)


def _given(spans: Sequence[tuple[int, int]], _: str) -> Sequence[tuple[int, int]]:
    return spans


def budget_for(length: int, plan: ControlPlan, record_id: str, position: int) -> int | None:
    """A budget below `length` tokens, or `None` when the distribution has none so short."""
    u = unit(plan.seed, "budget", record_id, position)
    budgets = plan.budgets
    if isinstance(budgets, ChoiceBudgets):
        shorter = sorted({b for b in budgets.choices if b < length})
        return shorter[int(u * len(shorter))] if shorter else None
    high = length - 1 if budgets.high is None else min(budgets.high, length - 1)
    if high < budgets.low:
        return None
    # + 1: each integer gets the density between itself and the next, the last one included
    drawn = budgets.low * math.exp(u * math.log((high + 1) / budgets.low))
    return min(int(drawn), high)
