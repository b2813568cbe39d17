"""Chains of stages: recipes → the stages behind one another → each in a process of its own.

A stage waits for those whose output its resolved recipe names, so no order is written down. A
finished stage is checked and passed on, an interrupted one goes on, by its manifest.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
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

import yaml

from posttrain.config.command import terminate
from posttrain.config.load import nearest
from posttrain.config.recipe_files import RECIPES, read_mapping, recipe_file
from posttrain.config.stages import CHAIN, StagesConfig, StageStep
from posttrain.errors import ConfigError, PosttrainError
from posttrain.runs import MANIFEST, STAGE

# recipes are named after their stage; these have a shorter name, or more in front of it
_NAMED = {
    "build_genrm_sft": "build_sft",
    "genrm_sft": "sft",
    "judgements": "tiny_judgements",
    "profile": "profile_prompts",
    "world": "tiny_world",
}
_NOT_IN_A_FOLDER = "stages"  # a chain of chains is none
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

    def reads(self, other: ChainStage) -> bool:
        """Whether the recipe names the other's output, or something in it."""
        return any(_lies_in(text, other.out) for text in _texts(self.recipe))


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


def chain_file(given: str) -> Path:
    """The file of a chain: a recipe's path or name, or a folder that has a `chain.yaml`.

    Raises:
        ConfigError: as `recipe_file`.
    """
    for folder in (Path(given), RECIPES / given):
        if (folder / CHAIN).is_file():
            return folder / CHAIN
    return recipe_file(given)


def read_chain(given: str, scripts: Path, *, show: Callable[[str], object]) -> dict[str, Any]:
    """The mapping of a chain's recipe, or of a folder without one: all of its recipes.

    Raises:
        ConfigError: as `recipe_file`, `read_mapping`, `folder_steps`.
    """
    folder = Path(given)
    if folder.is_dir() and not (folder / CHAIN).is_file():
        steps = folder_steps(folder, scripts, show=show)
        return {"stages": [step.model_dump(mode="json", exclude_defaults=True) for step in steps]}
    return read_mapping(chain_file(given))


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
        overrides = list(step.overrides)
        for key, value in sizes.get(step.title, {}).items():
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
    """Check a step's recipe by its own script, which prints what it resolves to."""
    main = runpy.run_path(str(scripts / f"{step.stage}.py"))["main"]
    file = recipe_file(step.recipe)
    own = ["--config", str(file.resolve()) if file.is_file() else step.recipe, *overrides]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            main([*own, "--print-config"])
    except ConfigError as error:
        raise ConfigError(f"{step.title} ({step.stage}): {error}") from error
    except SystemExit as end:
        if end.code:  # argparse has said why
            given = " ".join(overrides)
            raise ConfigError(f"{step.stage} {step.recipe} does not take {given}") from None
    recipe = yaml.safe_load(printed.getvalue()) or {}
    if recipe.get("out") is None:
        raise ConfigError(f"{step.stage} {step.recipe} names no out")
    launch = [] if step.launch is None else ["launch", *step.launch]
    return ChainStage(step, (*launch, step.stage, *own), recipe, Path(recipe["out"]))


def _ordered(stages: Sequence[ChainStage], targets: Sequence[str] | None) -> list[ChainStage]:
    """The targets, each behind what it reads; otherwise in the order of targets and stages."""
    ordered: list[ChainStage] = []
    path: list[ChainStage] = []

    def visit(stage: ChainStage) -> None:
        if stage in ordered:
            return
        if stage in path:
            names = " → ".join(s.step.title for s in [*path[path.index(stage) :], stage])
            raise ConfigError(f"stages read one another's output: {names}")
        path.append(stage)
        for other in stages:
            if other is not stage and stage.reads(other):
                visit(other)
        path.pop()
        ordered.append(stage)

    for target in targets or [stage.step.title for stage in stages]:
        for stage in stages:
            if stage.step.title == target:
                visit(stage)
    return ordered


def _texts(value: Any) -> Iterator[str]:
    """Every text in a tree of plain values, but what a recipe writes to itself."""
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
    """Whether a text of a recipe is this directory, a path in it, or RUN:NAME of an evaluation."""
    path = os.path.normpath(text)
    folder = os.path.normpath(out)
    return path == folder or path.startswith((f"{folder}{os.sep}", f"{folder}:"))


def state_of(stage: ChainStage, at: Path) -> str:
    """How far a stage has come: `finished`, `goes on` or `to do`."""
    if (at / stage.out / MANIFEST).is_file():
        return "finished"
    return "goes on" if (at / stage.out / STAGE).is_file() else "to do"


def run_chain(
    stages: Sequence[ChainStage],
    config: StagesConfig,
    *,
    scripts: Path,
    at: Path,
    show: Callable[[str], object],
    advice: str = "Rerun the same command to resume.",
    seconds: float = PROGRESS_SECONDS,
) -> None:
    """Run stages, `jobs` at a time, each as soon as those that it reads are finished.

    When one fails, those that need it are left out and the others go on.

    Args:
        scripts: the folder of the command `posttrain`.
        at: the directory that paths in recipes are relative to.
        show: prints a line.
        advice: the last line of the error.
        seconds: after which the last line of each running stage's log is shown.

    Raises:
        PosttrainError: stages stopped; it names them and where their output is.
    """
    environment = {**config.environment, **os.environ}
    if config.jobs > 1:  # threads of stages that share cores wait for one another
        threads = max(1, (os.cpu_count() or 1) // config.jobs)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    logs = None if config.logs is None else at / config.logs
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
                    show(_beginning(stage, at, number=len(begun), of=len(stages)))
                    process = _start(stage, scripts, at, logs, environment)
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
                        without = _left_out(waiting, stage)
                        waiting = [other for other in waiting if other not in without]
                        if without:
                            names = ", ".join(other.step.title for other in without)
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
    """Those whose inputs are made, as many as may begin now."""
    unfinished = [*waiting, *running]
    ready: list[ChainStage] = []
    for stage in waiting:
        if not any(stage.reads(other) for other in unfinished if other is not stage):
            ready.append(stage)
    return ready[: jobs - len(running)]


def _left_out(waiting: Sequence[ChainStage], stopped: ChainStage) -> list[ChainStage]:
    """Those that read what did not come to be, themselves or through others."""
    without: list[ChainStage] = []
    for stage in waiting:  # each stands behind what it reads
        if any(stage.reads(other) for other in (stopped, *without)):
            without.append(stage)
    return without


def _beginning(stage: ChainStage, at: Path, *, number: int, of: int) -> str:
    step = stage.step
    line = f"{number}/{of} {step.title}: {step.about or f'{step.stage} → {at / stage.out}'}"
    return f"{line}; then look at {at / stage.out}/report.html: {step.look}" if step.look else line


def _start(
    stage: ChainStage, scripts: Path, at: Path, logs: Path | None, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # a finished one, too: it refuses another recipe and changed inputs
    command = [sys.executable, str(scripts.resolve()), *stage.arguments]
    if logs is None:
        return subprocess.Popen(command, cwd=at, env=dict(environment))  # noqa: S603 - ours
    with _log_of(stage, logs).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - ours; no shell
            command,
            cwd=at,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _log_of(stage: ChainStage, logs: Path) -> Path:
    return logs / f"{stage.step.title}.log"


def _last_line(log: Path) -> str:
    """How far a stage is by its log; a progress bar ends its lines by going back."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_WIDTH))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    return next((line for line in reversed(lines) if line), "begins")


def _failure(stage: ChainStage, code: int, logs: Path | None, show: Callable[[str], object]) -> str:
    """Show the end of a stopped stage's log; returns the sentence about it."""
    sentence = f"stage {stage.step.title} ({stage.step.stage}) stopped with code {code}"
    if logs is None:
        return sentence
    log = _log_of(stage, logs)
    for line in log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]:
        show(line[:_LOG_WIDTH])
    return f"{sentence}: {log}"


@contextlib.contextmanager
def _ending_signals() -> Generator[None]:
    """Within, a signal that ends this process first ends the stages, as Ctrl-C does."""

    before = {number: signal.signal(number, terminate) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
