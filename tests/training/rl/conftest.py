"""A policy, its profile of two sources, and the recipes of both stages of RLVR."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.graders import GRADERS
from reward.graders.base import Attempt
from tests.training.methods import script
from tests.training.rl.policy import make_prompts, raw_recipe, write_policy

N, STEPS, BATCH = 4, 4, 4


class Words:
    """Right where the first word has an even number; a w3 in the second place takes it too long."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        return [None] * len(prompts)

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        return [self._grade(attempt.completion.answer.split()) for attempt in attempts]

    def _grade(self, words: list[str]) -> Score:
        if words[1:2] == ["w3"]:
            return Score(None, None, "too slow", "timeout")
        right = bool(words) and words[0][-1:] in "02468"
        return Score(float(right), " ".join(words), "even" if right else "odd")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A policy, its profile of two sources, and recipes."""
    root = tmp_path_factory.mktemp("rlvr")
    policy = write_policy(root / "policy")
    texts = [prompt.messages[0].content for prompt in make_prompts(200, longest=4)]
    texts = list(dict.fromkeys(texts))
    sources: list[dict[str, Any]] = []
    for k, name in enumerate("ab"):
        file = root / f"{name}.jsonl"
        rows = [{"question": text, "answer": "x"} for text in texts[k * 40 : k * 40 + 40]]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources.append({"name": name, "format": "question", "path": str(file), "grader": "words",
                        "template": "{question}"})  # fmt: skip
    profile: dict[str, Any] = {
        "out": str(root / "profile"),
        "checkpoint": str(policy),
        "backend": {"kind": "transformers"},
        "prompts": sources,
        "settings": [{"name": "made", "thinking": 0.0}],
        "n": N,
        "sampling": {"max_tokens": 8},
        "max_unscored": 0.5,
        "chunk": 64,
    }
    (root / "profile.yaml").write_text(yaml.safe_dump(profile))
    raw = raw_recipe(policy, root / "run", {"max_steps": STEPS, "save_steps": 1})
    raw["trainer"]["per_device_train_batch_size"] = 4
    raw |= {
        "pass_rates": str(root / "profile"),
        "domains": {
            "one": {"ratio": 3, "sources": ["a"], "max_failure_rate": 0.6},
            "b": {"ratio": 1, "max_failure_rate": 0.6},
        },
        "prompts_per_step": BATCH,
    }
    (root / "rlvr.yaml").write_text(yaml.safe_dump(raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRADERS, "words", Words)
        script("profile_prompts").main(["--config", str(root / "profile.yaml")])
        yield root
