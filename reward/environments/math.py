"""The environment "math": one final answer in `\\boxed{}`, compared by the grader "math".

    {"environment": "math", "question": "7*8? Put your answer in \\\\boxed{}.", "gold": "56"}

The answer is in the last box. An answer without a box scores 0: the prompt has to ask for one.
`metadata` may hold `tolerance`, a share of the gold number.
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from reward.environments.base import RLVREnvironment, Script, says
from reward.graders.base import Attempt
from reward.graders.final_answer import joined_boxes
from reward.graders.math import Math, gold_text, tolerance_of

LONGEST = 200_000  # characters of an answer


class MathEnvironment(RLVREnvironment):
    name = "math"

    def malformed(self, prompt: Prompt) -> str | None:
        if prompt.gold is None or not gold_text(prompt.gold):
            return "no gold"
        tolerance_of(prompt)
        asked = any("\\boxed" in message.content for message in prompt.messages)
        return None if asked else "no message asks for \\boxed{}"

    def gold(self, prompt: Prompt) -> Script:
        return says(f"The answer is $\\boxed{{{gold_text(prompt.gold or '')}}}$.")

    def wrong(self, prompt: Prompt) -> list[Script]:
        gold = gold_text(prompt.gold or "")
        return [says("\\boxed{-98765.4321}"), says(f"The answer is {gold}.")]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        # imported here: it loads sympy, which only a worker needs
        from reward.graders.worker_main import run_inline

        answer = completion.answer
        box = joined_boxes(answer) if len(answer) <= LONGEST else None
        if not box:
            return Score(0.0, None, "no closed \\boxed{} in the answer")
        step = completion.steps[-1]
        boxed = replace(step, parsed=replace(step.parsed, answer=f"\\boxed{{{box}}}"))
        attempt = Attempt(prompt, replace(completion, steps=(boxed,)))
        [score] = Math(run=run_inline).grade([attempt])
        if score.value is None and score.failure is None:  # a box that holds nothing to compare
            return Score(0.0, score.answer, score.explanation)
        return score
