"""`inspect eval TASK --model posttrain/DIR`: found by its entry point, run on a real checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai.log import list_eval_logs, read_eval_log

from posttrain.chat import nemotron_3_nano_template, render
from posttrain.records import Message
from tests.sampling.small_models import byte_tokenizer, small_model

ROOT = Path(__file__).resolve().parents[3]
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate

@task
def products():
    samples = [Sample(input=f"{k} times 8?", target="56") for k in range(3)]
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match())
"""


def install_entry_points(folder: Path) -> None:
    """Metadata of a distribution with this project's entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "posttrain_entry_points-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: posttrain-entry-points\nVersion: 0\n"
    )
    lines = [f"{name} = {module}" for name, module in project["entry-points"]["inspect_ai"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[inspect_ai]", *lines]) + "\n")


def test_a_task_is_evaluated_on_a_checkpoint_from_the_command_line(tmp_path: Path):
    install_entry_points(tmp_path / "site")
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    model = small_model("attention", vocabulary=len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "task.py").write_text(TASK)
    command = [
        *(sys.executable, "-m", "inspect_ai", "eval", "task.py"),
        *("--model", "posttrain/checkpoint", "-M", "chat_template=nemotron_3_nano"),
        *("-M", "thinking=false", "--max-tokens", "8", "--temperature", "0"),
        *("--display", "plain", "--log-dir", "logs", "--no-log-realtime"),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)]),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (info,) = list_eval_logs(str(tmp_path / "logs"))
    log = read_eval_log(info)
    assert (log.status, log.eval.model) == ("success", "posttrain/checkpoint")
    outputs = {sample.id: sample.output for sample in log.samples or []}
    text = render(
        [Message("user", "0 times 8?")],
        nemotron_3_nano_template(),
        add_generation_prompt=True,
        enable_thinking=False,
    )
    metadata = outputs[1].metadata
    assert metadata is not None
    assert tokenizer.decode(metadata["prompt_ids"]) == text
    assert all(1 <= len((output.metadata or {})["ids"]) <= 8 for output in outputs.values())
