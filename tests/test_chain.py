"""Chains: what a stage reads decides when it begins, what stops leaves out what needs it, and a signal
ends what runs. The processes are a program of a few lines in the place of the command."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.chain import (
    chain_file,
    folder_steps,
    missing_inputs,
    read_chain,
    resolve_chain,
    run_chain,
)
from posttrain.config.load import validate
from posttrain.config.stages import StagesConfig
from posttrain.errors import ConfigError, PosttrainError

SCRIPTS = Path(__file__).parents[1] / "scripts"
# as `python scripts STAGE --config RECIPE key=value …`: writes what it was given, and stops if it is to
COMMAND = """
import os, pathlib, sys
given = dict(a.split("=", 1) for a in sys.argv if "=" in a)
out = pathlib.Path(given["out"])
with open("order", "a") as order:
    print(out.name, file=order)
print("threads", os.environ.get("OMP_NUM_THREADS"), os.environ.get("FLAVOUR"))
sys.exit(7 if out.name == "stops" else 0)
"""
Chain = Callable[..., StagesConfig]


def step(out: str, *reads: str, **more: Any) -> dict[str, Any]:
    """A win rate, whose recipe reads two evaluations and is checked in no time."""
    before, after = (*reads, "none", "none")[:2]
    overrides = [f"out=runs/{out}", f"before={before}", f"after={after}"]
    return {
        "stage": "win_rate",
        "recipe": "tiny/win_rate",
        "name": out,
        "overrides": overrides,
        **more,
    }


def chain(*steps: dict[str, Any], **keys: Any) -> StagesConfig:
    return validate({"stages": [*steps], **keys}, StagesConfig, where="chain")


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "__main__.py").write_text(COMMAND)
    return folder


def run(config: StagesConfig, commands: Path, at: Path) -> list[str]:
    """The lines that are shown."""
    shown: list[str] = []
    stages = resolve_chain(config, SCRIPTS)
    run_chain(stages, config, scripts=commands, root=at, show=shown.append)
    return shown


def test_rows_that_nobody_has_and_no_stage_writes_are_named_before_the_first(tmp_path: Path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/own.jsonl").touch()
    (tmp_path / "runs/finished").mkdir(parents=True)
    (tmp_path / "runs/finished/manifest.json").touch()
    config = chain(
        step("finished", "rows/deleted.jsonl"),
        step("first", "rows/own.jsonl", "rows/*.jsonl"),
        step("last", "runs/first/rows.jsonl", "rows/nobody.jsonl"),
    )
    sentences = missing_inputs(resolve_chain(config, SCRIPTS), tmp_path)
    assert [sentence.partition(", which")[0] for sentence in sentences] == [
        "last reads rows/nobody.jsonl"
    ]


def test_a_stage_begins_behind_what_it_reads(commands: Path, tmp_path: Path):
    config = chain(
        step("last", "runs/middle:sft", "runs/first/part"),
        step("middle", "runs/../runs/first"),
        step("first", about="begin", look="how it went"),
        step("firstborn", "runs/last"),
    )
    shown = run(config, commands, tmp_path)
    assert (tmp_path / "order").read_text().split() == ["first", "middle", "last", "firstborn"]
    page = tmp_path / "runs/first/report.html"
    assert shown[0] == f"1/4 first: begin; then look at {page}: how it went"


def test_targets_need_what_they_read_and_nothing_else(commands: Path, tmp_path: Path):
    config = chain(step("b", "runs/a"), step("a"), step("c"), targets=["b"])
    run(config, commands, tmp_path)
    assert (tmp_path / "order").read_text().split() == ["a", "b"]


def test_what_stops_leaves_out_what_needs_it_and_nothing_else(commands: Path, tmp_path: Path):
    config = chain(
        step("stops"),
        step("next", "runs/stops"),
        step("after", "runs/next"),
        step("beside"),
        jobs=2,
        logs="logs",
        environment={"FLAVOUR": "sour"},
    )
    stages = resolve_chain(config, SCRIPTS)
    shown: list[str] = []
    with pytest.raises(PosttrainError, match=r"stage stops \(win_rate\) .* code 7") as error:
        run_chain(stages, config, scripts=commands, root=tmp_path, show=shown.append)
    assert str(error.value).endswith("\nRerun the same command to resume.")
    assert "left out, for want of stops: next, after" in shown
    assert sorted((tmp_path / "order").read_text().split()) == ["beside", "stops"]
    threads = os.environ.get("OMP_NUM_THREADS", max(1, (os.cpu_count() or 1) // 2))
    assert (tmp_path / "logs/beside.log").read_text() == f"threads {threads} sour\n"
    assert f"threads {threads} sour" in shown


def test_a_long_stage_shows_how_far_it_is(tmp_path: Path):
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "__main__.py").write_text(
        "import os, select, sys\n"
        "sys.stdout.write('plan\\n1/9 steps\\r2/9 steps\\r')\nsys.stdout.flush()\n"
        f"seen = os.open({str(seen)!r}, os.O_RDONLY | os.O_NONBLOCK)\n"
        "sys.exit(0 if select.select([seen], [], [], 60)[0] else 1)\n"
    )
    config = chain(step("long"), logs="logs")
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        if line == "long: 2/9 steps" and shown.count(line) == 1:
            os.close(os.open(seen, os.O_WRONLY))

    stages = resolve_chain(config, SCRIPTS)
    run_chain(stages, config, scripts=folder, root=tmp_path, show=show, seconds=0.1)
    assert "long: 2/9 steps" in shown
    assert shown[-1].startswith("long finished in ")


def test_sizes_and_the_seed_are_overrides_of_their_stages():
    sizes = {"small": {"a": {"prompts": 3, "judge.max_failure_rate": 0.5}}}
    first = step("a", seeded=True)
    first["overrides"].append("prompts=7")  # a size takes its place
    config = chain(first, step("b"), sizes=sizes, size="small", seed=5)
    a, b = resolve_chain(config, SCRIPTS)
    assert (a.recipe["prompts"], a.recipe["judge"]["max_failure_rate"], a.recipe["seed"]) == (
        3,
        0.5,
        5,
    )
    assert (b.recipe["prompts"], b.recipe["seed"]) == (400, 0)


@pytest.mark.parametrize(
    ("steps", "keys", "match"),
    [
        ([step("a", "runs/b"), step("b", "runs/a")], {}, "one another's output: a → b → a"),
        ([step("a"), step("b") | {"overrides": ["out=runs/a"]}], {}, "two stages write to runs/a"),
        ([step("a", stage="tiny_word")], {}, "did you mean 'tiny_world'"),
        ([step("a", stage="preview")], {}, "there is no stage 'preview'"),
        ([step("a") | {"overrides": ["sed=3"]}], {}, "did you mean 'seed'"),
        ([step("a") | {"overrides": ["--out", "same"]}], {}, "without dashes: out=same"),
        ([step("a")], {"targets": ["b"]}, "there is no stage 'b'"),
        ([step("ab")], {"sizes": {"s": {"ac": {}}}}, "sizes.s: there is no stage 'ac'"),
        ([step("a")], {"size": "smal", "sizes": {"small": {}}}, "did you mean 'small'"),
        ([step("a")], {"jobs": 2}, "set logs, a folder"),
        ([step("a"), step("a")], {"logs": "logs"}, "stage names must differ"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(steps, keys, match):
    with pytest.raises(ConfigError, match=match):
        resolve_chain(chain(*steps, **keys), SCRIPTS)


def test_a_misspelt_chain_is_named_rather_than_one_of_its_recipes():
    with pytest.raises(
        ConfigError, match=r"no chain 'tiny/nemotron3' \(did you mean 'tiny/nemotron-3'"
    ):
        chain_file("tiny/nemotron3")
    with pytest.raises(ConfigError, match="did you mean 'one-gpu/rlvr_stages'"):
        chain_file("one-gpu/rlvr_stage")


def test_recipes_of_a_folder_are_stages_by_their_names(tmp_path: Path):
    for name in ("eval_after", "eval_genrm", "genrm_sft", "world", "rlvr_stages", "stf"):
        (tmp_path / f"{name}.yaml").write_text("")
    shown: list[str] = []
    steps = folder_steps(tmp_path, SCRIPTS, show=shown.append)
    assert {Path(step.recipe).stem: step.stage for step in steps} == {
        "eval_after": "eval",
        "eval_genrm": "eval_genrm",
        "genrm_sft": "sft",
        "rlvr_stages": "rlvr",
        "world": "tiny_world",
    }
    assert shown == ["stf.yaml: left out, no stage has this name (did you mean 'sft'?)"]
    (tmp_path / "chain.yaml").write_text("stages: []\n")
    assert read_chain(str(tmp_path), SCRIPTS, show=shown.append) == {"stages": []}


RUN = """
import os, sys
from pathlib import Path
from posttrain.chain import resolve_chain, run_chain
from posttrain.config.command import run_command
from posttrain.config.stages import StagesConfig
step = {"stage": "win_rate", "recipe": "tiny/win_rate", "overrides": ("out=a", "before=b", "after=c")}
config = StagesConfig(stages=(step,))
chain = resolve_chain(config, Path(sys.argv[1]))
run_command(lambda: run_chain(chain, config, scripts=Path(sys.argv[2]), root=Path(), show=print))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_stages(tmp_path: Path, number: signal.Signals):
    events = tmp_path / "events"
    os.mkfifo(events)
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "__main__.py").write_text(
        "import os, signal, sys\n"
        f"events = os.open({str(events)!r}, os.O_WRONLY)\n"
        "def end(*_):\n    os.write(events, b'ended\\n')\n    os._exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.write(events, b'begun\\n')\nwhile True:\n    signal.pause()\n"
    )
    reader = os.open(events, os.O_RDONLY | os.O_NONBLOCK)

    def event() -> bytes:
        return os.read(reader, 100) if select.select([reader], [], [], 60)[0] else b"nothing"

    command = [sys.executable, "-c", RUN, str(SCRIPTS), str(folder)]
    # CI may have interrupts ignored; only the chain gets the signal, as from `kill`
    own = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, **own
    ) as running:
        assert event() == b"begun\n"
        running.send_signal(number)
        assert event() == b"ended\n"
        assert "rerun the same command to resume" in running.communicate()[1]
        assert running.returncode == 128 + number
    os.close(reader)
