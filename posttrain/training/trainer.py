"""Base of the trainers of all methods: complete resume checkpoints, a log that survives a resume,
and saving the model.

A trained model is saved as plain transformers reads it. With an adapter, the adapter goes to
`adapter/` and the directory itself holds the merged model.
"""

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
# torch's names of the dtypes that safetensors names
_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# files that the trainer adds to a model; transformers does not read them, and the first one holds
# values of the host
_TRAINER_FILES = ("training_args.bin", "README.md")
# prefixes of the files of a tokenizer
_TOKENIZER_FILES = ("tokenizer", "chat_template", "special_tokens", "vocab", "merges")


@dataclass(frozen=True, slots=True)
class Progress:
    """Running counts of a resume checkpoint, which the trainer itself does not store.

    Attributes:
        tokens: Tokens seen since step 0, over all processes.
        trained: Trained tokens of these.
        world_size: Number of processes that wrote the checkpoint.
    """

    step: int
    tokens: int
    trained: int
    world_size: int


class Resumable(Trainer):
    """Mixin, placed before a TRL trainer, whose runs resume exactly and shard correctly."""

    # transformers types these as optional or as wide unions; here they are always set
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
        # called before the first step, when the model is on its devices, sharded or not
        self.on_placed: Callable[[], None] = lambda: None
        if self.is_fsdp_enabled:
            shard_buffers_apart(self.accelerator)

    @property
    def sharded(self) -> bool:
        """True where DeepSpeed or FSDP places the model, which stays on the CPU until then."""
        return self.is_deepspeed_enabled or self.is_fsdp_enabled

    @property
    def global_batch(self) -> int:
        """Rows of data in one optimiser step, over all processes."""
        return self.get_total_train_batch_size(self.args)

    @property
    def base_model(self) -> Any:
        """Model without the wrapper of its adapter."""
        if isinstance(self.model, PeftModel):
            return self.model.get_base_model()
        return self.model

    def use_cpu_heads(self, *models: Any, temperature: float = 1.0) -> None:
        """Make models score trained positions only, if this is a CPU without sharding."""
        unsharded = self.accelerator.distributed_type in ("NO", "MULTI_CPU")
        if not unsharded or self.args.device.type != "cpu":
            return
        for model in models:
            if model is not None:
                use_cpu_head(self.accelerator.unwrap_model(model), temperature=temperature)

    def show(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print (name, sentence) lines on the main process."""
        if self.is_world_process_zero():
            for name, text in lines:
                print(f"{name:<12} {text}", flush=True)

    def print_steps(self, lines: StepLines) -> None:
        """Print one line per step in place of the trainer's own output."""
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(lines)

    def restore_progress(self, progress: Progress) -> None:
        """Continue the running counts of a resumed checkpoint."""
        self.tokens_seen = progress.tokens
        self.trained_seen = progress.trained

    def save_parts(self, checkpoint: Path) -> None:
        """Add the method's own files of this process to a checkpoint. The base has none."""

    def restore_parts(self, checkpoint: Path, *, step: int) -> None:
        """Read what `save_parts` has written behind optimiser step `step`."""

    def close(self) -> None:
        """Release resources that outlive a step, such as connections. The base has none."""

    def step_figures(self) -> dict[str, float]:
        """Metrics of the method over the steps since the last row of the log."""
        return {}

    def epochs_drawn(self) -> float:
        """Rows drawn so far, divided by the rows of the data set."""
        return self.state.epoch

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the parent does, with the method's metrics and counts that survive a resume."""
        if "loss" in logs:
            logs |= self.step_figures()
            logs |= {"tokens": self.tokens_seen, "trained": self.trained_seen}
        # a run counted in steps is one epoch to the trainer, so the row gets our number for a while
        trainer_epoch = self.state.epoch
        self.state.epoch = self.epochs_drawn()
        super().log(logs, start_time)
        self.state.epoch = trainer_epoch

    def why_untrained(self) -> str:
        """Cause to name in the error of a run that trained no token."""
        return "no token of its data has a label"

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        self.on_placed()
        return prepared

    @contextlib.contextmanager
    def recomputing_activations(self) -> Iterator[None]:
        """Checkpoint activations inside the block exactly as the run will.

        transformers turns that on in `train()` only, and a pass before it would need several times
        the memory.
        """
        if not self.args.activation_checkpointing:
            yield
            return
        options = dict(self.args.activation_checkpointing_kwargs or {})
        self.model.activation_checkpointing_enable(
            every_n_layers=options.pop("every_n_layers", 1),
            offload=options.pop("offload", False),
            activation_checkpointing_kwargs=options or None,
        )
        try:
            yield
        finally:
            self.model.activation_checkpointing_disable()

    def checked_scale(self, loss: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Return the loss, whose gradient in the first step is checked to be scaled by `scale`."""
        past_first_step = self.state.global_step > self._initial_global_step
        # fp16 multiplies the loss by a moving factor of its own
        if past_first_step or self.args.fp16:
            return loss
        return expect_gradient_scale(loss, scale)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_save:
            # log at every save: a run that resumes here then has the same rows as an unbroken one
            self.control.should_log = True
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a resume checkpoint, and delete older ones once this one is complete."""
        if self.state.global_step >= self.state.max_steps:
            # the finished model is written next; resuming here would train one step too many
            return
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save and checkpoint.exists():
            shutil.rmtree(checkpoint)
        self.accelerator.wait_for_everyone()
        # without a limit the parent deletes nothing: the previous checkpoint has to stay until this
        # one is known to be complete
        limit = self.args.save_total_limit
        self.args.save_total_limit = None
        plain_model = self.accelerator.unwrap_model(self.model)
        with checkpoint_of_parts(self) if self.sharded else _saved_by_memory_names(plain_model):
            super()._save_checkpoint(model, trial)
        self.args.save_total_limit = limit
        self.save_parts(checkpoint)
        # every process has written its part when the marker declares the checkpoint complete
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
        """Save the weights that the optimiser holds. Runs on every process."""
        if not self.sharded:
            super().save_model(output_dir, _internal_call)
            return
        self._save(output_dir, state_dict=whole_state(self))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a resume that did not load every weight, where the parent only warns.

        Raises:
            DataError: the checkpoint lacks weights of the model, or has others.
        """
        state = self.accelerator.unwrap_model(self.model).state_dict()
        missing = set(load_result.missing_keys)
        # a tied weight is stored once, under its other name
        loaded_addresses: set[int] = set()
        for name, tensor in state.items():
            if name not in missing:
                loaded_addresses.add(tensor.data_ptr())
        lost = sorted(name for name in missing if state[name].data_ptr() not in loaded_addresses)
        if lost or load_result.unexpected_keys:
            raise DataError(
                f"a checkpoint in {self.args.output_dir} does not hold this model's weights: it "
                f"lacks {len(lost)} of them ({', '.join(lost[:2])}) and has "
                f"{len(load_result.unexpected_keys)} others; delete it to go on from the one "
                "before, or from the beginning"
            )

    def create_model_card(self, *_args: Any, **_kwargs: Any) -> None:
        """Write no card: the stage writes one, with lineage, when it finishes."""


@contextlib.contextmanager
def _saved_by_memory_names(model: Any) -> Iterator[None]:
    """Save weights inside the block under the names that they have in memory.

    A resume loads weights by name, but transformers (5.23) saves NemotronH under the names of its
    first release, so that its trainer would find none of them.
    """
    save = model.save_pretrained
    if not isinstance(model, PeftModel):
        model.save_pretrained = functools.partial(save, save_original_format=False)
    try:
        yield
    finally:
        vars(model).pop("save_pretrained", None)


def score_labels(
    model: Any, inputs: dict[str, Any], *fields: str, **options: Any
) -> tuple[torch.Tensor, ...]:
    """Run the model and read fields of the fused head's output, such as `log_probs`.

    Args:
        options: further arguments of the head.

    Returns:
        One tensor per field, `[rows, columns - 1]`: the value at each label from the second column
        on, 0 where nothing is trained.
    """
    batch = {key: inputs[key] for key in MODEL_INPUTS if key in inputs}
    labels = inputs["labels"]
    output = model(**batch, labels=labels, use_cache=False, fused_lm_head=True, **options)
    # count from the end: prompt-learning adapters put virtual tokens in front
    scored_columns = labels.size(1) - 1
    return tuple(getattr(output, field)[:, -scored_columns:] for field in fields)


def disable_attention_dropout(model: torch.nn.Module) -> None:
    """Set the dropout rate of attention layers to 0: TRL turns off `nn.Dropout` modules only."""
    modules: list[Any] = list(model.modules())
    for module in modules:
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def train_to_the_end(
    trainer: Resumable, out: Path, *, base: ModelConfig, special: SpecialTokens
) -> None:
    """Train, resuming from the latest complete checkpoint, and write the model to `out`.

    Runs on every process.

    Raises:
        ConfigError: the checkpoint was written by another number of processes.
        TrainingError: the run, including its part before a resume, trained no token.
    """
    resume_folder = Path(trainer.args.output_dir)
    for callback in trainer.callback_handler.callbacks:
        # the callback's default is the resume folder, which is deleted when the run ends; a folder
        # that the user has set in TENSORBOARD_LOGGING_DIR stays
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(out / TENSORBOARD)
    if trainer.is_world_process_zero():
        remove_broken(resume_folder)
    trainer.accelerator.wait_for_everyone()
    latest = latest_complete(resume_folder, world_size=trainer.args.world_size)
    if latest is None:
        trainer.train()
    else:
        checkpoint, progress = latest
        trainer.restore_progress(progress)
        trainer.restore_parts(checkpoint, step=progress.step)
        # the log of the checkpoint has the evaluation at the start, which a start would do again
        trainer.args.eval_on_start = False
        trainer.train(resume_from_checkpoint=str(checkpoint))
    # the count is global and restored from the checkpoint, so all processes stop here, or none
    if not trainer.trained_seen:
        raise TrainingError(
            f"no token was trained in {trainer.state.global_step} steps, so {out} gets no model: "
            f"{trainer.why_untrained()}. Start the corrected recipe with another out="
        )
    write_model(trainer, out, out=out, base=base, special=special)


def write_model(
    trainer: Resumable, target: Path, *, out: Path, base: ModelConfig, special: SpecialTokens
) -> None:
    """Write the model to `target`: the stage's `out`, or a folder in it. Runs on every process.

    With an adapter, `target` gets the adapter merged into `base`, and the adapter beside it.
    """
    # written under another name first: `target` never holds half a model
    partial = out / f".{target.name}.partial"
    is_main = trainer.is_world_process_zero()
    if is_main:
        shutil.rmtree(partial, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    adapted = isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel)
    trainer.save_model(str(partial / ADAPTER if adapted else partial), _internal_call=True)
    if is_main:
        if trainer.sharded and not adapted:
            _set_config_dtype(partial)
        if adapted:
            _write_merged(partial, base, special)
        for name in _TRAINER_FILES:
            for path in (partial / name, partial / ADAPTER / name):
                path.unlink(missing_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(partial.iterdir()):
            destination = target / path.name
            if destination.is_dir():
                shutil.rmtree(destination)
            path.replace(destination)
        partial.rmdir()
    trainer.accelerator.wait_for_everyone()


def _set_config_dtype(folder: Path) -> None:
    """Set the `dtype` of a saved model's config to that of its saved weights.

    The trainer writes the dtype of the model in memory, which DeepSpeed rounds; a reader of that
    config would round the weights again.
    """
    sizes = dtypes_on_disk(folder)
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text("utf-8"))
    config["dtype"] = max(sizes, key=sizes.__getitem__)
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def dtypes_on_disk(folder: Path) -> dict[str, int]:
    """Count the weights in a folder's safetensors files by dtype, such as "float32"."""
    sizes: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                tensor = weights.get_slice(name)
                dtype = str(tensor.get_dtype())
                sizes[_TORCH_DTYPES.get(dtype, dtype)] += math.prod(tensor.get_shape())
    return dict(sorted(sizes.items()))


def _write_merged(partial: Path, base: ModelConfig, special: SpecialTokens) -> None:
    """Merge the adapter in `partial/adapter` into the base model, and write that to `partial`."""
    adapter = partial / ADAPTER
    config_file = adapter / "adapter_config.json"
    # PEFT keeps module names in sets, whose order in the file differs between processes
    config = json.loads(config_file.read_text("utf-8"))
    for key, value in config.items():
        if isinstance(value, list):
            config[key] = sorted(value)
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    merged = merge_adapter(adapter, base)
    set_special_tokens(merged, special)
    merged.save_pretrained(str(partial))
    # the tokenizer belongs to the merged model
    for path in sorted(adapter.iterdir()):
        if path.name.startswith(_TOKENIZER_FILES):
            path.replace(partial / path.name)


# ---- resume checkpoints: complete or ignored, and a rotation that always keeps one ----


def mark_complete(checkpoint: Path, progress: Progress) -> None:
    """Mark a checkpoint as complete. Call it once every process has written its part."""
    files: dict[str, int] = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != COMPLETE:
            files[str(path.relative_to(checkpoint))] = path.stat().st_size
    atomic_write_json(checkpoint / COMPLETE, {**asdict(progress), "files": files})


def complete_checkpoints(folder: Path) -> list[tuple[Path, Progress]]:
    """Complete checkpoints of a folder by ascending step, without half-written ones."""
    checkpoints: list[tuple[Path, Progress]] = []
    for marker in folder.glob(f"checkpoint-*/{COMPLETE}"):
        checkpoint = marker.parent
        content = json.loads(marker.read_text("utf-8"))
        sizes = {checkpoint / name: size for name, size in content.pop("files").items()}
        # a copy of a checkpoint may be cut short after its marker was written
        if all(file.is_file() and file.stat().st_size == size for file, size in sizes.items()):
            checkpoints.append((checkpoint, Progress(**content)))
    return sorted(checkpoints, key=lambda pair: pair[1].step)


def latest_complete(folder: Path, *, world_size: int) -> tuple[Path, Progress] | None:
    """Latest complete checkpoint with its counts; None where there is none.

    Raises:
        ConfigError: it was written by another number of processes, whose random states it holds.
    """
    checkpoints = complete_checkpoints(folder)
    if not checkpoints:
        return None
    path, progress = checkpoints[-1]
    if progress.world_size != world_size:
        raise ConfigError(
            f"{path} was written by {progress.world_size} processes and this run has {world_size}; "
            f"start that many, or delete {folder} to train from the beginning"
        )
    return path, progress


def remove_broken(folder: Path) -> None:
    """Delete half-written checkpoints, so that no run resumes from them."""
    complete = {path for path, _ in complete_checkpoints(folder)}
    for path in folder.glob("checkpoint-*"):
        if path not in complete:
            shutil.rmtree(path)


def rotate(folder: Path, *, keep: int | None) -> None:
    """Delete all but the `keep` newest complete checkpoints; None keeps all, 0 keeps one."""
    if keep is None:
        return
    for path, _ in complete_checkpoints(folder)[: -max(keep, 1)]:
        shutil.rmtree(path)
