"""`objective: full`: the exact reverse KL from each row's teacher, over the whole vocabulary.

Logits of a micro-batch are rows × columns × vocabulary; for 16K tokens and 128K ids they take
8 GiB in float32. Here the heads of student and teacher run over a few positions at a time, and
backward runs them again.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from posttrain.config.distill import DistillConfig
from posttrain.errors import ConfigError, TrainingError
from posttrain.tokens.encode import IGNORED
from posttrain.training.cpu_head import CHUNK_LOGITS, changes_logits, score_trained
from posttrain.training.rl.distillation import reverse_kl
from posttrain.training.rl.teachers import InProcessTeacher, Teachers

Tensor = torch.Tensor


@dataclass
class FullOutput(ModelOutput):
    """Scores of each label behind the first column, `[rows, columns - 1]`.

    They are 0 where nothing is trained.
    """

    log_probs: Tensor | None = None
    entropy: Tensor | None = None
    reverse_kl: Tensor | None = None


@dataclass(frozen=True, slots=True)
class FullObjective:
    """Objective that trains the student on the whole distributions of teachers in this process.

    Attributes:
        teachers: Teacher by name.
        teacher_of: Name of the teacher of each source of prompts.
    """

    teachers: Mapping[str, InProcessTeacher]
    teacher_of: Mapping[str, str]

    def use_head(self, student: PreTrainedModel) -> None:
        """Extend the student's forward pass: given `sources`, one a row, it returns `reverse_kl`.

        Raises:
            ConfigError: a model scales its logits behind its head, or a teacher's vocabulary has
                another size than the student's.
        """
        student_logits = _head(student).out_features
        for name, teacher in self.teachers.items():
            if changes_logits(teacher.plain_model) or changes_logits(student):
                raise ConfigError(
                    f"objective full: the model of the student or of teacher {name!r} scales its "
                    "logits behind its head; use objective: sampled"
                )
            teacher_logits = _head(teacher.plain_model).out_features
            if teacher_logits != student_logits:
                raise ConfigError(
                    f"objective full: teacher {name!r} gives {teacher_logits:,} logits, the "
                    f"student {student_logits:,}"
                )
        plain_forward = student.forward

        @functools.wraps(type(student).forward)
        def forward(
            self_model: PreTrainedModel,
            *args: Any,
            sources: Sequence[str] | None = None,
            labels: Tensor | None = None,
            **kwargs: Any,
        ) -> Any:
            if sources is None or labels is None:
                return plain_forward(*args, labels=labels, **kwargs)
            kwargs.pop("fused_lm_head")
            hidden = self_model.base_model(*args, **kwargs).last_hidden_state[:, :-1]
            head = _head(self_model)
            scored = score_trained(hidden, labels[:, 1:], head)
            kl = self._reverse_kl(hidden, labels[:, 1:] != IGNORED, head, sources, kwargs)
            return FullOutput(log_probs=scored.log_probs, entropy=scored.entropy, reverse_kl=kl)

        student.forward = types.MethodType(forward, student)

    def _reverse_kl(
        self,
        hidden: Tensor,
        mask: Tensor,
        head: Any,
        sources: Sequence[str],
        inputs: Mapping[str, Any],
    ) -> Tensor:
        """Reverse KL at each position inside the mask, `[rows, columns]`.

        Each row is compared with the teacher of its source. It has gradient to `hidden` and `head`.
        """
        names = [self.teacher_of[source] for source in sources]
        hidden_of_teacher: dict[str, tuple[Tensor, Tensor]] = {}
        # all teachers before the student's head: sharded ones and the head are gathered in the same
        # order by all processes, whatever rows each has
        for name, teacher in sorted(self.teachers.items()):
            rows = torch.tensor([row for row, row_name in enumerate(names) if row_name == name])
            if len(rows):
                rows = rows.to(hidden.device)
                hidden_of_teacher[name] = rows, _hidden_states(teacher, inputs, rows)
            elif teacher.is_split:
                # another process may have rows for it, and waits for this one
                _hidden_states(teacher, _first_ids(inputs), torch.zeros(1, dtype=torch.long))
        kl = torch.zeros(mask.shape, dtype=torch.float32, device=hidden.device)
        for name, (rows, teacher_hidden) in hidden_of_teacher.items():
            row_kl = _chunked_kl(
                hidden[rows], teacher_hidden, mask[rows], head, self.teachers[name]
            )
            kl = kl.index_put((rows,), row_kl)
        if not torch.isfinite(kl.detach()).all():
            raise TrainingError(
                "a teacher gives no probability at all to a token that the student may write: the "
                "reverse KL is infinite; use objective: sampled, or a teacher without such tokens"
            )
        return kl


def full_objective(recipe: DistillConfig, teachers: Teachers) -> FullObjective:
    """Objective of a recipe whose teachers are all in this process."""
    in_process: dict[str, InProcessTeacher] = {}
    for name, scorer in teachers.scorers.items():
        assert isinstance(scorer, InProcessTeacher), "the recipe refuses a server"
        in_process[name] = scorer
    return FullObjective(in_process, recipe.teacher_of)


@contextlib.contextmanager
def whole_head(student: PreTrainedModel) -> Iterator[None]:
    """Hold the student's output head whole on every process inside the block, under FSDP 2.

    Else each call of the head gathers it, and processes with other rows call it more or less often.
    Entering the block is a collective.
    """
    shards = [module for module in _head(student).modules() if isinstance(module, FSDPModule)]
    for shard in shards:
        shard.set_reshard_after_forward(False, recurse=False)
        shard.set_reshard_after_backward(False, recurse=False)
        shard.unshard()
    try:
        yield
    finally:
        for shard in shards:
            shard.reshard()


@torch.no_grad()
def _hidden_states(teacher: InProcessTeacher, inputs: Mapping[str, Any], rows: Tensor) -> Tensor:
    """Hidden states before the teacher's head at `rows`, one for each token behind the first."""
    with teacher.active():
        output = teacher.plain_model.base_model(
            input_ids=inputs["input_ids"][rows],
            attention_mask=inputs["attention_mask"][rows],
            use_cache=False,
        )
    return output.last_hidden_state[:, :-1]


def _first_ids(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """First two ids of the first row, for a forward pass whose result nobody reads."""
    return {name: inputs[name][:1, :2] for name in ("input_ids", "attention_mask")}


def _chunked_kl(
    hidden: Tensor, teacher_hidden: Tensor, mask: Tensor, head: Any, teacher: InProcessTeacher
) -> Tensor:
    """KL of one teacher's rows, `[rows, columns]`, computed a chunk of positions at a time."""
    positions = max(1, CHUNK_LOGITS // head.out_features)
    chunks: list[Tensor] = []
    for student_N_W, teacher_N_W in zip(
        hidden[mask].split(positions), teacher_hidden[mask].split(positions), strict=True
    ):
        kl_N: Any = checkpoint(
            _kl_of_states,
            student_N_W,
            teacher_N_W,
            head,
            teacher,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        chunks.append(kl_N)
    values = torch.cat(chunks).float()
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def _kl_of_states(
    student_N_W: Tensor, teacher_N_W: Tensor, head: Any, teacher: InProcessTeacher
) -> Tensor:
    """KL at `[positions]`, from the hidden states before the heads."""
    # backward may find the teacher on the CPU, where another one has sent it
    with teacher.active(), torch.no_grad():
        teacher_N_V = _head(teacher.plain_model)(teacher_N_W)
    # the positions are those inside the mask already
    full_mask = torch.ones(1, len(student_N_W), dtype=torch.bool, device=student_N_W.device)
    return reverse_kl(head(student_N_W)[None], teacher_N_V[None], full_mask)[0]


def _head(model: PreTrainedModel) -> Any:
    return model.get_output_embeddings()
