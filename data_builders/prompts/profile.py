"""Profile of pass rates: samples of every prompt → the share of them that passes.

Prompts that are always solved are not worth training on. A truncated rollout counts as one that
does not pass; an unscored one counts nowhere. Verdicts are written batch by batch: an interrupted
profile verifies nothing twice.
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
BATCH = 64  # prompts that are verified and written at a time


@dataclass(frozen=True, slots=True)
class PassRate:
    """Results of the rollouts of one prompt.

    Attributes:
        passes: number of the `scored` rollouts that pass.
        truncated: rollouts that a limit ended; they are scored, with 0.
        reward: mean over the scored rollouts; None without any.
        reasoning_tokens, answer_tokens: means over all rollouts.
        unscored: number of rollouts without a score, by kind of cause.
        dropped: reason why the prompt is not for training (`solved`, `unsolved`, `unscored`); None
            if it is.
        before: passes and scored rollouts in the previous profile.
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
        """Passes out of n, rounded down if fewer than n rollouts are scored."""
        return self.passes * n // self.scored


@dataclass(frozen=True, slots=True)
class PassRateProfile:
    """Finished profile: its prompts and their pass rates, in the same order."""

    folder: Path
    prompts: list[Prompt]
    rates: list[PassRate]
    n: int
    manifest: Manifest

    def kept(self) -> list[Prompt]:
        """Prompts for training."""
        kept_prompts: list[Prompt] = []
        for prompt, rate in zip(self.prompts, self.rates, strict=True):
            if rate.dropped is None:
                kept_prompts.append(prompt)
        return kept_prompts

    def pools(self, sources_of: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
        """Prompts for training: domain → id of the prompt → its bucket.

        Args:
            sources_of: names of the sources of each domain.

        Raises:
            DataError: a source without a prompt, a domain without one for training.
        """
        profiled_sources = {rate.source for rate in self.rates}
        pools: dict[str, dict[str, int]] = {}
        for domain, sources in sources_of.items():
            unknown_sources = sorted(set(sources) - profiled_sources)
            if unknown_sources:
                raise DataError(
                    f"domain {domain!r}: {self.folder} has no source {unknown_sources[0]!r}; it "
                    f"has {', '.join(sorted(profiled_sources))}"
                )
            domain_rates = [rate for rate in self.rates if rate.source in sources]
            kept_rates = [rate for rate in domain_rates if rate.dropped is None]
            if not kept_rates:
                counts = Counter(rate.dropped for rate in domain_rates)
                reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
                raise DataError(
                    f"domain {domain!r}: {self.folder} kept none of its prompts ({reasons}): "
                    "profile others, or leave the domain out"
                )
            pools[domain] = {rate.prompt_id: rate.bucket(self.n) for rate in kept_rates}
        return pools


def read_profile(path: Path | str) -> PassRateProfile:
    """Read a `pass_rates` artifact. Raises DataError if it is none, or was changed."""
    folder = Path(path)
    manifest = read_artifact(path, kind=KIND)
    rows = jsonl_rows((folder / FILE).read_text("utf-8"))
    rates = [PassRate(**row) for row in rows]
    prompts = read_prompts(folder / "prompts.jsonl")
    return PassRateProfile(folder, prompts, rates, manifest.config["n"], manifest)


@dataclass(frozen=True, slots=True)
class PromptsToProfile:
    """Prompts that a profile samples.

    Attributes:
        before: pass rates of the previous profile by prompt id; empty without one.
        stats: stats of the sources; empty with a previous profile.
        parents: the previous profile, if there is one.
        contaminated: number of prompts that were left out, since they overlap evaluation items.
        room: sentence that says that the prompts fit the model; None if its tokenizer is not known.
    """

    prompts: list[Prompt]
    before: dict[str, PassRate]
    stats: dict[str, Any]
    parents: list[Parent]
    inputs: list[Input]
    contaminated: int
    room: str | None

    def counts(self, rates: Sequence[PassRate]) -> Counts:
        """Counts of all prompts: kept for training, or dropped by reason."""
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
    """Build the prompts of the recipe's sources, or take those that the previous profile kept.

    Raises:
        ConfigError: a prompt leaves no room for `sampling.max_tokens`, or needs a judge.
        DataError: the previous profile is none, or was changed; no prompt remains.
    """
    parents: list[Parent] = []
    before: dict[str, PassRate] = {}
    stats: dict[str, Any] = {}
    if recipe.previous is not None:
        profile = read_profile(recipe.previous)
        parents.append(parent_of(recipe.previous, relative_to=out, manifest=profile.manifest))
        before = {rate.prompt_id: rate for rate in profile.rates}
        prompts = profile.kept()
    else:
        prompt_set = plan.build()
        prompts = prompt_set.prompts
        stats = prompt_set.stats()
    evaluation_inputs = evaluation_files(recipe.decontamination, base_dir)
    decontaminator = load_decontaminator(recipe.decontamination, base_dir, evaluation_inputs)
    clean_prompts = prompts
    if decontaminator is not None:
        examples = [
            make_example(prompt.messages, source=prompt.source, dialect="prompt")
            for prompt in prompts
        ]
        drops = decontaminator.drops(examples)
        clean_prompts = [
            prompt for prompt, drop in zip(prompts, drops, strict=True) if drop is None
        ]
    if not clean_prompts:
        reason = f"all {len(prompts):,} overlap evaluation items"
        if not prompts:
            reason = f"{recipe.previous} kept none"
        raise DataError(f"there is no prompt to profile: {reason}")
    # with a judge, verifiers are looked up once it is open
    if recipe.judge is None:
        check_verifiers(clean_prompts, Environments())
    room = None
    if renderer is not None and recipe.checkpoint is not None:
        lengths = prompt_lengths(clean_prompts, renderer.template, encoder_of(renderer.tokenizer))
        context_length = positions_of(recipe.checkpoint)
        max_length = getattr(recipe.backend, "max_length", None) or context_length
        room = check_room(
            clean_prompts,
            lengths,
            template=renderer.template,
            max_tokens=recipe.sampling.max_tokens,
            room=min(context_length, max_length),
        )
    return PromptsToProfile(
        prompts=clean_prompts,
        before=before,
        stats=stats,
        parents=parents,
        inputs=[*plan.inputs, *evaluation_inputs],
        contaminated=len(prompts) - len(clean_prompts),
        room=room,
    )


def check_verifiers(prompts: Sequence[Prompt], environments: Environments) -> None:
    """Raise ConfigError for a prompt whose verifier is unknown."""
    for prompt in prompts:
        environments.verifier(prompt)


async def sample_and_verify(
    recipe: ProfileConfig,
    prompts: Sequence[Prompt],
    before: Mapping[str, PassRate],
    console: Console,
) -> tuple[SampleStats, list[PassRate]]:
    """Make the samples and verdicts of a profile that an earlier run has not made.

    Args:
        before: pass rates of the previous profile by prompt id.

    Returns:
        Stats of the samples, and the pass rate of each prompt.

    Raises:
        ConfigError: see `make_samples`.
        DataError: more rollouts are unscored than the recipe allows.
    """
    out = Path(recipe.out)
    rates: list[PassRate] = []
    async with contextlib.AsyncExitStack() as stack:
        environments = Environments(await open_label_judge(recipe.judge, stack))
        check_verifiers(prompts, environments)
        samples = await make_samples(recipe, prompts, environments.open, console)
        groups = read_groups(out)
        with console.status("verifying") as status:
            for number in itertools.count():
                batch = list(itertools.islice(groups, BATCH))
                if not batch:
                    break
                file = out / "work" / f"rates-{number:06}.jsonl"
                if not file.is_file():
                    batch_rates = await _verify_batch(batch, environments)
                    atomic_write_text(file, rate_lines(batch_rates))
                rates += [PassRate(**row) for row in jsonl_rows(file.read_text("utf-8"))]
                status.update(f"verifying: {len(rates):,} of {len(prompts):,}")
    _refuse_unscored(rates, recipe)
    return samples, [_decide_drop(rate, recipe, before.get(rate.prompt_id)) for rate in rates]


async def _verify_batch(
    batch: Sequence[tuple[Prompt, Sequence[Completion]]], environments: Environments
) -> list[PassRate]:
    """Verify the completions of some prompts, all at once. Returns a pass rate for each prompt."""
    attempts = [(prompt, completion) for prompt, completions in batch for completion in completions]
    verdicts = iter(await verify_all(attempts, environments.verifier))
    rates: list[PassRate] = []
    for prompt, completions in batch:
        prompt_verdicts = list(itertools.islice(verdicts, len(completions)))
        rates.append(_summarise(prompt, completions, prompt_verdicts))
    return rates


def _summarise(
    prompt: Prompt, completions: Sequence[Completion], verdicts: Sequence[Verified]
) -> PassRate:
    """Pass rate of one prompt from the verdicts on its completions."""
    scores = [verdict.score.value for verdict in verdicts]
    values = [value for value in scores if value is not None]
    kinds = Counter(verdict.kind for verdict in verdicts if verdict.kind is not None)
    return PassRate(
        prompt_id=prompt.id,
        source=prompt.source,
        passes=sum(verdict.passed for verdict in verdicts),
        scored=len(values),
        truncated=sum(completion.truncated for completion in completions),
        reward=statistics.fmean(values) if values else None,
        reasoning_tokens=statistics.fmean(c.reasoning_tokens for c in completions),
        answer_tokens=statistics.fmean(c.answer_tokens for c in completions),
        unscored=dict(sorted(kinds.items())),
    )


def _count_unscored(rates: Sequence[PassRate]) -> Counter[str]:
    """Number of unscored rollouts of some prompts, by kind of cause."""
    kinds: Counter[str] = Counter()
    for rate in rates:
        kinds.update(rate.unscored)
    return kinds


def _refuse_unscored(rates: Sequence[PassRate], recipe: ProfileConfig) -> None:
    """Raise DataError if more rollouts are unscored than the recipe allows."""
    kinds = _count_unscored(rates)
    total = len(rates) * recipe.n
    if kinds.total() > recipe.max_unscored * total:
        causes = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        raise DataError(
            f"{kinds.total():,} of {total:,} rollouts are unscored ({causes}), max_unscored allows "
            f"{recipe.max_unscored:.2%}: look at the verifiers, delete work/rates-* in "
            f"{recipe.out} to verify again, or raise max_unscored"
        )


def _decide_drop(rate: PassRate, recipe: ProfileConfig, before: PassRate | None) -> PassRate:
    """Complete a pass rate with the reason to drop its prompt, if any, and the previous rate."""
    dropped = None
    if not rate.scored:
        dropped = "unscored"
    elif rate.passes == rate.scored:
        dropped = "solved"
    elif recipe.drop_unsolved and not rate.passes:
        dropped = "unsolved"
    earlier = None if before is None else (before.passes, before.scored)
    return replace(rate, dropped=dropped, before=earlier)


def rate_lines(rates: Sequence[PassRate]) -> str:
    """Text of `pass_rates.jsonl`."""
    return "".join(json_text(asdict(rate)) + "\n" for rate in rates)


def rate_stats(rates: Sequence[PassRate], *, n: int) -> dict[str, Any]:
    """Figures of each source for the manifest, with the prompts in each bucket 0/n … n/n."""
    rates_by_source: dict[str, list[PassRate]] = {}
    for rate in rates:
        rates_by_source.setdefault(rate.source, []).append(rate)
    return {source: _source_stats(rates, n) for source, rates in rates_by_source.items()}


def _source_stats(rates: Sequence[PassRate], n: int) -> dict[str, Any]:
    scored = [rate for rate in rates if rate.scored]
    buckets = Counter(rate.bucket(n) for rate in scored)
    reasons = Counter(rate.dropped for rate in rates if rate.dropped)
    stats: dict[str, Any] = {
        "prompts": len(rates),
        "kept": sum(rate.dropped is None for rate in rates),
        "dropped": dict(sorted(reasons.items())),
        "buckets": [buckets[k] for k in range(n + 1)],
        "rollouts": len(rates) * n,
        "passes": sum(rate.passes for rate in rates),
        "scored": sum(rate.scored for rate in rates),
        "truncated": sum(rate.truncated for rate in rates),
        "unscored": dict(_count_unscored(rates)),
        "reward": statistics.fmean(rate.reward or 0.0 for rate in scored) if scored else None,
        "reasoning_tokens": statistics.fmean(rate.reasoning_tokens for rate in rates),
        "answer_tokens": statistics.fmean(rate.answer_tokens for rate in rates),
    }
    # share of passes in the previous profile, and in this one, of the prompts that are in both
    shares: list[tuple[float, float]] = []
    for rate in scored:
        if rate.before is not None and rate.before[1]:
            passes_before, scored_before = rate.before
            shares.append((passes_before / scored_before, rate.passes / rate.scored))
    if shares:
        stats["drift"] = {
            "prompts": len(shares),
            "before": statistics.fmean(before for before, _ in shares),
            "now": statistics.fmean(now for _, now in shares),
            "rose": sum(now > before for before, now in shares),
            "fell": sum(now < before for before, now in shares),
            "now_solved": sum(now == 1 for _, now in shares),
            "now_unsolved": sum(now == 0 < before for before, now in shares),
        }
    return stats
