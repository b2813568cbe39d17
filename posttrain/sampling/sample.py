"""The sampling stage between recipe and manifest: `make_samples`, then `finish`.

Beside the samples lies `speed.jsonl`, a line a run of the command; it is no part of the artifact.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.config.sample import SampleConfig
from posttrain.hashing import digest_of
from posttrain.models.chat_template import PromptRenderer
from posttrain.records import json_text
from posttrain.rollouts import Prompt
from posttrain.runs import Counts, Manifest, Parent, Run, atomic_write_text
from posttrain.sampling.generate import (
    MADE_BY,
    bind,
    generate,
    prompt_lines,
    rollouts_at_once,
    row_line,
    tasks_of,
)
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.progress import ProgressBar, SampleStats
from posttrain.sampling.rollout import OpenEnvironment


async def make_samples(
    recipe: SampleConfig,
    prompts: Sequence[Prompt],
    open_environment: OpenEnvironment,
    console: Console,
) -> SampleStats:
    """Make every completion that is not there yet, into `samples.jsonl`."""
    out = Path(recipe.out)
    tasks, lines = tasks_of(prompts, recipe.n_of, seed=recipe.seed), prompt_lines(prompts)
    async with opened_sampler(recipe.backend, checkpoint=recipe.checkpoint) as sampler:
        bind(out / "work", {"prompts": digest_of(lines), "sampler": dict(sampler.identity)})
        atomic_write_text(out / "prompts.jsonl", lines)
        with ProgressBar(total=len(tasks), console=console) as progress:
            try:
                return await generate(
                    tasks,
                    sampler,
                    work=out / "work",
                    to=out / "samples.jsonl",
                    open_environment=open_environment,
                    limits=recipe.sampling.limits(),
                    chunk=recipe.chunk,
                    at_once=rollouts_at_once(recipe.backend),
                    max_failure_rate=recipe.max_failure_rate,
                    progress=progress,
                )
            finally:
                with (out / "speed.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json_text(progress.row()) + "\n")


def finish(
    stage: Run,
    recipe: SampleConfig,
    samples: SampleStats,
    *,
    prompts: Sequence[Prompt],
    counts: Counts,
    parents: Sequence[Parent],
    renderer: PromptRenderer | None,
    prompt_stats: Mapping[str, Any],
    files: Mapping[str, int] | None = None,
) -> Manifest:
    """Write examples and tokenizer beside the samples, then the manifest.

    Args:
        prompt_stats: how the prompts were made, for the manifest.
        files: more of the artifact, with their rows.
    """
    out, settings = stage.path, samples.by_setting()
    atomic_write_text(out / "examples.jsonl", "".join(map(row_line, samples.examples)))
    listed: dict[str, int | None] = {
        **(files or {}),
        "prompts.jsonl": len(prompts),
        "samples.jsonl": sum(setting["samples"] for setting in settings.values()),
        "examples.jsonl": len(samples.examples),
    }
    stats: dict[str, Any] = {
        "settings": settings,
        "failed": dict(samples.errors),
        "sampler": json.loads((out / "work" / MADE_BY).read_text("utf-8"))["sampler"],
        **prompt_stats,
    }
    if renderer is not None:
        listed |= {f"tokenizer/{name}": None for name in renderer.save(out / "tokenizer")}
        stats |= renderer.stats()
    manifest = stage.finish(
        counts=counts,
        files=listed,
        parents=parents,
        template_digest=None if renderer is None else renderer.template.digest,
        seed=recipe.seed,
        stats=stats,
    )
    shutil.rmtree(out / "work")
    return manifest
