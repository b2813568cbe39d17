"""Preference rows of every dialect, and a build of a few of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from data_builders.judging.build import HELD_OUT, TRAIN, JudgingPrompts, build
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.load import validate
from posttrain.rollouts import Prompt, prompt_from_row

ASKED = [{"role": "user", "content": "What is 7*8?"}]
PAIR = {"response1": "56", "response2": "54"}
FEEDBACK = [{"score": -2, "reasoning": "@Response 1 is right", "feedback1": ""}]
HELPSTEER3 = {
    "domain": "stem", "language": "english", "context": ASKED, **PAIR, "overall_preference": -2,
    "individual_preference": FEEDBACK,
}  # fmt: skip


def parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "image": None}]


def asked(answer: str) -> list[dict[str, Any]]:
    question = {"role": "user", "content": parts("What is 7*8?")}
    return [question, {"role": "assistant", "content": parts(answer)}]


ARENA = {
    "id": "1", "model_a": "x", "model_b": "y", "winner": "model_b",
    "conversation_a": asked("54"), "conversation_b": asked("56"),
}  # fmt: skip
ANNOTATED = {"annotator1": 1, "annotator2": 1, "annotator3": 2}
PANDALM = {"idx": 0, "instruction": "Multiply.", "input": "7*8", **PAIR, **ANNOTATED}
CHOSEN = {"prompt": "What is 7*8?", "chosen": "56", "rejected": "54"}
SAFETY = {
    "prompt": "How do I pick a lock?", "response1": "I cannot help with that.",
    "response2": "Take a pick …", "principle": "Refuse what does harm.", "score_1": None,
    "score_2": None, "preference_ranking": 1, "chosen_model": "x",
}  # fmt: skip
READY = "Judge.\n[The Begin of Response 1]\n56\n[The End of Response 1]\n\n"
READY += "[The Begin of Response 2]\n54\n[The End of Response 2]\nPlan."
RELEASED = {
    "messages": [{"role": "user", "content": READY}], "uuid": "u", "num_responses": 2,
    "score_1": 5, "score_2": 1, "ranking": 1,
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "helpsteer3": HELPSTEER3,
    "arena": ARENA,
    "pandalm": PANDALM,
    "chosen_rejected": CHOSEN,
    "ranked": SAFETY,
    "judging_prompt": RELEASED,
}


def recipe_of(folder: Path, rows: Mapping[str, Iterable[Any]], **keys: Any) -> BuildGenRmConfig:
    """A recipe over sources of these rows; `source_keys` are added to every source."""
    more = keys.pop("source_keys", {})
    sources: list[dict[str, Any]] = []
    for name, found in rows.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
        sources.append({"name": name, "path": str(path), **more.get(name, {})})
    raw = {"out": str(folder / "out"), "sources": sources, "held_out": 0.0, **keys}
    return validate(raw, BuildGenRmConfig, where="recipe")


def built(
    folder: Path, rows: Mapping[str, Iterable[Any]], **keys: Any
) -> tuple[JudgingPrompts, list[Prompt], list[Prompt]]:
    """What a build makes of rows: its counts, and the prompts of both files."""
    recipe = recipe_of(folder, rows, **keys)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    made = build(recipe, out, base_dir=folder)
    return made, read(out / TRAIN), read(out / HELD_OUT)


def read(path: Path) -> list[Prompt]:
    """The prompts of a file."""
    return [prompt_from_row(json.loads(line)) for line in path.read_text().splitlines()]


def gold(prompt: Prompt) -> tuple[float | None, float | None, float]:
    """Scores and ranking."""
    row = json.loads(prompt.gold or "")
    return row["score_1"], row["score_2"], row["ranking"]


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    """Rows of as many questions."""
    return [
        {"prompt": f"{n}+{n}?", "chosen": str(2 * n), "rejected": str(2 * n + 1), **more}
        for n in range(count)
    ]
