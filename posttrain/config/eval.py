"""The recipes of evaluations: of checkpoints, of judges, of one policy against another; gates."""

import re
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import Field

from posttrain.config.backend import REACHING, BackendConfig, check_checkpoint
from posttrain.config.base import Name, Strict, refuse, refuse_twice, refuse_unknown
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
    """One checkpoint, where its path alone does not say everything.

    path: as `checkpoint` of a sampling recipe.
    backend: what it runs on, instead of the recipe's.
    sampling: values of the recipe's `sampling` for this checkpoint; a setting's come before them.
    """

    path: str | None = None
    backend: BackendConfig | None = None
    sampling: TokenChoice = TokenChoice()


class CheckpointsConfig(Strict):
    """The checkpoints of an evaluation and how many completions of each prompt they make.

    checkpoints: name → path, or path and backend; the others are compared with the first.
    backend: what checkpoints run on that name no backend of their own.
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
        """Where a checkpoint lies."""
        one = self.checkpoints[checkpoint]
        return one if isinstance(one, str) else one.path

    def backend_of(self, checkpoint: str) -> BackendConfig:
        """What a checkpoint runs on."""
        one = self.checkpoints[checkpoint]
        backend = self.backend if isinstance(one, str) else one.backend or self.backend
        if backend is None:
            raise ValueError(f"checkpoints.{checkpoint}: there is no backend; name one for all")
        return backend

    def choice_of(self, checkpoint: str) -> TokenChoice:
        """How a checkpoint's tokens are chosen, where its own block says so."""
        one = self.checkpoints[checkpoint]
        return TokenChoice() if isinstance(one, str) else one.sampling


class InspectTask(Strict):
    """A task that was written for inspect, which brings its prompts, tools and scorer.

    task: a registered name such as `inspect_evals/tau2_airline`, or `path/to/file.py@name`.
    arguments: of the task.
    score: the scorer that counts, with `.key` for a value, `.*` for the mean; null: its only one.
    roles: further models by the role that the task calls them, such as its user or its grader.
    count: how many of its samples to take, the first ones; null takes all.
    obtain: where its data come from, shown where they are missing.
    templates: every sample's input is given in each template of a set or a file.
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

    sampling: keys of the recipe's `sampling` with other values.
    """

    sampling: dict[str, float | int | None] = Field(default_factory=dict)


class Price(Strict):
    """Money per million tokens of one model.

    input: of prompt tokens.
    output: of all tokens that the model writes.
    cached: of prompt tokens that the server reported to be cached; null: as `input`.
    reasoning: of output tokens that are reasoning; null: as `output`.
    """

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    reasoning: float | None = Field(default=None, ge=0)


class EstimateConfig(Strict):
    """What `--dry-run` expects.

    output_tokens: of a completion; null: the longest that it can be.
    """

    output_tokens: int | None = Field(default=None, ge=1)


class RecoveryConfig(Strict):
    """Table of the share of each teacher's lead that a distilled student has recovered.

    before, after: checkpoints of the student.
    teachers: task → checkpoint of its teacher.
    """

    before: str
    after: str
    teachers: dict[str, str] = Field(min_length=1)


class EvalConfig(CheckpointsConfig, stage="eval"):
    """One evaluation.

    expect: agentic family, or `all` → the predicted range of the share of its solved runs; a run
        keeps the predictions that it began with.
    judge: the model that the environments `equivalence` and `rubric` ask.
    prices: by checkpoint, in any currency.
    recovery: what the checkpoints are to each other in distillation; null: no such table.
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
        given = [s.environment for s in self.row_tasks if isinstance(s, EnvironmentPrompts)]
        refuse_unknown("expect: no source is of the family", self.expect, [*given, "all"])
        for family, (low, high) in self.expect.items():
            if low > high:
                raise ValueError(f"expect.{family}: {low} is above {high}")
        check_prompts(cast(Any, self.prompts), self.settings)  # their names are all that it reads
        names = [f"{p.name}.{s.name}" for p in self.prompts for s in self.settings]
        refuse_twice("source.setting", names)
        for task in self.prompts:
            asked = any(task.name in (s.sources or (task.name,)) for s in self.settings)
            refuse("prompts", {
                f"no setting asks source {task.name!r}: add it to one, or leave it out": not asked,
                f"source {task.name!r}: augment is for training; templates asks each question in "
                "each template": getattr(task, "augment", None) is not None,
            })  # fmt: skip
        for name in self.checkpoints:
            check_chat(self.backend_of(name), self.settings)
        refuse_unknown("prices: there is no checkpoint", self.prices, (*self.checkpoints,))
        if self.recovery is not None:
            named = (self.recovery.before, self.recovery.after, *self.recovery.teachers.values())
            refuse_unknown("recovery: there is no checkpoint", named, (*self.checkpoints,))
            tasks = [task.name for task in self.prompts]
            refuse_unknown("recovery.teachers: there is no task", self.recovery.teachers, tasks)
        for setting in self.settings:
            what = f"setting {setting.name!r}: sampling has no"
            refuse_unknown(what, setting.sampling, (*ToolLoopSampling.model_fields,))
            self.sampling_of(setting.name)
            if not any(one.name in (setting.sources or (one.name,)) for one in self.inspect_tasks):
                continue
            own = setting.tools in (NO_TOOLS, GIVEN_TOOLS) and setting.where is None
            refuse(f"setting {setting.name!r}", {
                "a task of inspect has its own tools and samples; name the other tasks in sources, "
                "or leave out tools and where": not own,
                "inspect takes thinking 0, 1 or both": setting.thinking not in (0, 1, "both"),
            })  # fmt: skip

    @property
    def inspect_tasks(self) -> tuple[InspectTask, ...]:
        """The tasks that inspect runs."""
        return tuple(task for task in self.prompts if isinstance(task, InspectTask))

    @property
    def row_tasks(self) -> tuple[AnySource, ...]:
        """The tasks whose prompts are rows."""
        return tuple(task for task in self.prompts if not isinstance(task, InspectTask))

    def sampling_of(self, setting: str, checkpoint: str | None = None) -> ToolLoopSampling:
        """How a setting samples; without a checkpoint what is the same for all."""
        stated = next(s.sampling for s in self.settings if s.name == setting)
        # null is what the recipe or the model says
        own = {
            k: v for k, v in stated.items() if v is not None or k not in TokenChoice.model_fields
        }
        choice = {} if checkpoint is None else self.choice_of(checkpoint).chosen()
        return ToolLoopSampling.model_validate(self.sampling.model_dump() | choice | own)

    def owner_config(self) -> dict[str, Any]:
        """What the records depend on: the digest of the output directory is taken of this."""
        beside = ("out", "max_failure_rate", "inspect_logs", "prices", "estimate")
        model = {"backend": REACHING}
        blocks = {
            "judge": model,
            "checkpoints": {"__all__": model},
            "prompts": {"__all__": {"obtain": True, "roles": {"__all__": model}}},
        }
        left_out = {**dict.fromkeys(beside, True), **model, **blocks}
        # an evaluation without the table is the one that earlier versions made
        if self.recovery is None:
            left_out["recovery"] = True
        return _stated_choices(self.model_dump(mode="json", exclude=left_out))

    def n_of(self, setting: str) -> int:
        """Completions of each prompt in a setting."""
        return next(s.n for s in self.settings if s.name == setting) or self.n

    def part(self, tasks: tuple[str, ...]) -> Self:
        """The recipe with some of its tasks alone, and the settings that use these.

        Raises:
            ConfigError: a task that is not there, or that no setting uses.
        """
        known = [source.name for source in self.prompts]
        for name in tasks:
            if name not in known:
                raise ConfigError(f"there is no task {name!r}{nearest(name, known)}")
        kept: list[EvalSetting] = []
        for setting in self.settings:
            if sources := tuple(n for n in setting.sources or known if n in tasks):
                kept.append(setting.model_copy(update={"sources": sources}))
        if not kept:
            raise ConfigError(f"no setting uses {', '.join(tasks)}")
        prompts = tuple(source for source in self.prompts if source.name in tasks)
        return self.model_copy(update={"prompts": prompts, "settings": tuple(kept)})

    def of_rows(self) -> Self | None:
        """The recipe without the tasks of inspect; None where it has no other."""
        names = tuple(task.name for task in self.row_tasks)
        return self.part(names) if names else None


def _stated_choices(config: dict[str, Any]) -> dict[str, Any]:
    """A dumped recipe in which a checkpoint's `sampling` holds what it says, or is not there."""
    for block in config["checkpoints"].values():
        if isinstance(block, dict):
            choice = cast(dict[str, Any], block).pop("sampling")
            stated = {name: value for name, value in choice.items() if value is not None}
            cast(dict[str, Any], block).update({"sampling": stated} if stated else {})
    return config


class GateRule(Strict):
    """One threshold on the change of a figure from the first run to the second.

    figure: a share of metrics.json such as `accuracy`, or a length such as `answer_tokens`.
    margin: by how much it may be worse, in the figure's own unit.
    worse: the direction; null: lower for accuracy, adherence, called_tool, higher for the others.
    task, setting, thinking: of the compared rows; task `all` pools them; null: each one.
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
    inconclusive: of a row neither shown to be worse by more than the margin nor not to be.
    max_unscored: the largest share of a row's samples that the backend, a grader or a judge may
        have failed on, on either side.
    """

    rules: tuple[GateRule, ...] = Field(min_length=1)
    level: float = Field(default=0.95, gt=0.5, lt=1)
    inconclusive: Literal["pass", "fail"] = "pass"
    max_unscored: float = Field(default=0.01, ge=0, lt=1)


class EvalGenRmConfig(CheckpointsConfig, stage="eval_genrm"):
    """One evaluation of judges on the same held-out pairs, `n` judgements of each in each order.

    data: a `genrm_data` artifact.
    pairs: how many pairs, from the front of the file; null takes all.
    """

    data: str
    pairs: int | None = Field(default=None, ge=1)
    sampling: SamplingConfig = SamplingConfig()

    def owner_config(self) -> dict[str, Any]:
        """What the judgements depend on: the digest of the output directory is taken of this."""
        beside = dict.fromkeys(("out", "max_failure_rate", "data"), True)
        config = self.model_dump(mode="json", exclude={**beside, "backend": REACHING})
        for name in self.checkpoints:
            backend = self.backend_of(name).model_dump(mode="json", exclude=REACHING)
            choice = self.choice_of(name).chosen()
            config["checkpoints"][name] = {"path": self.path_of(name), "backend": backend}
            config["checkpoints"][name] |= {"sampling": choice} if choice else {}
        return config

    def parameters_of(self, checkpoint: str) -> Parameters:
        """How a checkpoint samples a judgement."""
        choice = self.choice_of(checkpoint).chosen()
        return self.sampling.model_copy(update=choice).parameters()


Evaluated = TypeVar("Evaluated", EvalConfig, EvalGenRmConfig)


def with_choices(recipe: Evaluated) -> tuple[Evaluated, list[str]]:
    """The recipe with all values that tokens are chosen by, and a line on where they come from for
    each group of checkpoints that agree.

    What is the same for all is in `sampling`, anything else in the checkpoint's own block.

    Raises:
        ConfigError: as `generation_choice`.
    """
    choices: dict[str, TokenChoice] = {}
    lines: dict[str, list[str]] = {}
    for name in recipe.checkpoints:
        backend = recipe.backend_of(name)
        if backend.kind == "scripted":
            continue
        model = generation_choice(recipe.path_of(name) or getattr(backend, "tokenizer", None))
        stated = recipe.choice_of(name).filled(recipe.sampling.chosen())
        choices[name] = stated.filled(UNSTATED | model.chosen())
        lines.setdefault(choice_line(stated, model), []).append(name)
    shared: dict[str, Any] = {}
    for key in TokenChoice.model_fields:
        values = {getattr(choice, key) for choice in choices.values()} or {UNSTATED[key]}
        if len(values) == 1:
            [shared[key]] = values
    checkpoints = dict(recipe.checkpoints)
    for name, choice in choices.items():
        own = {key: value for key, value in choice.chosen().items() if key not in shared}
        one = checkpoints[name]
        if own or (isinstance(one, EvaluatedConfig) and one.sampling.chosen()):
            block = EvaluatedConfig(path=one) if isinstance(one, str) else one
            checkpoints[name] = block.model_copy(update={"sampling": TokenChoice(**own)})
    sampling = recipe.sampling.model_copy(update=shared)
    changed = {"checkpoints": checkpoints, "sampling": sampling}
    shown = [f"sampling of {', '.join(names)}: {line}" for line, names in lines.items()]
    return recipe.model_copy(update=changed), shown


class WinRateConfig(Strict, stage="win_rate"):
    """One policy against another on the same prompts, each pair of answers judged in both orders.

    before, after: an evaluation, as RUN:NAME where it has several checkpoints.
    judge: as in RLHF; not one that `after` was trained with, which it has learnt to please.
    prompts: how many, chosen by a keyed hash of their ids; null takes all that both answered.
    """

    out: str
    before: str
    after: str
    judge: JudgeConfig
    prompts: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0)

    def owner_config(self) -> dict[str, Any]:
        """What the verdicts depend on beside the two sides themselves."""
        config = self.model_dump(mode="json", exclude={"out", "before", "after", "judge"})
        return config | {"judge": self.judge.owner_config()}
