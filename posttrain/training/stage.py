"""Training stage that every method shares: open the output directory, prepare, plan, train, finish.

While a run trains, `resume/` in its output directory holds the checkpoints.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback

from posttrain.config.dpo import DpoConfig
from posttrain.config.grpo import ColocatedVllm
from posttrain.config.sft import SftConfig, TrainingRecipe
from posttrain.errors import PosttrainError
from posttrain.models.adapters import adapter_reach, lora_config, quantization_config
from posttrain.models.load import choose_attention, load_checkpoint, load_model
from posttrain.revisions import loaded_commit
from posttrain.runs import (
    Counts,
    Manifest,
    Parent,
    Run,
    locked,
    parent_of,
    read_artifact,
    refusing_full_disk,
    write_seconds,
)
from posttrain.tokens.renderer import chat_template_of
from posttrain.tokens.tokenizer import (
    SpecialTokens,
    check_same_tokenizer,
    describe_choice,
    largest_id,
    load_tokenizer,
    saved_stops,
    training_tokens,
)
from posttrain.training.activations import RolloutShape
from posttrain.training.launch import (
    Launched,
    await_shared,
    check_device,
    check_launch,
    precision_advice,
    read_launch,
)
from posttrain.training.output import (
    RESUME,
    LivePage,
    LogRows,
    ReturnFreedMemory,
    RunOutcome,
    RunPage,
    artifact_files,
    write_card,
    write_page,
)
from posttrain.training.plan import (
    GIB,
    FrozenModels,
    Line,
    MemoryPlan,
    ModelSize,
    check_disk,
    check_stops,
    device_room,
    memory_line,
    model_size,
    plan_memory,
)
from posttrain.training.sharding import gather_head, restore_masters
from posttrain.training.trainer import Resumable, dtypes_on_disk, train_to_the_end

KIND = "checkpoint"
# seconds within which a network disk shows a directory that another machine has created
DIRECTORY_TIMEOUT = 60.0

Recipe = TypeVar("Recipe", bound=TrainingRecipe)
WithData = TypeVar("WithData", SftConfig, DpoConfig)
T = TypeVar("T", bound=Resumable)


@dataclass(frozen=True, slots=True)
class Preflight:
    """Results of the checks before training.

    Attributes:
        lines: (check, sentence) lines for the plan.
        stats: entries for the manifest.
    """

    lines: list[Line]
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedRun(Generic[T]):
    """A run that is resolved and checked, and has trained nothing yet."""

    trainer: T
    special: SpecialTokens
    launched: Launched
    preflight: Preflight
    memory: MemoryPlan


class TrainingStage(ABC, Generic[Recipe, T]):
    """One run of a training method. A method implements the abstract methods and shares the rest.

    Attributes:
        method: Name of the method in the model card.
        scratch: Folder in the output directory that may outlive a failed run. It does not count as
            results, because each of its files carries the key of the inputs that it belongs to.
        frozen: Models that score what the policy samples, for the memory plan.
    """

    method: str
    scratch: str | None = None
    frozen: FrozenModels = FrozenModels()

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.out = Path(recipe.out)
        self.page: RunPage | None = None

    # ---- implemented by each method; each may raise ConfigError or DataError ----

    @abstractmethod
    def arguments(self, out: Path) -> Any:
        """Build the trainer's arguments, with `out` as the folder of resume checkpoints."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Config that identifies the run: the recipe, with inputs by digest and without paths."""

    @property
    @abstractmethod
    def template_digest(self) -> str | None:
        """Digest of the chat template used to render the data."""

    @abstractmethod
    def load_tokenizer(self, args: Any) -> Any:
        """Load the checkpoint's tokenizer, after the checks that need no tokenizer."""

    @abstractmethod
    def load_data(self, args: Any, special: SpecialTokens) -> Any:
        """Load the training data and run the checks that need no model."""

    @abstractmethod
    def make_trainer(self, data: Any, special: SpecialTokens, **parts: Any) -> T:
        """Build the trainer. `parts` holds the arguments that the trainers of all methods take."""

    @abstractmethod
    def check(self, trainer: T, special: SpecialTokens, launched: Launched) -> Preflight:
        """Run the checks that need both model and data."""

    @abstractmethod
    def plan(
        self, prepared: PreparedRun[T], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        """Lines of the plan, and an upper bound on the bytes written to disk.

        Args:
            measure: time a little of the work on this device.
        """

    @abstractmethod
    def largest_batch(self, trainer: T) -> Mapping[str, torch.Tensor]:
        """Collate the largest micro-batch of the run, for the memory estimate."""

    @abstractmethod
    def outcome(self, prepared: PreparedRun[T], base: str | None) -> RunOutcome:
        """Results of the run, read from its log.

        Args:
            base: name of the model that training started from; None for random weights.
        """

    def probe(self, trainer: T) -> Preflight:
        """Run the checks that need a forward pass, once the model is on its devices."""
        return Preflight([], {})

    def rollouts(self, trainer: T) -> RolloutShape | ColocatedVllm | None:
        """Shape of the rollouts sampled in this process, or the engine that shares its device."""
        return None

    def data_parents(self) -> list[Parent]:
        """Artifacts that the data was made from."""
        return []

    def closing_lines(self, manifest: Manifest) -> list[str]:
        """Lines printed after the name of a finished run."""
        return []

    # ---- shared by all methods ----

    def run(
        self,
        *,
        dry_run: bool,
        page: RunPage | None = None,
        on_open: Callable[[int], None] | None = None,
        check_inputs: Callable[[], None] | None = None,
    ) -> Path | None:
        """Print the plan, or train to the end.

        Args:
            page: page of the run to write; None writes none.
            on_open: called with the index of the process once the output directory is ours.
            check_inputs: raises if the inputs of an already finished run have changed since.

        Returns:
            The directory of the finished checkpoint on the main process, otherwise None.
        """
        self.page = page
        if dry_run:
            with tempfile.TemporaryDirectory() as work:
                args = self.arguments(Path(work))
                if self.out.exists():
                    self.open(dry_run=True)
                self.show_plan(self.prepare(args), measure=True)
            return None
        args = self.arguments(self.out / RESUME)
        is_main = args.process_index == 0
        start_time = time.monotonic()
        lock = locked(self.out) if is_main else contextlib.nullcontext()
        with refusing_full_disk(self.out), lock:
            # the main process creates the directory, so that the others open an existing one
            with args.main_process_first(local=False):
                if not is_main:
                    await_shared(self.out, DIRECTORY_TIMEOUT)
                directory = self.open()
            if directory.complete:
                if check_inputs is not None:
                    check_inputs()
                shutil.rmtree(self.out / RESUME, ignore_errors=True)
                if not is_main:
                    return None
                return self._announce(
                    f"{self.recipe.out} is finished; its files are as its manifest says"
                )
            try:
                if on_open is not None:
                    on_open(args.process_index)
                prepared = self.prepare(args)
                self.show_plan(prepared, measure=False)
                manifest = self.train(prepared, directory)
            except PosttrainError:
                # nothing was trained: another recipe may use the directory
                if is_main:
                    directory.release(scratch=self.scratch)
                raise
        if manifest is None:
            return None
        write_seconds(self.out, start_time)
        steps = f"checkpoint {manifest.digest[:12]}, {manifest.stats['steps']} steps"
        return self._announce(f"{self.recipe.out}: {steps}", *self.closing_lines(manifest))

    def _announce(self, *lines: str) -> Path:
        """Print the lines and the path of the page, and return the output directory."""
        print(*lines, sep="\n")
        page = self.page
        if page is not None:
            write_page(lambda: print(page.write_finished()))
        return self.out

    def open(self, *, dry_run: bool = False) -> Run:
        """Open the output directory; a dry run only checks that no other config wrote to it."""
        return Run.open(
            self.out, kind=KIND, config=self.identity(), recipe=self.recipe, dry_run=dry_run
        )

    def prepare(self, args: Any = None) -> PreparedRun[T]:
        """Load, check and build everything that the first step needs.

        Args:
            args: the trainer's arguments; None builds them from the recipe.

        Raises:
            ConfigError, DataError: anything that would make the run wrong.
        """
        recipe = self.recipe
        adapter = recipe.adapter
        if args is None:
            args = self.arguments(self.out / RESUME)
        check_device(args, recipe.trainer, recipe.launch)
        tokenizer = self.load_tokenizer(args)
        pad_before = tokenizer.pad_token
        special = self.choose_tokens(tokenizer)
        data = self.load_data(args, special)
        model = load_model(
            recipe.model,
            special=special,
            vocabulary=largest_id(tokenizer) + 1,
            seed=recipe.seed,
            quantization=quantization_config(adapter),
        )
        reach = adapter_reach(adapter, model) if adapter else ()
        callbacks: list[TrainerCallback] = [LogRows(self.out)]
        if args.device.type == "cpu":
            callbacks.append(ReturnFreedMemory())
        if self.page is not None:
            callbacks.append(LivePage(self.page))
        trainer = self.make_trainer(
            data,
            special,
            model=model,
            args=args,
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=lora_config(adapter, model) if adapter else None,
        )
        launched = read_launch(trainer.accelerator)
        check_launch(recipe.launch, launched)
        if launched.sharding == "zero3":
            gather_head(trainer.base_model)
        preflight = self.check(trainer, special, launched)
        if trainer.sharded:
            # a sharded model cannot run before the trainer has placed it on its devices
            trainer.on_placed = lambda: self._after_placement(trainer, launched)
            probe = Preflight([("probe", "when the shards are placed")], {})
        else:
            probe = self.probe(trainer)
        lines = list[Line]()
        stats = dict[str, Any]()
        advice = precision_advice(trainer.args)
        if advice is not None:
            lines.append(("precision", advice))
        pad_change = describe_choice(pad_before, special)
        if pad_change is not None:
            lines.append(("pad", pad_change))
        commit = self._hub_commit()
        if commit is not None:
            lines.append(("base", f"{recipe.model.path} at commit {commit}"))
            stats["base_commit"] = commit
        # what the probe has found out replaces what was expected before it
        probed = dict(probe.lines)
        lines += [line for line in preflight.lines if line[0] not in probed]
        lines += [*probe.lines, ("stops", check_stops(trainer.model, special))]
        for module in reach:
            coverage = f"{module.tensors} tensors, {module.share:.1%} of the parameters"
            lines.append((f"adapter {module.target}", coverage))
        memory = plan_memory(
            trainer,
            launched,
            self.largest_batch(trainer),
            adapter=adapter,
            rollouts=self.rollouts(trainer),
            frozen=self.frozen,
        )
        preflight = Preflight(lines, stats | preflight.stats | probe.stats)
        return PreparedRun(trainer, special, launched, preflight, memory)

    def _hub_commit(self) -> str | None:
        """Commit of the hub model that training starts from; None for a local or a new model."""
        base = self.recipe.model
        if base.path is None or Path(base.path).is_dir():
            return None
        return loaded_commit(base.path, revision=base.revision, file="config.json")

    def _after_placement(self, trainer: T, launched: Launched) -> None:
        """Restore exact weights and run the probe, once a sharded model is on its devices."""
        model = self.recipe.model
        rounded = launched.sharding.startswith("zero") and launched.precision != "fp32"
        # a random start loses nothing by rounding, and an adapter starts in float32
        if rounded and model.path is not None and self.recipe.adapter is None:
            exact = model.model_copy(update={"dtype": "float32"})
            restore_masters(trainer, lambda: load_checkpoint(exact, choose_attention("auto")))
        trainer.show(self.probe(trainer).lines)

    def choose_tokens(self, tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
        """Choose the end token and a pad token, and set both on the tokenizer.

        Neither template nor data use the pad token.
        """
        recipe = self.recipe
        template = None
        if isinstance(tokenizer.chat_template, str):
            template = chat_template_of(tokenizer, choice="own")
        return training_tokens(
            tokenizer,
            end_token=recipe.end_token,
            pad_token=recipe.pad_token,
            key="pad_token",
            template=template,
            stops=saved_stops(recipe.model.path or ""),
            in_data=self.data_contains,
        )

    def data_contains(self, text: str, token: int) -> bool:
        """Tell whether the data contain a special token, given its text and its id.

        Data of build_sft contain only the special tokens of the template, which are known already.
        """
        return False

    def show_plan(self, prepared: PreparedRun[T], *, measure: bool) -> None:
        """Print the plan on the main process; raise if memory or disk is too small."""
        trainer = prepared.trainer
        size = model_size(trainer.model)
        # first, so that a run that does not fit is refused before a slice of it is timed
        memory = memory_line(prepared.memory, device_room(trainer.args.device, prepared.memory))
        method_lines, disk = self.plan(prepared, size, measure=measure and not trainer.sharded)
        shared_lines = [
            ("model", f"{size.parameters:,} parameters, {size.trainable:,} trained"),
            ("launch", prepared.launched.text),
            memory,
            ("disk", f"{disk / GIB:.2f} GiB at most, resume checkpoints included"),
        ]
        trainer.show([*shared_lines, *method_lines, *prepared.preflight.lines])
        check_disk(disk, self.out)

    def train(self, prepared: PreparedRun[T], directory: Run) -> Manifest | None:
        """Train, resuming from the latest complete checkpoint, and finish the artifact.

        Returns:
            The manifest on the main process, otherwise None.
        """
        trainer = prepared.trainer
        page = self.page if trainer.is_world_process_zero() else None
        try:
            try:
                train_to_the_end(
                    trainer, self.out, base=self.recipe.model, special=prepared.special
                )
            finally:
                # before the page is drawn: requests to servers may be under way
                trainer.close()
        except KeyboardInterrupt:
            if page is not None:
                step = trainer.state.global_step
                write_page(lambda: page.write_interrupted(step=step))
            raise
        except BaseException:
            if page is not None:
                write_page(page.write_stopped)
            raise
        if not trainer.is_world_process_zero():
            return None
        return self._finish(prepared, directory)

    def _finish(self, prepared: PreparedRun[T], directory: Run) -> Manifest:
        """Write the card and the manifest, then delete the resume checkpoints."""
        trainer = prepared.trainer
        parents = self.data_parents()
        if self.policy is not None:
            parents.append(self._parent(str(self.recipe.model.path), self.policy))
        base = self._base_name(prepared.preflight.stats.get("base_commit"))
        outcome = self.outcome(prepared, base)
        write_card(self.out, self.method, self.recipe, outcome, parents=parents)
        not_reached = outcome.rows - outcome.reached
        manifest = directory.finish(
            counts=Counts(
                rows_in=outcome.rows,
                kept=outcome.reached,
                dropped={"not_reached": not_reached} if not_reached else {},
            ),
            files=artifact_files(self.out),
            parents=parents,
            template_digest=self.template_digest,
            seed=self.recipe.seed,
            stats={
                "steps": trainer.state.global_step,
                **asdict(prepared.launched),
                "tokens": trainer.tokens_seen,
                "trained": trainer.trained_seen,
                "weights": dtypes_on_disk(self.out),
                **prepared.preflight.stats,
                **outcome.stats,
            },
        )
        shutil.rmtree(self.out / RESUME, ignore_errors=True)
        return manifest

    def _base_name(self, commit: str | None) -> str | None:
        """Name of the model that training started from, as the card gives it."""
        path = self.recipe.model.path
        if self.policy is not None:
            return f"checkpoint {self.policy.digest[:12]}"
        if path is not None and Path(path).is_dir():
            # without its parents: the card is read on other machines
            return f"the folder {Path(path).name}"
        if commit:
            return f"{path} at commit {commit[:12]}"
        return path

    def _parent(self, path: str, manifest: Manifest) -> Parent:
        return parent_of(path, relative_to=self.out, manifest=manifest)

    @cached_property
    def policy(self) -> Manifest | None:
        """Manifest of the checkpoint artifact that training starts from; None for other models."""
        path = self.recipe.model.path
        if path is None or not (Path(path) / "manifest.json").is_file():
            return None
        return read_artifact(path, kind=KIND)


class DataStage(TrainingStage[WithData, T]):
    """A training stage whose recipe names a data artifact of the kind `data_kind`."""

    data_kind: str

    @cached_property
    def data(self) -> Manifest:
        """Manifest of the data artifact."""
        return read_artifact(self.recipe.data, kind=self.data_kind)

    @property
    def template_digest(self) -> str | None:
        return self.data.template_digest

    def load_tokenizer(self, args: Any) -> Any:
        """Load the data's tokenizer and check that the model has the same one."""
        tokenizer = load_tokenizer(Path(self.recipe.data) / "tokenizer")
        check_same_tokenizer(tokenizer, self.recipe.model)
        return tokenizer

    def identity(self) -> dict[str, Any]:
        """Config that identifies the run: the recipe, with inputs by digest and without paths."""
        # without `few_pairs`, since the batch and steps that it chose are in the recipe
        excluded = {"out", "data", "reference_cache", "few_pairs"}
        config = self.recipe.model_dump(mode="json", exclude=excluded)
        config["data_digest"] = self.data.digest
        if self.policy is not None:
            config["model"]["path"] = self.policy.digest
        return config

    def data_parents(self) -> list[Parent]:
        """Artifacts that the data was made from: the one that the recipe names."""
        return [self._parent(self.recipe.data, self.data)]
