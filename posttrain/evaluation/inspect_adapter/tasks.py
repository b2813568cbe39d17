"""Tasks that were written for inspect, run on our samplers and kept as our records.

Inspect runs the solver, the tools and the scorer; every model call is one of our sampler. What the
solver adds to a sample's input, such as a system message, is in the record's prompt.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from shutil import which
from statistics import fmean
from typing import Any, cast

from inspect_ai import Task, eval_async
from inspect_ai._eval.loader import load_tasks
from inspect_ai._util.error import PrerequisiteError
from inspect_ai._util.registry import registry_info, registry_lookup
from inspect_ai.dataset import Sample
from inspect_ai.event import ModelEvent
from inspect_ai.log import EvalSample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageUser, Model
from inspect_ai.scorer import value_to_float
from inspect_ai.scorer._scorer import unique_scorer_name
from inspect_ai.util import TokenLimit
from inspect_ai.util._display import init_display_type

from posttrain.config.eval import EvalConfig, EvalSetting, InspectTask
from posttrain.config.load import nearest
from posttrain.config.templates import fill
from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.inspect_adapter.provider import from_inspect, inspect_model, tools_text
from posttrain.evaluation.journal import JournaledSampler
from posttrain.evaluation.run import INSPECT, Record, record_of
from posttrain.records import Score
from posttrain.rollouts import Completion, Finish, ParsedCompletion, Prompt, Step
from posttrain.sampling.sampler import Generation, Progress, Request, Sampler

_LIMITS: Mapping[str, Finish] = {"token": "token_limit"}  # all others are of turns, or like them


def inspect_run(recipe: EvalConfig, config: InspectTask, setting: str) -> dict[str, Any]:
    """All that a task's scores in a setting depend on but the model, JSON-able.

    `samples` are of each prompt, `max_tokens` of all turns of a completion; `roles` says whether
    each further model that the task calls reasons.
    """
    limits = recipe.sampling_of(setting).limits()
    return {
        "task": config.task,
        "arguments": config.arguments,
        "score": config.score,
        "samples": recipe.n_of(setting),
        "parameters": asdict(limits.parameters),
        "max_turns": limits.max_turns,
        "max_tokens": limits.max_tokens,
        "budget": next(s.reasoning_budget for s in recipe.settings if s.name == setting),
        "seed": recipe.seed,
        "roles": {name: role.thinking for name, role in config.roles.items()},
        "templates": {template.name: template.text for template in config.templates or ()},
    }


def missing_tasks(configs: Sequence[InspectTask]) -> list[str]:
    """What is missing for these tasks and how to get it, one text a task; loads no data set."""
    missing: list[str] = []
    for config in configs:
        file, _, name = config.task.partition("@")
        package = config.task.partition("/")[0]
        if name:
            why = None if Path(file).is_file() else f"{file} does not exist"
        elif find_spec(package) is None:
            why = f"{config.task} is in {package}: pip install 'posttrain[eval-suite]'"
        else:
            known = registry_lookup("task", config.task) is not None
            why = None if known else f"{package} has no task {config.task}"
        if why is not None:
            hint = f"; {config.obtain}" if config.obtain else ""
            missing.append(f"{config.name}: {why}{hint}")
    return missing


def task_prompts(config: InspectTask, setting: EvalSetting) -> list[Prompt]:
    """The samples of a task as prompts, in the modes of a setting; of a task that shuffles them in
    the order of their ids, so that it can be resumed.

    Raises:
        ConfigError: the task cannot be loaded, or has no such scorer, fewer samples than `count`,
            or samples that cannot be known again.
        DataError: a sample that is not text.
    """
    task = load_task(config.task, config.arguments)
    scorers: list[str] = []
    for scorer in task.scorer or ():
        scorers.append(unique_scorer_name(scorer, scorers))
    if scorers:
        _counted(config.score, scorers)
    samples, ids = list(task.dataset), [sample.id for sample in task.dataset]
    if len(samples) < (config.count or 0):
        raise ConfigError(f"{config.task} has {len(samples):,} samples, count is {config.count:,}")
    if len({*map(str, ids)}) < len(ids) - ids.count(None) or (
        task.dataset.shuffled and None in ids
    ):
        raise ConfigError(f"{config.task}: samples share an id, or are shuffled and have none")
    if task.dataset.shuffled:
        samples.sort(key=lambda sample: str(sample.id))
    samples = samples[: config.count]
    modes = {0: (False,), 1: (True,), "both": (True, False)}[setting.thinking]  # pyright: ignore[reportArgumentType]  # checked by the recipe
    prompts: list[Prompt] = []
    for number, sample in enumerate(samples, start=1):
        target = sample.target
        name = f"{config.name}-{number if sample.id is None else sample.id}"
        prompts += [
            Prompt(
                id=f"{name}/{setting.name}/{'on' if thinking else 'off'}"
                + (f"/{template.name}" if template else ""),
                task=name,
                setting=setting.name,
                messages=tuple(map(from_inspect, _templated(sample, template and template.text))),
                thinking=thinking,
                reasoning_budget=setting.reasoning_budget if thinking else None,
                grader=INSPECT,
                gold=target if isinstance(target, str) else "\n".join(target),
                source=config.name,
                template=template and template.name,
            )
            for thinking in modes
            for template in config.templates or (None,)
        ]
    return prompts


def _templated(sample: Sample, template: str | None) -> list[ChatMessage]:
    """A sample's input, its last user message in a template where there is one."""
    given = sample.input
    messages: list[ChatMessage] = (
        [ChatMessageUser(content=given)] if isinstance(given, str) else [*given]
    )
    if template is None:
        return messages
    last = max(i for i, message in enumerate(messages) if message.role == "user")
    text = fill(template, messages[last].text, {})
    messages[last] = messages[last].model_copy(update={"content": text})
    return messages


def load_task(name: str, arguments: Mapping[str, Any]) -> Task:
    """One task with its data; ConfigError where it cannot be had, has no such argument, or needs
    docker and there is none."""
    file = Path(name.partition("@")[0])
    try:
        if file.is_file():  # inspect takes one with a syntax error for a file without tasks
            compile(file.read_bytes(), file, "exec")
        tasks = load_tasks([name], dict(arguments))
    except Exception as error:
        raise ConfigError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    if len(tasks) != 1:
        raise ConfigError(f"{name} names {len(tasks)} tasks: give FILE.py@NAME")
    (task,) = tasks
    parameters = signature(cast(Any, registry_lookup("task", registry_info(task).name))).parameters
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        for key in arguments:
            if key not in parameters:
                raise ConfigError(f"{name} has no argument {key!r}{nearest(key, (*parameters,))}")
    if task.sandbox is not None and task.sandbox.type == "docker" and which("docker") is None:
        raise ConfigError(f"{name} runs programs in docker, which is not installed")
    return task


async def run_task(
    run: Mapping[str, Any],
    prompts: Sequence[Prompt],
    samplers: Mapping[str, Sampler | None],
    *,
    checkpoint: str,
    journal: Callable[[str], Path],
    logs: Path,
) -> list[Record]:
    """A record for each sample of each prompt, in order; no model is asked twice for an answer.

    Args:
        run: of `inspect_run`.
        samplers: of the checkpoint (""), and of each role; None: its `journal` answers alone.
        logs: a folder that inspect's own logs may be left in.
    """
    records: dict[tuple[str, int], Record] = {}
    roles = {role: JournaledSampler(one, journal(role)) for role, one in samplers.items()}
    sampler = roles.pop("")
    for thinking, template in dict.fromkeys((p.thinking, p.template) for p in prompts):
        numbers = {p.task: p for p in prompts if (p.thinking, p.template) == (thinking, template)}
        task = load_task(run["task"], run["arguments"])
        chosen: dict[str, Prompt] = {}
        for number, sample in enumerate(task.dataset, start=1):
            sample.id = str(number if sample.id is None else sample.id)
            if (prompt := numbers.get(f"{prompts[0].source}-{sample.id}")) is not None:
                chosen[sample.id] = prompt
                if template is not None:
                    sample.input = _templated(sample, run["templates"][template])
        init_display_type("none")
        model = inspect_model(sampler, checkpoint, thinking=thinking)
        most, sampling = run["max_tokens"], run["parameters"]
        try:
            (log,) = await eval_async(
                task,
                model=model,
                model_roles={
                    role: inspect_model(one, role, thinking=run["roles"][role])
                    for role, one in roles.items()
                },
                epochs=run["samples"],
                sample_id=[*chosen],
                log_dir=str(logs),
                log_realtime=False,
                ctl_server=False,
                fail_on_error=False,
                turn_limit=run["max_turns"],
                token_limit=None if most is None else TokenLimit(tokens=most, type="output"),
                max_samples=len(chosen) * run["samples"] if sampler.batched else None,
                **{k: sampling[k] for k in ("temperature", "top_p", "top_k", "max_tokens")},
                reasoning_tokens=run["budget"],
                seed=run["seed"],
            )
        except (PrerequisiteError, ValueError) as error:
            raise ConfigError(f"inspect cannot run {run['task']}: {error}") from error
        if log.samples is None or len(log.samples) != len(chosen) * run["samples"]:
            why = log.error.message if log.error is not None else log.status
            raise DataError(f"inspect ended {run['task']} early: {why}")
        for sample in log.samples:
            prompt, index = chosen[str(sample.id)], sample.epoch - 1
            records[prompt.id, index] = _record(sample, prompt, model, checkpoint, run["score"])
    return [records[prompt.id, index] for prompt in prompts for index in range(run["samples"])]


class _SilentSampler:
    """Sampler of a model that says nothing, so that a task makes its first call and ends."""

    batched = True
    identity: Mapping[str, Any] = {}

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """An empty answer to each request."""
        nothing = ParsedCompletion(None, "", (), (), finished=True)
        step = Step(
            text="",
            parsed=nothing,
            finish="stop",
            reasoning_tokens=0,
            answer_tokens=0,
            prompt_tokens=0,
        )
        return [Generation(step) for _ in requests]


async def first_calls(run: Mapping[str, Any], prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a model gets them in a task's first call, in order.

    A solver adds its system message and its tools while it runs, so the task runs, up to the first
    answer, on a model that says nothing.

    Raises:
        ConfigError, DataError: as `run_task`.
    """
    first_turn = {**run, "samples": 1, "max_turns": 1}
    silent: dict[str, Sampler | None] = {"": _SilentSampler()}
    for role in run["roles"]:
        silent[role] = _SilentSampler()
    with tempfile.TemporaryDirectory(prefix="posttrain-inspect-") as folder:
        records = await run_task(
            first_turn,
            prompts,
            silent,
            checkpoint="dry-run",
            journal=lambda role: Path(folder, f"{role or 'model'}.jsonl"),
            logs=Path(folder),
        )
    return [record.prompt for record in records]


def _record(
    sample: EvalSample, prompt: Prompt, model: Model, checkpoint: str, score: str | None
) -> Record:
    """The turns of the conversation that inspect kept, with what our sampler knows of each."""
    generation_of = cast(Any, model.api).generation_of  # its decorator hides the class
    messages = sample.messages
    generations = {
        place: generation
        for place, message in enumerate(messages)
        if isinstance(message, ChatMessageAssistant)
        and message.id is not None
        and (generation := generation_of(message.id)) is not None
    }
    index = sample.epoch - 1
    if sample.error is not None or not generations:
        error = "no model call" if sample.error is None else sample.error.message
        completion = Completion(prompt.id, index, (), "failed", error=error)
        lost = Score(None, None, f"failed: {error}", "service")
        return record_of(checkpoint, prompt, completion, lost)
    first, *_ = generations
    given = tuple(map(from_inspect, messages[:first]))
    sent = replace(prompt, messages=given, tools=_tools(sample, str(messages[first].id)))
    steps = tuple(_steps(generations, messages))
    finish: Finish = "length" if steps[-1].finish == "length" else "stop"
    if sample.limit is not None:
        finish = _LIMITS.get(sample.limit.type, "turn_limit")
    prompt_ids = generations[first].prompt_ids
    completion = Completion(prompt.id, index, steps, finish, prompt_ids=prompt_ids)
    return record_of(checkpoint, sent, completion, _score(sample, score))


def _steps(generations: Mapping[int, Generation], messages: Sequence[ChatMessage]) -> list[Step]:
    """Each turn with what answered it."""
    places = [*generations, len(messages)]
    steps: list[Step] = []
    for place, until in itertools.pairwise(places):
        generation, later = generations[place], generations.get(until)
        assert generation.step is not None
        step, between = generation.step, ()
        next_ids = () if later is None else later.prompt_ids or ()
        sent = (*(generation.prompt_ids or ()), *(step.ids or ()))
        if sent and next_ids[: len(sent)] == sent:
            between = next_ids[len(sent) :]
        results = tuple(map(from_inspect, messages[place + 1 : until]))
        steps.append(replace(step, results=results, results_ids=between))
    return steps


def _tools(sample: EvalSample, first: str) -> str | None:
    """The tools that the first turn was given."""
    answered = (e for e in sample.events if isinstance(e, ModelEvent) and e.output.choices)
    event = next((e for e in answered if e.output.message.id == first), None)
    return None if event is None else tools_text(event.tools)


def _counted(wanted: str | None, scorers: Sequence[str]) -> tuple[str, str]:
    """The scorer that counts and the key of its value; raises ConfigError where it is not there."""
    name, _, key = (wanted or (scorers[0] if len(scorers) == 1 else "")).partition(".")
    if name not in scorers:
        raise ConfigError(f"name the scorer in score: the task has {', '.join(scorers) or 'none'}")
    return name, key


def _score(sample: EvalSample, wanted: str | None) -> Score:
    """The value that counts, as a share; ConfigError where there are several, or none."""
    scores = sample.scores or {}
    name, key = _counted(wanted, [*scores])
    found = scores[name]
    value = found.value
    if isinstance(value, Mapping) and key == "*":
        parts: list[Any] = [*value.values()]
        value = None if None in parts or not parts else fmean(map(value_to_float(), parts))
    elif isinstance(value, Mapping):
        if key not in value:
            example = f"{name}.{next(iter(value), '')}"
            raise ConfigError(f"score {name} has several values: name one, as in {example}")
        value = value[key]
    number = value_to_float()(value)  # pyright: ignore[reportArgumentType]  # None is not scored
    why = found.explanation or f"inspect's {name}: {value}"
    if value is None or not (math.isfinite(number) and 0 <= number <= 1):
        return Score(None, found.answer, f"unscored: {why}", "verifier_error")
    return Score(number, found.answer, why)
