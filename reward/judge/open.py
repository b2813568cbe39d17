"""The models that judge, opened as a recipe names them, and their place in the lineage.

async with contextlib.AsyncExitStack() as stack:
    judge = GenRmJudge(await open_judges(recipe.judge.models, stack), recipe.judge)

judgements, identity, costs = await judge_all(recipe.judge, comparisons, folder=…, seed=7, …)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.config.judge import JudgeConfig, JudgeModel
from posttrain.runs import MANIFEST, Parent, parent_of, read_artifact
from reward.judge.cache import VerdictCache
from reward.judge.judge import GenRmJudge, JudgeSampler, judge_sampler
from reward.judge.votes import Comparison, Judgement, failures_of, refuse_failures


async def open_judges(
    models: Sequence[JudgeModel], stack: contextlib.AsyncExitStack
) -> list[JudgeSampler]:
    """Every model as a judge; one that is named twice is opened once.

    Args:
        stack: closes them.

    Raises:
        ConfigError, DataError: a model that cannot be loaded or reached, or as `judge_sampler`.
    """
    from posttrain.sampling.open import opened_sampler
    from posttrain.sampling.render import RenderedSampler

    judges: dict[str, JudgeSampler] = {}
    for model in models:
        key = model.model_dump_json()
        if key not in judges:
            backend = opened_sampler(model.backend, checkpoint=model.checkpoint, parts=False)
            sampler = await stack.enter_async_context(backend)
            rendered = sampler if isinstance(sampler, RenderedSampler) else None
            judges[key] = judge_sampler(
                model,
                sampler,
                template=rendered.template.source if rendered else None,
                tokens=rendered.encoder.special_tokens if rendered else (),
            )
    return [judges[model.model_dump_json()] for model in models]


async def judge_all(
    config: JudgeConfig,
    comparisons: Sequence[Comparison],
    *,
    folder: Path,
    seed: int,
    on_progress: Callable[[int], None],
) -> tuple[list[Judgement], dict[str, Any], dict[str, Any]]:
    """Judgements, all in flight at once, the judge's identity, and the costs.

    Args:
        folder: where votes are kept if the recipe names no cache that runs share.

    Raises:
        JudgeError: too many failed.
    """
    async with contextlib.AsyncExitStack() as stack:
        models, shared = await open_judges(config.models, stack), config.cache
        kept = VerdictCache(Path(shared or folder), any_step=shared is not None)
        cache = stack.enter_context(kept)
        judge = GenRmJudge(models, config, cache=cache, on_progress=on_progress)
        judgements = await judge.judge(comparisons, seed=seed)
        failures = failures_of(judgements)
        refuse_failures(len(comparisons), failures, max_failure_rate=config.max_failure_rate)
        judge.keep_failures()
    return judgements, dict(judge.identity), asdict(judge.ledger)


def judge_parents(models: Sequence[JudgeModel], *, out: Path) -> list[Parent]:
    """The lineage of the judges that are artifacts, each once."""
    paths = dict.fromkeys(model.checkpoint for model in models if model.checkpoint is not None)
    return [
        parent_of(path, relative_to=out, manifest=read_artifact(path, kind="checkpoint"))
        for path in paths
        if (Path(path) / MANIFEST).is_file()
    ]
