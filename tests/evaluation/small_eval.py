"""A recipe of two tasks in two settings, and scripts/eval.py with a scripted model behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from data_builders.registry import EnvironmentGrader
from posttrain.sampling.sampler import Request
from reward.environments.workplace import WorkplaceEnvironment
from tests.data_builders.small_build import script, write_tokenizer
from tests.evaluation.scripted import CALCULATOR, CALL, Calculator, ScriptedSampler, exact, turn
from tests.sampling.scripted import opening


class Exact:
    """Grades by equality with the gold."""

    def refuse(self, prompts):
        return [None] * len(prompts)

    def grade(self, attempts):
        return exact("exact", [(attempt.prompt, attempt.completion) for attempt in attempts])


class Calculators:
    """A toolkit of one tool."""

    def schemas(self, prompt):
        return CALCULATOR

    def open(self, prompt):
        return Calculator()


def answer(request: Request) -> str:
    """With a tool a call first; without one, now and then a call all the same."""
    last = request.messages[-1]
    if last.role == "tool":
        return turn(last.content, thinking=request.thinking)
    if request.tools or request.seed % 5 == 0:
        return turn(CALL, thinking=request.thinking)
    return turn("56" if request.seed % 2 else "55", thinking=request.thinking)


def tamed(request: Request) -> str:
    """As `answer`, but never a call that was not declared."""
    found = answer(request)
    return found if request.tools or CALL not in found else turn("56", thinking=request.thinking)


def write_recipe(folder: Path, **keys: Any) -> Path:
    """The recipe; `keys` replace its own."""
    for task in ("sums", "products"):
        rows = [{"question": f"{task} {n}: 7*8?", "answer": "56"} for n in range(12)]
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = write_tokenizer(folder / "checkpoint")
    (checkpoint / "model.safetensors").touch()  # what answers is a script
    (checkpoint / "config.json").write_text('{"model_type": "qwen3"}')
    raw: dict[str, Any] = {
        "out": str(folder / "out"),
        "checkpoints": {"sft": str(folder / "checkpoint"), "dpo": str(folder / "checkpoint")},
        "backend": {"kind": "transformers", "chat_template": "nemotron_3_nano"},
        "n": 2,
        "prompts": [
            {
                "name": task,
                "format": "question",
                "path": str(folder / f"{task}.jsonl"),
                "grader": "exact",
            }
            for task in ("sums", "products")
        ],
        "settings": [
            {"name": "no_tools", "thinking": "both"},
            {"name": "with_tools", "tools": "calculators", "n": 1},
        ],
        **keys,
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def run_script(arguments: Sequence[str], samplers: Sequence[ScriptedSampler] = ()) -> None:
    """`scripts/eval.py arguments` with these samplers, one after the other, as every backend."""
    left = list(samplers)
    graders = {"exact": Exact(), "environment": EnvironmentGrader()}
    toolkits = {"calculators": Calculators(), "workplace": WorkplaceEnvironment()}

    with (
        patch("posttrain.evaluation.stage.opened_sampler", opening(lambda _: left.pop(0))),
        # intervals have tests of their own
        patch("posttrain.evaluation.intervals.DRAWS", 50),
        patch("data_builders.prompts.build.toolkits_for", lambda *_: toolkits),
        patch("data_builders.prompts.build.all_graders", lambda: graders),
        patch("data_builders.prompts.evaluation.all_graders", lambda *_: graders),
    ):
        script("eval").main(list(arguments))


def evaluate(recipe: Path, *more: str, samplers: list[ScriptedSampler] | None = None) -> None:
    """`python scripts/eval.py --config recipe …` in this process; errors are raised."""
    if samplers is None:
        samplers = [ScriptedSampler(answer), ScriptedSampler(tamed)]
    run_script(["--config", str(recipe), *more], samplers)


def records(out: Path) -> dict[str, bytes]:
    """Every file of records, by its path."""
    found = sorted((out / "records").rglob("*.jsonl"))
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in found}
