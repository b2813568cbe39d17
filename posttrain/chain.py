"""Chains of stages: recipes → stages ordered by what they read → each in a process of its own.

A stage waits for those whose output its resolved recipe names, so no order is written down. A
finished stage is only checked, an interrupted one is resumed; its manifest tells which.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.command import terminate
from posttrain.config.load import nearest
from posttrain.config.recipe_files import RECIPES, parse_value, read_mapping, recipe_file
from posttrain.config.stages import CHAIN, StagesConfig, StageStep
from posttrain.errors import ConfigError, PosttrainError
from posttrain.runs import MANIFEST, STAGE, read_owner

# recipes are named after their stage; these have a shorter name, or more in front of it
_NAMED = {
    "build_genrm_sft": "build_sft",
    "genrm_sft": "sft",
    "judgements": "tiny_judgements",
    "profile": "profile_prompts",
    "world": "tiny_world",
}
_NOT_IN_A_FOLDER = "stages"  # a chain of chains is none
# a file of rows, or a glob of such
_ROWS = re.compile(r"[^\s:]+\.(jsonl|ndjson|json|parquet)(\.gz|\.zst)?")
_SHOWN_KEYS = 3  # of those that a state names
_LOG_LINES = 12
_LOG_WIDTH = 2000
PROGRESS_SECONDS = 60.0
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage of a chain, with its recipe resolved.

    Attributes:
        arguments: of the command `posttrain`.
        recipe: every key and its value.
        out: the directory that it writes to.
    """

    step: StageStep
    arguments: tuple[str, ...]
    recipe: Mapping[str, Any]
    out: Path

    def reads(self, producer: ChainStage) -> bool:
        """Check whether the recipe names another stage's output, or something in it."""
        return any(_lies_in(text, producer.out) for text in _texts(self.recipe))


def scripts_with_recipes(scripts: Path) -> list[str]:
    """The names of the scripts that take a recipe."""
    files = scripts.glob("[!_]*.py")
    return sorted(path.stem for path in files if "recipe_parser(" in path.read_text("utf-8"))


def stage_of(recipe: str, stages: Sequence[str]) -> str | None:
    """The stage that a recipe is named after: the longest name that its name begins with.

    `eval_rlhf` is a recipe of `eval`, `genrm_sft` one of `sft`. None if there is no such stage.
    """
    names = {**{stage: stage for stage in stages}, **_NAMED}
    fitting = [name for name in names if f"{recipe}_".startswith(f"{name}_")]
    return names[max(fitting, key=len)] if fitting else None


def folder_steps(folder: Path, scripts: Path, *, show: Callable[[str], object]) -> list[StageStep]:
    """A step for every recipe of a folder, by the stage that its name begins with.

    Raises:
        ConfigError: no recipe there is named after a stage.
    """
    stages = scripts_with_recipes(scripts)
    names = [*stages, *_NAMED]
    steps: list[StageStep] = []
    for path in sorted(folder.glob("*.yaml")):
        stage = stage_of(path.stem, stages)
        if stage is None:
            hint = nearest(path.stem, names, or_list=False)
            show(f"{path.name}: left out, no stage has this name{hint}")
            continue
        if stage != _NOT_IN_A_FOLDER:
            steps.append(StageStep(stage=stage, recipe=str(path.resolve())))
    if not steps:
        raise ConfigError(
            f"nothing to run: no recipe in {folder} is named after a stage, such as sft.yaml or "
            f"eval_after.yaml (stages: {', '.join(sorted(names))})"
        )
    return steps


def chain_file(name: str) -> Path:
    """File of a chain, found by a recipe's path or name, or by a folder with a `chain.yaml`.

    Raises:
        ConfigError: as `recipe_file`.
    """
    for folder in (Path(name), RECIPES / name):
        if (folder / CHAIN).is_file():
            return folder / CHAIN
    try:
        return recipe_file(name)
    except ConfigError:
        chains = [path.parent.relative_to(RECIPES).as_posix() for path in RECIPES.rglob(CHAIN)]
        if hint := nearest(name, chains, or_list=False):
            raise ConfigError(f"no chain {name!r}{hint}") from None
        raise


def read_chain(name: str, scripts: Path, *, show: Callable[[str], object]) -> dict[str, Any]:
    """Read a chain's recipe, unchecked; of a folder without one, chain all its recipes.

    Raises:
        ConfigError: as `recipe_file`, `read_mapping`, `folder_steps`.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / CHAIN).is_file():
        steps = folder_steps(folder, scripts, show=show)
        return {"stages": [step.model_dump(mode="json", exclude_defaults=True) for step in steps]}
    return read_mapping(chain_file(name))


def resolve_chain(config: StagesConfig, scripts: Path) -> list[ChainStage]:
    """The stages that the targets need, each behind those that it reads.

    Raises:
        ConfigError: a stage that is not there, a recipe as its stage refuses it, two stages that
            write to one directory, or stages that wait for one another.
    """
    names = [name for name in scripts_with_recipes(scripts) if name != _NOT_IN_A_FOLDER]
    sizes = config.sizes[config.size] if config.size is not None else {}
    stages: list[ChainStage] = []
    for step in config.stages:
        if step.stage not in names:
            raise ConfigError(f"there is no stage {step.stage!r}{nearest(step.stage, names)}")
        sized = sizes.get(step.title, {})
        overrides = [text for text in step.overrides if text.partition("=")[0] not in sized]
        for key, value in sized.items():
            overrides.append(f"{key}={json.dumps(value, ensure_ascii=False)}")
        if step.seeded and config.seed is not None:
            overrides.append(f"seed={config.seed}")
        stages.append(_resolve(step, overrides, scripts))
    outs = [stage.out for stage in stages]
    twice = sorted({str(out) for out in outs if outs.count(out) > 1})
    if twice:
        raise ConfigError(f"two stages write to {twice[0]}: give each an out= of its own")
    return _ordered(stages, config.targets)


def _resolve(step: StageStep, overrides: Sequence[str], scripts: Path) -> ChainStage:
    """Resolve a step's recipe with its script's `main`, in this process."""
    main = runpy.run_path(str(scripts / f"{step.stage}.py"))["main"]
    file = recipe_file(step.recipe)
    arguments = ["--config", str(file.resolve()) if file.is_file() else step.recipe, *overrides]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            main([*arguments, "--print-config"])
    except ConfigError as error:
        raise ConfigError(f"{step.title} ({step.stage}): {error}") from error
    except SystemExit as end:
        if end.code:  # argparse has said why
            refused = " ".join(overrides)
            raise ConfigError(f"{step.stage} {step.recipe} does not take {refused}") from None
    recipe = parse_value(printed.getvalue()) or {}
    if recipe.get("out") is None:
        raise ConfigError(f"{step.stage} {step.recipe} names no out")
    launch = [] if step.launch is None else ["launch", *step.launch]
    return ChainStage(step, (*launch, step.stage, *arguments), recipe, Path(recipe["out"]))


def _ordered(stages: Sequence[ChainStage], targets: Sequence[str] | None) -> list[ChainStage]:
    """Order the stages that the targets need: producers first, then as targets and stages stand."""
    ordered: list[ChainStage] = []
    path: list[ChainStage] = []

    def visit(stage: ChainStage) -> None:
        if stage in ordered:
            return
        if stage in path:
            names = " → ".join(s.step.title for s in [*path[path.index(stage) :], stage])
            raise ConfigError(f"stages read one another's output: {names}")
        path.append(stage)
        for producer in stages:
            if producer is not stage and stage.reads(producer):
                visit(producer)
        path.pop()
        ordered.append(stage)

    # unknown targets were refused with the recipe
    for target in targets or [stage.step.title for stage in stages]:
        for stage in stages:
            if stage.step.title == target:
                visit(stage)
    return ordered


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a tree of plain values, except under a key `out` at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "out":
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _lies_in(text: str, out: Path) -> bool:
    """Check whether a text is this directory, a path in it, or `RUN:NAME` of an evaluation."""
    path = os.path.normpath(text)
    folder = os.path.normpath(out)
    return path == folder or path.startswith((f"{folder}{os.sep}", f"{folder}:"))


def state_of(stage: ChainStage, root: Path) -> str:
    """State of a stage's output directory: `finished`, `goes on` (interrupted) or `to do`.

    One that another configuration finished says so: the stage will refuse it.
    """
    out = root / stage.out
    has_owner = (out / STAGE).is_file()
    if not (out / MANIFEST).is_file():
        return "goes on" if has_owner else "to do"
    keys = _other_values(read_owner(out)["config"], stage.recipe) if has_owner else []
    if not keys:
        return "finished"
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return f"finished, with other values of {', '.join(keys[:_SHOWN_KEYS])}{more}"


def _other_values(recorded: Any, resolved: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Dotted keys that have other numbers in a finished stage's config than in its recipe.

    Its texts may be digests in place of paths, and its nulls are filled by what a model states.
    """
    keys: list[str] = []
    if isinstance(recorded, Mapping) and isinstance(resolved, Mapping):
        for key in recorded:
            if key in resolved:
                keys += _other_values(recorded[key], resolved[key], (*path, key))
    elif isinstance(recorded, list) and isinstance(resolved, list):
        if len(recorded) != len(resolved):
            return [".".join(path)]
        for index, values in enumerate(zip(recorded, resolved, strict=True)):
            keys += _other_values(*values, (*path, str(index)))
    elif isinstance(recorded, int | float) and isinstance(resolved, int | float):
        return [".".join(path)] if recorded != resolved else []
    return keys


def missing_inputs(stages: Sequence[ChainStage], root: Path) -> list[str]:
    """Sentences about files of rows that unfinished stages read, nobody has and no stage writes.

    They are to be seen before hours of work, at whose end the stage would stop.
    """
    sentences: list[str] = []
    for stage in stages:
        if state_of(stage, root) == "finished":
            continue
        for text in dict.fromkeys(_texts(stage.recipe)):
            is_written = any(_lies_in(text, producer.out) for producer in stages)
            if _ROWS.fullmatch(text) and not is_written and not glob.glob(str(root / text)):
                sentences.append(
                    f"{stage.step.title} reads {text}, which is not there, and no stage here "
                    "writes it"
                )
    return sentences


def run_chain(
    stages: Sequence[ChainStage],
    config: StagesConfig,
    *,
    scripts: Path,
    root: Path,
    show: Callable[[str], object],
    advice: str = "Rerun the same command to resume.",
    seconds: float = PROGRESS_SECONDS,
) -> None:
    """Run stages, `jobs` at a time, each as soon as those that it reads are finished.

    A stage that fails takes with it those that need its output; the others still run.

    Args:
        scripts: the folder of the command `posttrain`.
        root: the directory that paths in recipes are relative to.
        show: prints a line.
        advice: the last line of the error.
        seconds: after which the last line of each running stage's log is shown.

    Raises:
        PosttrainError: stages stopped; it names them and where their output is.
    """
    environment = {**config.environment, **os.environ}
    if config.jobs > 1:
        # stages share the cores: with more threads than cores each would wait for the other
        threads = max(1, (os.cpu_count() or 1) // config.jobs)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    logs = None if config.logs is None else root / config.logs
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    waiting = list(stages)
    running: dict[Future[int], ChainStage] = {}
    processes: list[subprocess.Popen[bytes]] = []
    begun: dict[str, float] = {}
    failed: list[str] = []
    with _ending_signals(), ThreadPoolExecutor(config.jobs) as waiters:
        try:
            while running or waiting:
                for stage in _ready(waiting, running.values(), config.jobs):
                    waiting.remove(stage)
                    begun[str(stage.out)] = time.monotonic()
                    show(_beginning(stage, root, number=len(begun), total=len(stages)))
                    process = _start(stage, scripts, root, logs, environment)
                    processes.append(process)
                    running[waiters.submit(process.wait)] = stage
                ended = wait(running, timeout=seconds, return_when=FIRST_COMPLETED).done
                if not ended and logs is not None:
                    for stage in running.values():
                        show(f"{stage.step.title}: {_last_line(_log_of(stage, logs))}")
                for future in ended:
                    stage = running.pop(future)
                    code = future.result()
                    if code:
                        failed.append(_failure(stage, code, logs, show))
                        unreachable = _dependents(waiting, stage)
                        waiting = [step for step in waiting if step not in unreachable]
                        if unreachable:
                            names = ", ".join(dependent.step.title for dependent in unreachable)
                            show(f"left out, for want of {stage.step.title}: {names}")
                    elif logs is not None:
                        took = time.monotonic() - begun[str(stage.out)]
                        show(f"{stage.step.title} finished in {took:.0f} s")
        except BaseException:
            for process in processes:
                process.terminate()
            raise
    if failed:
        raise PosttrainError("\n".join([*failed, advice]))


def _ready(
    waiting: Sequence[ChainStage], running: Collection[ChainStage], jobs: int
) -> list[ChainStage]:
    """Select the stages that may start now: their inputs exist, and a job is free for each."""
    unfinished = [*waiting, *running]
    ready: list[ChainStage] = []
    for stage in waiting:
        if not any(stage.reads(producer) for producer in unfinished if producer is not stage):
            ready.append(stage)
    return ready[: jobs - len(running)]


def _dependents(waiting: Sequence[ChainStage], failed: ChainStage) -> list[ChainStage]:
    """Select the waiting stages that need a failed stage's output, directly or through others."""
    dependents: list[ChainStage] = []
    # one pass is enough: producers stand before what reads them
    for stage in waiting:
        if any(stage.reads(producer) for producer in (failed, *dependents)):
            dependents.append(stage)
    return dependents


def _beginning(stage: ChainStage, root: Path, *, number: int, total: int) -> str:
    step = stage.step
    out = root / stage.out
    line = f"{number}/{total} {step.title}: {step.about or f'{step.stage} → {out}'}"
    return f"{line}; then look at {out}/report.html: {step.look}" if step.look else line


def _start(
    stage: ChainStage, scripts: Path, root: Path, logs: Path | None, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # a finished stage is started too: it refuses another recipe and changed inputs
    command = [sys.executable, str(scripts.resolve()), *stage.arguments]
    if logs is None:
        return subprocess.Popen(command, cwd=root, env=dict(environment))  # noqa: S603 - ours
    with _log_of(stage, logs).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - ours; no shell
            command,
            cwd=root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _log_of(stage: ChainStage, logs: Path) -> Path:
    return logs / f"{stage.step.title}.log"


def _last_line(log: Path) -> str:
    """Last line of a stage's log that is not empty; progress bars end theirs with \\r."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_WIDTH))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    return next((line for line in reversed(lines) if line), "begins")


def _failure(stage: ChainStage, code: int, logs: Path | None, show: Callable[[str], object]) -> str:
    """Show the last lines of a failed stage's log and return a sentence about the failure."""
    sentence = f"stage {stage.step.title} ({stage.step.stage}) stopped with code {code}"
    if logs is None:
        return f"{sentence}; its error stands above"
    log = _log_of(stage, logs)
    for line in log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]:
        show(line[:_LOG_WIDTH])
    return f"{sentence}: {log}"


@contextlib.contextmanager
def _ending_signals() -> Generator[None]:
    """End the stages before this process when a signal ends it, as Ctrl-C does."""
    earlier_handlers = {number: signal.signal(number, terminate) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)
