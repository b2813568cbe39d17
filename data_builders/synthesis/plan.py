"""Upper limits of what a recipe of synthesis takes: completions, tokens, minutes, money."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_builders.synthesis.engine import CHUNK, as_sent, model_of, models_of
from data_builders.synthesis.steps import Ask, Asks, Discarded, Seed, SynthesisKind
from posttrain.config.synthesize import SynthesisModel, SynthesizeConfig
from posttrain.evaluation.cost import money
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.sampling.generate import sampling_time
from posttrain.tokens.renderer import renderer_of

_COUNTED_PROMPTS = 64  # prompts whose tokens are counted
_CHARACTERS_PER_TOKEN = 4  # if a server hides its tokenizer

Row = dict[str, Any]


def first_asks(recipe: SynthesizeConfig, kind: SynthesisKind, seeds: Sequence[Seed]) -> list[Ask]:
    """Requests of the first round, of all seeds that ask anything, as they would be sent."""
    asks: list[Ask] = []
    for seed in seeds:
        models = models_of(recipe, seed)
        making = kind.make(seed)
        try:
            move = next(making)
        except (StopIteration, Discarded):
            continue
        if isinstance(move, Asks):
            asks += [as_sent(ask, model_of(recipe, models, ask)) for ask in move.asks]
        making.close()
    return asks


def plan_rows(
    recipe: SynthesizeConfig, kind: SynthesisKind, seeds: Sequence[Seed], asks: Sequence[Ask]
) -> list[Row]:
    """Rows of the plan, one for each model in each role.

    Completions, output tokens and money are upper limits; `input` are the tokens of prompts, if
    later ones are as long as those of the first round. Money is None without a price in the recipe.
    """
    completions: Counter[tuple[str, str]] = Counter()
    seeds_of_model: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        models = models_of(recipe, seed)
        for role, count in kind.max_completions(seed).items():
            if count and role in models:
                completions[role, models[role].name] += count
                seeds_of_model[role, models[role].name] += 1
    rows: list[Row] = []
    for role, role_models in recipe.models.items():
        prompts = prompts_of(role, asks)
        for model in role_models:
            count = completions[role, model.name]
            if not count or not prompts:
                continue
            tokens = {
                "input": round(_mean_tokens(model, prompts) * count),
                "output": round(_mean_limit(model, prompts) * count),
            }
            price = recipe.prices.get(model.name)
            row: Row = {
                "role": role,
                "model": model.name,
                "seeds": seeds_of_model[role, model.name],
                "completions": count,
                **tokens,
                "money": price and money({**tokens, "cached": 0, "reasoning": 0}, price),
            }
            rows.append(row)
    return rows


def plan_times(
    recipe: SynthesizeConfig, rows: Sequence[Row], asks: Sequence[Ask]
) -> dict[str, str]:
    """Longest time of each model in all of its roles, in words.

    It is measured by a few completions of a model that runs in this process.

    Raises:
        ConfigError, DataError: a model cannot be sampled; the real run would fail too.
    """
    times: dict[str, str] = {}
    for role, role_models in recipe.models.items():
        for model in role_models:
            model_rows = [row for row in rows if row["model"] == model.name]
            if model.name in times or not model_rows:
                continue
            completions = sum(row["completions"] for row in model_rows)
            timing = sampling_time(
                model.backend,
                model.checkpoint,
                prompts_of(role, asks),
                parameters=model.sampling.parameters(),
                tokens=sum(row["output"] for row in model_rows),
                rows=min(getattr(model.backend, "batch_size", 1), CHUNK, completions),
            )
            times[model.name] = asyncio.run(timing)
    return times


def prompts_of(role: str, asks: Sequence[Ask]) -> list[Prompt]:
    """Prompts of the first round to a role; those to all roles, if it has none in that round."""
    role_prompts = [ask.prompt for ask in asks if ask.role == role]
    return role_prompts or [ask.prompt for ask in asks]


def _mean_limit(model: SynthesisModel, prompts: Sequence[Prompt]) -> float:
    """Mean over prompts of the longest completion; one whose calls are run has several steps."""
    sampling = model.sampling
    total = 0
    for prompt in prompts:
        runs_calls = prompt.tools is not None and prompt.environment is not None
        tokens = sampling.max_tokens * (sampling.max_turns if runs_calls else 1)
        total += min(tokens, sampling.max_total_tokens or tokens)
    return total / len(prompts)


def _mean_tokens(model: SynthesisModel, prompts: Sequence[Prompt]) -> float:
    """Mean number of tokens of a prompt."""
    counted_prompts = prompts[:: max(1, len(prompts) // _COUNTED_PROMPTS)]
    renderer = renderer_of(model.backend, model.checkpoint)
    total = 0
    for prompt in counted_prompts:
        if renderer is None:
            row = prompt_to_row(prompt)
            total += len(json.dumps([row["messages"], row["tools"]])) // _CHARACTERS_PER_TOKEN
        else:
            text = renderer.text(prompt)
            total += len(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])
    return total / len(counted_prompts)
