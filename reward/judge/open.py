"""The models that judge, opened as a recipe names them, and their place in the lineage.

async with contextlib.AsyncExitStack() as stack:
    judge = GenRmJudge(await open_judges(recipe.judge.models, stack), recipe.judge)
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from posttrain.config.judge import JudgeModel
from posttrain.runs import MANIFEST, Parent, parent_of, read_artifact
from reward.judge.judge import JudgeSampler, judge_sampler


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


def judge_parents(models: Sequence[JudgeModel], *, out: Path) -> list[Parent]:
    """The lineage of the judges that are artifacts, each once."""
    paths = dict.fromkeys(model.checkpoint for model in models if model.checkpoint is not None)
    return [
        parent_of(path, relative_to=out, manifest=read_artifact(path, kind="checkpoint"))
        for path in paths
        if (Path(path) / MANIFEST).is_file()
    ]
