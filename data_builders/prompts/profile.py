"""Samples of every prompt → the share of them that passes, and which prompts are worth training on.

A truncated rollout counts as one that does not pass; an unscored one counts nowhere. Verdicts are
written batch by batch: an interrupted profile verifies nothing twice.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.decontamination.match import evaluation_files, load_decontaminator
from data_builders.pairs.grading import read_groups
from data_builders.prompts.build import PromptPlan
from data_builders.registry import Environments, open_label_judge
from data_builders.rows.inputs import Input
from posttrain.config.sample import ProfileConfig
from posttrain.errors import DataError
from posttrain.jsontext import jsonl_rows
from posttrain.models.room import check_room, positions_of, prompt_lengths
from posttrain.records import json_text, make_example
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import (
    Counts,
    Manifest,
    Parent,
    atomic_write_text,
    parent_of,
    read_artifact,
)
from posttrain.sampling.generate import make_samples, read_prompts
from posttrain.sampling.progress import SampleStats
from posttrain.tokens.renderer import PromptRenderer
from posttrain.tokens.tokenizer import encoder_of
from reward.rlvr import Verified, verify_all

KIND = "pass_rates"
FILE = "pass_rates.jsonl"
BATCH = 64  # prompts verified and kept at a time


@dataclass(frozen=True, slots=True)
class PassRate:
    """What the rollouts of one prompt came to.

    Attributes:
        passes: of the `scored` ones; `unscored` counts the others by kind, of whatever cause.
        truncated: rollouts that a limit ended; they are scored, with 0.
        reward: mean over the scored ones; None without any.
        reasoning_tokens, answer_tokens: means over all rollouts.
        dropped: why the prompt is not for training: `solved`, `unsolved`, `unscored`; None: it is.
        before: passes and scored rollouts in the profile before this one.
    """

    prompt_id: str
    source: str
    passes: int
    scored: int
    truncated: int
    reward: float | None
    reasoning_tokens: float
    answer_tokens: float
    unscored: Mapping[str, int] = field(default_factory=dict[str, int])
    dropped: str | None = None
    before: tuple[int, int] | None = None

    def bucket(self, n: int) -> int:
        """Passes out of n, rounded down where fewer than n rollouts are scored."""
        return self.passes * n // self.scored


@dataclass(frozen=True, slots=True)
class PassRateProfile:
    """A finished profile: its prompts and their pass rates, in the same order."""

    folder: Path
    prompts: list[Prompt]
    rates: list[PassRate]
    n: int
    manifest: Manifest

    def kept(self) -> list[Prompt]:
        """The prompts for training."""
        return [p for p, rate in zip(self.prompts, self.rates, strict=True) if rate.dropped is None]

    def pools(self, sources_of: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
        """Prompts for training by domain, with their buckets.

        Raises:
            DataError: a source without a prompt, a domain without one for training.
        """
        known = {rate.source for rate in self.rates}
        pools: dict[str, dict[str, int]] = {}
        for domain, sources in sources_of.items():
            if unknown := sorted(set(sources) - known):
                raise DataError(
                    f"domain {domain!r}: {self.folder} has no source {unknown[0]!r}; it has "
                    f"{', '.join(sorted(known))}"
                )
            own = [rate for rate in self.rates if rate.source in sources]
            kept = [rate for rate in own if rate.dropped is None]
            if not kept:
                reasons = Counter(rate.dropped for rate in own)
                listed = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
                raise DataError(
                    f"domain {domain!r}: {self.folder} kept none of its prompts ({listed}): "
                    "profile others, or leave the domain out"
                )
            pools[domain] = {rate.prompt_id: rate.bucket(self.n) for rate in kept}
        return pools


def read_profile(path: Path | str) -> PassRateProfile:
    """A `pass_rates` artifact. Raises DataError: it is none, or was changed."""
    folder, manifest = Path(path), read_artifact(path, kind=KIND)
    rows = jsonl_rows((folder / FILE).read_text("utf-8"))
    rates = [PassRate(**row) for row in rows]
    prompts = read_prompts(folder / "prompts.jsonl")
    return PassRateProfile(folder, prompts, rates, manifest.config["n"], manifest)


@dataclass(frozen=True, slots=True)
class PromptsToProfile:
    """What a profile samples.

    `before` has the pass rates of the profile before this one, `parents` name that one; `stats` are
    of the sources, without one. `contaminated` prompts overlap evaluation items and are left out.
    `room` says that they fit the model, where its tokenizer is known.
    """

    prompts: list[Prompt]
    before: dict[str, PassRate]
    stats: dict[str, Any]
    parents: list[Parent]
    inputs: list[Input]
    contaminated: int
    room: str | None

    def counts(self, rates: Sequence[PassRate]) -> Counts:
        """Of all prompts: kept for training, or dropped by reason."""
        reasons = [rate.dropped for rate in rates if rate.dropped is not None]
        dropped = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
        if self.contaminated:
            dropped["contaminated"] = self.contaminated
        return Counts(len(rates) + self.contaminated, len(rates) - len(reasons), dropped)


def prompts_to_profile(
    recipe: ProfileConfig,
    plan: PromptPlan,
    renderer: PromptRenderer | None,
    *,
    base_dir: Path,
    out: Path,
) -> PromptsToProfile:
    """The prompts of the recipe's sources, or those that the previous profile kept.

    Raises:
        ConfigError: a prompt leaves no room for `sampling.max_tokens`, or needs a judge.
        DataError: the previous profile is none, or was changed; there is no prompt left.
    """
    parents, before, stats = list[Parent](), dict[str, PassRate](), dict[str, Any]()
    if recipe.previous is not None:
        profile = read_profile(recipe.previous)
        parents.append(parent_of(recipe.previous, relative_to=out, manifest=profile.manifest))
        before = {rate.prompt_id: rate for rate in profile.rates}
        prompts = profile.kept()
    else:
        built = plan.build()
        prompts, stats = built.prompts, built.stats()
    evaluation, clean = evaluation_files(recipe.decontamination, base_dir), prompts
    decontaminator = load_decontaminator(recipe.decontamination, base_dir, evaluation)
    if decontaminator is not None:
        examples = [make_example(p.messages, source=p.source, dialect="prompt") for p in prompts]
        drops = decontaminator.drops(examples)
        clean = [prompt for prompt, drop in zip(prompts, drops, strict=True) if drop is None]
    inputs, contaminated = [*plan.inputs, *evaluation], len(prompts) - len(clean)
    if not clean:
        reason = f"all {len(prompts):,} overlap evaluation items"
        reason = reason if prompts else f"{recipe.previous} kept none"
        raise DataError(f"there is no prompt to profile: {reason}")
    if recipe.judge is None:  # with one, names are looked up once it is open
        check_verifiers(clean, Environments())
    room = None
    if renderer is not None and recipe.checkpoint is not None:
        lengths = prompt_lengths(clean, renderer.template, encoder_of(renderer.tokenizer))
        most = positions_of(recipe.checkpoint)
        most = min(most, getattr(recipe.backend, "max_length", None) or most)
        room = check_room(
            clean,
            lengths,
            template=renderer.template,
            new=recipe.sampling.max_tokens,
            room=most,
        )
    return PromptsToProfile(clean, before, stats, parents, inputs, contaminated, room)


def check_verifiers(prompts: Sequence[Prompt], environments: Environments) -> None:
    """Raises ConfigError for a prompt that names no verifier that there is."""
    for prompt in prompts:
        environments.verifier(prompt)


async def sample_and_verify(
    recipe: ProfileConfig,
    prompts: Sequence[Prompt],
    before: Mapping[str, PassRate],
    console: Console,
) -> tuple[SampleStats, list[PassRate]]:
    """Everything that is not there yet of a profile's samples and verdicts; rates by prompt.

    Raises as `make_samples`, and DataError where more rollouts are unscored than the recipe allows.
    """
    out, rates = Path(recipe.out), list[PassRate]()
    async with contextlib.AsyncExitStack() as stack:
        environments = Environments(await open_label_judge(recipe.judge, stack))
        check_verifiers(prompts, environments)
        samples = await make_samples(recipe, prompts, environments.open, console)
        groups, numbers = read_groups(out), itertools.count()
        with console.status("verifying") as line:
            while batch := list(itertools.islice(groups, BATCH)):
                file = out / "work" / f"rates-{next(numbers):06}.jsonl"
                if not file.is_file():
                    attempts = [(prompt, c) for prompt, completions in batch for c in completions]
                    results = iter(await verify_all(attempts, environments.verifier))
                    made = [_rate(*group, [next(results) for _ in group[1]]) for group in batch]
                    atomic_write_text(file, rate_lines(made))
                rates += [PassRate(**row) for row in jsonl_rows(file.read_text("utf-8"))]
                line.update(f"verifying: {len(rates):,} of {len(prompts):,}")
    _refuse_unscored(rates, recipe)
    return samples, [_decided(rate, recipe, before.get(rate.prompt_id)) for rate in rates]


def _rate(prompt: Prompt, completions: Sequence[Completion], found: Sequence[Verified]) -> PassRate:
    values = [one.score.value for one in found if one.score.value is not None]
    kinds = Counter(one.kind for one in found if one.kind is not None)
    return PassRate(
        prompt_id=prompt.id,
        source=prompt.source,
        passes=sum(one.passed for one in found),
        scored=len(values),
        truncated=sum(completion.truncated for completion in completions),
        reward=statistics.fmean(values) if values else None,
        reasoning_tokens=statistics.fmean(c.reasoning_tokens for c in completions),
        answer_tokens=statistics.fmean(c.answer_tokens for c in completions),
        unscored=dict(sorted(kinds.items())),
    )


def _refuse_unscored(rates: Sequence[PassRate], recipe: ProfileConfig) -> None:
    kinds = sum((Counter(rate.unscored) for rate in rates), Counter[str]())
    total = len(rates) * recipe.n
    if kinds.total() > recipe.max_unscored * total:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        raise DataError(
            f"{kinds.total():,} of {total:,} rollouts are unscored ({listed}), max_unscored allows "
            f"{recipe.max_unscored:.2%}: look at the verifiers, delete work/rates-* in "
            f"{recipe.out} to verify again, or raise max_unscored"
        )


def _decided(rate: PassRate, recipe: ProfileConfig, before: PassRate | None) -> PassRate:
    """The rate with what it means for training."""
    if not rate.scored:
        dropped = "unscored"
    elif rate.passes == rate.scored:
        dropped = "solved"
    else:
        dropped = "unsolved" if recipe.drop_unsolved and not rate.passes else None
    earlier = None if before is None else (before.passes, before.scored)
    return replace(rate, dropped=dropped, before=earlier)


def rate_lines(rates: Sequence[PassRate]) -> str:
    """The text of `pass_rates.jsonl`."""
    return "".join(json_text(asdict(rate)) + "\n" for rate in rates)


def rate_stats(rates: Sequence[PassRate], *, n: int) -> dict[str, Any]:
    """For the manifest: figures by source, with the number of prompts in each bucket 0/n … n/n."""
    return {
        source: _source_stats([rate for rate in rates if rate.source == source], n)
        for source in dict.fromkeys(rate.source for rate in rates)
    }


def _source_stats(rates: Sequence[PassRate], n: int) -> dict[str, Any]:
    scored = [rate for rate in rates if rate.scored]
    buckets = Counter(rate.bucket(n) for rate in scored)
    again = [rate for rate in scored if rate.before is not None and rate.before[1]]
    stats: dict[str, Any] = {
        "prompts": len(rates),
        "kept": sum(rate.dropped is None for rate in rates),
        "dropped": dict(sorted(Counter(r.dropped for r in rates if r.dropped).items())),
        "buckets": [buckets[k] for k in range(n + 1)],
        "rollouts": len(rates) * n,
        "passes": sum(rate.passes for rate in rates),
        "scored": sum(rate.scored for rate in rates),
        "truncated": sum(rate.truncated for rate in rates),
        "unscored": dict(sum((Counter(rate.unscored) for rate in rates), Counter[str]())),
        "reward": statistics.fmean(rate.reward or 0.0 for rate in scored) if scored else None,
        "reasoning_tokens": statistics.fmean(rate.reasoning_tokens for rate in rates),
        "answer_tokens": statistics.fmean(rate.answer_tokens for rate in rates),
    }
    if again:
        pairs = [(r.before[0] / r.before[1], r.passes / r.scored) for r in again if r.before]
        stats["drift"] = {
            "prompts": len(pairs),
            "before": statistics.fmean(old for old, _ in pairs),
            "now": statistics.fmean(new for _, new in pairs),
            "rose": sum(new > old for old, new in pairs),
            "fell": sum(new < old for old, new in pairs),
            "now_solved": sum(new == 1 for _, new in pairs),
            "now_unsolved": sum(new == 0 < old for old, new in pairs),
        }
    return stats
