"""`inspect eval TASK --model posttrain/DIR`: found by its entry point, run on a real checkpoint."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from posttrain.chat import nemotron_3_nano_template, render
from posttrain.records import Message
from tests.evaluation.inspect_adapter.running import run_task
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


def test_a_task_is_evaluated_on_a_checkpoint_by_its_name(tmp_path: Path):
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for name, module in points["inspect_ai"].items():  # as inspect itself finds the provider
        EntryPoint(name, module, "inspect_ai").load()
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    model = small_model("attention", vocabulary=len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "task.py").write_text(TASK)
    log = run_task(
        f"{tmp_path / 'task.py'}@products",
        f"posttrain/{tmp_path / 'checkpoint'}",
        model_args={"chat_template": "nemotron_3_nano", "thinking": False},
        max_tokens=8,
        temperature=0,
    )
    assert (log.status, log.eval.model) == ("success", f"posttrain/{tmp_path / 'checkpoint'}")
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
