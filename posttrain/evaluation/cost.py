"""What an evaluation took: tokens, money, time; and what a recipe would take at most.

Reasoning tokens are part of the output tokens, and are priced once. Money per solved task is all
money, that of failed ones too, over solved completions. Cached are what the server reported, of
`cached_reported` calls; of the others none is, so that a bill is never under-stated. A latency is
one model call's; in process that is a batch. Throughput is over the time in which a call was under
way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posttrain.config.eval import EvalConfig, Price
from posttrain.evaluation.journal import read_lines
from posttrain.evaluation.metrics import correct
from posttrain.evaluation.run import INSPECT, Record, Unit, by_unit
from posttrain.rollouts import Completion, Step, prompt_to_row
from posttrain.runs import atomic_write_json
from posttrain.tokens.renderer import PromptRenderer

if TYPE_CHECKING:
    from posttrain.sampling.measure import SamplingSpeed

TIMES, COSTS = "times", "costs.json"
MILLION = 1e6
TOKENS = ("input", "cached", "output", "reasoning")
_COUNTED = 64  # prompts whose tokens are counted for an estimate
_CHARACTERS = 4  # of a token, where a server hides its tokenizer
Row = dict[str, Any]


def times_path(out: Path, checkpoint: str, unit: str) -> Path:
    """Where the calls of a unit are timed."""
    return out / TIMES / checkpoint / f"{unit}.jsonl"


def written(step: Step) -> int:
    """Tokens that the model wrote in a step; what was put in to close its reasoning is not."""
    if step.ids is None:
        return step.reasoning_tokens + step.answer_tokens
    start, end = step.forced or (0, 0)
    return len(step.ids) - (end - start)


def tokens_of(completion: Completion) -> dict[str, int]:
    """Tokens of all model calls: input, the cached part of it, output, the reasoning part of it."""
    steps = completion.steps
    cached = (min(step.prompt_tokens, step.cached_tokens or 0) for step in steps)
    return {
        "input": sum(step.prompt_tokens for step in steps),
        "cached": sum(cached),
        "output": sum(map(written, steps)),
        "reasoning": sum(step.reasoning_tokens for step in steps),
    }


def money(tokens: Mapping[str, int], price: Price) -> float:
    """What tokens cost, each counted once."""
    cached = price.input if price.cached is None else price.cached
    reasoning = price.output if price.reasoning is None else price.reasoning
    total = (tokens["input"] - tokens["cached"]) * price.input + tokens["cached"] * cached
    total += (tokens["output"] - tokens["reasoning"]) * price.output
    return (total + tokens["reasoning"] * reasoning) / MILLION


def cost_rows(
    records: Mapping[str, Sequence[Record]],
    prices: Mapping[str, Price],
    times: Mapping[tuple[str, str], Sequence[Row]],
) -> list[Row]:
    """A row for each unit of each checkpoint, then one for all units of it, called `all`. `times`:
    (checkpoint, unit) → lines of a `TimedSampler`."""
    rows: list[Row] = []
    for checkpoint, own in records.items():
        price, units = prices.get(checkpoint), by_unit(own)
        for unit, graded in units.items():
            first, timed = graded[0].prompt, times.get((checkpoint, unit), ())
            place = {"checkpoint": checkpoint, "task": first.source, "setting": first.setting}
            rows.append(place | _cost_row(graded, price, timed))
        every = [row for unit in units for row in times.get((checkpoint, unit), ())]
        place = {"checkpoint": checkpoint, "task": "all", "setting": "all"}
        rows.append(place | _cost_row(own, price, every))
    return rows


def _cost_row(records: Sequence[Record], price: Price | None, times: Sequence[Row]) -> Row:
    counts = [tokens_of(record.completion) for record in records]
    tokens = {name: sum(count[name] for count in counts) for name in TOKENS}
    solved = sum(correct(record) is True for record in records)
    steps = [step for record in records for step in record.completion.steps]
    spent = None if price is None else money(tokens, price)
    seconds = [row["end"] - row["start"] for row in times]
    p50, p95 = map(float, np.quantile(seconds or [0.0], [0.5, 0.95]))
    busy = busy_seconds(times)
    return {
        "completions": len(records),
        "solved": solved,
        "calls": len(steps),
        "tokens": tokens,
        "cached_reported": sum(step.cached_tokens is not None for step in steps),
        "money": spent,
        "money_per_solved": None if spent is None or not solved else spent / solved,
        "latency": {"p50": p50, "p95": p95} if seconds else None,
        "tokens_per_second": sum(row["tokens"] for row in times) / busy if busy else None,
    }


def busy_seconds(times: Iterable[Row]) -> float:
    """The time in which at least one call was under way."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((row["start"], row["end"]) for row in times):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def write_costs(
    out: Path, records: Mapping[str, Sequence[Record]], prices: Mapping[str, Price]
) -> None:
    """Write `costs.json` of a run beside what its manifest lists: prices may change later."""
    units = [(name, unit) for name, own in records.items() for unit in by_unit(own)]
    times = {unit: read_lines(times_path(out, *unit))[0] for unit in units}
    atomic_write_json(out / COSTS, cost_rows(records, prices, times))


def estimate_rows(
    recipe: EvalConfig,
    units: Sequence[Unit],
    renderers: Mapping[str, PromptRenderer | None],
    speeds: Mapping[str, SamplingSpeed | str],
) -> list[Row]:
    """What each unit would take on each checkpoint.

    `requests` are the fewest model calls, `most_requests` the most. Tokens are those of one call a
    completion, with as many written as the recipe's `estimate` says, or else the most that a
    completion may have. Money is None where the recipe gives no price, seconds are where no speed
    was measured.
    """
    rows: list[Row] = []
    for name, renderer in renderers.items():
        for unit in units:
            turns, most = _most(recipe, unit)
            output = (recipe.estimate.output_tokens or most) * unit.size
            each = unit.prompts[:: max(1, len(unit.prompts) // _COUNTED)]
            lengths = [_prompt_tokens(renderer, prompt) for prompt in each]
            tokens = {"input": round(sum(lengths) / len(lengths) * unit.size), "output": output}
            price, speed = recipe.prices.get(name), speeds[name]
            seconds = None
            if not isinstance(speed, str):
                at_once = rows_at_once(recipe, name, unit)
                prompts = len(unit.prompts)
                seconds = speed.seconds(prompts=prompts, tokens=output, rows=at_once)
            rows.append({
                "checkpoint": name,
                "unit": unit.name,
                "requests": unit.size,
                "most_requests": unit.size * turns,
                **tokens,
                "money": price and money({**tokens, "cached": 0, "reasoning": 0}, price),
                "seconds": seconds,
            })  # fmt: skip
    return rows


def rows_at_once(recipe: EvalConfig, checkpoint: str, unit: Unit) -> int:
    """Completions of a unit that a model in this process writes at a time."""
    batch_size = getattr(recipe.backend_of(checkpoint), "batch_size", 1)
    return min(batch_size, recipe.chunk, unit.size)


def most_tokens(recipe: EvalConfig, units: Sequence[Unit]) -> float:
    """The longest that a completion of these units can be, in the mean."""
    most = sum(_most(recipe, unit)[1] * unit.size for unit in units)
    return most / max(1, sum(unit.size for unit in units))


def _most(recipe: EvalConfig, unit: Unit) -> tuple[int, int]:
    """Model calls and tokens that a completion of a unit can have at most."""
    limits = recipe.sampling_of(unit.setting)
    several = any(p.tools is not None or p.grader == INSPECT for p in unit.prompts)
    turns = limits.max_turns if several else 1
    most = limits.max_tokens * turns
    return turns, min(most, limits.max_total_tokens or most)


def _prompt_tokens(renderer: PromptRenderer | None, prompt: Any) -> int:
    if renderer is None:
        row = prompt_to_row(prompt)
        return len(json.dumps([row["messages"], row["tools"]])) // _CHARACTERS
    return len(renderer.tokenizer(renderer.text(prompt), add_special_tokens=False)["input_ids"])
