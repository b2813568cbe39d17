"""What a set of completions adds up to, setting by setting, counted a row at a time.

tally.add(prompt, row); tally.stats()
→ {"no_tools": {"prompts": 300, "samples": 4800, "finish": {"stop": 4790, "length": 10},
   "tokens": 301_234, "samples_with_calls": 412, …}}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.rollouts import FINISHES, TRUNCATED, Prompt, prompt_to_row

_ERROR_LENGTH = 200
EXAMPLES = 4  # kept of each setting and mode, with calls and without


@dataclass(slots=True)
class _Setting:
    prompts: set[str] = field(default_factory=set[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    finish: Counter[str] = field(default_factory=Counter[str])
    problems: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Tally:
    """Counts by setting, why completions failed, and the first few completions to read."""

    settings: dict[str, _Setting] = field(default_factory=dict[str, _Setting])
    errors: Counter[str] = field(default_factory=Counter[str])
    examples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _shown: Counter[tuple[str, bool, bool]] = field(default_factory=Counter[tuple[str, bool, bool]])

    def add(self, prompt: Prompt, row: Mapping[str, Any]) -> None:
        """Count one row of `samples.jsonl`."""
        setting = self.settings.setdefault(prompt.setting, _Setting())
        setting.prompts.add(prompt.id)
        setting.finish[row["finish"]] += 1
        if row["finish"] == "failed":
            self.errors[str(row["error"])[:_ERROR_LENGTH]] += 1
        steps: list[Mapping[str, Any]] = row["steps"]
        calls = sum(len(step["parsed"]["tool_calls"]) for step in steps)
        setting.problems.update({p for step in steps for p in step["parsed"]["problems"]})
        setting.counts.update(
            samples=1,
            thinking_on=int(prompt.thinking),
            steps=len(steps),
            tool_calls=calls,
            samples_with_calls=int(calls > 0),
            tool_results=sum(len(step["results"]) for step in steps),
            tokens=sum(_tokens(step) for step in steps),
            reasoning_tokens=sum(step["reasoning_tokens"] for step in steps),
            answer_tokens=sum(step["answer_tokens"] for step in steps),
            without_ids=int(any(step["ids"] is None for step in steps)),
        )
        self._keep_example(prompt, row, called=calls > 0)

    def _keep_example(self, prompt: Prompt, row: Mapping[str, Any], *, called: bool) -> None:
        """Keep it, if few of its kind are kept and none of its prompt."""
        kind = (prompt.setting, prompt.thinking, called)
        if self._shown[kind] >= EXAMPLES or row["finish"] == "failed":
            return
        if all(prompt.id != kept["prompt"]["id"] for kept in self.examples):
            self._shown[kind] += 1
            self.examples.append({"prompt": prompt_to_row(prompt), "completion": dict(row)})

    def lines(self) -> list[str]:
        """How completions ended, a line a setting."""
        return [f"{name}: {_ended(found.finish)}" for name, found in self.settings.items()]

    def stats(self) -> dict[str, Any]:
        """JSON-able, the settings in the order of their first row."""
        return {
            name: {
                "prompts": len(found.prompts),
                **found.counts,
                "finish": {finish: found.finish[finish] for finish in FINISHES},
                "problems": dict(sorted(found.problems.items())),
            }
            for name, found in self.settings.items()
        }


def _ended(finish: Mapping[str, int]) -> str:
    cut = {name: finish[name] for name in TRUNCATED if finish[name]}
    total, reasons = sum(finish.values()), ", ".join(f"{name} {n:,}" for name, n in cut.items())
    return (
        f"{total:,} completions, {sum(cut.values()):,} ({sum(cut.values()) / total:.1%}) truncated"
        f"{f' ({reasons})' if reasons else ''}, {finish['failed']:,} failed"
    )


def _tokens(step: Mapping[str, Any]) -> int:
    """What the model wrote; where its ids are not known, without tags and stop token."""
    if step["ids"] is None:
        return step["reasoning_tokens"] + step["answer_tokens"]
    return len(step["ids"])
