"""What a run writes beside its model: `log.jsonl`, one row a logged step, the same bytes whether or
not it was interrupted; seconds in `speed.jsonl`; the page of the run so far; a line a step on the
console; at its end the card and the list of its files."""

from __future__ import annotations

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
_TIMED = ("_runtime", "_per_second", "total_flos", "_preparation_time", "train_loss")


def log_row(entry: dict[str, Any]) -> dict[str, Any] | None:
    """One entry of the trainer's history without its timings; None when nothing else is left."""
    # sorted, as the rows that a resumed checkpoint hands back are
    row = {key: entry[key] for key in sorted(entry) if not key.endswith(_TIMED)}
    head = {key: row.pop(key) for key in ("step", "epoch", "loss") if key in row}
    return {**head, **row} if row or "loss" in head else None


class LogRows(TrainerCallback):
    """Append each logged row; start from the history that a resumed checkpoint holds."""

    def __init__(self, out: Path) -> None:
        self.log = out / LOG
        self.speed = out / SPEED
        self._started = 0.0
        self._first_step = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Rewrite the rows up to the resumed step; rows of the killed run's tail go."""
        self._started, self._first_step = time.perf_counter(), state.global_step
        if state.is_world_process_zero:
            rows = [log_row(dict(entry)) for entry in state.log_history]
            atomic_write_text(self.log, "".join(_line(row) for row in rows if row))

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        row = log_row(dict(state.log_history[-1]))
        if row and state.is_world_process_zero:
            with self.log.open("a", encoding="utf-8") as handle:
                handle.write(_line(row))

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """One row a start of the run: steps and seconds."""
        if not state.is_world_process_zero:
            return
        seconds = time.perf_counter() - self._started
        tokens = [entry["tokens"] for entry in state.log_history if "tokens" in entry]
        row = {
            "from_step": self._first_step,
            "to_step": state.global_step,
            "seconds": round(seconds, 2),
            "processes": args.world_size,
            "tokens": tokens[-1] if tokens else 0,
        }
        with self.speed.open("a", encoding="utf-8") as handle:
            handle.write(_line(row))


class RunPage(Protocol):
    """The page of a run. Training says when it is written; what stands on it is drawn elsewhere."""

    def write_live(self, about: str, *, next_in: int | None) -> object:
        """Write the page of a run that goes on.

        Args:
            about: what the run is doing.
            next_in: seconds after which the page is written again at the latest, if known.
        """

    def write_interrupted(self, *, step: int) -> object:
        """Write the page of a run that a signal ends at this step."""

    def write_stopped(self) -> object:
        """Write the page of a run that an error has ended."""

    def write_finished(self) -> Path:
        """Write the report of the finished artifact, unless it is there. Returns its path."""
        ...


class LivePage(TrainerCallback):
    """Writes the page of the running stage when it starts, and then again and again: at most
    every `EVERY` seconds, and with at most `SHARE` of the time."""

    EVERY = 15.0
    SHARE = 0.03

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._begun, self._first_step = 0.0, 0
        self._last_row, self._pause = 0.0, 0.0
        self._due, self._wait = 0.0, self.EVERY

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._begun = self._last_row = time.monotonic()
        self._first_step = state.global_step
        self._write(state, None)

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        now = time.monotonic()
        self._pause, self._last_row = max(self._pause, now - self._last_row), now
        if now >= self._due:
            # rows come unevenly: evaluation, saving and long rollouts stand between them
            self._write(state, round(self._wait + 3 * self._pause + 60))

    def _write(self, state: TrainerState, next_in: int | None) -> None:
        if not state.is_world_process_zero:
            return
        begin = time.monotonic()
        about = f"Running, step {state.global_step:,} of {state.max_steps:,}"
        if state.global_step > self._first_step:
            left = seconds_left(state, begin - self._begun, self._first_step)
            about += f", about {left / 60:,.0f} min left"
        written = write_page(lambda: self._page.write_live(about, next_in=next_in))
        end = time.monotonic()
        self._wait = max(self.EVERY, (end - begin) / self.SHARE)
        self._due = end + self._wait if written else math.inf


def seconds_left(state: TrainerState, spent: float, first_step: int) -> float:
    """Until the run's end, where the steps since the first one took `spent` seconds."""
    each = spent / max(1, state.global_step - first_step)
    return each * (state.max_steps - state.global_step)


def write_page(write: Callable[[], object]) -> bool:
    """Write a page of the run; what goes wrong there is printed and ends no run."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - a page is not worth a run of days
        if isinstance(error.__cause__, KeyboardInterrupt):  # while an extension was imported
            raise error.__cause__ from None
        print(f"{REPORT} could not be written: {error!r}", flush=True)
        return False
    return True


class StepLines(TrainerCallback):
    """Prints the figures that `describe` picks of a row (None: it is not a step's), the seconds
    that are left and `timing`."""

    def __init__(
        self,
        describe: Callable[[dict[str, Any]], str | None],
        timing: Callable[[], str] = lambda: "",
    ) -> None:
        self._describe, self._timing = describe, timing
        self._started = (0.0, 0)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._started = (time.perf_counter(), state.global_step)

    def on_log(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        text = self._describe(dict(state.log_history[-1]))
        if text is None or not state.is_world_process_zero:
            return
        at, first_step = self._started
        left = seconds_left(state, time.perf_counter() - at, first_step)
        step = f"step {state.global_step}/{state.max_steps}".ljust(12)
        print(f"{step} {text}  {left:.0f} s left{self._timing()}", flush=True)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


# ---- what a finished run leaves ----


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Results of a finished run.

    Attributes:
        rows: of the data.
        reached: of these, trained on.
        stats: the method's own, for the manifest.
        summary: lines of the card on what the run did.
        data: lines of the card on what it was trained on.
        training: sentences of the card on what else was set.
    """

    rows: int
    reached: int
    stats: dict[str, Any]
    summary: Sequence[str]
    data: Sequence[str] = ()
    training: str = ""


def artifact_files(out: Path) -> dict[str, int | None]:
    """The files of a finished checkpoint that its manifest lists, and the rows of those that have
    any."""
    # neither speeds, nor caches, nor pages that are written again or edited are part of the
    # artifact, nor event files, whose names and bytes hold the host and the time
    own = {MANIFEST, STAGE, SPEED, TIMING, CARD, REPORT}
    names = (str(path.relative_to(out)) for path in sorted(out.rglob("*")) if path.is_file())
    return {
        name: _rows(out / name)
        for name in names
        if name not in own
        and not name.startswith((".", f"{RESUME}/", f"{REFERENCE}/"))
        and "events.out.tfevents." not in name
    }


def _rows(file: Path) -> int | None:
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
    spec = recipe.adapter
    adapter = "none, all weights"
    if spec is not None:
        adapter = f"{spec.method} rank {spec.rank}, preset {spec.preset}, merged into these weights"
    details = [
        *outcome.data,
        "## Training",
        "",
        f"Adapter: {adapter}. {outcome.training}Seed: {recipe.seed}.",
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
