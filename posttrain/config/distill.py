"""The recipe of distillation: `posttrain distill --config tiny/distill`.

Teachers score what the student wrote, token by token; a source of prompts is a domain, and each
domain has one teacher (Nemotron 3 Ultra's multi-teacher on-policy distillation).
"""

from typing import Literal

from pydantic import Field, PositiveFloat

from posttrain.config.backend import Dtype, Server
from posttrain.config.base import Name, Strict, refuse_unknown, source
from posttrain.config.grpo import GroupTraining, GuardConfig, Limit, refuse_simulated_sharding
from posttrain.config.prompts import AnySource, Setting, check_prompts
from posttrain.errors import ConfigError

Objective = Literal["sampled", "full"]


class TeacherConfig(Strict):
    """A frozen model that scores rollouts: in the training processes, or behind a server.

    path: a checkpoint directory or a hub id; null: the student's, where adapter is set.
    adapter: a LoRA adapter on that model, or a checkpoint of ours that has one in `adapter/`.
        Teachers on one model share its weights.
    server: vLLM's `/completions`, which gives log-probabilities of a prompt's ids.
    dtype: precision of a teacher in process; `auto` is bfloat16 on a GPU, float32 on a CPU.
    """

    path: str | None = None
    adapter: str | None = None
    server: Server | None = None
    dtype: Dtype = "auto"

    def check(self) -> None:
        in_process = self.path is not None or self.adapter is not None
        if in_process == (self.server is not None):
            raise ValueError("a teacher has either path or server; an adapter goes with path")
        if self.server is not None and self.dtype != "auto":
            raise ValueError("dtype is for a teacher with path: a server has its own")


class DistillGuardConfig(GuardConfig):
    """The guard of group-relative training, without limits on groups without advantages.

    A student whose advantages are all 0 equals its teachers.

    zero_variance: share of the groups without an advantage other than 0.
    """

    zero_variance: Limit = Limit()


class DistillConfig(GroupTraining, stage="distill"):
    """One run of on-policy distillation from one or several teachers.

    prompts, settings: as in a sampling recipe; each source is a domain.
    shares: domain → share of every batch, of which only proportions count; null: prompts come in
        permutations of all, so that a source's `count` decides its share on average.
    teachers: name → teacher.
    teachers_in_memory: models of teachers on the device at a time, while the others wait in the
        CPU's memory; null: all. Adapters on one model are one model.
    routes: domain → name of its teacher.
    default_teacher: teacher of the domains that `routes` does not name; null: `routes` must name
        every domain.
    objective: `sampled` trains on the log-probabilities of the sampled tokens, `full` on the exact
        reverse KL over the vocabulary at the student's prefixes (teachers in process).
    simulate: an output of `quantize` made from the student: the student samples and is trained as
        if its weights, activations, keys and values were rounded like those of that folder
        (quantisation-aware distillation); what is saved is not rounded. null: no rounding.
    max_failure_rate: largest share of a domain's rollouts in a step that its teacher may fail to
        score; those are left out of the loss.
    """

    num_generations: int = Field(default=1, ge=1, json_schema_extra=source("Nemotron 3 Ultra"))
    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    shares: dict[Name, PositiveFloat] | None = None
    teachers: dict[Name, TeacherConfig] = Field(min_length=1)
    teachers_in_memory: int | None = Field(default=None, ge=1)
    routes: dict[Name, Name] = Field(default_factory=dict[str, str])
    default_teacher: Name | None = None
    objective: Objective = "sampled"
    simulate: str | None = None
    guard: DistillGuardConfig = DistillGuardConfig()  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    max_failure_rate: float = Field(default=0.05, ge=0, lt=1)

    @property
    def teacher_of(self) -> dict[str, str]:
        """Name of every domain's teacher."""
        teachers: dict[str, str] = {}
        if self.default_teacher is not None:
            for prompts in self.prompts:
                teachers[prompts.name] = self.default_teacher
        return teachers | self.routes

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            if setting.n is not None:
                raise ValueError(
                    f"setting {setting.name!r}: n is for sampling; here every prompt has "
                    "num_generations: rollouts"
                )
        domains = [prompts.name for prompts in self.prompts]
        refuse_unknown("routes: there is no source", self.routes, domains)
        for domain, name in self.routes.items():
            refuse_unknown(f"routes.{domain}: there is no teacher", [name], [*self.teachers])
        if self.default_teacher is not None:
            refuse_unknown(
                "default_teacher: there is no teacher", [self.default_teacher], [*self.teachers]
            )
        teacher_of = self.teacher_of
        for domain in domains:
            if domain not in teacher_of:
                raise ValueError(
                    f"routes: domain {domain!r} has no teacher: name one of "
                    f"{', '.join(self.teachers)}, or set default_teacher"
                )
        if self.shares is not None:
            refuse_unknown("shares: there is no source", self.shares, domains)
            for domain in domains:
                if domain not in self.shares:
                    raise ValueError(f"shares: domain {domain!r} has none")
        for name, teacher in self.teachers.items():
            if name not in teacher_of.values():
                raise ValueError(f"teachers.{name} scores no domain: route one to it, or drop it")
            if self.objective == "full" and teacher.server is not None:
                raise ValueError(
                    f"teachers.{name}.server: objective full needs the teacher's whole "
                    "distributions, which no server gives: name a path, or use objective: sampled"
                )
        if self.sampling.temperature != 1.0:
            raise ValueError(
                "sampling.temperature must be 1: teachers give log-probabilities of their own "
                "distributions"
            )
        if self.objective == "full":
            refuse_full_sharding(self.launch.sharding)
        if self.simulate is not None:
            self._check_simulated()
        prompts_per_update = self.prompts_per_step // self.loss.num_iterations
        if self.num_generations == 1 and prompts_per_update < 2:
            raise ValueError(
                "prompts_per_step: with one rollout a prompt an update needs two prompts or more"
            )

    def _check_simulated(self) -> None:
        """Refuse keys under which another model than the rounded one would sample or train."""
        if self.adapter is not None:
            raise ValueError(
                "simulate trains the weights that are rounded, and an adapter leaves them as they "
                "are: remove adapter, or simulate"
            )
        engine = self.rollouts.engine
        if engine != "in_process":
            raise ValueError(
                f"simulate: rollouts.engine {engine} would sample without the rounding: use "
                "engine: in_process"
            )
        refuse_simulated_sharding(self.launch.sharding)


def refuse_full_sharding(sharding: str | None) -> None:
    """Refuse a sharding under which `objective: full` cannot run.

    Raises:
        ConfigError: ZeRO-3.
    """
    if sharding == "zero3":
        raise ConfigError(
            "objective full runs the output head a chunk of tokens at a time, and processes have "
            "unequal numbers of tokens; under ZeRO-3 all must run the same parts of the student "
            "equally often: start with accelerate/fsdp2, or use objective: sampled"
        )
