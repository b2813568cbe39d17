"""The README's recipe and commands run as they are printed, on a model of its name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from posttrain.config.recipe_files import recipe_file
from posttrain.runs import read_artifact
from scripts.__main__ import STAGES, dispatch
from tests.docs.pages import ROOT, commands, write_recipes, yaml_blocks
from tests.docs.test_own_model import write_model
from tests.sampling.small_models import byte_tokenizer
from tests.scripts.forked_stage import fork_stages
from tests.training.tiny import neither_measure_nor_draw

PAGE = ROOT / "README.md"
MODEL = "Qwen/Qwen3-0.6B"
# what a machine without a GPU and the time of a test want of the commands that train
SIZES = {
    "one-gpu/sft": [
        *("launch.gpu=false", "launch.world_size=null", "trainer.bf16=false"),
        *("model.dtype=float32", "trainer.max_steps=2", "trainer.gradient_accumulation_steps=1"),
    ]
}


def write_rows(folder: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "7"}]}
        for i in range(400)
    ]
    (folder / "data/math").mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in rows[:300])
    (folder / "data/chat.jsonl").write_text(text)
    scored = [row | {"score": i % 2 * 1.0} for i, row in enumerate(rows[300:])]
    pq.write_table(pa.Table.from_pylist(scored), folder / "data/math/a.parquet")


def test_recipe_and_commands_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    neither_measure_nor_draw(monkeypatch)
    fork_stages(monkeypatch)
    write_model(tmp_path / MODEL, byte_tokenizer())
    write_rows(tmp_path)
    write_recipes(PAGE, tmp_path)
    assert len(yaml_blocks(PAGE)) == len(list(tmp_path.glob("*.yaml"))) == 1
    printed = [command for command in commands(PAGE) if command[0] not in ("quickstart", "smoke")]
    assert [command[0] for command in printed].count("sft") >= 1
    for command in printed:
        if command[0] == "launch":  # its processes are those of tests/training/test_sharding.py
            at = next(i for i, word in enumerate(command) if word in STAGES)
            assert recipe_file(command[command.index("--config_file") + 1]).is_file()
            command = [*command[at:], "--print-config"]
        recipe = command[command.index("--config") + 1] if "--config" in command else ""
        sizes = SIZES.get(recipe, []) if "--print-config" not in command else []
        with contextlib.suppress(SystemExit):  # of --print-config; a mistake is a ConfigError
            dispatch([*command, *sizes])
        if command[-1] == "--dry-run" and command[0] == "build_sft":  # "then without"
            dispatch(command[:-1])
    assert "packs" in capsys.readouterr().out
    data = read_artifact(tmp_path / "runs/my_data")
    assert data.config["tokenizer"]["path"] == MODEL
    assert {s["name"] for s in yaml.safe_load((tmp_path / "my_data.yaml").read_text())["sources"]}
    checkpoint = read_artifact(tmp_path / "runs/my_sft", kind="checkpoint")
    assert checkpoint.parents[0].digest == data.digest
