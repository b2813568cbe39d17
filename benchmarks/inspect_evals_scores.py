"""A task of inspect_evals with tools: `inspect eval` and `posttrain eval` give the same scores.

    python -m benchmarks inspect_evals_scores runs/tiny/sft FOLDER     # needs the extra eval-suite

The tiny model knows none of the task's tools, so a copy of it first learns ten written runs: a
call, its result, an answer; every fifth answer is wrong. The task needs no network.
"""

from __future__ import annotations

import importlib
import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import yaml

TASK = "inspect_evals/agent_threat_bench_memory_poison"
SCORER = "agent_threat_bench_scorer"
VALUES = ("utility", "security")
MAX_TOKENS = 200
TRAINER = {
    "num_train_epochs": 60,
    "per_device_train_batch_size": 1,
    "learning_rate": 2.0e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 20,
    "adam_beta2": 0.99,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "logging_steps": 20,
}


def run(script: str, folder: Path, recipe: dict[str, Any]) -> Path:
    """Run a stage with this recipe. Returns its output directory."""
    path = folder / f"{script}-{Path(recipe['out']).name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    importlib.import_module(f"scripts.{script}").main(["--config", str(path)])
    return Path(recipe["out"])


def evaluate(folder: Path, checkpoint: str, name: str, *, max_tokens: int) -> dict[str, Any]:
    """Records of `posttrain eval`, by value and sample."""
    from posttrain.evaluation.run import read_run

    source = {"format": "inspect", "task": TASK}
    prompts = [{**source, "name": value, "score": f"{SCORER}.{value}"} for value in VALUES]
    recipe = {
        "out": str(folder / name),
        "checkpoints": {"model": checkpoint},
        "prompts": prompts,
        "backend": {"kind": "transformers"},
        "settings": [{"name": "plain"}],
        "sampling": {"temperature": 0, "max_tokens": max_tokens, "max_turns": 6},
    }
    records = read_run(run("eval", folder, recipe))[1]["model"]
    return {record.prompt.task: record for record in records}


def written_runs(folder: Path, checkpoint: str) -> Path:
    """Write ten runs to learn: the task's own prompts and tools, its data's own answers."""
    from inspect_evals import agent_threat_bench

    data = Path(agent_threat_bench.__file__).parent / "data/memory_poison.json"
    rows = {row["id"]: row for row in json.loads(data.read_text("utf-8"))}
    prompts = evaluate(folder, checkpoint, "prompts", max_tokens=1)
    lines: list[str] = []
    for number, (identity, row) in enumerate(rows.items()):
        prompt = prompts[f"{VALUES[0]}-{identity}"].prompt
        expected = row["expected_answer"]
        store = row["memory_store"]
        keys = [key for key, text in store.items() if expected.lower() in text.lower()]
        key = (keys or list(store))[0]
        answer = f"{row['target']} ({expected})" if number % 5 else "I do not know."
        call = {"name": "memory_read", "arguments": {"key": key}}
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        messages += [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "I look it up.",
                "tool_calls": [{"id": "c1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "memory_read", "content": store[key]},
            {"role": "assistant", "content": answer, "reasoning_content": "It is there."},
        ]
        lines.append(json.dumps({"messages": messages, "tools": json.loads(prompt.tools or "[]")}))
    path = folder / "runs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="the model that learns the runs")
    parser.add_argument("folder", type=Path, help="where to work")


def main(options: Namespace) -> None:
    import inspect_ai
    from inspect_ai.scorer import value_to_float

    start = options.checkpoint
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    source = {"name": "runs", "path": str(written_runs(folder, start)), "license": "MIT"}
    data_recipe = {
        "out": str(folder / "data"),
        "tokenizer": {"path": start},
        "sources": [source],
        "packing": {"max_length": 2048},
    }
    sft_recipe = {
        "data": str(run("build_sft", folder, data_recipe)),
        "out": str(folder / "model"),
        "model": {"path": start},
        "trainer": TRAINER,
    }
    checkpoint = str(run("sft", folder, sft_recipe))
    records_by_name = evaluate(folder, checkpoint, "ours", max_tokens=MAX_TOKENS)
    (log,) = inspect_ai.eval(
        TASK,
        model=f"posttrain/{checkpoint}",
        temperature=0,
        max_tokens=MAX_TOKENS,
        display="none",
        log_dir=str(folder / "logs"),
    )
    assert log.samples is not None, log.error
    for value in VALUES:
        equal_scores = equal_texts = two_turns = 0
        our_sum = inspect_sum = 0.0
        for sample in log.samples:
            record = records_by_name[f"{value}-{sample.id}"]
            scores: Any = sample.scores
            inspect_score = value_to_float()(scores[SCORER].value[value])
            equal_scores += record.score.value == inspect_score
            equal_texts += record.completion.answer == sample.output.completion
            two_turns += len(record.completion.steps) == 2
            our_sum += record.score.value or 0
            inspect_sum += inspect_score
        n = len(log.samples)
        print(f"{value}: inspect eval {inspect_sum / n}, posttrain eval {our_sum / n}")
        print(
            f"of {n}: {equal_scores} scores and {equal_texts} texts are equal, {two_turns} have "
            "two turns"
        )
