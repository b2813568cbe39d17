"""One training stage, the same for every method: open the output directory, prepare, plan, train,
finish. `resume/` in it holds checkpoints while it trains."""

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
from posttrain.tokens.pad import describe_choice, training_tokens
from posttrain.tokens.renderer import chat_template_of
from posttrain.tokens.tokenizer import (
    SpecialTokens,
    check_same_tokenizer,
    largest_id,
    load_tokenizer,
    saved_stops,
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
    RunOutcome,
    RunPage,
    artifact_files,
    write_card,
    write_page,
)
from posttrain.training.plan import (
    GIB,
    Line,
    MemoryPlan,
    ModelSize,
    check_disk,
    check_stops,
    device_room,
    memory_line,
    model_size,
    plan_memory,
    return_freed_memory,
)
from posttrain.training.sharding import gather_head, restore_masters
from posttrain.training.trainer import Resumable, dtypes_on_disk, train_to_the_end

KIND = "checkpoint"
PATIENCE = 60.0  # seconds in which a network disk shows what another machine has created

Recipe = TypeVar("Recipe", bound=TrainingRecipe)
WithData = TypeVar("WithData", SftConfig, DpoConfig)
T = TypeVar("T", bound=Resumable)


@dataclass(frozen=True, slots=True)
class Preflight:
    """Results of the checks: (check, sentence) lines for the plan, and stats for the manifest."""

    lines: list[Line]
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedRun(Generic[T]):
    """Everything resolved and checked, nothing trained."""

    trainer: T
    special: SpecialTokens
    launched: Launched
    preflight: Preflight
    memory: MemoryPlan


class TrainingStage(ABC, Generic[Recipe, T]):
    """A method of training on one recipe: the abstract methods are its own, the rest is shared.

    Attributes:
        method: names the run in its card.
        scratch: a folder in the output directory whose files prove by their keys what they belong
            to; it does not count as results.
    """

    method: str
    scratch: str | None = None

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.out = Path(recipe.out)
        self.page: RunPage | None = None

    # ---- each method's own; each may raise ConfigError or DataError ----

    @abstractmethod
    def arguments(self, out: Path) -> Any:
        """The trainer's arguments; resume checkpoints go to `out`."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What names a run: the recipe, with inputs by digest and without paths."""

    @property
    @abstractmethod
    def template_digest(self) -> str | None:
        """Of the chat template that the data is rendered with."""

    @abstractmethod
    def load_tokenizer(self, args: Any) -> Any:
        """The tokenizer that goes with the checkpoint, after the checks that need none."""

    @abstractmethod
    def load_data(self, args: Any, special: SpecialTokens) -> Any:
        """What is trained on, checked as far as no model is needed."""

    @abstractmethod
    def make_trainer(self, data: Any, special: SpecialTokens, **parts: Any) -> T:
        """The trainer; `parts` are the arguments that every method's trainer takes."""

    @abstractmethod
    def check(self, trainer: T, special: SpecialTokens, launched: Launched) -> Preflight:
        """The checks that need model and data."""

    @abstractmethod
    def plan(
        self, prepared: PreparedRun[T], size: ModelSize, *, measure: bool
    ) -> tuple[list[Line], int]:
        """Counts and estimates, and bytes on disk at most; `measure`: time a little of the work on
        this device."""

    @abstractmethod
    def largest_batch(self, trainer: T) -> Mapping[str, torch.Tensor]:
        """A micro-batch as large as any, collated."""

    @abstractmethod
    def outcome(self, prepared: PreparedRun[T], base: str | None) -> RunOutcome:
        """Results of the run, from its log; `base`: what it started from, None: random weights."""

    def probe(self, trainer: T) -> Preflight:
        """The checks that run the model, which is on its devices by now."""
        return Preflight([], {})

    def rollouts(self, trainer: T) -> RolloutShape | ColocatedVllm | None:
        """Completions that are sampled in this process, or what samples them on its device."""
        return None

    def data_parents(self) -> list[Parent]:
        """The artifacts that the data was made from."""
        return []

    def closing_lines(self, manifest: Manifest) -> list[str]:
        """What to print behind the name of a finished run."""
        return []

    # ---- every stage's ----

    def run(
        self,
        *,
        dry_run: bool,
        page: RunPage | None = None,
        on_open: Callable[[int], None] | None = None,
        check_inputs: Callable[[], None] | None = None,
    ) -> Path | None:
        """Plan, or train to the end: the finished artifact, on the main process.

        Args:
            page: the page to keep of the run; None: no page is written.
            on_open: called with the number of the process when the output directory is ours.
            check_inputs: refuses to call a finished run up to date where its inputs have changed.
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
        main = args.process_index == 0
        began = time.monotonic()
        lock = locked(self.out) if main else contextlib.nullcontext()
        with refusing_full_disk(self.out), lock:
            # one process opens the directory, then the others find it theirs
            with args.main_process_first(local=False):
                if not main:
                    await_shared(self.out, PATIENCE)
                directory = self.open()
            if directory.complete:
                if check_inputs is not None:
                    check_inputs()
                shutil.rmtree(self.out / RESUME, ignore_errors=True)
                done = f"{self.recipe.out} is finished; its files are as its manifest says"
                return self._show(done) if main else None
            try:
                if on_open is not None:
                    on_open(args.process_index)
                prepared = self.prepare(args)
                self.show_plan(prepared, measure=False)
                manifest = self.train(prepared, directory)
            except PosttrainError:
                if main:
                    directory.release(scratch=self.scratch)
                raise
        if manifest is None:
            return None
        write_seconds(self.out, began)
        steps = f"checkpoint {manifest.digest[:12]}, {manifest.stats['steps']} steps"
        return self._show(f"{self.recipe.out}: {steps}", *self.closing_lines(manifest))

    def _show(self, *lines: str) -> Path:
        print(*lines, sep="\n")
        if (page := self.page) is not None:
            write_page(lambda: print(page.write_finished()))
        return self.out

    def open(self, *, dry_run: bool = False) -> Run:
        """Take the output directory, or only check that no other config has it."""
        return Run.open(self.out, kind=KIND, config=self.identity(), dry_run=dry_run)

    def prepare(self, args: Any = None) -> PreparedRun[T]:
        """Load, check and build everything up to, but not including, the first step.

        Raises:
            ConfigError, DataError: anything that would make the run wrong.
        """
        recipe, adapter = self.recipe, self.recipe.adapter
        args = self.arguments(self.out / RESUME) if args is None else args
        check_device(args, recipe.trainer, recipe.launch)
        if args.device.type == "cpu":
            return_freed_memory()
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
        probe = Preflight([("probe", "when the shards are placed")], {})
        if trainer.sharded:
            trainer.on_placed = lambda: self._when_placed(trainer, launched)
        else:
            probe = self.probe(trainer)
        lines = list[Line]()
        if (advice := precision_advice(trainer.args)) is not None:
            lines.append(("precision", advice))
        if (chosen_pad := describe_choice(pad_before, special)) is not None:
            lines.append(("pad", chosen_pad))
        stats = dict[str, Any]()
        base = recipe.model
        commit = None
        if base.path is not None and not Path(base.path).is_dir():
            commit = loaded_commit(base.path, revision=base.revision, file="config.json")
        if commit is not None:
            lines.append(("base", f"{base.path} at commit {commit}"))
            stats["base_commit"] = commit
        lines += [*preflight.lines, *probe.lines, ("stops", check_stops(trainer.model, special))]
        lines += [
            (f"adapter {one.target}", f"{one.tensors} tensors, {one.share:.1%} of the parameters")
            for one in reach
        ]
        batch, rollouts = self.largest_batch(trainer), self.rollouts(trainer)
        memory = plan_memory(trainer, launched, batch, adapter=adapter, rollouts=rollouts)
        preflight = Preflight(lines, stats | preflight.stats | probe.stats)
        return PreparedRun(trainer, special, launched, preflight, memory)

    def _when_placed(self, trainer: T, launched: Launched) -> None:
        """What waits until a sharded model is on its devices: exact weights, and the probe."""
        spec = self.recipe.model
        rounded = launched.sharding.startswith("zero") and launched.precision != "fp32"
        # a random start loses nothing by rounding, and an adapter starts in float32
        if rounded and spec.path is not None and self.recipe.adapter is None:
            exact = spec.model_copy(update={"dtype": "float32"})
            restore_masters(trainer, lambda: load_checkpoint(exact, choose_attention("auto")))
        trainer.show(self.probe(trainer).lines)

    def choose_tokens(self, tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
        """What ends a turn, and a pad that neither template nor data use, set on the tokenizer."""
        recipe = self.recipe
        own = isinstance(tokenizer.chat_template, str)
        return training_tokens(
            tokenizer,
            end_token=recipe.end_token,
            pad_token=recipe.pad_token,
            key="pad_token",
            template=chat_template_of(tokenizer, choice="own") if own else None,
            stops=saved_stops(recipe.model.path or ""),
            in_data=self.data_hold,
        )

    def data_hold(self, text: str, number: int) -> bool:
        """Whether the data hold a special token, by its text and id; those of build_sft hold none
        but the template's."""
        return False

    def show_plan(self, prepared: PreparedRun[T], *, measure: bool) -> None:
        """Print the plan on the main process; stop if the disk is too small."""
        trainer, size = prepared.trainer, model_size(prepared.trainer.model)
        # refuses what does not fit before a slice of it is timed
        memory = memory_line(prepared.memory, device_room(trainer.args.device, prepared.memory))
        lines, disk = self.plan(prepared, size, measure=measure and not trainer.sharded)
        before = [
            ("model", f"{size.parameters:,} parameters, {size.trainable:,} trained"),
            ("launch", prepared.launched.text),
            memory,
            ("disk", f"{disk / GIB:.2f} GiB at most, resume checkpoints included"),
        ]
        trainer.show([*before, *lines, *prepared.preflight.lines])
        check_disk(disk, self.out)

    def train(self, prepared: PreparedRun[T], directory: Run) -> Manifest | None:
        """Train, from a whole checkpoint on if there is one, and finish the artifact; on the main
        process, its manifest."""
        trainer = prepared.trainer
        page = self.page if trainer.is_world_process_zero() else None
        try:
            train_to_the_end(trainer, self.out, base=self.recipe.model, special=prepared.special)
        except KeyboardInterrupt:
            if page is not None:
                step = trainer.state.global_step
                write_page(lambda: page.write_interrupted(step=step))
            raise
        except BaseException:
            if page is not None:
                write_page(page.write_stopped)
            raise
        finally:
            trainer.close()
        return self._finish(prepared, directory) if trainer.is_world_process_zero() else None

    def _finish(self, prepared: PreparedRun[T], directory: Run) -> Manifest:
        """Card and manifest; then the resume checkpoints have done their work."""
        trainer, launched = prepared.trainer, prepared.launched
        parents, base = self.data_parents(), self.recipe.model.path
        if self.policy is not None:
            parents.append(self._parent(str(base), self.policy))
            base = f"checkpoint {self.policy.digest[:12]}"
        elif base is not None and Path(base).is_dir():
            base = f"the folder {Path(base).name}"  # the card goes to other machines
        elif commit := prepared.preflight.stats.get("base_commit"):
            base = f"{base} at commit {commit[:12]}"
        outcome = self.outcome(prepared, base)
        write_card(self.out, self.method, self.recipe, outcome, parents=parents)
        missed = outcome.rows - outcome.reached
        manifest = directory.finish(
            counts=Counts(
                rows_in=outcome.rows,
                kept=outcome.reached,
                dropped={"not_reached": missed} if missed else {},
            ),
            files=artifact_files(self.out),
            parents=parents,
            template_digest=self.template_digest,
            seed=self.recipe.seed,
            stats={
                "steps": trainer.state.global_step,
                **asdict(launched),
                "tokens": trainer.tokens_seen,
                "trained": trainer.trained_seen,
                "weights": dtypes_on_disk(self.out),
                **prepared.preflight.stats,
                **outcome.stats,
            },
        )
        shutil.rmtree(self.out / RESUME, ignore_errors=True)
        return manifest

    def _parent(self, path: str, manifest: Manifest) -> Parent:
        return parent_of(path, relative_to=self.out, manifest=manifest)

    @cached_property
    def policy(self) -> Manifest | None:
        """The manifest of the checkpoint artifact that training starts from, if it is one."""
        path = self.recipe.model.path
        if path is None or not (Path(path) / "manifest.json").is_file():
            return None
        return read_artifact(path, kind=KIND)


class DataStage(TrainingStage[WithData, T]):
    """A stage whose recipe names a data artifact, of kind `data_kind`."""

    data_kind: str

    @cached_property
    def data(self) -> Manifest:
        """The data's manifest."""
        return read_artifact(self.recipe.data, kind=self.data_kind)

    @property
    def template_digest(self) -> str | None:
        return self.data.template_digest

    def load_tokenizer(self, args: Any) -> Any:
        """The data's own."""
        tokenizer = load_tokenizer(Path(self.recipe.data) / "tokenizer")
        check_same_tokenizer(tokenizer, self.recipe.model)
        return tokenizer

    def identity(self) -> dict[str, Any]:
        """The recipe with inputs by digest, without paths that decide nothing."""
        # `few_pairs` has done its work: what it fitted stands in the recipe
        without = {"out", "data", "reference_cache", "few_pairs"}
        config = self.recipe.model_dump(mode="json", exclude=without)
        config["data_digest"] = self.data.digest
        if self.policy is not None:
            config["model"]["path"] = self.policy.digest
        return config

    def data_parents(self) -> list[Parent]:
        """The data artifact."""
        return [self._parent(self.recipe.data, self.data)]
