"""The recipe of distillation: `posttrain distill --config tiny/distill`.

Teachers score what the student wrote, token by token; a source of prompts is a domain, and each
domain has one teacher (Nemotron 3 Ultra's multi-teacher on-policy distillation).
"""

from pydantic import Field

from posttrain.config.backend import Dtype, Server
from posttrain.config.base import Name, Strict, refuse, refuse_unknown, source
from posttrain.config.grpo import GroupTraining
from posttrain.config.prompts import AnySource, Setting, check_prompts


class TeacherConfig(Strict):
    """A frozen model that scores rollouts: in every training process, or behind a server.

    path: a checkpoint directory or a hub id; null: behind `server`.
    server: vLLM's `/completions`, which gives log-probabilities of a prompt's ids.
    dtype: of a teacher in process; `auto` is bfloat16 on a GPU, float32 on a CPU.
    """

    path: str | None = None
    server: Server | None = None
    dtype: Dtype = "auto"

    def check(self) -> None:
        if (self.path is None) == (self.server is None):
            raise ValueError("a teacher has either path or server")
        if self.server is not None and self.dtype != "auto":
            raise ValueError("dtype is for a teacher with path: a server has its own")


class DistillConfig(GroupTraining, stage="distill"):
    """One run of on-policy distillation from one or several teachers.

    prompts, settings: as in a sampling recipe; each source is a domain. Prompts are drawn in
        permutations of all, so that a source's `count` decides its share of the batches.
    teachers: by name.
    routes: domain → teacher.
    default_teacher: of domains that `routes` does not name; null: every domain must be named.
    max_failure_rate: largest share of a domain's rollouts in a step that its teacher may fail to
        score; those are left out of the loss.
    """

    num_generations: int = Field(default=1, ge=1, json_schema_extra=source("Nemotron 3 Ultra"))
    prompts: tuple[AnySource, ...] = Field(min_length=1)
    settings: tuple[Setting, ...] = Field(min_length=1)
    teachers: dict[Name, TeacherConfig] = Field(min_length=1)
    routes: dict[Name, Name] = Field(default_factory=dict[str, str])
    default_teacher: Name | None = None
    max_failure_rate: float = Field(default=0.05, ge=0, lt=1)

    @property
    def teacher_of(self) -> dict[str, str]:
        """Teacher of every domain."""
        default = (
            {}
            if self.default_teacher is None
            else dict.fromkeys((prompts.name for prompts in self.prompts), self.default_teacher)
        )
        return default | self.routes

    def check(self) -> None:
        check_prompts(self.prompts, self.settings)
        for setting in self.settings:
            why = "n is for sampling; here every prompt has num_generations: rollouts"
            refuse(f"setting {setting.name!r}", {why: setting.n is not None})
        domains = [prompts.name for prompts in self.prompts]
        refuse_unknown("routes: there is no source", self.routes, domains)
        named = [*self.routes.values()]
        if self.default_teacher is not None:
            named.append(self.default_teacher)
        refuse_unknown("there is no teacher", named, [*self.teachers])
        routed = self.teacher_of
        known = ", ".join(self.teachers)
        for domain in domains:
            if domain not in routed:
                raise ValueError(
                    f"domain {domain!r} has no teacher: name one of {known} in routes, or set "
                    "default_teacher"
                )
        for name in self.teachers:
            if name not in routed.values():
                raise ValueError(f"teacher {name!r} scores no domain: route one to it, or drop it")
        refuse("sampling", {
            "temperature must be 1: teachers give log-probabilities of their own distributions":
                self.sampling.temperature != 1.0,
        })  # fmt: skip
        refuse("prompts_per_step", {
            "with one rollout a prompt an update needs two prompts or more":
                self.num_generations == 1
                and self.prompts_per_step // self.loss.num_iterations < 2,
        })  # fmt: skip
