"""Cost of an evaluation: tokens, money and time spent, and the most that a recipe would spend.

Reasoning tokens are part of the output tokens, and are priced once. Money per solved task is all
money, that of failed completions too, over solved completions. Cached tokens are those that the
server reported, for `cached_reported` calls; of other calls none counts as cached, so that a bill
is never under-stated. A latency is that of one model call, which in process is a batch. Throughput
is over the time in which a call was under way.
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
from posttrain.evaluation.run import INSPECT, Record, Unit, by_unit, times_path
from posttrain.rollouts import Completion, Prompt, Step, prompt_to_row
from posttrain.runs import atomic_write_json
from posttrain.tokens.renderer import PromptRenderer

if TYPE_CHECKING:
    from posttrain.sampling.measure import SamplingSpeed

COSTS = "costs.json"
MILLION = 1e6
TOKENS = ("input", "cached", "output", "reasoning")
_COUNTED_PROMPTS = 64  # prompts whose tokens are counted for an estimate
_CHARACTERS_PER_TOKEN = 4  # where a server hides its tokenizer
Row = dict[str, Any]


def written(step: Step) -> int:
    """Tokens that the model wrote in a step, without those forced in to close its reasoning."""
    if step.ids is None:
        return step.reasoning_tokens + step.answer_tokens
    start, end = step.forced or (0, 0)
    return len(step.ids) - (end - start)


def tokens_of(completion: Completion) -> dict[str, int]:
    """Tokens of a completion's model calls by `TOKENS`.

    `cached` is part of `input`, and `reasoning` part of `output`.
    """
    steps = completion.steps
    cached = (min(step.prompt_tokens, step.cached_tokens or 0) for step in steps)
    return {
        "input": sum(step.prompt_tokens for step in steps),
        "cached": sum(cached),
        "output": sum(map(written, steps)),
        "reasoning": sum(step.reasoning_tokens for step in steps),
    }


def money(tokens: Mapping[str, int], price: Price) -> float:
    """Price of tokens, in the currency of `price`; each token is priced once."""
    cached_price = price.input if price.cached is None else price.cached
    total = (tokens["input"] - tokens["cached"]) * price.input + tokens["cached"] * cached_price
    return (total + tokens["output"] * price.output) / MILLION


def cost_rows(
    records: Mapping[str, Sequence[Record]],
    prices: Mapping[str, Price],
    times: Mapping[tuple[str, str], Sequence[Row]],
) -> list[Row]:
    """Cost rows of each unit of each checkpoint, then of all its units, called `all`.

    Args:
        records: by checkpoint.
        prices: by checkpoint; without a price there is no money.
        times: (checkpoint, unit) → lines of a `TimedSampler`.
    """
    rows: list[Row] = []
    for checkpoint, checkpoint_records in records.items():
        price = prices.get(checkpoint)
        checkpoint_times: list[Row] = []
        for unit, unit_records in by_unit(checkpoint_records).items():
            prompt = unit_records[0].prompt
            unit_times = times.get((checkpoint, unit), ())
            checkpoint_times += unit_times
            cell = {"checkpoint": checkpoint, "task": prompt.source, "setting": prompt.setting}
            rows.append(cell | _cost_row(unit_records, price, unit_times))
        cell = {"checkpoint": checkpoint, "task": "all", "setting": "all"}
        rows.append(cell | _cost_row(checkpoint_records, price, checkpoint_times))
    return rows


def _cost_row(records: Sequence[Record], price: Price | None, times: Sequence[Row]) -> Row:
    """Tokens, money, latency in seconds and throughput of some records."""
    tokens: dict[str, int] = dict.fromkeys(TOKENS, 0)
    steps: list[Step] = []
    for record in records:
        steps += record.completion.steps
        for name, count in tokens_of(record.completion).items():
            tokens[name] += count
    solved = sum(correct(record) is True for record in records)
    spent = None if price is None else money(tokens, price)
    latencies = [row["end"] - row["start"] for row in times]
    p50, p95 = map(float, np.quantile(latencies or [0.0], [0.5, 0.95]))
    busy = busy_seconds(times)
    return {
        "completions": len(records),
        "solved": solved,
        "calls": len(steps),
        "tokens": tokens,
        "cached_reported": sum(step.cached_tokens is not None for step in steps),
        "money": spent,
        "money_per_solved": None if spent is None or not solved else spent / solved,
        "latency": {"p50": p50, "p95": p95} if latencies else None,
        "tokens_per_second": sum(row["tokens"] for row in times) / busy if busy else None,
    }


def busy_seconds(times: Iterable[Row]) -> float:
    """Seconds in which at least one call was under way."""
    total = 0.0
    counted_until = float("-inf")
    for start, end in sorted((row["start"], row["end"]) for row in times):
        total += max(0.0, end - max(start, counted_until))
        counted_until = max(counted_until, end)
    return total


def write_costs(
    out: Path, records: Mapping[str, Sequence[Record]], prices: Mapping[str, Price]
) -> None:
    """Write `costs.json` of a run; its manifest does not list it, since prices may change later."""
    times: dict[tuple[str, str], list[Row]] = {}
    for checkpoint, checkpoint_records in records.items():
        for unit in by_unit(checkpoint_records):
            unit_times, _ = read_lines(times_path(out, checkpoint, unit))
            times[checkpoint, unit] = unit_times
    atomic_write_json(out / COSTS, cost_rows(records, prices, times))


def estimate_rows(
    recipe: EvalConfig,
    units: Sequence[Unit],
    renderers: Mapping[str, PromptRenderer | None],
    speeds: Mapping[str, SamplingSpeed | str],
) -> list[Row]:
    """Estimated cost of each unit on each checkpoint, before a run.

    `requests` are the fewest model calls, `most_requests` the most. Tokens are those of one call a
    completion, with as many written as the recipe's `estimate` says, or else the most that a
    completion may have. Money is None where the recipe gives no price, seconds are where no speed
    was measured.

    Args:
        renderers: by checkpoint; None where a server hides its tokenizer.
        speeds: by checkpoint; a text says why a speed was not measured.
    """
    rows: list[Row] = []
    for name, renderer in renderers.items():
        price = recipe.prices.get(name)
        speed = speeds[name]
        for unit in units:
            max_calls, max_tokens = _completion_limits(recipe, unit)
            output = (recipe.estimate.output_tokens or max_tokens) * unit.size
            counted = unit.prompts[:: max(1, len(unit.prompts) // _COUNTED_PROMPTS)]
            lengths = [_prompt_tokens(renderer, prompt) for prompt in counted]
            tokens = {"input": round(sum(lengths) / len(lengths) * unit.size), "output": output}
            seconds = None
            if not isinstance(speed, str):
                at_once = rows_at_once(recipe, name, unit)
                prompts = len(unit.prompts)
                seconds = speed.seconds(prompts=prompts, tokens=output, rows=at_once)
            row: Row = {
                "checkpoint": name,
                "unit": unit.name,
                "requests": unit.size,
                "most_requests": unit.size * max_calls,
                **tokens,
                "money": price and money({**tokens, "cached": 0, "reasoning": 0}, price),
                "seconds": seconds,
            }
            rows.append(row)
    return rows


def rows_at_once(recipe: EvalConfig, checkpoint: str, unit: Unit) -> int:
    """Completions of a unit that a model in this process writes at a time."""
    batch_size = getattr(recipe.backend_of(checkpoint), "batch_size", 1)
    return min(batch_size, recipe.chunk, unit.size)


def most_tokens(recipe: EvalConfig, units: Sequence[Unit]) -> float:
    """Mean over completions of the most tokens that each may have."""
    total = 0
    for unit in units:
        _, max_tokens = _completion_limits(recipe, unit)
        total += max_tokens * unit.size
    return total / max(1, sum(unit.size for unit in units))


def _completion_limits(recipe: EvalConfig, unit: Unit) -> tuple[int, int]:
    """Model calls and written tokens that a completion of a unit can have at most."""
    limits = recipe.sampling_of(unit.setting)
    # a solver of inspect may call the model again without tools
    several_turns = any(p.tools is not None or p.grader == INSPECT for p in unit.prompts)
    max_calls = limits.max_turns if several_turns else 1
    max_tokens = limits.max_tokens * max_calls
    return max_calls, min(max_tokens, limits.max_total_tokens or max_tokens)


def _prompt_tokens(renderer: PromptRenderer | None, prompt: Prompt) -> int:
    """Tokens of a rendered prompt; without a renderer, a guess from its characters."""
    if renderer is None:
        row = prompt_to_row(prompt)
        return len(json.dumps([row["messages"], row["tools"]])) // _CHARACTERS_PER_TOKEN
    return len(renderer.tokenizer(renderer.text(prompt), add_special_tokens=False)["input_ids"])
