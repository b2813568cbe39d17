"""A chain killed with −9 amid some stages and rerun: the artifacts of an undisturbed run.

    python -m benchmarks chain_kills --config tiny/nemotron-3 --at FOLDER
    python -m benchmarks chain_kills … --stages sft_synthetic rlvr sample distill eval

The chain runs at its size `smoke`: in FOLDER/whole undisturbed, in FOLDER/killed with all processes
killed when a stage has used a third of the CPU seconds that it took there. Compared are the digests
of all manifests, which bind weights, records, stats and parents; files are hashed again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import psutil

from benchmarks import ROOT
from posttrain.chain import ChainStage, read_chain, resolve_chain
from posttrain.config.load import validate
from posttrain.config.stages import StagesConfig
from posttrain.runs import MANIFEST, SECONDS, STAGE, read_artifact

SCRIPTS = ROOT / "scripts"
STAGES = ("sft_synthetic", "rlvr", "sample", "distill", "eval")
_EVERY = 0.02  # seconds between looks at a stage


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", default="tiny/nemotron-3")
    parser.add_argument("--stages", nargs="+", default=STAGES, help="titles, in the chain's order")
    parser.add_argument("--at", type=Path, required=True)


def main(options: Namespace) -> None:
    raw = read_chain(options.config, SCRIPTS, show=print) | {"size": "smoke"}
    config = validate(raw, StagesConfig, where=options.config)
    stages = {stage.step.title: stage for stage in resolve_chain(config, SCRIPTS)}
    whole = options.at / "whole"
    killed = options.at / "killed"
    code = _start(options.config, whole).wait()
    assert code == 0, f"the undisturbed run failed: {whole / 'chain.log'}"
    for title in options.stages:
        _kill_amid(stages[title], options.config, whole=whole, killed=killed)
    code = _start(options.config, killed).wait()
    assert code == 0, f"the rerun failed: {killed / 'chain.log'}"
    digests = {title: _digest(whole, stage) for title, stage in stages.items()}
    different = [
        title for title, stage in stages.items() if _digest(killed, stage) != digests[title]
    ]
    assert not different, f"other artifacts: {', '.join(different)}"
    print(f"{len(stages)} artifacts, {len(options.stages)} kills: the same digests")


def _start(config: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the chain in a process group of its own, one stage at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["stages", "--config", config, "size=smoke", "logs=logs"]
    with (folder / "chain.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(SCRIPTS), *arguments],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill_amid(stage: ChainStage, config: str, *, whole: Path, killed: Path) -> None:
    """Run the chain until a stage has done a third of its work, and kill every process."""
    needed = json.loads((whole / stage.out / SECONDS).read_text("utf-8"))["cpu_seconds"]
    out = killed / stage.out
    chain = _start(config, killed)
    spent_before = None  # importing, until the stage opened its directory
    spent = 0.0
    while spent_before is None or spent < spent_before + (needed - spent_before) / 3:
        assert chain.poll() is None, f"the chain ended before {stage.step.title}"
        if (out / STAGE).is_file():
            spent = _stage_cpu(chain)
            spent_before = spent if spent_before is None else spent_before
        time.sleep(_EVERY)
    unfinished = not (out / MANIFEST).is_file()
    os.killpg(chain.pid, signal.SIGKILL)
    chain.wait()
    assert unfinished, f"{stage.step.title} was finished before it was killed"
    files = sum(path.is_file() for path in out.rglob("*"))
    print(f"killed amid {stage.step.title}, {files} files written", flush=True)


def _stage_cpu(chain: subprocess.Popen[bytes]) -> float:
    """CPU seconds of the one stage that runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(sum(child.cpu_times()[:4]) for child in psutil.Process(chain.pid).children())
    return 0.0


def _digest(folder: Path, stage: ChainStage) -> str:
    """Digest of a stage's artifact, whose files are hashed again."""
    return read_artifact(folder / stage.out).digest
