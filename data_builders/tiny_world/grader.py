"""The grader "tiny_world": an episode's answer, its calls and the state they left.

TinyWorldGrader().grade([Attempt(prompt with an item's metadata, completion)])
→ [Score(1.0, "623", "correct")]; otherwise 0.0, and the reason of `grading.grade`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.tiny_world.grading import Reason, grade
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.grader import Attempt
from reward.outcomes import before_reading, one_line, unscored

NEEDED = ("grading", "gold", "gold_state", "options", "tools_declared")


class TinyWorldGrader:
    """Grades by an item's metadata, which the prompt carries."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """A prompt without an item's metadata, or whose gold its own family refuses."""
        return [_refusal(prompt) for prompt in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt."""
        return [_grade(attempt) for attempt in attempts]


def _refusal(prompt: Prompt) -> str | None:
    metadata = metadata_of(prompt)
    missing = [name for name in NEEDED if name not in metadata]
    if missing:
        return f"no_item: metadata lacks {', '.join(missing)}"
    if metadata["grading"] == "question":
        return "needs_replies"  # its gold is the answer to the user's reply
    reason = grade(metadata, metadata["gold"], final_state=metadata["gold_state"]).reason
    return None if reason == "correct" else f"gold_not_accepted: {reason}"


def _grade(attempt: Attempt) -> Score:
    early = before_reading(attempt)
    if early is not None:
        return early
    prompt, completion = attempt.prompt, attempt.completion
    metadata = metadata_of(prompt)
    if any(name not in metadata for name in NEEDED):
        return unscored(None, "the prompt's metadata is no item of the tiny world")
    # a setting may take an item's tools away: what the prompt declared is what counts
    metadata["tools_declared"] = declared(prompt)
    asks = metadata["grading"] == "question"  # then the first step is the one that should ask
    answer = completion.steps[0].parsed.answer if asks else completion.answer
    reason: Reason = grade(
        metadata,
        answer,
        calls=[call.name for call in completion.tool_calls],
        final_state=_final_state(metadata, completion),
    ).reason
    return Score(1.0 if reason == "correct" else 0.0, one_line(answer), reason)


def declared(prompt: Prompt) -> list[str]:
    """Names of the tools that a prompt declares."""
    tools: list[dict[str, Any]] = json.loads(prompt.tools) if prompt.tools else []
    return [tool.get("function", tool)["name"] for tool in tools]


def _final_state(metadata: Mapping[str, Any], completion: Completion) -> Mapping[str, Any] | None:
    """What the tools left; the initial state where an item that changes it had no environment."""
    if completion.state is not None:
        state: Mapping[str, Any] | None = json.loads(completion.state).get("state")
        if state is not None:
            return state
    return (metadata.get("initial_state") or {}) if metadata["grading"] == "state" else None
