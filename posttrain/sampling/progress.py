"""How sampling goes while it runs, and what the completions add up to at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rich.console import Console

from posttrain.rollouts import FINISHES, TRUNCATED, Prompt, prompt_to_row
from posttrain.sampling.alerts import alert

LINE_SECONDS = 15.0
REFRESH_SECONDS = 0.2
EXAMPLES = 4  # kept of each setting and mode, with calls and without
ERROR_LENGTH = 200


class ProgressBar:
    """Tokens and completions of one run: one line that changes on a terminal, lines elsewhere.

    Args:
        most_tokens: what one of the completions can have at most, in the mean; None where tokens
            are not counted.
        unit: what ends, in the plural.
    """

    def __init__(
        self,
        *,
        total: int,
        most_tokens: float | None,
        console: Console,
        unit: str = "completions",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._console, self._clock = total, console, clock
        self._most_tokens, self._unit = most_tokens, unit
        self._start = self._last_shown = clock()
        self._restored = self._done = self._tokens = self._ended_tokens = self._failed = 0
        self._interval = REFRESH_SECONDS if console.is_terminal else LINE_SECONDS

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._show(end="\n")

    def add(
        self,
        *,
        restored: int = 0,
        done: int = 0,
        tokens: int = 0,
        ended_tokens: int = 0,
        failed: int = 0,
    ) -> None:
        """Completions that were there already, completions that ended now with their tokens (of
        which so many failed), and new tokens of any."""
        self._restored += restored
        self._done += done
        self._tokens += tokens
        self._ended_tokens += ended_tokens
        self._failed += failed
        if self._clock() - self._last_shown >= self._interval:
            self._show()

    def line(self) -> str:
        """The state in one line."""
        ended, seconds = self._restored + self._done, self._clock() - self._start
        text = f"{ended:,} of {self._total:,} {self._unit}"
        text += f" ({self._restored:,} from before)" if self._restored else ""
        text += f" · {self._failed:,} failed" if self._failed else ""
        if self._most_tokens is None:
            left = (self._total - ended) * seconds / max(1, self._done)
            going = self._done and ended < self._total
            return text + (f" · {timedelta(seconds=round(left))} to go" if going else "")
        text += f" · {self._tokens:,} tokens"
        if self._tokens and seconds > 0:
            text += f" · {self._tokens / seconds:,.0f} tokens/s"
        if self._tokens and seconds > 0 and ended < self._total:
            left = self._tokens_left(self._total - ended) * seconds / self._tokens
            at_most = "" if self._done else "at most "
            text += f" · {at_most}{timedelta(seconds=round(left))} to go"
        return text

    def _tokens_left(self, going: int) -> float:
        """Tokens that completions which have not ended are still expected to get.

        As many as are written for each that ends: so far the short ones alone have ended, and those
        under way count with what they have. Never more than their limit leaves.
        """
        assert self._most_tokens is not None, "tokens are not counted"
        under_way = max(0, self._tokens - self._ended_tokens)
        most = max(0.0, going * self._most_tokens - under_way)
        return most if not self._done else min(most, going * self._tokens / self._done)

    def _show(self, end: str | None = None) -> None:
        self._last_shown = self._clock()
        terminal = self._console.is_terminal
        # back to the line's start, over what was longer before
        line = f"{self.line():<{self._console.width - 1}}" if terminal else self.line()
        end = end or ("\r" if terminal else "\n")
        self._console.print(line, highlight=False, end=end, no_wrap=terminal, crop=terminal)


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
            self.errors[str(row["error"])[:ERROR_LENGTH]] += 1
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
        # an example is kept if few of its kind are, and none of its prompt
        kind = (prompt.setting, prompt.thinking, calls > 0)
        few = self._shown[kind] < EXAMPLES and row["finish"] != "failed"
        if few and all(prompt.id != kept["prompt"]["id"] for kept in self.examples):
            self._shown[kind] += 1
            self.examples.append({"prompt": prompt_to_row(prompt), "completion": dict(row)})

    def lines(self) -> list[str]:
        """Describe how completions ended, one line for each setting."""
        lines: list[str] = []
        for name, setting in self.settings.items():
            total, finish = sum(setting.finish.values()), setting.finish
            cut = sum(finish[reason] for reason in TRUNCATED)
            reasons = ", ".join(f"{one} {finish[one]:,}" for one in TRUNCATED if finish[one])
            lines.append(
                f"{name}: {total:,} completions, {cut:,} ({cut / total:.1%}) truncated"
                f"{f' ({reasons})' if reasons else ''}, {finish['failed']:,} failed"
            )
        return lines

    def alerts(self, unformatted: Mapping[str, int]) -> list[dict[str, Any]]:
        """What is to be known first, a row a setting; `unformatted` counts by setting those that no
        limit ended, and that lack the format of their prompts."""
        rows: list[dict[str, Any]] = []
        for name, setting in self.settings.items():
            found = alert(
                name,
                completions=sum(setting.finish.values()) - setting.finish["failed"],
                truncated=sum(setting.finish[reason] for reason in TRUNCATED),
                unformatted=unformatted.get(name, 0),
            )
            rows += [] if found is None else [found]
        return rows

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
    """Count the tokens that the model wrote; without ids, tags and stop token are left out."""
    if step["ids"] is None:
        return step["reasoning_tokens"] + step["answer_tokens"]
    return len(step["ids"])
