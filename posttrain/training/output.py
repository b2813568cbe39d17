"""Files and lines that a run writes beside its model.

`log.jsonl` has one row per logged step and the same bytes whether or not the run was interrupted;
seconds go to `speed.jsonl`. While a run trains it prints a line per step and keeps a report up to
date; a finished run gets its card and the list of its files.
"""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback, TrainerState

from posttrain.config.sft import TrainingRecipe
from posttrain.publish.card import CARD, checkpoint_card, origins_of
from posttrain.runs import LOG, MANIFEST, REPORT, STAGE, Parent, atomic_write_text
from posttrain.versions import package_versions

RESUME = "resume"
REFERENCE = "reference"
ROLLOUTS = "rollouts"
SPEED = "speed.jsonl"
TIMING = "timing.jsonl"
# endings of the entries of a row that differ between two equal runs
_TIMING_KEYS = ("_runtime", "_per_second", "total_flos", "_preparation_time", "train_loss")


def log_row(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Row of the log for an entry of the trainer's history; None where it holds only timings."""
    # sorted, because a resumed checkpoint returns its entries sorted
    row = {key: entry[key] for key in sorted(entry) if not key.endswith(_TIMING_KEYS)}
    leading = {key: row.pop(key) for key in ("step", "epoch", "loss") if key in row}
    return {**leading, **row} if row or "loss" in leading else None


class LogRows(TrainerCallback):
    """Writes `log.jsonl`, starting from the rows that a resumed checkpoint holds."""

    def __init__(self, out: Path) -> None:
        self.log = out / LOG
        self.speed = out / SPEED
        self._start_time = 0.0
        self._first_step = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Reset the log to the state of the resumed checkpoint.

        Later lines in the file were written by an interrupted run.
        """
        self._start_time = time.perf_counter()
        self._first_step = state.global_step
        if state.is_world_process_zero:
            rows = [log_row(dict(entry)) for entry in state.log_history]
            atomic_write_text(self.log, "".join(_json_line(row) for row in rows if row))

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Append the row of the entry logged last."""
        row = log_row(dict(state.log_history[-1]))
        if row and state.is_world_process_zero:
            with self.log.open("a", encoding="utf-8") as handle:
                handle.write(_json_line(row))

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Append a row to `speed.jsonl`: this start's steps and seconds, the whole run's tokens."""
        if not state.is_world_process_zero:
            return
        seconds = time.perf_counter() - self._start_time
        tokens = [entry["tokens"] for entry in state.log_history if "tokens" in entry]
        row = {
            "from_step": self._first_step,
            "to_step": state.global_step,
            "seconds": round(seconds, 2),
            "processes": args.world_size,
            "tokens": tokens[-1] if tokens else 0,
        }
        with self.speed.open("a", encoding="utf-8") as handle:
            handle.write(_json_line(row))


class RunPage(Protocol):
    """Page of a run. Training decides when it is written; its contents are drawn elsewhere."""

    def write_live(self, activity: str, *, next_in: int | None) -> object:
        """Write the page of a run that goes on.

        Args:
            activity: what the run is doing, in words.
            next_in: seconds after which the page is written again at the latest, if known.
        """

    def write_interrupted(self, *, step: int) -> object:
        """Write the page of a run that a signal ends at this step."""

    def write_stopped(self) -> object:
        """Write the page of a run that an error has ended."""

    def write_finished(self) -> Path:
        """Write the report of the finished artifact, unless it is there. Returns its path."""
        ...


class ReturnFreedMemory(TrainerCallback):
    """Gives memory that a micro-batch has freed back to the system.

    glibc's heap keeps what is freed between blocks that stay, and activations of a longer pack come
    on top of it. Mapping each block apart, which mallopt offers, takes less memory still, but on a
    model of 135 M parameters half as much time again for a step; this takes a twentieth.
    """

    def __init__(self) -> None:
        # no glibc, no such function
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def on_substep_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Give back what one of several micro-batches of a step has freed."""
        if self._trim is not None:
            self._trim(0)

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Give back what the last micro-batch and the optimizer have freed."""
        self.on_substep_end()

    def on_prediction_step(self, *_args: Any, **_kwargs: Any) -> None:
        """Give back what a batch of the evaluation has freed."""
        self.on_substep_end()


class LivePage(TrainerCallback):
    """Keeps the page of a running stage up to date.

    Attributes:
        EVERY: Seconds between two writes, at least.
        SHARE: Share of the run's time that writing may take, at most.
    """

    EVERY = 15.0
    SHARE = 0.03

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._start_time = 0.0
        self._first_step = 0
        self._last_row_time = 0.0
        self._longest_pause = 0.0
        self._next_write = 0.0
        self._interval = self.EVERY

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Write the page of a run without a row."""
        self._start_time = time.monotonic()
        self._last_row_time = self._start_time
        self._first_step = state.global_step
        self._write(state, None)

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Write the page again if enough time has passed."""
        now = time.monotonic()
        self._longest_pause = max(self._longest_pause, now - self._last_row_time)
        self._last_row_time = now
        if now >= self._next_write:
            # rows come unevenly, for evaluation, saving and long rollouts lie between them
            self._write(state, round(self._interval + 3 * self._longest_pause + 60))

    def _write(self, state: TrainerState, next_in: int | None) -> None:
        """Write the page, which promises the next one within `next_in` seconds."""
        if not state.is_world_process_zero:
            return
        write_start = time.monotonic()
        progress = f"Running, step {state.global_step:,} of {state.max_steps:,}"
        if state.global_step > self._first_step:
            remaining = seconds_left(state, write_start - self._start_time, self._first_step)
            progress += f", about {remaining / 60:,.0f} min left"
        written = write_page(lambda: self._page.write_live(progress, next_in=next_in))
        write_end = time.monotonic()
        self._interval = max(self.EVERY, (write_end - write_start) / self.SHARE)
        # a page that cannot be written is not tried again: its error has been printed
        self._next_write = write_end + self._interval if written else math.inf


def seconds_left(state: TrainerState, spent: float, first_step: int) -> float:
    """Estimate the seconds until the run's end, if the steps so far took `spent` seconds."""
    seconds_per_step = spent / max(1, state.global_step - first_step)
    return seconds_per_step * (state.max_steps - state.global_step)


def write_page(write: Callable[[], object]) -> bool:
    """Call `write` for a page of the run. Prints an error, which ends no run, and returns False."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - a page is not worth a run of days
        # an interrupt while an extension module was imported
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        print(f"{REPORT} could not be written: {error!r}", flush=True)
        return False
    return True


class StepLines(TrainerCallback):
    """Prints one line per step: metrics, seconds left and timing.

    Args:
        describe: text for a row of the log; None where the row is not a step's.
        timing: text behind the seconds left.
    """

    def __init__(
        self,
        describe: Callable[[dict[str, Any]], str | None],
        timing: Callable[[], str] = lambda: "",
    ) -> None:
        self._describe = describe
        self._timing = timing
        self._start_time = 0.0
        self._first_step = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Note when and where the run started."""
        self._start_time = time.perf_counter()
        self._first_step = state.global_step

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Print the line of the row logged last."""
        text = self._describe(dict(state.log_history[-1]))
        if text is None or not state.is_world_process_zero:
            return
        remaining = seconds_left(state, time.perf_counter() - self._start_time, self._first_step)
        step = f"step {state.global_step}/{state.max_steps}".ljust(12)
        print(f"{step} {text}  {remaining:.0f} s left{self._timing()}", flush=True)


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


# ---- files of a finished run ----


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Results of a finished run.

    Attributes:
        rows: Number of rows in the data.
        reached: Number of these that were trained on.
        stats: Entries of this method for the manifest.
        summary: Lines of the card about the run.
        data: Lines of the card about its data.
        training: Sentences of the card about other settings.
    """

    rows: int
    reached: int
    stats: dict[str, Any]
    summary: Sequence[str]
    data: Sequence[str] = ()
    training: str = ""


def artifact_files(out: Path) -> dict[str, int | None]:
    """Files that the manifest of a finished checkpoint lists, with the rows of each, or None."""
    # not part of the artifact: timings, caches, pages that are edited or written again, and
    # TensorBoard's event files, whose names and bytes hold the host and the time
    excluded_names = {MANIFEST, STAGE, SPEED, TIMING, CARD, REPORT}
    excluded_starts = (".", f"{RESUME}/", f"{REFERENCE}/")
    files: dict[str, int | None] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if not path.is_file() or name in excluded_names or name.startswith(excluded_starts):
            continue
        if "events.out.tfevents." not in name:
            files[name] = _count_rows(path)
    return files


def _count_rows(file: Path) -> int | None:
    """Count the lines of a log or of a step's rollouts; None for other files."""
    if file.name != LOG and file.parent.name != ROLLOUTS:
        return None
    with file.open("rb") as handle:
        return sum(1 for _ in handle)


def write_card(
    out: Path,
    method: str,
    recipe: TrainingRecipe,
    outcome: RunOutcome,
    *,
    parents: Sequence[Parent],
) -> None:
    """Write the model card of a checkpoint whose model lies in `out`."""
    adapter = recipe.adapter
    adapter_text = "none, all weights"
    if adapter is not None:
        adapter_text = (
            f"{adapter.method} rank {adapter.rank}, preset {adapter.preset}, "
            "merged into these weights"
        )
    details = [
        *outcome.data,
        "## Training",
        "",
        f"Adapter: {adapter_text}. {outcome.training}Seed: {recipe.seed}.",
        "",
        *[f"- `{key}`: {value}" for key, value in sorted(recipe.trainer.items())],
        "",
        "## Versions",
        "",
        *[f"- {name} {version}" for name, version in sorted(package_versions().items())],
    ]
    card = checkpoint_card(
        method,
        origins_of(out, base=recipe.model.path, parents=parents, stats=outcome.stats),
        folder=out,
        summary=outcome.summary,
        parents=parents,
        details=details,
    )
    atomic_write_text(out / CARD, card)
