"""Generation of samples: completions of all tasks in one file, in order, however often killed.

In process, an unfinished stretch of the tasks is sampled again whole and comes out the same. From a
server only the missing completions are requested.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.console import Console

from posttrain.config.backend import BackendConfig, Server
from posttrain.config.sample import SampleConfig
from posttrain.errors import DataError
from posttrain.hashing import digest_of
from posttrain.jsontext import row_line
from posttrain.rollouts import (
    Completion,
    Parameters,
    Prompt,
    RolloutLimits,
    completion_from_row,
    completion_to_row,
    prompt_from_row,
    prompt_to_row,
)
from posttrain.runs import (
    Counts,
    Manifest,
    Parent,
    Run,
    atomic_write_json,
    atomic_write_text,
    refuse_other,
)
from posttrain.sampling.engines.http import ServerDown
from posttrain.sampling.progress import ERROR_LENGTH, ProgressBar, SampleStats
from posttrain.sampling.rollout import OpenEnvironment, Task, roll_out_each
from posttrain.sampling.sampler import Sampler
from posttrain.timing import duration

if TYPE_CHECKING:
    from posttrain.tokens.renderer import PromptRenderer

MADE_BY = "made_by.json"
Key = tuple[str, int]
# one may run tools while another is answered
_ROLLOUTS_PER_CONNECTION = 2
# seconds between two syncs to disk; a sync for every line would hold up a fast server
_SYNC_SECONDS = 1.0


def tasks_of(prompts: Sequence[Prompt], n_of: Callable[[str], int], *, seed: int) -> list[Task]:
    """List the completions to sample, prompt by prompt; `n_of` returns the number in a setting."""
    tasks: list[Task] = []
    for prompt in prompts:
        tasks += [Task(prompt, index, seed) for index in range(n_of(prompt.setting))]
    return tasks


async def generate(
    tasks: Sequence[Task],
    sampler: Sampler,
    *,
    work: Path,
    to: Path,
    open_environment: OpenEnvironment,
    limits: RolloutLimits,
    chunk: int = 512,
    at_once: int = 64,
    max_failure_rate: float = 0.0,
    progress: ProgressBar,
) -> SampleStats:
    """Sample the completions that `work` lacks, then write all to `to`, one line a task, in order.

    Args:
        tasks: the completions to sample.
        sampler: the model.
        work: folder that belongs to these tasks and this sampler (`bind`).
        to: file of all completions.
        open_environment: as for `roll_out_each`.
        limits: bounds of a completion.
        chunk: completions of a stretch, in process.
        at_once: rollouts in flight, with a server.
        max_failure_rate: share of the completions that may fail.
        progress: bar to report to.

    Raises:
        DataError: more than `max_failure_rate` failed, which ends a server's requests at once, or
            the server is gone. Called again, a server is asked for the missing ones.
    """
    # in process a stretch is made whole, so that the same batches give the same bytes
    size = chunk if sampler.batched else max(1, len(tasks))
    with Journal(work / "journal.jsonl") as journal:
        failed: dict[Key, bytes] = {}
        reasons: Counter[str] = Counter()
        for stretch in (tasks[start : start + size] for start in range(0, len(tasks), size)):
            missing = [task for task in stretch if _key(task) not in journal]
            progress.add(restored=len(stretch) - len(missing))
            pending = stretch if sampler.batched and missing else missing

            def record(
                position: int, completion: Completion, pending: Sequence[Task] = pending
            ) -> None:
                key = _key(pending[position])
                if completion.finish == "failed" and not sampler.batched:
                    failed[key] = line_of(completion).encode()
                    reasons[str(completion.error)[:ERROR_LENGTH]] += 1
                    progress.add(failed=1)
                    # the share only grows, so there is no need to wait for the other completions
                    _refuse_failures(
                        reasons, len(tasks), max_failure_rate=max_failure_rate, batched=False
                    )
                elif key not in journal:
                    journal.add(completion)
                else:
                    return
                progress.add(done=1, ended_tokens=_tokens_of(completion))

            try:
                await roll_out_each(
                    pending,
                    sampler,
                    open_environment=open_environment,
                    limits=limits,
                    on_done=record,
                    progress=lambda new: progress.add(tokens=new),
                    at_once=at_once,
                )
            except ServerDown as error:
                sampled = sum(_key(task) in journal for task in tasks)
                raise DataError(
                    f"{error}: {len(tasks) - sampled:,} of {len(tasks):,} completions are missing, "
                    f"{len(failed):,} of them failed before; {sampled:,} are kept. Start the "
                    "server and rerun the same command to resume"
                ) from error
        stats = SampleStats()
        partial = to.with_name(f".{to.name}.partial")
        with partial.open("wb") as file:
            for task in tasks:
                line = failed.get(_key(task)) or journal.line(_key(task))
                stats.add(task.prompt, json.loads(line))
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(to)
    _refuse_failures(
        stats.errors, len(tasks), max_failure_rate=max_failure_rate, batched=sampler.batched
    )
    return stats


def _refuse_failures(
    reasons: Counter[str], total: int, *, max_failure_rate: float, batched: bool
) -> None:
    """Raise DataError if more of all completions failed than the recipe allows."""
    count = sum(reasons.values())
    if count <= max_failure_rate * total:
        return
    advice = "The same command asks again for those that are missing"
    if batched:
        advice = "They would fail again: leave out such prompts"
    raise DataError(
        f"{count:,} of {total:,} completions failed, max_failure_rate allows "
        f"{max_failure_rate:.2%}; most often: {reasons.most_common(1)[0][0]}. {advice}, "
        "or raise max_failure_rate"
    )


def _tokens_of(completion: Completion) -> int:
    """Count the tokens of all steps, as samplers report them while they run."""
    tokens = 0
    for step in completion.steps:
        if step.ids is None:
            tokens += step.reasoning_tokens + step.answer_tokens
        else:
            tokens += len(step.ids)
    return tokens


def _key(task: Task) -> Key:
    """(prompt id, index) of a task."""
    return task.prompt.id, task.index


def line_of(completion: Completion) -> str:
    """Write a completion as a line of `samples.jsonl`."""
    return row_line(completion_to_row(completion))


def prompt_lines(prompts: Sequence[Prompt]) -> str:
    """Write prompts as the text of `prompts.jsonl`."""
    return "".join(row_line(prompt_to_row(prompt)) for prompt in prompts)


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a `prompts.jsonl` that a run wrote, unchecked."""
    with path.open(encoding="utf-8") as lines:
        return [prompt_from_row(json.loads(line)) for line in lines]


def read_completions(path: Path) -> list[Completion]:
    """Read the completions of a `samples.jsonl` that a run wrote, unchecked."""
    with path.open(encoding="utf-8") as lines:
        return [completion_from_row(json.loads(line)) for line in lines]


def bind(work: Path, made_by: Mapping[str, Any]) -> None:
    """Bind a folder of unfinished samples to the prompts and the model that make them.

    Args:
        work: the folder.
        made_by: digests of prompts and model, JSON-able.

    Raises:
        ConfigError: the samples in it were made by something else.
    """
    path = work / MADE_BY
    current = json.loads(json.dumps(made_by))
    if path.is_file():
        refuse_other(work.parent, json.loads(path.read_text("utf-8")), current)
    else:
        atomic_write_json(path, current)


def rollouts_at_once(backend: object) -> int:
    """Number of rollouts to have in flight with a backend: two for each of its connections."""
    connections = backend.total_concurrency if isinstance(backend, Server) else 1
    return _ROLLOUTS_PER_CONNECTION * connections


# -- the sampling stage between recipe and manifest ------------------------------------------------


async def make_samples(
    recipe: SampleConfig,
    prompts: Sequence[Prompt],
    open_environment: OpenEnvironment,
    console: Console,
) -> SampleStats:
    """Sample every completion that is missing and write all to `samples.jsonl`."""
    # imported here, since it imports tokenizers
    from posttrain.sampling.open import opened_sampler

    out = Path(recipe.out)
    tasks = tasks_of(prompts, recipe.n_of, seed=recipe.seed)
    prompts_text = prompt_lines(prompts)
    async with opened_sampler(recipe.backend, checkpoint=recipe.checkpoint) as sampler:
        identity = dict(sampler.identity)
        bind(out / "work", {"prompts": digest_of(prompts_text), "sampler": identity})
        atomic_write_text(out / "prompts.jsonl", prompts_text)
        total_tokens = sum(recipe.most_tokens(task.prompt.setting) for task in tasks)
        most_tokens = total_tokens / max(1, len(tasks))
        bar = ProgressBar(total=len(tasks), most_tokens=most_tokens, console=console)
        with bar as progress:
            return await generate(
                tasks,
                sampler,
                work=out / "work",
                to=out / "samples.jsonl",
                open_environment=open_environment,
                limits=recipe.sampling.limits(),
                chunk=recipe.chunk,
                at_once=rollouts_at_once(recipe.backend),
                max_failure_rate=recipe.max_failure_rate,
                progress=progress,
            )


async def time_line(recipe: SampleConfig, prompts: Sequence[Prompt]) -> str:
    """Describe the longest time that a recipe's completions take, as `sampling_time`."""
    completions = sum(recipe.n_of(prompt.setting) for prompt in prompts)
    tokens = sum(
        recipe.n_of(prompt.setting) * recipe.most_tokens(prompt.setting) for prompt in prompts
    )
    time_text = await sampling_time(
        recipe.backend,
        recipe.checkpoint,
        prompts,
        parameters=recipe.sampling.parameters(),
        tokens=tokens,
        rows=min(getattr(recipe.backend, "batch_size", 1), recipe.chunk, completions),
    )
    return f"time: {time_text}"


async def sampling_time(
    backend: BackendConfig,
    checkpoint: str | None,
    prompts: Sequence[Prompt],
    *,
    parameters: Parameters,
    tokens: int,
    rows: int,
) -> str:
    """Describe the longest time that completions take, by a measured slice, or why it is unknown.

    Args:
        tokens: tokens of all completions at their longest.
        rows: number of completions that are written at a time.

    Raises:
        ConfigError, DataError: the model cannot be sampled, as the real run would find out.
    """
    from posttrain.sampling.measure import measure_speed, why_not_measured
    from posttrain.sampling.open import opened_sampler

    reason = why_not_measured(backend, checkpoint)
    if reason is not None:
        return f"not measured: {reason}"
    async with opened_sampler(backend, checkpoint=checkpoint) as sampler:
        speed = measure_speed(sampler, prompts, parameters=parameters, rows=rows)
    if speed is None:
        return "not measured: the sampler is no model in this process"
    seconds = speed.seconds(prompts=len(prompts), tokens=tokens, rows=rows)
    seconds_per_thousand = 1000 * speed.token_seconds(rows)
    per_thousand = duration(seconds_per_thousand)
    if seconds_per_thousand < 10:
        per_thousand = f"{seconds_per_thousand:.2g} s"
    return (
        f"at most {duration(seconds)}, if every completion runs to its limit; 1,000 tokens "
        f"take {per_thousand}. {speed.text(rows)}"
    )


def finish(
    stage: Run,
    recipe: SampleConfig,
    samples: SampleStats,
    *,
    prompts: Sequence[Prompt],
    counts: Counts,
    parents: Sequence[Parent],
    renderer: PromptRenderer | None,
    prompt_stats: Mapping[str, Any],
    alerts: Sequence[Mapping[str, Any]] = (),
    files: Mapping[str, int] | None = None,
) -> Manifest:
    """Write examples and tokenizer beside the samples, then the manifest.

    Args:
        alerts: warnings that the report puts first.
        prompt_stats: stats of the prompts, for the manifest.
        files: further files of the artifact → their rows.
    """
    out = stage.path
    settings = samples.by_setting()
    atomic_write_text(out / "examples.jsonl", "".join(map(row_line, samples.examples)))
    rows_of_file: dict[str, int | None] = {
        **(files or {}),
        "prompts.jsonl": len(prompts),
        "samples.jsonl": sum(setting["samples"] for setting in settings.values()),
        "examples.jsonl": len(samples.examples),
    }
    stats: dict[str, Any] = {
        **({"alerts": list(alerts)} if alerts else {}),
        "settings": settings,
        "failed": dict(samples.errors),
        "sampler": json.loads((out / "work" / MADE_BY).read_text("utf-8"))["sampler"],
        **prompt_stats,
    }
    if renderer is not None:
        rows_of_file |= {f"tokenizer/{name}": None for name in renderer.save(out / "tokenizer")}
        stats |= renderer.stats()
    manifest = stage.finish(
        counts=counts,
        files=rows_of_file,
        parents=parents,
        template_digest=None if renderer is None else renderer.template.digest,
        seed=recipe.seed,
        stats=stats,
    )
    shutil.rmtree(out / "work")
    return manifest


# -- the journal of unfinished tasks ---------------------------------------------------------------


class Journal:
    """File of completions in the order in which they ended, looked up by prompt and index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # start and length of each line, in bytes
        self._spans: dict[Key, tuple[int, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        end = self._recover()
        self._file: BinaryIO = path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        self._synced = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self._file.close()
        if not self._spans:
            # nothing was sampled: without its folders another recipe may have this output directory
            self._path.unlink()
            # folders that hold other files stay
            with contextlib.suppress(OSError):
                os.removedirs(self._path.parent)

    def __contains__(self, key: Key) -> bool:
        return key in self._spans

    def add(self, completion: Completion) -> None:
        """Append a completion. It outlives the process, and after a second the machine."""
        key = (completion.prompt_id, completion.index)
        assert key not in self._spans, f"{key} was sampled twice"
        line = line_of(completion).encode()
        start = self._file.tell()
        self._file.write(line)
        self._file.flush()
        self._spans[key] = (start, len(line))
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def line(self, key: Key) -> bytes:
        """Read the line of a key."""
        start, length = self._spans[key]
        return os.pread(self._file.fileno(), length, start)

    def _recover(self) -> int:
        """Read the lines of an earlier process. Returns the offset behind the last complete one."""
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                    key = (row["prompt_id"], row["index"])
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(
                        f"{self._path}:{number} is no sample ({error!r}); the file was damaged. "
                        "Delete that line to have it sampled again"
                    ) from error
                self._spans[key] = (end, len(line))
                end += len(line)
        return end
