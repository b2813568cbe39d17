"""Runs that are killed at any moment end with the same bytes, and put no request twice."""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from data_builders.synthesis import build as stage
from data_builders.synthesis import engine
from data_builders.synthesis.kinds import open_kind
from posttrain.config.backend import ChatBackend
from posttrain.runs import open_run
from tests.data_builders.synthesis import (
    test_continue_chat,
    test_safety,
    test_tool_conversation,
)
from tests.sampling.scripted import Mortal, Script
from tests.training.forks import forked

KINDS = {
    "continue_chat": (
        test_continue_chat,
        {"user": "user", "agent": "agent", "judge": "honest_judge"},
    ),
    "safety": (test_safety, {"big": "generator", "small": "generator", "judge": "judge"}),
    "tool_conversation": (
        test_tool_conversation,
        {"user": "user", "agent": "office_agent", "judge": "judge"},
    ),
}
MOMENTS = 2  # of the beginning and the middle; ten were tried as well


class CountedMortal(Mortal):
    """Kills its process at a call, counted over all models of a run, and writes each call down."""

    log: Path

    async def sample(self, requests, *, progress=None):
        done = len(self.log.read_text().splitlines()) if self.log.is_file() else 0
        self.calls = [None] * done  # type: ignore[list-item]
        generations = await super().sample(requests, progress=progress)
        with self.log.open("a") as log:
            log.write("".join(f"{request.seed}\n" for request in requests))
        return generations


def run(recipe, scripts: Mapping[str, Script], log: Path, *, at_once: int, kill_at: int) -> None:
    """The stage with models that kill it at the call `kill_at` of all its starts; -1: never."""
    samplers: dict[str, CountedMortal] = {}
    for name, script in scripts.items():
        samplers[name] = CountedMortal(script, batched=False, kill_at=kill_at)
        samplers[name].log = log

    @asynccontextmanager
    async def opened(backend: ChatBackend, **_: object):
        yield samplers[backend.model]

    engine.opened_sampler = opened
    engine.rollouts_at_once = lambda _: at_once
    kind = open_kind(recipe)
    out = Path(recipe.out)
    with open_run(out, kind=stage.KIND, config=recipe.owner_config()) as opened_run:
        seed_set = stage.read_seeds(recipe, kind, work=out / "work")
        console = Console(file=io.StringIO())
        stage.build(opened_run, recipe, kind, seed_set, console=console)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl") if path.name[0] != "."}


@pytest.mark.parametrize("at_once", [1, 16])
@pytest.mark.parametrize("name", [*KINDS])
def test_kills_change_nothing(
    name: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "opened_sampler", None)  # put back behind the test
    monkeypatch.setattr(engine, "rollouts_at_once", None)
    module, names = KINDS[name]
    scripts = {model: getattr(module, script) for model, script in names.items()}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    run(module.recipe(whole), scripts, whole / "calls", at_once=1, kill_at=-1)
    total = len((whole / "calls").read_text().splitlines())
    recipe = module.recipe(cut)
    log = cut / "calls"
    for moment in range(MOMENTS):
        kill_at = 1 + moment * (total - 1) // MOMENTS
        ended = forked(
            lambda kill_at=kill_at: run(recipe, scripts, log, at_once=at_once, kill_at=kill_at),
            check=False,
        )
        assert ended.codes == [-signal.SIGKILL]
    run(recipe, scripts, log, at_once=at_once, kill_at=-1)
    assert files_of(cut / "out") == files_of(whole / "out")
    repeated = len(log.read_text().splitlines()) - total
    # an answer on its way when the process ends was never kept: at most those under way, each time
    assert repeated <= MOMENTS * at_once
    if at_once == 1:
        assert sorted(log.read_text().split()) == sorted((whole / "calls").read_text().split())
