"""How sampling goes while it runs, and what the completions add up to at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from posttrain.rollouts import FINISHES, TRUNCATED, Prompt, prompt_to_row

LINE_SECONDS = 15.0
REFRESH_SECONDS = 0.2
EXAMPLES = 4  # kept of each setting and mode, with calls and without
_ERROR_LENGTH = 200


class ProgressBar:
    """Tokens and completions of one run: one line that changes on a terminal, lines elsewhere."""

    def __init__(
        self, *, total: int, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._console, self._clock = total, console, clock
        self._start = self._last_shown = clock()
        self._restored = self._done = self._tokens = 0
        self._interval = REFRESH_SECONDS if console.is_terminal else LINE_SECONDS

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._show(end="\n")

    def add(self, *, restored: int = 0, done: int = 0, tokens: int = 0) -> None:
        """Completions that were there already, completions that ended now, and new tokens."""
        self._restored += restored
        self._done += done
        self._tokens += tokens
        if self._clock() - self._last_shown >= self._interval:
            self._show()

    def line(self) -> str:
        """The state in one line."""
        parts = [f"{self._restored + self._done:,} of {self._total:,} completions"]
        if self._restored:
            parts[0] += f" ({self._restored:,} from before)"
        parts.append(f"{self._tokens:,} tokens")
        seconds = self._clock() - self._start
        if self._tokens and seconds > 0:
            parts.append(f"{self._tokens / seconds:,.0f} tokens/s")
        left = self._total - self._restored - self._done
        if left and self._done and seconds > 0:
            parts.append(f"{_duration(left * seconds / self._done)} to go")
        return " · ".join(parts)

    def row(self) -> dict[str, Any]:
        """This run's figures, for `speed.jsonl`."""
        seconds = self._clock() - self._start
        return {
            "seconds": round(seconds, 3),
            "completions": self._done,
            "restored": self._restored,
            "tokens": self._tokens,
            "tokens_per_second": round(self._tokens / seconds, 1) if seconds > 0 else None,
        }

    def _show(self, end: str | None = None) -> None:
        self._last_shown = self._clock()
        terminal = self._console.is_terminal
        # back to the line's start, over what was longer before
        line = f"{self.line():<{self._console.width - 1}}" if terminal else self.line()
        end = end or ("\r" if terminal else "\n")
        self._console.print(line, highlight=False, end=end, no_wrap=terminal, crop=terminal)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


@dataclass(slots=True)
class _SettingStats:
    prompts: set[str] = field(default_factory=set[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    finish: Counter[str] = field(default_factory=Counter[str])
    problems: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class SampleStats:
    """Counts by setting, why completions failed, and the first few completions to read."""

    settings: dict[str, _SettingStats] = field(default_factory=dict[str, _SettingStats])
    errors: Counter[str] = field(default_factory=Counter[str])
    examples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _shown: Counter[tuple[str, bool, bool]] = field(default_factory=Counter[tuple[str, bool, bool]])

    def add(self, prompt: Prompt, row: Mapping[str, Any]) -> None:
        """Count one row of `samples.jsonl`."""
        setting = self.settings.setdefault(prompt.setting, _SettingStats())
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
        lines: list[str] = []
        for name, setting in self.settings.items():
            total, finish = sum(setting.finish.values()), setting.finish
            cut = {reason: finish[reason] for reason in TRUNCATED if finish[reason]}
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in cut.items())
            lines.append(
                f"{name}: {total:,} completions, {sum(cut.values()):,} "
                f"({sum(cut.values()) / total:.1%}) truncated{f' ({reasons})' if reasons else ''}, "
                f"{finish['failed']:,} failed"
            )
        return lines

    def by_setting(self) -> dict[str, Any]:
        """JSON-able, the settings in the order of their first row."""
        return {
            name: {
                "prompts": len(setting.prompts),
                **setting.counts,
                "finish": {finish: setting.finish[finish] for finish in FINISHES},
                "problems": dict(sorted(setting.problems.items())),
            }
            for name, setting in self.settings.items()
        }


def _tokens(step: Mapping[str, Any]) -> int:
    """What the model wrote; where its ids are not known, without tags and stop token."""
    if step["ids"] is None:
        return step["reasoning_tokens"] + step["answer_tokens"]
    return len(step["ids"])
