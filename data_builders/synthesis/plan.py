"""What a recipe of synthesis would take at most: completions, tokens, minutes, money."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_builders.synthesis.engine import models_of
from data_builders.synthesis.steps import Ask, Asks, Discarded, Seed, SynthesisKind
from posttrain.config.synthesize import SynthesisModel, SynthesizeConfig
from posttrain.evaluation.cost import money
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.sampling.generate import sampling_time
from posttrain.tokens.renderer import renderer_of

_COUNTED = 64  # prompts whose tokens are counted
_CHARACTERS = 4  # of a token, where a server hides its tokenizer


Row = dict[str, Any]


def first_asks(kind: SynthesisKind, seeds: Sequence[Seed]) -> list[Ask]:
    """Requests of the first round, of all seeds that ask anything."""
    asks: list[Ask] = []
    for seed in seeds:
        making = kind.make(seed)
        try:
            move = next(making)
        except (StopIteration, Discarded):
            continue
        if isinstance(move, Asks):
            asks += move.asks
        making.close()
    return asks


def plan_rows(
    recipe: SynthesizeConfig, kind: SynthesisKind, seeds: Sequence[Seed], asks: Sequence[Ask]
) -> list[Row]:
    """A row for each model in each role.

    Completions, output tokens and money are at most; `input` are the tokens of prompts, if later
    ones are as long as those of the first round. Money is None where the recipe has no price.
    """
    completions: Counter[tuple[str, str]] = Counter()
    seeds_of_model: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        models = models_of(recipe, seed)
        for role, count in kind.most(seed).items():
            if count and role in models:
                completions[role, models[role].name] += count
                seeds_of_model[role, models[role].name] += 1
    rows: list[Row] = []
    for role, several in recipe.models.items():
        prompts = prompts_of(role, asks)
        for model in several:
            count = completions[role, model.name]
            if not count or not prompts:
                continue
            tokens = {
                "input": round(_mean_tokens(model, prompts) * count),
                "output": _most_tokens(model, prompts) * count,
            }
            price = recipe.prices.get(model.name)
            rows.append({
                "role": role,
                "model": model.name,
                "seeds": seeds_of_model[role, model.name],
                "completions": count,
                **tokens,
                "money": price and money({**tokens, "cached": 0, "reasoning": 0}, price),
            })  # fmt: skip
    return rows


def plan_times(
    recipe: SynthesizeConfig, rows: Sequence[Row], asks: Sequence[Ask]
) -> dict[str, str]:
    """How long each model takes at most in all of its roles, in words; measured by a slice where it
    runs in this process.

    Raises:
        ConfigError, DataError: a model cannot be sampled, as the real run would find out.
    """
    times: dict[str, str] = {}
    for role, several in recipe.models.items():
        for model in several:
            of_model = [row for row in rows if row["model"] == model.name]
            if model.name in times or not of_model:
                continue
            completions = sum(row["completions"] for row in of_model)
            timing = sampling_time(
                model.backend,
                model.checkpoint,
                prompts_of(role, asks),
                parameters=model.sampling.parameters(),
                tokens=sum(row["output"] for row in of_model),
                rows=min(getattr(model.backend, "batch_size", 1), recipe.chunk, completions),
            )
            times[model.name] = asyncio.run(timing)
    return times


def prompts_of(role: str, asks: Sequence[Ask]) -> list[Prompt]:
    """Prompts of the first round to a role; those to others, where it has none in that round."""
    return [ask.prompt for ask in asks if ask.role == role] or [ask.prompt for ask in asks]


def _most_tokens(model: SynthesisModel, prompts: Sequence[Prompt]) -> int:
    """The longest that a completion can be; one whose calls are run has several steps."""
    runs_calls = any(p.tools is not None and p.environment is not None for p in prompts)
    steps = model.sampling.max_tokens * (model.sampling.max_turns if runs_calls else 1)
    return min(steps, model.sampling.max_total_tokens or steps)


def _mean_tokens(model: SynthesisModel, prompts: Sequence[Prompt]) -> float:
    """Tokens of a prompt in the mean."""
    counted = prompts[:: max(1, len(prompts) // _COUNTED)]
    renderer = renderer_of(model.backend, model.checkpoint)
    total = 0
    for prompt in counted:
        if renderer is None:
            row = prompt_to_row(prompt)
            total += len(json.dumps([row["messages"], row["tools"]])) // _CHARACTERS
        else:
            text = renderer.text(prompt)
            total += len(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])
    return total / len(counted)
