"""A task of inspect_evals with tools: `inspect eval` and `posttrain eval` give the same scores.

    python benchmarks/inspect_evals_scores.py runs/tiny/sft FOLDER     # needs the extra eval-suite

The tiny model knows none of the task's tools, so a copy of it first learns ten written runs: a
call, its result, an answer; every fifth answer is wrong. The task needs no network.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TASK, SCORER = "inspect_evals/agent_threat_bench_memory_poison", "agent_threat_bench_scorer"
VALUES, LONGEST = ("utility", "security"), 200
TRAINER = {
    "num_train_epochs": 60, "per_device_train_batch_size": 1, "learning_rate": 2.0e-3,
    "lr_scheduler_type": "cosine", "warmup_steps": 20, "adam_beta2": 0.99, "bf16": False,
    "gradient_checkpointing": False, "save_strategy": "no", "logging_steps": 20,
}  # fmt: skip


def run(script: str, folder: Path, recipe: dict[str, Any]) -> Path:
    """A stage with this recipe; its output."""
    path = folder / f"{script}-{Path(recipe['out']).name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    importlib.import_module(f"scripts.{script}").main(["--config", str(path)])
    return Path(recipe["out"])


def evaluate(folder: Path, checkpoint: str, name: str, *, max_tokens: int) -> dict[str, Any]:
    """The records of `posttrain eval`, by value and sample."""
    from posttrain.evaluation.run import read_run

    source = {"format": "inspect", "task": TASK}
    prompts = [{**source, "name": value, "score": f"{SCORER}.{value}"} for value in VALUES]
    recipe = {
        "out": str(folder / name), "checkpoints": {"model": checkpoint}, "prompts": prompts,
        "backend": {"kind": "transformers"}, "settings": [{"name": "plain"}],
        "sampling": {"temperature": 0, "max_tokens": max_tokens, "max_turns": 6},
    }  # fmt: skip
    records = read_run(run("eval", folder, recipe))[1]["model"]
    return {r.prompt.task: r for r in records}


def written_runs(folder: Path, checkpoint: str) -> Path:
    """Ten runs to learn: the task's own prompts and tools, its data's own answers."""
    from inspect_evals import agent_threat_bench

    data = Path(agent_threat_bench.__file__).parent / "data/memory_poison.json"
    rows = {row["id"]: row for row in json.loads(data.read_text("utf-8"))}
    prompts = evaluate(folder, checkpoint, "prompts", max_tokens=1)
    lines: list[str] = []
    for number, (identity, row) in enumerate(rows.items()):
        prompt, wanted = prompts[f"{VALUES[0]}-{identity}"].prompt, row["expected_answer"]
        store = row["memory_store"]
        key = next(
            (k for k, text in store.items() if wanted.lower() in text.lower()), next(iter(store))
        )
        answer = f"{row['target']} ({wanted})" if number % 5 else "I do not know."
        call = {"name": "memory_read", "arguments": {"key": key}}
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        messages += [
            {"role": "assistant", "content": "", "reasoning_content": "I look it up.",
             "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "c1", "name": "memory_read", "content": store[key]},
            {"role": "assistant", "content": answer, "reasoning_content": "It is there."},
        ]  # fmt: skip
        lines.append(json.dumps({"messages": messages, "tools": json.loads(prompt.tools or "[]")}))
    path = folder / "runs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def main(start: str, folder: Path) -> None:
    import inspect_ai
    from inspect_ai.scorer import value_to_float

    folder.mkdir(parents=True, exist_ok=True)
    source = {"name": "runs", "path": str(written_runs(folder, start)), "license": "MIT"}
    data = run("build_sft", folder, {
        "out": str(folder / "data"), "tokenizer": {"path": start}, "sources": [source],
        "packing": {"max_length": 2048},
    })  # fmt: skip
    learn = {"data": str(data), "out": str(folder / "model"), "model": {"path": start}}
    checkpoint = str(run("sft", folder, {**learn, "trainer": TRAINER}))
    ours = evaluate(folder, checkpoint, "ours", max_tokens=LONGEST)
    (log,) = inspect_ai.eval(
        TASK, model=f"posttrain/{checkpoint}", temperature=0, max_tokens=LONGEST,
        display="none", log_dir=str(folder / "logs"),
    )  # fmt: skip
    assert log.samples is not None, log.error
    for value in VALUES:
        own = [ours[f"{value}-{sample.id}"] for sample in log.samples]
        scored: list[Any] = [sample.scores for sample in log.samples]
        theirs = [value_to_float()(scores[SCORER].value[value]) for scores in scored]
        pairs = list(zip(own, log.samples, theirs, strict=True))
        scores = sum(record.score.value == score for record, _, score in pairs)
        texts = sum(r.completion.answer == s.output.completion for r, s, _ in pairs)
        two = sum(len(record.completion.steps) == 2 for record in own)
        mean = sum(record.score.value or 0 for record in own) / len(own)
        print(f"{value}: inspect eval {sum(theirs) / len(own)}, posttrain eval {mean}")
        print(f"of {len(own)}: {scores} scores and {texts} texts are equal, {two} have two turns")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
