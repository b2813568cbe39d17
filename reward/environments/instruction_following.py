"""The environment "instruction_following": constraints on a text, each checked by a small function.

    {"environment": "instruction_following", "question": "Describe a lamp. Use no commas. …",
     "metadata": {"constraints": [{"kind": "no_commas"}, {"kind": "words", "at_least": 40}]}}

The checkers are our own, of the kind that training sets use. IFEval and IFBench stay evaluation:
`posttrain` reads neither for training. The reward is 1 where every constraint holds; with
`grading: "fraction"` it is the share that holds, and only all of them are a pass. What the text is
about is not checked, only that it is more than a few words.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, cast

from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, says
from reward.environments.constraints import CONSTRAINTS, Arguments, words_of

LONGEST = 200_000  # characters of an answer
LEAST_WORDS = 3
LARGEST = 5000  # of what a constraint counts


class InstructionFollowingEnvironment(RLVREnvironment):
    name = "instruction_following"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        if task.get("grading", "all") not in ("all", "fraction"):
            return f"grading {task['grading']!r} is neither all nor fraction"
        listed: Any = task.get("constraints")
        if not isinstance(listed, list) or not listed:
            return "no constraints"
        for one in cast(list[Arguments], listed):
            if one.get("kind") not in CONSTRAINTS:
                return f"unknown constraint {one.get('kind')!r}"
            if any(isinstance(value, int) and not 0 <= value <= LARGEST for value in one.values()):
                return f"{one['kind']}: a number beyond {LARGEST}"
            CONSTRAINTS[one["kind"]].holds("A text.", one)  # raises for a missing argument
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        return None if prompt.gold is None else says(prompt.gold)

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("Done!")]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        text = completion.answer.strip()
        if len(text) > LONGEST:
            return Score(0.0, None, f"longer than {LONGEST} characters")
        if len(words_of(text)) < LEAST_WORDS:
            return Score(0.0, text, f"fewer than {LEAST_WORDS} words")
        listed: list[Arguments] = metadata_of(prompt)["constraints"]
        broken = [one["kind"] for one in listed if not CONSTRAINTS[one["kind"]].holds(text, one)]
        share = 1 - len(broken) / len(listed)
        value = share if metadata_of(prompt).get("grading") == "fraction" else float(not broken)
        return Score(value, None, f"breaks {', '.join(broken)}" if broken else "all constraints")

    def row(self, seed: int, number: int) -> dict[str, Any]:
        rng = random.Random(f"{seed}/if/{number}")
        text = rng.choice(_STYLES)(rng.sample(_SENTENCES, rng.randint(1, 5)))
        constraints: list[dict[str, Any]] = []
        for kind in rng.sample(list(CONSTRAINTS), len(CONSTRAINTS)):
            arguments = CONSTRAINTS[kind].draw(text, rng)
            if CONSTRAINTS[kind].holds(text, arguments):
                constraints.append({"kind": kind} | arguments)
        constraints = constraints[: rng.randint(1, 4)]
        wordings = [CONSTRAINTS[one["kind"]].wording(one) for one in constraints]
        return {
            "environment": self.name,
            "id": f"if-{seed}-{number}",
            "question": f"{rng.choice(_TOPICS)} {' '.join(wordings)}",
            "gold": text,
            "metadata": {"constraints": constraints},
        }


_TOPICS = (
    "Describe a lamp.", "Tell me about your town.", "Explain why bread rises.",
    "Write about a day at sea.", "How do bees find their way?", "Recommend a book.",
)  # fmt: skip
_SENTENCES = (
    "The lamp in the hall was made by a patient worker.",
    "It gives a warm light in the evening, and visitors stop to look.",
    "Nobody knows its age for certain!",
    "Was the shade mended twice?",
    "A small plate on the foot shows a NAME.",
    "Some say that *the foot* came from [a town] far away.",
    "Walk past it slowly.",
)
_STYLES: tuple[Callable[[list[str]], str], ...] = (
    lambda parts: " ".join(parts),
    lambda parts: "\n\n".join(parts),
    lambda parts: "\n***\n".join(parts),
    lambda parts: "\n".join(f"- {part}" for part in parts),
    lambda parts: "\n".join(f"{k}. {part}" for k, part in enumerate(parts, 1)),
    lambda parts: "<<On a lamp>>\n" + "\n".join(parts),
    lambda parts: json.dumps({"answer": " ".join(parts)}),
    lambda parts: '"' + " ".join(parts) + '"',
    lambda parts: " ".join(parts).lower().replace(",", ""),
    lambda parts: " ".join(parts).upper(),
)
