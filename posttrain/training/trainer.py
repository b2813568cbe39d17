"""What the trainers of all methods share: whole checkpoints, a log that survives a resume, saving.

A trained model lies on disk as plain transformers reads it. With an adapter, the adapter goes to
`adapter/` and the directory itself holds the merged model."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import PrinterCallback, ProgressCallback, Trainer
from transformers.integrations.integration_utils import TensorBoardCallback

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError, TrainingError
from posttrain.models.adapters import merge_adapter
from posttrain.models.load import set_special_tokens
from posttrain.runs import atomic_write_json
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.cpu_head import use_cpu_head
from posttrain.training.output import StepLines
from posttrain.training.sharding import (
    checkpoint_of_parts,
    expect_gradient_scale,
    shard_buffers_apart,
    whole_state,
)

ADAPTER = "adapter"
COMPLETE = "complete.json"
TENSORBOARD = "tensorboard"
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # as safetensors names them
# what the trainer adds and plain transformers does not need; it also holds host-dependent values
_NOT_MODEL = ("training_args.bin", "README.md")


@dataclass(frozen=True, slots=True)
class Progress:
    """Running counts, which the trainer does not store, and the layout that wrote them."""

    step: int
    tokens: int
    trained: int
    world_size: int


class Resumable(Trainer):
    """Mixed in before a TRL trainer. Running counts live here, for the trainer stores none."""

    # transformers declares these as optional or as wide unions; here they are always set
    model: Any
    accelerator: Any
    args: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self.model, "is_loaded_in_4bit", False) and self.args.deepspeed_plugin is None:
            # TRL casts a QLoRA adapter to bfloat16, where small steps are rounded away
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self.tokens_seen = 0
        self.trained_seen = 0
        # called when the model is on its devices, sharded or not, before any step
        self.on_placed: Callable[[], None] = lambda: None
        if self.is_fsdp_enabled:
            shard_buffers_apart(self.accelerator)

    @property
    def sharded(self) -> bool:
        """Whether DeepSpeed or FSDP places the model, which lies on the CPU until then."""
        return self.is_deepspeed_enabled or self.is_fsdp_enabled

    @property
    def global_batch(self) -> int:
        """Rows of data an optimiser step, over all processes."""
        return self.get_total_train_batch_size(self.args)

    @property
    def base_model(self) -> Any:
        """The model without an adapter around it."""
        adapted = isinstance(self.model, PeftModel)
        return self.model.get_base_model() if adapted else self.model

    def use_cpu_heads(self, *models: Any, temperature: float = 1.0) -> None:
        """On a CPU without sharding, have these models score trained positions only."""
        whole = self.accelerator.distributed_type in ("NO", "MULTI_CPU")
        if whole and self.args.device.type == "cpu":
            for model in models:
                if model is not None:
                    use_cpu_head(self.accelerator.unwrap_model(model), temperature=temperature)

    def show(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print (name, sentence) lines, on the main process."""
        if self.is_world_process_zero():
            for name, text in lines:
                print(f"{name:<12} {text}", flush=True)

    def print_steps(self, lines: StepLines) -> None:
        """Print one line a step in place of the trainer's own printing."""
        for printing in (PrinterCallback, ProgressCallback):
            self.remove_callback(printing)
        self.add_callback(lines)

    def restore_progress(self, progress: Progress) -> None:
        """Take up the running counts of a resumed checkpoint."""
        self.tokens_seen = progress.tokens
        self.trained_seen = progress.trained

    def close(self) -> None:
        """Give back what outlives a step, such as connections; nothing here."""

    def step_figures(self) -> dict[str, float]:
        """The method's figures of the steps since the last row of the log."""
        return {}

    def epochs_drawn(self) -> float:
        """Rows that were drawn, in data sets."""
        return self.state.epoch

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As the parent, with the method's figures and token counts that survive a resume."""
        if "loss" in logs:
            logs |= self.step_figures()
            logs |= {"tokens": self.tokens_seen, "trained": self.trained_seen}
        # to the trainer one stretch of steps is no epoch
        epoch, self.state.epoch = self.state.epoch, self.epochs_drawn()
        super().log(logs, start_time)
        self.state.epoch = epoch

    def why_untrained(self) -> str:
        """The cause, for the error of a run that has trained no token."""
        return "no token of its data has a label"

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        placed = super()._prepare_for_training(*args, **kwargs)
        self.on_placed()
        return placed

    @contextlib.contextmanager
    def recomputing_activations(self) -> Iterator[None]:
        """Checkpoint activations in the block as the run will: transformers switches that on in
        `train()` only, and a pass before it needs several times the memory."""
        if not self.args.activation_checkpointing:
            yield
            return
        checkpointing = dict(self.args.activation_checkpointing_kwargs or {})
        self.model.activation_checkpointing_enable(
            every_n_layers=checkpointing.pop("every_n_layers", 1),
            offload=checkpointing.pop("offload", False),
            activation_checkpointing_kwargs=checkpointing or None,
        )
        try:
            yield
        finally:
            self.model.activation_checkpointing_disable()

    def checked_scale(self, loss: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """The loss; the first backward passes check the factor that the trainer gives it."""
        # fp16 has a factor of its own, which moves
        started = self.state.global_step > self._initial_global_step
        return loss if started or self.args.fp16 else expect_gradient_scale(loss, scale)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_save:
            # a row at every save, so that a resumed log has the same rows
            self.control.should_log = True
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            # the finished model follows at once; resuming here would train one step too many
            return
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save and checkpoint.exists():
            shutil.rmtree(checkpoint)
        self.accelerator.wait_for_everyone()
        # the parent would delete the previous checkpoint before this one is known to be whole
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        plain = self.accelerator.unwrap_model(self.model)
        with checkpoint_of_parts(self) if self.sharded else _names_as_they_are(plain):
            super()._save_checkpoint(model, trial)
        self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(
                checkpoint,
                Progress(
                    step=self.state.global_step,
                    tokens=self.tokens_seen,
                    trained=self.trained_seen,
                    world_size=self.args.world_size,
                ),
            )
            rotate(folder, keep=limit)
        self.accelerator.wait_for_everyone()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As the parent, with the weights that the optimiser holds; runs on every process."""
        if not self.sharded:
            super().save_model(output_dir, _internal_call)
            return
        self._save(output_dir, state_dict=whole_state(self))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """The parent warns of weights that were not loaded, and would train on without them.

        Raises:
            DataError: the checkpoint lacks weights of the model, or has others.
        """
        state = self.accelerator.unwrap_model(self.model).state_dict()
        absent = set(load_result.missing_keys)
        # a tied weight is stored once, under the other name
        present = {tensor.data_ptr() for name, tensor in state.items() if name not in absent}
        lost = sorted(name for name in absent if state[name].data_ptr() not in present)
        if lost or load_result.unexpected_keys:
            raise DataError(
                f"a checkpoint in {self.args.output_dir} does not hold this model's weights: it "
                f"lacks {len(lost)} of them ({', '.join(lost[:2])}) and has "
                f"{len(load_result.unexpected_keys)} others; delete it to go on from the one "
                "before, or from the beginning"
            )

    def create_model_card(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: the stage writes its own card, with lineage, when it finishes."""


@contextlib.contextmanager
def _names_as_they_are(model: Any) -> Iterator[None]:
    """Save weights under the names that they have in memory, for this checkpoint is loaded by name:
    transformers (5.23) saves NemotronH under the names of its first files, and its trainer then
    finds nothing."""
    whole = model.save_pretrained
    if not isinstance(model, PeftModel):
        model.save_pretrained = functools.partial(whole, save_original_format=False)
    try:
        yield
    finally:
        vars(model).pop("save_pretrained", None)


def score_labels(model: Any, inputs: dict[str, Any], *fields: str) -> tuple[torch.Tensor, ...]:
    """Fields of the fused head's output, such as `log_probs`, at each label from the second column
    on: each `[rows, columns - 1]`, 0 where nothing is trained."""
    batch = {key: inputs[key] for key in MODEL_INPUTS if key in inputs}
    labels = inputs["labels"]
    out = model(**batch, labels=labels, use_cache=False, fused_lm_head=True)
    # prompt-learning adapters put virtual tokens in front
    return tuple(getattr(out, field)[:, -(labels.size(1) - 1) :] for field in fields)


def silence_attention_dropout(model: torch.nn.Module) -> None:
    """TRL switches `nn.Dropout` off; attention layers read a number of their own."""
    modules: list[Any] = list(model.modules())
    for module in modules:
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def train_to_the_end(
    trainer: Resumable, out: Path, *, base: ModelConfig, special: SpecialTokens
) -> None:
    """Train, resuming from a whole checkpoint if there is one, and write the model to `out`.

    Runs on every process.

    Raises:
        ConfigError: the checkpoint was written by another number of processes.
        TrainingError: the whole run, its part before a resume included, trained no token.
    """
    work = Path(trainer.args.output_dir)
    for callback in trainer.callback_handler.callbacks:
        # its own default lies in the resume folder, which goes with the run's end; a folder that
        # the user has set in TENSORBOARD_LOGGING_DIR stays
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(out / TENSORBOARD)
    if trainer.is_world_process_zero():
        remove_broken(work)
    trainer.accelerator.wait_for_everyone()
    latest = latest_complete(work, world_size=trainer.args.world_size)
    if latest is None:
        trainer.train()
    else:
        checkpoint, progress = latest
        trainer.restore_progress(progress)
        trainer.train(resume_from_checkpoint=str(checkpoint))
    # the count is global and restored from the checkpoint: every process stops here, or none
    if not trainer.trained_seen:
        raise TrainingError(
            f"no token was trained in {trainer.state.global_step} steps, so {out} gets no model: "
            f"{trainer.why_untrained()}. Start the corrected recipe with another out="
        )
    write_model(trainer, out, out=out, base=base, special=special)


def write_model(
    trainer: Resumable, target: Path, *, out: Path, base: ModelConfig, special: SpecialTokens
) -> None:
    """Write the model to `target`, the stage's `out` or a folder in it; an adapter is merged into
    `base`. Runs on every process."""
    partial = out / f".{target.name}.partial"
    first = trainer.is_world_process_zero()
    if first:
        shutil.rmtree(partial, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    adapted = isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel)
    trainer.save_model(str(partial / ADAPTER if adapted else partial), _internal_call=True)
    if first:
        if trainer.sharded and not adapted:
            _state_dtype(partial)
        if adapted:
            _write_merged(partial, base, special)
        for name in _NOT_MODEL:
            for path in (partial / name, partial / ADAPTER / name):
                path.unlink(missing_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(partial.iterdir()):
            goal = target / path.name
            if goal.is_dir():
                shutil.rmtree(goal)
            path.replace(goal)
        partial.rmdir()
    trainer.accelerator.wait_for_everyone()


def _state_dtype(folder: Path) -> None:
    """Have a model's config name the dtype of its weights: it is written with that of the model in
    memory, which DeepSpeed rounds, and readers would round the weights again."""
    sizes = dtypes_on_disk(folder)
    config = folder / "config.json"
    fields = json.loads(config.read_text("utf-8"))
    fields["dtype"] = max(sizes, key=sizes.__getitem__)
    config.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def dtypes_on_disk(folder: Path) -> dict[str, int]:
    """Numbers that a folder's safetensors files hold, by dtype ("float32")."""
    sizes: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                tensor = weights.get_slice(name)
                dtype = str(tensor.get_dtype())
                sizes[_DTYPES.get(dtype, dtype)] += math.prod(tensor.get_shape())
    return dict(sorted(sizes.items()))


def _write_merged(partial: Path, base: ModelConfig, special: SpecialTokens) -> None:
    config = partial / ADAPTER / "adapter_config.json"
    # PEFT keeps module names in sets: their order in the file differs between processes
    read = json.loads(config.read_text("utf-8"))
    ordered = {k: sorted(v) if isinstance(v, list) else v for k, v in read.items()}
    config.write_text(json.dumps(ordered, indent=2, sort_keys=True), encoding="utf-8")
    merged = merge_adapter(config.parent, base)
    set_special_tokens(merged, special)
    merged.save_pretrained(str(partial))
    for path in sorted(config.parent.iterdir()):
        if path.name.startswith(
            ("tokenizer", "chat_template", "special_tokens", "vocab", "merges")
        ):
            path.replace(partial / path.name)


# ---- resume checkpoints: whole, or ignored; the rotation never leaves none ----


def mark_complete(checkpoint: Path, progress: Progress) -> None:
    """Declare a checkpoint whole; call it once every process has written its part."""
    files = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != COMPLETE
    }
    atomic_write_json(checkpoint / COMPLETE, {**asdict(progress), "files": files})


def complete_checkpoints(folder: Path) -> list[tuple[Path, Progress]]:
    """The whole checkpoints of a folder by rising step; half-written ones are left out."""
    whole: list[tuple[Path, Progress]] = []
    for marker in folder.glob(f"checkpoint-*/{COMPLETE}"):
        body, path = json.loads(marker.read_text("utf-8")), marker.parent
        sizes = {path / name: size for name, size in body.pop("files").items()}
        if all(file.is_file() and file.stat().st_size == sizes[file] for file in sizes):
            whole.append((path, Progress(**body)))
    return sorted(whole, key=lambda pair: pair[1].step)


def latest_complete(folder: Path, *, world_size: int) -> tuple[Path, Progress] | None:
    """The checkpoint to resume from, if any.

    Raises:
        ConfigError: it was written by another number of processes, whose random states it holds.
    """
    whole = complete_checkpoints(folder)
    if not whole:
        return None
    path, progress = whole[-1]
    if progress.world_size != world_size:
        raise ConfigError(
            f"{path} was written by {progress.world_size} processes and this run has {world_size}; "
            f"start that many, or delete {folder} to train from the beginning"
        )
    return path, progress


def remove_broken(folder: Path) -> None:
    """Delete half-written checkpoints, so that nothing picks them up later."""
    whole = {path for path, _ in complete_checkpoints(folder)}
    for path in folder.glob("checkpoint-*"):
        if path not in whole:
            shutil.rmtree(path)


def rotate(folder: Path, *, keep: int | None) -> None:
    """Keep the `keep` newest whole checkpoints; None keeps all."""
    if keep is None:
        return
    for path, _ in complete_checkpoints(folder)[: -max(keep, 1)]:
        shutil.rmtree(path)
