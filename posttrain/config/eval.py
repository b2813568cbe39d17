"""The recipes of evaluations: of checkpoints, of judges, of one policy against another; gates."""

import re
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import Field

from posttrain.config.backend import REACHING, BackendConfig, check_checkpoint
from posttrain.config.base import Name, Strict, refuse_twice, refuse_unknown
from posttrain.config.generation import UNSTATED, TokenChoice, choice_line, generation_choice
from posttrain.config.judge import AskedModel, JudgeConfig, LabelJudgeConfig
from posttrain.config.load import nearest
from posttrain.config.prompts import (
    GIVEN_TOOLS,
    NO_TOOLS,
    AnySource,
    EnvironmentPrompts,
    Setting,
    check_prompts,
)
from posttrain.config.sample import SamplingConfig, ToolLoopSampling, check_chat
from posttrain.config.templates import Templates, check_templates
from posttrain.errors import ConfigError
from posttrain.rollouts import Parameters

Share = Annotated[float, Field(ge=0, le=1)]
_NAME = re.compile(r"[\w+-][\w.+-]*")


class EvaluatedConfig(Strict):
    """One checkpoint with a backend or sampling of its own.

    path: directory or hub id, as `checkpoint` of a sampling recipe.
    backend: backend of this checkpoint, instead of the recipe's.
    sampling: values in place of the recipe's `sampling`; those of a setting come first.
    """

    path: str | None = None
    backend: BackendConfig | None = None
    sampling: TokenChoice = TokenChoice()


class CheckpointsConfig(Strict):
    """The checkpoints of an evaluation and how many completions of each prompt they make.

    checkpoints: name → path, or path and backend; the others are compared with the first.
    backend: backend of the checkpoints that name none of their own.
    n, chunk, max_failure_rate: as in a sampling recipe.
    """

    out: str
    checkpoints: dict[str, str | EvaluatedConfig] = Field(min_length=1)
    backend: BackendConfig | None = None
    n: int = Field(default=1, ge=1)
    chunk: int = Field(default=2048, ge=1)
    max_failure_rate: float = Field(default=0.0, ge=0, lt=1)
    seed: int = Field(default=0, ge=0)

    def check(self) -> None:
        for name in self.checkpoints:
            if not _NAME.fullmatch(name):
                raise ValueError(f"checkpoint name {name!r}: use letters, digits, _ + - .")
            key = f"checkpoints.{name}.path"
            check_checkpoint(self.backend_of(name), self.path_of(name), key)

    def path_of(self, checkpoint: str) -> str | None:
        """Path of a checkpoint; None where a server holds it."""
        entry = self.checkpoints[checkpoint]
        return entry if isinstance(entry, str) else entry.path

    def backend_of(self, checkpoint: str) -> BackendConfig:
        """Backend of a checkpoint: its own, or the recipe's.

        Raises:
            ValueError: there is neither.
        """
        entry = self.checkpoints[checkpoint]
        backend = self.backend if isinstance(entry, str) else entry.backend or self.backend
        if backend is None:
            raise ValueError(f"checkpoints.{checkpoint}: there is no backend; name one for all")
        return backend

    def choice_of(self, checkpoint: str) -> TokenChoice:
        """Sampling values that a checkpoint's own block states."""
        entry = self.checkpoints[checkpoint]
        return TokenChoice() if isinstance(entry, str) else entry.sampling


class InspectTask(Strict):
    """A task that was written for inspect, with prompts, tools and a scorer of its own.

    task: a registered name such as `inspect_evals/tau2_airline`, or `path/to/file.py@name`.
    arguments: arguments of the task's function.
    score: the scorer that counts, with `.key` for a value, `.*` for the mean; null: its only one.
    roles: further models by the role that the task gives them, such as its user or its grader.
    count: number of samples to take, from the front; null takes all.
    obtain: where to get the data, shown if they are missing.
    templates: a set or a file of templates; every sample's input is given in each.
    """

    format: Literal["inspect"]
    name: Name
    task: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    score: str | None = None
    roles: dict[str, AskedModel] = Field(default_factory=dict[str, AskedModel])
    count: int | None = Field(default=None, ge=1)
    obtain: str | None = None
    templates: Templates | None = None

    def check(self) -> None:
        where = f"source {self.name!r}"
        if self.task.endswith(".py"):
            raise ValueError(f"{where}: a task in a file is {self.task}@NAME")
        check_templates(where, self.templates or (), options=False, own_format=True)


AnyTask = Annotated[AnySource | InspectTask, Field(discriminator="format")]


class EvalSetting(Setting):
    """One way in which tasks are given.

    sampling: values in place of the recipe's `sampling`.
    """

    sampling: dict[str, float | int | None] = Field(default_factory=dict)


class Price(Strict):
    """Money per million tokens of one model.

    input: price of prompt tokens.
    output: price of all tokens that the model writes.
    cached: price of prompt tokens that the server reported to be cached; null: as `input`.
    """

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)


class EstimateConfig(Strict):
    """Expectation of `--dry-run` on the length of completions.

    output_tokens: tokens of a completion; null: as many as it can have.
    """

    output_tokens: int | None = Field(default=None, ge=1)


class RecoveryConfig(Strict):
    """Table of the share of each teacher's lead that a distilled student has recovered.

    before, after: checkpoints of the student. Without `before` the share is of the teacher's
        accuracy itself, as of a quantised checkpoint, whose teacher is its source.
    teachers: task → checkpoint of its teacher.
    """

    before: str | None = None
    after: str
    teachers: dict[str, str] = Field(min_length=1)


class EvalConfig(CheckpointsConfig, stage="eval"):
    """One evaluation.

    expect: agentic family, or `all` → predicted range of the share of its solved runs; a run keeps
        the predictions that it began with.
    judge: model that answers the environments `equivalence` and `rubric`.
    prices: prices by checkpoint, in any currency.
    recovery: student and teachers among the checkpoints, for a table of what distillation
        recovered, or a quantised checkpoint kept; null: no such table.
    inspect_logs: write the run as inspect's logs as well, for `inspect view`.
    """

    prompts: tuple[AnyTask, ...] = Field(min_length=1)
    settings: tuple[EvalSetting, ...] = Field(min_length=1)
    sampling: ToolLoopSampling = ToolLoopSampling()
    expect: dict[str, tuple[Share, Share]] = Field(default_factory=dict[str, tuple[float, float]])
    judge: LabelJudgeConfig | None = None
    prices: dict[str, Price] = Field(default_factory=dict)
    estimate: EstimateConfig = EstimateConfig()
    recovery: RecoveryConfig | None = None
    inspect_logs: bool = False

    def check(self) -> None:
        families = [
            task.environment for task in self.row_tasks if isinstance(task, EnvironmentPrompts)
        ]
        refuse_unknown("expect: no source is of the family", self.expect, [*families, "all"])
        for family, (low, high) in self.expect.items():
            if low > high:
                raise ValueError(f"expect.{family}: {low} is above {high}")
        check_prompts(cast(Any, self.prompts), self.settings)  # it reads nothing but their names
        unit_names: list[str] = []
        for task in self.prompts:
            unit_names += [f"{task.name}.{setting.name}" for setting in self.settings]
        refuse_twice("source.setting", unit_names)
        for task in self.prompts:
            if not any(_takes(setting, task) for setting in self.settings):
                raise ValueError(
                    f"prompts: no setting asks source {task.name!r}: add it to one, or leave it out"
                )
            if getattr(task, "augment", None) is not None:
                raise ValueError(
                    f"prompts: source {task.name!r}: augment is for training; templates asks each "
                    "question in each template"
                )
        for name in self.checkpoints:
            check_chat(self.backend_of(name), self.settings)
        checkpoint_names = list(self.checkpoints)
        refuse_unknown("prices: there is no checkpoint", self.prices, checkpoint_names)
        if self.recovery is not None:
            recovery = self.recovery
            compared = [recovery.after, *recovery.teachers.values()]
            if recovery.before is not None:
                compared.append(recovery.before)
            refuse_unknown("recovery: there is no checkpoint", compared, checkpoint_names)
            task_names = [task.name for task in self.prompts]
            refuse_unknown("recovery.teachers: there is no task", recovery.teachers, task_names)
        for setting in self.settings:
            where = f"setting {setting.name!r}"
            sampling_keys = list(ToolLoopSampling.model_fields)
            refuse_unknown(f"{where}: sampling has no", setting.sampling, sampling_keys)
            self.sampling_of(setting.name)  # validates the values
            if not any(_takes(setting, task) for task in self.inspect_tasks):
                continue
            if setting.tools not in (NO_TOOLS, GIVEN_TOOLS) or setting.where is not None:
                raise ValueError(
                    f"{where}: a task of inspect has its own tools and samples; name the other "
                    "tasks in sources, or leave out tools and where"
                )
            if setting.thinking not in (0, 1, "both"):
                raise ValueError(f"{where}: inspect takes thinking 0, 1 or both")

    @property
    def inspect_tasks(self) -> tuple[InspectTask, ...]:
        """Tasks that inspect runs."""
        return tuple(task for task in self.prompts if isinstance(task, InspectTask))

    @property
    def row_tasks(self) -> tuple[AnySource, ...]:
        """Tasks whose prompts are rows."""
        return tuple(task for task in self.prompts if not isinstance(task, InspectTask))

    def sampling_of(self, setting: str, checkpoint: str | None = None) -> ToolLoopSampling:
        """Sampling of a checkpoint in a setting; without a checkpoint, what all have in common."""
        setting_values: dict[str, Any] = {}
        for key, value in self._setting(setting).sampling.items():
            # a null token choice leaves the choice to the checkpoint, the recipe or the model
            if value is not None or key not in TokenChoice.model_fields:
                setting_values[key] = value
        checkpoint_values = {} if checkpoint is None else self.choice_of(checkpoint).chosen()
        values = self.sampling.model_dump() | checkpoint_values | setting_values
        return ToolLoopSampling.model_validate(values)

    def _setting(self, name: str) -> EvalSetting:
        return next(setting for setting in self.settings if setting.name == name)

    def owner_config(self) -> dict[str, Any]:
        """The config without keys that change no record, for the output directory's digest."""
        model = {"backend": REACHING}
        excluded: dict[str, Any] = {
            "out": True,
            "max_failure_rate": True,
            "inspect_logs": True,
            "prices": True,
            "estimate": True,
            "backend": REACHING,
            "judge": model,
            "checkpoints": {"__all__": model},
            "prompts": {"__all__": {"obtain": True, "roles": {"__all__": model}}},
        }
        # without the table the digest is the one of versions that had no such table
        if self.recovery is None:
            excluded["recovery"] = True
        config = self.model_dump(mode="json", exclude=excluded)
        # a checkpoint's `sampling` holds the values that it states, and is left out without any
        for block in config["checkpoints"].values():
            if isinstance(block, dict):
                block = cast(dict[str, Any], block)
                choice = block.pop("sampling")
                stated = {name: value for name, value in choice.items() if value is not None}
                if stated:
                    block["sampling"] = stated
        return config

    def n_of(self, setting: str) -> int:
        """Completions of each prompt in a setting."""
        return self._setting(setting).n or self.n

    def part(self, tasks: tuple[str, ...]) -> Self:
        """The recipe with only some of its tasks, and with the settings that use these.

        Raises:
            ConfigError: there is no such task, or no setting uses it.
        """
        task_names = [source.name for source in self.prompts]
        for name in tasks:
            if name not in task_names:
                raise ConfigError(f"there is no task {name!r}{nearest(name, task_names)}")
        settings: list[EvalSetting] = []
        for setting in self.settings:
            sources = tuple(name for name in setting.sources or task_names if name in tasks)
            if sources:
                settings.append(setting.model_copy(update={"sources": sources}))
        if not settings:
            raise ConfigError(f"no setting uses {', '.join(tasks)}")
        prompts = tuple(source for source in self.prompts if source.name in tasks)
        return self.model_copy(update={"prompts": prompts, "settings": tuple(settings)})

    def of_rows(self) -> Self | None:
        """The recipe without the tasks of inspect; None if it has no others."""
        names = tuple(task.name for task in self.row_tasks)
        return self.part(names) if names else None


def _takes(setting: EvalSetting, task: AnySource | InspectTask) -> bool:
    return not setting.sources or task.name in setting.sources


class GateRule(Strict):
    """One threshold on the change of a figure from the first run to the second.

    figure: a share of metrics.json such as `accuracy`, or a length such as `answer_tokens`.
    margin: amount by which the figure may be worse, in its own unit.
    worse: direction that is worse; null: lower for accuracy, adherence and called_tool, higher for
        other figures.
    task, setting, thinking: rows to compare; task `all` pools all tasks; null: each one.
    """

    figure: str = "accuracy"
    margin: float = Field(default=0.0, ge=0)
    worse: Literal["lower", "higher"] | None = None
    task: str | None = None
    setting: str | None = None
    thinking: Literal["on", "off"] | None = None


class GateConfig(Strict):
    """A gate: `compare A B --gate F` exits with 1 where a rule fails.

    level: one-sided confidence of all rules together; each is tested at 1 − (1 − level) / rows.
    inconclusive: verdict on a row that is shown neither to be worse by more than the margin nor not
        to be.
    max_unscored: largest share of a row's samples, on either side, that the backend, a grader or a
        judge may have failed on.
    """

    rules: tuple[GateRule, ...] = Field(min_length=1)
    level: float = Field(default=0.95, gt=0.5, lt=1)
    inconclusive: Literal["pass", "fail"] = "pass"
    max_unscored: float = Field(default=0.01, ge=0, lt=1)


class EvalGenRmConfig(CheckpointsConfig, stage="eval_genrm"):
    """One evaluation of judges on the same held-out pairs, `n` judgements of each in each order.

    data: a `genrm_data` artifact.
    pairs: number of pairs, from the front of the file; null takes all.
    """

    data: str
    pairs: int | None = Field(default=None, ge=1)
    sampling: SamplingConfig = SamplingConfig()

    def owner_config(self) -> dict[str, Any]:
        """The config without keys that change no judgement, for the output directory's digest."""
        excluded = {"out": True, "max_failure_rate": True, "data": True, "backend": REACHING}
        config = self.model_dump(mode="json", exclude=excluded)
        for name in self.checkpoints:
            backend = self.backend_of(name).model_dump(mode="json", exclude=REACHING)
            block: dict[str, Any] = {"path": self.path_of(name), "backend": backend}
            choice = self.choice_of(name).chosen()
            if choice:
                block["sampling"] = choice
            config["checkpoints"][name] = block
        return config

    def parameters_of(self, checkpoint: str) -> Parameters:
        """Sampling parameters of a checkpoint's judgements."""
        choice = self.choice_of(checkpoint).chosen()
        return self.sampling.model_copy(update=choice).parameters()


Evaluated = TypeVar("Evaluated", EvalConfig, EvalGenRmConfig)


def with_choices(recipe: Evaluated) -> tuple[Evaluated, list[str]]:
    """Fill in every sampling value that the recipe leaves to a model's generation config.

    Values that all checkpoints share go to `sampling`, others to a checkpoint's own block.

    Returns:
        The filled recipe, and lines that say where the values come from, one for each group of
        checkpoints that agree.

    Raises:
        ConfigError: as `generation_choice`.
    """
    choices: dict[str, TokenChoice] = {}
    checkpoints_by_line: dict[str, list[str]] = {}
    for name in recipe.checkpoints:
        backend = recipe.backend_of(name)
        if backend.kind == "scripted":
            continue
        model = generation_choice(recipe.path_of(name) or getattr(backend, "tokenizer", None))
        stated = recipe.choice_of(name).filled(recipe.sampling.chosen())
        choices[name] = stated.filled(UNSTATED | model.chosen())
        checkpoints_by_line.setdefault(choice_line(stated, model), []).append(name)
    shared: dict[str, Any] = {}
    for key in TokenChoice.model_fields:
        values = {getattr(choice, key) for choice in choices.values()} or {UNSTATED[key]}
        if len(values) == 1:
            [shared[key]] = values
    checkpoints = dict(recipe.checkpoints)
    for name, choice in choices.items():
        differing = {key: value for key, value in choice.chosen().items() if key not in shared}
        entry = checkpoints[name]
        block = EvaluatedConfig(path=entry) if isinstance(entry, str) else entry
        if differing or block.sampling.chosen():
            checkpoints[name] = block.model_copy(update={"sampling": TokenChoice(**differing)})
    sampling = recipe.sampling.model_copy(update=shared)
    filled = recipe.model_copy(update={"checkpoints": checkpoints, "sampling": sampling})
    lines: list[str] = []
    for line, names in checkpoints_by_line.items():
        lines.append(f"sampling of {', '.join(names)}: {line}")
    return filled, lines


class WinRateConfig(Strict, stage="win_rate"):
    """One policy against another on the same prompts, each pair of answers judged in both orders.

    before, after: an evaluation, as RUN:NAME where it has several checkpoints.
    judge: as in RLHF; not a judge that `after` was trained with and has learnt to please.
    prompts: number of prompts, chosen by a keyed hash of their ids; null takes all that both
        answered.
    """

    out: str
    before: str
    after: str
    judge: JudgeConfig
    prompts: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)

    def owner_config(self) -> dict[str, Any]:
        """The config without the two sides and keys that change no verdict, for the digest."""
        config = self.model_dump(mode="json", exclude={"out", "before", "after", "judge"})
        return config | {"judge": self.judge.owner_config()}
