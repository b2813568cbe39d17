"""The environment "genselect": choose a right one of several numbered solutions.

    {"environment": "genselect", "question": "…Solution 0:\\n…",
     "metadata": {"right": [1, 3], "candidates": 4}}

The last `Judgment: [i]` of the answer counts, as in NVIDIA's GenSelect; solutions are numbered from
0. `posttrain synthesize` with `kind: genselect` makes such prompts from graded samples. Those for
an evaluation have `figures`, shares that other ways of choosing among the same solutions reach;
they stand beside the score, whose mean is select@k, and so do `first_named`, the share of judgments
that name solution 0, and `first_right`, the share of questions where it is right: the first is
larger than it has to be for a model that prefers a place. There a question may have no right or no
wrong solution.

Text of a solution that looks like the prompt's frame is quoted where the prompt is made; rows that
others made are taken as they are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

from posttrain.records import NOT_IN_FORMAT, Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, says
from reward.judge.quoting import look_alikes, quoted

# headings of the prompt (not "the following question:") and the verdict that ends an answer, by
# their looks: "5o1ution l:"
_HEADING_END = r"[\W_]{0,16}?:"
_FRAME = look_alikes(
    rf"[sS5](?=(?i:[o0][l1i|]ut[l1i|][o0]n)[\W_]{{0,16}}+[\dOoIl|]{{1,4}}{_HEADING_END})",
    rf"[qQ](?<!\w [qQ])(?=(?i:u[e3][s5]t[l1i|][o0]n){_HEADING_END})",
    rf"[jJ](?=(?i:udg[e3]?m[e3]nt){_HEADING_END})",
)
_JUDGMENT = re.compile(r"Judgment:[ \t]*\[?[ \t]*(\d{1,3})[ \t]*\]?", re.IGNORECASE)


def judgment_of(answer: str) -> int | None:
    """Number of the solution that an answer names last; None where it names none."""
    judgments = _JUDGMENT.findall(answer)
    return int(judgments[-1]) if judgments else None


def selection_quoted(text: str) -> str:
    """Quote a question or a solution, so that no part of it can pass for the prompt's frame."""
    return quoted(text, _FRAME)


class GenSelectEnvironment(RLVREnvironment):
    """Choice of a right solution among several."""

    name = "genselect"

    def malformed(self, prompt: Prompt) -> str | None:
        metadata = metadata_of(prompt)
        right: Any = metadata["right"]
        candidates: Any = metadata["candidates"]
        is_evaluation = "figures" in metadata
        if not isinstance(candidates, int) or candidates < (1 if is_evaluation else 2):
            return "candidates: the number of solutions, at least 2"
        if not isinstance(right, list) or not (right or is_evaluation):
            return "right: numbers of the right solutions"
        all_numbers = set(range(candidates))
        right_numbers = set(cast(list[Any], right))
        if not right_numbers <= all_numbers:
            return f"right: {right} of solutions 0 to {candidates - 1}"
        if right_numbers == all_numbers and not is_evaluation:
            return "right: every solution is right, there is nothing to choose"
        return None

    def gold(self, prompt: Prompt) -> Script | None:
        right = metadata_of(prompt)["right"]
        return says(f"Judgment: [{right[0]}]") if right else None

    def wrong(self, prompt: Prompt) -> list[Script]:
        metadata = metadata_of(prompt)
        # one number more than there are solutions, where all of them are right
        numbers = range(metadata["candidates"] + 1)
        wrong_number = next(number for number in numbers if number not in metadata["right"])
        return [says(f"Judgment: [{wrong_number}]"), says("Every solution is right.")]

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        judgment = judgment_of(completion.answer)
        if judgment is None:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no Judgment: [i] in the answer")
        is_right = judgment in metadata_of(prompt)["right"]
        explanation = "a right solution" if is_right else "a wrong solution"
        return Score(float(is_right), str(judgment), explanation)

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        """Score any completion; see `RLVREnvironment.verify`.

        The figures stand beside every score, also of an empty or truncated completion: all are of
        the same questions.
        """
        score = await super().verify(prompt, completion)
        metadata = metadata_of(prompt)
        figures: dict[str, float] = metadata.get("figures", {})
        if not figures or score.value is None:
            return score
        places = {
            "first_named": float(score.answer == "0"),
            "first_right": float(0 in metadata["right"]),
        }
        return replace(score, figures={**figures, **places})
