"""Tasks that were written for inspect, run on our samplers and kept as our records.

Inspect runs the solver, the tools and the scorer; all model calls go to our sampler. A system
message or other text that the solver adds to a sample's input is in the record's prompt.
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

# finish of a completion by the type of inspect's limit; all other types are taken for turn limits
_FINISHES: Mapping[str, Finish] = {"token": "token_limit"}


def inspect_run(recipe: EvalConfig, config: InspectTask, setting: str) -> dict[str, Any]:
    """Values that a task's scores in a setting depend on, all but the model; JSON-able.

    `samples` are of each prompt, `max_tokens` of all turns of a completion; `roles` says of each
    further model that the task calls whether it reasons.
    """
    limits = recipe.sampling_of(setting).limits()
    budget = next(s.reasoning_budget for s in recipe.settings if s.name == setting)
    return {
        "task": config.task,
        "arguments": config.arguments,
        "score": config.score,
        "samples": recipe.n_of(setting),
        "parameters": asdict(limits.parameters),
        "max_turns": limits.max_turns,
        "max_tokens": limits.max_tokens,
        "budget": budget,
        "seed": recipe.seed,
        "roles": {name: role.thinking for name, role in config.roles.items()},
        "templates": {template.name: template.text for template in config.templates or ()},
    }


def missing_tasks(configs: Sequence[InspectTask]) -> list[str]:
    """Problems of tasks that cannot be run, and how to solve them; loads no data set."""
    problems: list[str] = []
    for config in configs:
        problem = _task_problem(config.task)
        if problem is not None:
            hint = f"; {config.obtain}" if config.obtain else ""
            problems.append(f"{config.name}: {problem}{hint}")
    return problems


def _task_problem(task: str) -> str | None:
    """Reason why `FILE.py@NAME` or `PACKAGE/NAME` cannot be found; None where it can."""
    file, _, name_in_file = task.partition("@")
    if name_in_file:
        return None if Path(file).is_file() else f"{file} does not exist"
    package = task.partition("/")[0]
    if find_spec(package) is None:
        return f"{task} is in {package}: pip install 'posttrain[eval-suite]'"
    if registry_lookup("task", task) is None:
        return f"{package} has no task {task}"
    return None


def task_prompts(config: InspectTask, setting: EvalSetting) -> list[Prompt]:
    """Make prompts of a task's samples, in the reasoning modes of a setting.

    Samples of a task that shuffles them are in the order of their ids, so that an evaluation can be
    resumed.

    Raises:
        ConfigError: the task cannot be loaded, or has no such scorer, fewer samples than `count`,
            or samples without a name that stays the same.
        DataError: a sample is not text.
    """
    task = load_task(config.task, config.arguments)
    scorers: list[str] = []
    for scorer in task.scorer or ():
        scorers.append(unique_scorer_name(scorer, scorers))
    if scorers:
        _split_score_name(config.score, scorers)  # raises before the first sample is paid for
    samples = list(task.dataset)
    if len(samples) < (config.count or 0):
        raise ConfigError(f"{config.task} has {len(samples):,} samples, count is {config.count:,}")
    _check_ids([sample.id for sample in samples], config.task, shuffled=task.dataset.shuffled)
    if task.dataset.shuffled:
        samples.sort(key=lambda sample: str(sample.id))
    samples = samples[: config.count]
    modes = {0: (False,), 1: (True,), "both": (True, False)}[setting.thinking]  # pyright: ignore[reportArgumentType]  # checked by the recipe
    prompts: list[Prompt] = []
    for number, sample in enumerate(samples, start=1):
        name = f"{config.name}-{number if sample.id is None else sample.id}"
        gold = sample.target if isinstance(sample.target, str) else "\n".join(sample.target)
        for thinking in modes:
            mode_id = f"{name}/{setting.name}/{'on' if thinking else 'off'}"
            for template in config.templates or (None,):
                messages = _input_messages(sample, template and template.text)
                prompt = Prompt(
                    id=mode_id if template is None else f"{mode_id}/{template.name}",
                    task=name,
                    setting=setting.name,
                    messages=tuple(map(from_inspect, messages)),
                    thinking=thinking,
                    reasoning_budget=setting.reasoning_budget if thinking else None,
                    grader=INSPECT,
                    gold=gold,
                    source=config.name,
                    template=template and template.name,
                )
                prompts.append(prompt)
    return prompts


def _check_ids(ids: Sequence[int | str | None], task: str, *, shuffled: bool) -> None:
    """Raise ConfigError where samples could not be told apart when the task is loaded again."""
    names = {str(number if id_ is None else id_) for number, id_ in enumerate(ids, start=1)}
    # without an id a sample is named by its position, which shuffling changes
    if len(names) < len(ids) or (shuffled and None in ids):
        raise ConfigError(f"{task}: samples share an id, or are shuffled and have none")


def _input_messages(sample: Sample, template: str | None) -> list[ChatMessage]:
    """Messages of a sample's input; a template is filled with the last user message."""
    messages: list[ChatMessage]
    if isinstance(sample.input, str):
        messages = [ChatMessageUser(content=sample.input)]
    else:
        messages = [*sample.input]
    if template is None:
        return messages
    last_user = max(i for i, message in enumerate(messages) if message.role == "user")
    text = fill(template, messages[last_user].text, {})
    messages[last_user] = messages[last_user].model_copy(update={"content": text})
    return messages


def load_task(name: str, arguments: Mapping[str, Any]) -> Task:
    """Load a task with its data.

    Args:
        name: `FILE.py@NAME` or `PACKAGE/NAME`.
        arguments: of the task's function.

    Raises:
        ConfigError: the task cannot be loaded, has no such argument, or needs docker, which is not
            installed.
    """
    file = Path(name.partition("@")[0])
    try:
        if file.is_file():
            # inspect takes a file with a syntax error for one without tasks
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
    """Run a task of inspect, each reasoning mode and template in an evaluation of inspect's own.

    Args:
        run: of `inspect_run`.
        prompts: of `task_prompts`, all of one setting.
        samplers: of the checkpoint (""), and of each role; with None its journal answers alone.
        checkpoint: name of the checkpoint in the records.
        journal: role → path of its journal; answers in it are not asked for again.
        logs: folder that inspect may leave its own logs in.

    Returns:
        Records of all samples of each prompt, in the order of the prompts.

    Raises:
        ConfigError: inspect cannot run the task.
        DataError: inspect ended the task before all samples were done.
    """
    records: dict[tuple[str, int], Record] = {}
    role_samplers = {
        role: JournaledSampler(role_sampler, journal(role))
        for role, role_sampler in samplers.items()
    }
    sampler = role_samplers.pop("")
    prompts_by_mode: dict[tuple[bool, str | None], list[Prompt]] = {}
    for prompt in prompts:
        prompts_by_mode.setdefault((prompt.thinking, prompt.template), []).append(prompt)
    for (thinking, template), mode_prompts in prompts_by_mode.items():
        task = load_task(run["task"], run["arguments"])
        template_text = None if template is None else run["templates"][template]
        prompts_by_id = _select_samples(task, mode_prompts, template_text)
        samples = len(prompts_by_id) * run["samples"]
        init_display_type("none")
        model = inspect_model(sampler, checkpoint, thinking=thinking)
        roles = {
            role: inspect_model(role_sampler, role, thinking=run["roles"][role])
            for role, role_sampler in role_samplers.items()
        }
        max_tokens = run["max_tokens"]
        token_limit = None if max_tokens is None else TokenLimit(tokens=max_tokens, type="output")
        sampling_names = ("temperature", "top_p", "top_k", "max_tokens")
        try:
            (log,) = await eval_async(
                task,
                model=model,
                model_roles=roles,
                epochs=run["samples"],
                sample_id=[*prompts_by_id],
                log_dir=str(logs),
                log_realtime=False,
                ctl_server=False,
                fail_on_error=False,
                turn_limit=run["max_turns"],
                token_limit=token_limit,
                # a model in this process decodes the requests of all samples in one batch
                max_samples=samples if sampler.batched else None,
                **{name: run["parameters"][name] for name in sampling_names},
                reasoning_tokens=run["budget"],
                seed=run["seed"],
            )
        except (PrerequisiteError, ValueError) as error:
            raise ConfigError(f"inspect cannot run {run['task']}: {error}") from error
        if log.samples is None or len(log.samples) != samples:
            problem = log.error.message if log.error is not None else log.status
            raise DataError(f"inspect ended {run['task']} early: {problem}")
        for sample in log.samples:
            prompt = prompts_by_id[str(sample.id)]
            record = _record_of_sample(sample, prompt, model, checkpoint, run["score"])
            records[prompt.id, record.completion.index] = record
    return [records[prompt.id, index] for prompt in prompts for index in range(run["samples"])]


def _select_samples(
    task: Task, prompts: Sequence[Prompt], template: str | None
) -> dict[str, Prompt]:
    """Give a task's samples the ids and inputs of prompts. Returns sample id → prompt."""
    prompts_by_name = {prompt.task: prompt for prompt in prompts}
    prompts_by_id: dict[str, Prompt] = {}
    for number, sample in enumerate(task.dataset, start=1):
        sample.id = str(number if sample.id is None else sample.id)
        # named as in `task_prompts`
        prompt = prompts_by_name.get(f"{prompts[0].source}-{sample.id}")
        if prompt is not None:
            prompts_by_id[sample.id] = prompt
            if template is not None:
                sample.input = _input_messages(sample, template)
    return prompts_by_id


class _SilentSampler:
    """Sampler of empty answers, with which a task makes its first call and ends."""

    batched = True
    identity: Mapping[str, Any] = {}

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Answer all requests with the empty text."""
        empty = ParsedCompletion(None, "", (), (), finished=True)
        step = Step(
            text="",
            parsed=empty,
            finish="stop",
            reasoning_tokens=0,
            answer_tokens=0,
            prompt_tokens=0,
        )
        return [Generation(step) for _ in requests]


async def first_calls(run: Mapping[str, Any], prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts as a model gets them in a task's first call, in order.

    A solver adds its system message and its tools while it runs, so the task is run up to the first
    answer, on a model that answers nothing.

    Args:
        run: of `inspect_run`.
        prompts: of `task_prompts`.

    Raises:
        ConfigError, DataError: as `run_task`.
    """
    first_turn = {**run, "samples": 1, "max_turns": 1}
    samplers: dict[str, Sampler | None] = {"": _SilentSampler()}
    for role in run["roles"]:
        samplers[role] = _SilentSampler()
    with tempfile.TemporaryDirectory(prefix="posttrain-inspect-") as folder:
        records = await run_task(
            first_turn,
            prompts,
            samplers,
            checkpoint="dry-run",
            journal=lambda role: Path(folder, f"{role or 'model'}.jsonl"),
            logs=Path(folder),
        )
    return [record.prompt for record in records]


def _record_of_sample(
    sample: EvalSample, prompt: Prompt, model: Model, checkpoint: str, score_name: str | None
) -> Record:
    """Make a record of the conversation that inspect kept and of our sampler's generations in it.

    Args:
        model: made by `inspect_model`; keeps the generations.
        score_name: key `score` of the task in the recipe.
    """
    generation_of = cast(Any, model.api).generation_of  # its decorator hides the class
    messages = sample.messages
    generations: dict[int, Generation] = {}  # by the position of their message
    for position, message in enumerate(messages):
        if isinstance(message, ChatMessageAssistant) and message.id is not None:
            generation = generation_of(message.id)
            # a message that the task put in itself has no generation
            if generation is not None:
                generations[position] = generation
    index = sample.epoch - 1
    if sample.error is not None or not generations:
        error = "no model call" if sample.error is None else sample.error.message
        completion = Completion(prompt.id, index, (), "failed", error=error)
        unscored = Score(None, None, f"failed: {error}", "service")
        return record_of(checkpoint, prompt, completion, unscored)
    first_turn = next(iter(generations))
    sent_prompt = replace(
        prompt,
        messages=tuple(map(from_inspect, messages[:first_turn])),
        tools=_tools_of_turn(sample, str(messages[first_turn].id)),
    )
    steps = tuple(_steps_with_results(generations, messages))
    finish: Finish = "length" if steps[-1].finish == "length" else "stop"
    if sample.limit is not None:
        finish = _FINISHES.get(sample.limit.type, "turn_limit")
    prompt_ids = generations[first_turn].prompt_ids
    completion = Completion(prompt.id, index, steps, finish, prompt_ids=prompt_ids)
    return record_of(checkpoint, sent_prompt, completion, _score_of_sample(sample, score_name))


def _steps_with_results(
    generations: Mapping[int, Generation], messages: Sequence[ChatMessage]
) -> list[Step]:
    """Steps of a completion, each with the tool results or user messages that answered it.

    Args:
        generations: by the position of their message, in order.
        messages: of the whole conversation.
    """
    steps: list[Step] = []
    for position, next_position in itertools.pairwise([*generations, len(messages)]):
        generation = generations[position]
        step = generation.step
        assert step is not None
        next_generation = generations.get(next_position)
        next_ids = () if next_generation is None else next_generation.prompt_ids or ()
        ids_before = (*(generation.prompt_ids or ()), *(step.ids or ()))
        # ids of the results are known only where the next turn continues from these ids
        results_ids: tuple[int, ...] = ()
        if ids_before and next_ids[: len(ids_before)] == ids_before:
            results_ids = next_ids[len(ids_before) :]
        results = tuple(map(from_inspect, messages[position + 1 : next_position]))
        steps.append(replace(step, results=results, results_ids=results_ids))
    return steps


def _tools_of_turn(sample: EvalSample, message_id: str) -> str | None:
    """JSON text of the tools in the call that an assistant message came from."""
    for event in sample.events:
        if not isinstance(event, ModelEvent) or not event.output.choices:
            continue
        if event.output.message.id == message_id:
            return tools_text(event.tools)
    return None


def _split_score_name(score_name: str | None, scorers: Sequence[str]) -> tuple[str, str]:
    """Split key `score` of a recipe into a scorer and the key of its value ("" for a single value).

    Raises:
        ConfigError: the task has no such scorer, or several where none is named.
    """
    if not score_name:
        score_name = scorers[0] if len(scorers) == 1 else ""
    scorer, _, value_key = score_name.partition(".")
    if scorer not in scorers:
        raise ConfigError(f"name the scorer in score: the task has {', '.join(scorers) or 'none'}")
    return scorer, value_key


def _score_of_sample(sample: EvalSample, score_name: str | None) -> Score:
    """Value of a sample's score, in [0, 1]; any other value is unscored.

    Raises:
        ConfigError: there is no such score, or it has several values and none is named.
    """
    scores = sample.scores or {}
    scorer, value_key = _split_score_name(score_name, [*scores])
    inspect_score = scores[scorer]
    value = inspect_score.value
    if isinstance(value, Mapping) and value_key == "*":
        parts: list[Any] = [*value.values()]
        value = None if None in parts or not parts else fmean(map(value_to_float(), parts))
    elif isinstance(value, Mapping):
        if value_key not in value:
            example = f"{scorer}.{next(iter(value), '')}"
            raise ConfigError(f"score {scorer} has several values: name one, as in {example}")
        value = value[value_key]
    number = value_to_float()(value)  # pyright: ignore[reportArgumentType]  # None is not scored
    explanation = inspect_score.explanation or f"inspect's {scorer}: {value}"
    if value is None or not (math.isfinite(number) and 0 <= number <= 1):
        return Score(None, inspect_score.answer, f"unscored: {explanation}", "verifier_error")
    return Score(number, inspect_score.answer, explanation)
