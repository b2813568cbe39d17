"""Both stages of RLVR: recipes, a policy and its profile of two sources, and commands in forks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.graders import GRADERS
from reward.graders.base import Attempt
from reward.rlvr import RoutedReward
from tests.training.forks import Ended, forked
from tests.training.methods import Mortal, arm, die, script
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


def write_sources(root: Path, count: int, each: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Files of that many questions, different ones a source, and their entries of a recipe.

    Args:
        each: of a source, the fields of its entry and, as `row`, those of its rows.
    """
    texts = [prompt.messages[0].content for prompt in make_prompts(200, longest=4)]
    questions = iter(dict.fromkeys(texts))
    sources: list[dict[str, Any]] = []
    for name, fields in each.items():
        file, entry = root / f"{name}.jsonl", dict(fields)
        row = entry.pop("row")
        rows = [{"question": next(questions), **row} for _ in range(count)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources.append({"name": name, "path": str(file), **entry})
    return sources


def write_recipes(root: Path, sources: list[Any], *, max_tokens: int, **keys: Any) -> None:
    """`profile.yaml` and `rlvr.yaml`, and their policy; `keys` are the second one's."""
    policy = write_policy(root / "policy")
    profile: dict[str, Any] = {
        "out": str(root / "profile"),
        "checkpoint": str(policy),
        "backend": {"kind": "transformers"},
        "prompts": sources,
        "settings": [{"name": "made", "thinking": 0.0}],
        "n": N,
        "sampling": {"max_tokens": max_tokens},
        "max_unscored": 0.5,
        "chunk": 64,
    }
    (root / "profile.yaml").write_text(yaml.safe_dump(profile))
    trainer = {"max_steps": STEPS, "save_steps": 1, "per_device_train_batch_size": 4}
    keys = {"sampling": {"max_tokens": max_tokens}, "prompts_per_step": BATCH, **keys}
    raw = raw_recipe(policy, root / "run", trainer, pass_rates=str(root / "profile"), **keys)
    raw["guard"] |= {"unscored": {}}
    (root / "rlvr.yaml").write_text(yaml.safe_dump(raw))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A policy, its profile of two sources, and recipes."""
    root = tmp_path_factory.mktemp("rlvr")
    source = {"format": "question", "grader": "words", "template": "{question}"}
    sources = write_sources(root, 40, dict.fromkeys("ab", source | {"row": {"answer": "x"}}))
    one = {"ratio": 3, "sources": ["a"], "max_failure_rate": 0.6}
    domains = {"one": one, "b": {"ratio": 1, "max_failure_rate": 0.6}}
    write_recipes(root, sources, max_tokens=8, domains=domains)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRADERS, "words", Words)
        script("profile_prompts").main(["--config", str(root / "profile.yaml")])
        yield root


def command(
    name: str, config: Path, *keys: str, killed: str = "never", check: bool = True,
    processes: int = 1,
) -> Ended:  # fmt: skip
    """A stage as its command, which dies at the moment `killed`: as `arm` says, or `verify`, in its
    second verification. No judge in its process is replaced."""

    def run() -> None:
        if killed == "verify":
            calls: list[int] = []
            whole = RoutedReward.reward

            async def dying(self: RoutedReward, groups: Any, *, seed: int) -> Any:
                calls.append(1)
                return die() if len(calls) == 2 else await whole(self, groups, seed=seed)

            RoutedReward.reward = dying
        arm(f"{name} as a command", "never" if killed == "verify" else killed, Mortal())
        module = script(name)
        module.run_command(lambda: module.main(["--config", str(config), *keys]))

    return forked(run, check=check, processes=processes)
