"""Sources × settings → prompts, and the books of every row that became none.

    build_prompts(sources, settings, seed=0, graders=graders, toolkits={}, base_dir=Path("."))
    → PromptSet(prompts=[…], books={"maths": RowCounts(rows_in=36000, kept=150, …)}, …)

Rows are read, matched with `where`, taken as questions, and ordered by a keyed hash of their
content; from the front of that order so many are taken as `count` says, skipping those whose gold
answer its own grader refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_builders.keyed import key64
from data_builders.prompts.question import Question
from data_builders.prompts.rows import distinct_questions
from data_builders.prompts.settings import SettingPlan, in_setting, why_not
from data_builders.rows.read import RowCounts
from posttrain.artifacts import Counts
from posttrain.config.load import nearest
from posttrain.config.prompts import GIVEN_TOOLS, NO_TOOLS, AnySource, Setting
from posttrain.environments.base import Toolkit
from posttrain.errors import ConfigError, DataError
from posttrain.rollouts import Prompt
from reward.grader import Grader


@dataclass(slots=True)
class PromptSet:
    """Prompts in the order of their settings and sources, and how they came about.

    `skipped`: of all distinct questions, how many a setting does not ask, by reason.
    """

    prompts: list[Prompt]
    books: dict[str, RowCounts]
    skipped: dict[str, Counter[str]]

    def counts(self) -> Counts:
        """The books of all sources together."""
        dropped: Counter[str] = Counter()
        for books in self.books.values():
            dropped += books.dropped
        return Counts(
            rows_in=sum(books.rows_in for books in self.books.values()),
            kept=sum(books.kept for books in self.books.values()),
            dropped=dict(sorted(dropped.items())),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question and the settings that ask it."""

    question: Question
    plans: tuple[SettingPlan, ...]


Taken = list[Prompt]  # one question's prompts, in all settings that ask it


def build_prompts(
    sources: Sequence[AnySource],
    settings: Sequence[Setting],
    *,
    seed: int,
    graders: Mapping[str, Grader],
    toolkits: Mapping[str, Toolkit],
    base_dir: Path,
) -> PromptSet:
    """All prompts of a recipe.

    Args:
        seed: chooses rows and, where a setting mixes them, reasoning modes.
        graders, toolkits: all that sources and settings may name.

    Raises:
        ConfigError: a path that is not there, a `where` that cannot be read or matches nothing, a
            grader or toolkit that does not exist, a setting that asks nothing.
        DataError: a file that cannot be read, or a source with fewer usable rows than its `count`.
    """
    check_names(sources, settings, graders=graders, toolkits=toolkits)
    plans = [SettingPlan.of(setting, toolkits) for setting in settings]
    made = PromptSet([], {}, {setting.name: Counter() for setting in settings})
    taken: list[Taken] = []
    seen: set[str] = set()
    for source in sources:
        books = made.books[source.name] = RowCounts()
        candidates: list[Candidate] = []
        for question in distinct_questions(source, books, seen=seen, base_dir=base_dir):
            found = _candidate(question, source, plans, made.skipped)
            if isinstance(found, str):
                books.drop(found)
            else:
                candidates.append(found)
        candidates.sort(key=lambda one: key64(seed, "prompt", one.question.digest))
        grader = None if source.grader is None else graders[source.grader]
        taken += _take(candidates, source, grader, books, seed=seed)
    for setting in settings:
        prompts = [p for one in taken for p in one if p.setting == setting.name]
        if not prompts:
            reasons = _listed(made.skipped[setting.name])
            raise ConfigError(f"setting {setting.name!r} asks nothing: {reasons}")
        made.prompts += prompts
    return made


def _candidate(
    question: Question,
    source: AnySource,
    plans: Sequence[SettingPlan],
    skipped: Mapping[str, Counter[str]],
) -> Candidate | str:
    """The question with the settings that ask it, or why none does."""
    reasons = [why_not(question, source, plan) for plan in plans]
    for plan, reason in zip(plans, reasons, strict=True):
        if reason is not None:
            skipped[plan.setting.name][reason] += 1
    asking = [plan for plan, reason in zip(plans, reasons, strict=True) if reason is None]
    if asking:
        return Candidate(question, tuple(asking))
    only = set(reasons)
    return str(only.pop()) if len(only) == 1 else "no_setting"


def _take(
    candidates: Sequence[Candidate],
    source: AnySource,
    grader: Grader | None,
    books: RowCounts,
    *,
    seed: int,
) -> list[Taken]:
    """The first `count` whose gold its grader accepts in every setting."""
    wanted = len(candidates) if source.count is None else source.count
    taken: list[Taken] = []
    position = 0
    while len(taken) < wanted and position < len(candidates):
        batch = [
            _prompts(one, source, seed)
            for one in candidates[position : position + wanted - len(taken)]
        ]
        position += len(batch)
        for prompts, why in zip(batch, _refused(batch, grader), strict=True):
            if why is None:
                taken.append(prompts)
            else:
                reason = f"gold_refused: {why.partition(':')[0]}"
                books.drop(reason, f"{prompts[0].task}: {why}")
    if source.count is not None and len(taken) < source.count:
        raise DataError(
            f"source {source.name!r}: {len(taken):,} rows can be asked, count is {wanted:,} "
            f"(of {books.rows_in:,} rows; {_listed(books.dropped)})"
        )
    books.kept = len(taken)
    if position < len(candidates):
        books.dropped["not_chosen"] += len(candidates) - position
    return taken


def _prompts(one: Candidate, source: AnySource, seed: int) -> Taken:
    found = [in_setting(one.question, source, plan, seed=seed) for plan in one.plans]
    return [prompt for prompts in found for prompt in prompts]


def _refused(batch: Sequence[Taken], grader: Grader | None) -> list[str | None]:
    """Per question: why its gold cannot be used in one of its settings, or None."""
    if grader is None:
        return [None] * len(batch)
    # the mode of reasoning changes nothing about the gold
    asked = [{p.setting: p for p in prompts} for prompts in batch]
    reasons = iter(grader.refuse([p for found in asked for p in found.values()]))
    each = [[next(reasons) for _ in found] for found in asked]
    return [next((why for why in found if why is not None), None) for found in each]


def check_names(
    sources: Sequence[AnySource],
    settings: Sequence[Setting],
    *,
    graders: Mapping[str, object],
    toolkits: Mapping[str, object],
) -> None:
    """Raises ConfigError for a grader or toolkit that does not exist, naming the nearest."""
    for source in sources:
        if source.grader is not None and source.grader not in graders:
            known = nearest(source.grader, tuple(graders))
            raise ConfigError(f"source {source.name!r}: no grader {source.grader!r}{known}")
        if source.environment is not None and source.environment not in toolkits:
            known = nearest(source.environment, tuple(toolkits))
            raise ConfigError(f"source {source.name!r}: no toolkit {source.environment!r}{known}")
    for setting in settings:
        if setting.tools not in (NO_TOOLS, GIVEN_TOOLS, *toolkits):
            known = nearest(setting.tools, (NO_TOOLS, GIVEN_TOOLS, *toolkits))
            raise ConfigError(f"setting {setting.name!r}: no toolkit {setting.tools!r}{known}")


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in reasons.items()) or "no question"
