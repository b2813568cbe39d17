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
    """A row for each model in each role; a model in this process is timed by a slice.

    Completions, output tokens, money and time are at most; `input` are the tokens of prompts, if
    later ones are as long as those of the first round. Money is None where the recipe has no price.

    Raises:
        ConfigError, DataError: a model cannot be sampled, as the real run would find out.
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
        prompts = [ask.prompt for ask in asks if ask.role == role] or [ask.prompt for ask in asks]
        for model in several:
            key = (role, model.name)
            count = completions[key]
            if not count or not prompts:
                continue
            most = _most_tokens(model, prompts)
            tokens = {
                "input": round(_mean_tokens(model, prompts) * count),
                "output": most * count,
            }
            price = recipe.prices.get(model.name)
            cost = price and money({**tokens, "cached": 0, "reasoning": 0}, price)
            time = _time(recipe, model, prompts, tokens=tokens["output"], completions=count)
            rows.append({
                "role": role,
                "model": model.name,
                "seeds": seeds_of_model[key],
                "completions": count,
                **tokens,
                "money": cost,
                "time": time,
            })  # fmt: skip
    return rows


def _time(
    recipe: SynthesizeConfig,
    model: SynthesisModel,
    prompts: Sequence[Prompt],
    *,
    tokens: int,
    completions: int,
) -> str:
    timing = sampling_time(
        model.backend,
        model.checkpoint,
        prompts,
        parameters=model.sampling.parameters(),
        tokens=tokens,
        rows=min(getattr(model.backend, "batch_size", 1), recipe.chunk, completions),
    )
    return asyncio.run(timing)


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
