"""Progress line of a run that samples, and counts of its completions at the end."""

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

# seconds between two lines, and between two refreshes of a terminal's line
LINE_SECONDS = 15.0
REFRESH_SECONDS = 0.2
# examples of each setting and mode of thinking, with calls and without
EXAMPLES = 4
# characters of an error that are counted as one
ERROR_LENGTH = 200


class ProgressBar:
    """Progress of one run: a line that changes on a terminal, lines one after the other elsewhere.

    Args:
        total: number of completions, those of an earlier part of the run included.
        most_tokens: limit of a completion in tokens, in the mean; None where tokens are not
            counted.
        unit: word for the completions, in the plural.
        clock: function that returns seconds.
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
        self._total = total
        self._console = console
        self._clock = clock
        self._most_tokens = most_tokens
        self._unit = unit
        self._start = clock()
        self._last_shown = self._start
        self._restored = 0
        self._done = 0
        self._tokens = 0
        self._ended_tokens = 0
        self._failed = 0
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
        """Add to the counts, and show the line again if enough time has passed.

        Args:
            restored: completions of an earlier part of the run.
            done: completions that have ended now.
            tokens: new tokens of completions, ended or not.
            ended_tokens: tokens of the completions that have ended now.
            failed: number of these that failed.
        """
        self._restored += restored
        self._done += done
        self._tokens += tokens
        self._ended_tokens += ended_tokens
        self._failed += failed
        if self._clock() - self._last_shown >= self._interval:
            self._show()

    def line(self) -> str:
        """Text about completions, tokens, speed and the time that is left."""
        ended = self._restored + self._done
        unfinished = self._total - ended
        seconds = self._clock() - self._start
        text = f"{ended:,} of {self._total:,} {self._unit}"
        if self._restored:
            text += f" ({self._restored:,} from before)"
        if self._failed:
            text += f" · {self._failed:,} failed"
        if self._most_tokens is None:
            if self._done and unfinished > 0:
                seconds_left = unfinished * seconds / self._done
                text += f" · {timedelta(seconds=round(seconds_left))} to go"
            return text
        text += f" · {self._tokens:,} tokens"
        if self._tokens and seconds > 0:
            text += f" · {self._tokens / seconds:,.0f} tokens/s"
            if unfinished > 0:
                seconds_left = self._tokens_left(unfinished) * seconds / self._tokens
                at_most = "" if self._done else "at most "
                text += f" · {at_most}{timedelta(seconds=round(seconds_left))} to go"
        return text

    def _tokens_left(self, unfinished: int) -> float:
        """Estimate the tokens that are still to come in completions that have not ended.

        They are as many for each as were written for each that ended, those of unfinished
        completions included: so far the short ones alone have ended. The limit bounds them.
        """
        assert self._most_tokens is not None, "tokens are not counted"
        unfinished_tokens = max(0, self._tokens - self._ended_tokens)
        limit = max(0.0, unfinished * self._most_tokens - unfinished_tokens)
        if not self._done:
            return limit
        return min(limit, unfinished * self._tokens / self._done)

    def _show(self, end: str | None = None) -> None:
        """Print the line; on a terminal over the last one, unless `end` says otherwise."""
        self._last_shown = self._clock()
        terminal = self._console.is_terminal
        line = self.line()
        if terminal:
            # spaces cover the end of a longer line before
            line = f"{line:<{self._console.width - 1}}"
        if end is None:
            end = "\r" if terminal else "\n"
        self._console.print(line, highlight=False, end=end, no_wrap=terminal, crop=terminal)


@dataclass(slots=True)
class _SettingStats:
    """Counts of the completions of one setting."""

    prompts: set[str] = field(default_factory=set[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    finish: Counter[str] = field(default_factory=Counter[str])
    problems: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class SampleStats:
    """Counts of completions by setting, errors of the failed ones, and a few examples to read."""

    settings: dict[str, _SettingStats] = field(default_factory=dict[str, _SettingStats])
    errors: Counter[str] = field(default_factory=Counter[str])
    examples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    # number of examples of each kind: setting, thinking, with calls
    _examples_of: Counter[tuple[str, bool, bool]] = field(
        default_factory=Counter[tuple[str, bool, bool]]
    )

    def add(self, prompt: Prompt, row: Mapping[str, Any]) -> None:
        """Count one row of `samples.jsonl`."""
        setting = self.settings.setdefault(prompt.setting, _SettingStats())
        setting.prompts.add(prompt.id)
        setting.finish[row["finish"]] += 1
        if row["finish"] == "failed":
            self.errors[str(row["error"])[:ERROR_LENGTH]] += 1
        steps: list[Mapping[str, Any]] = row["steps"]
        calls = sum(len(step["parsed"]["tool_calls"]) for step in steps)
        problems: set[str] = set()
        for step in steps:
            problems.update(step["parsed"]["problems"])
        setting.problems.update(problems)
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
        # a few of each kind, and one of a prompt
        kind = (prompt.setting, prompt.thinking, calls > 0)
        may_be_example = row["finish"] != "failed" and self._examples_of[kind] < EXAMPLES
        example_ids = {example["prompt"]["id"] for example in self.examples}
        if may_be_example and prompt.id not in example_ids:
            self._examples_of[kind] += 1
            self.examples.append({"prompt": prompt_to_row(prompt), "completion": dict(row)})

    def lines(self) -> list[str]:
        """Describe how completions ended, one line for each setting."""
        lines: list[str] = []
        for name, setting in self.settings.items():
            finish = setting.finish
            total = sum(finish.values())
            truncated = sum(finish[reason] for reason in TRUNCATED)
            text = (
                f"{name}: {total:,} completions, {truncated:,} ({truncated / total:.1%}) truncated"
            )
            if truncated:
                counts = [f"{reason} {finish[reason]:,}" for reason in TRUNCATED if finish[reason]]
                text += f" ({', '.join(counts)})"
            lines.append(f"{text}, {finish['failed']:,} failed")
        return lines

    def alerts(self, unformatted: Mapping[str, int]) -> list[dict[str, Any]]:
        """Rows for the settings in which many completions are no answers (`alerts.alert`).

        Args:
            unformatted: setting → completions that no limit ended and that lack the format that
                their prompts ask for.
        """
        rows: list[dict[str, Any]] = []
        for name, setting in self.settings.items():
            row = alert(
                name,
                completions=sum(setting.finish.values()) - setting.finish["failed"],
                truncated=sum(setting.finish[reason] for reason in TRUNCATED),
                unformatted=unformatted.get(name, 0),
            )
            if row is not None:
                rows.append(row)
        return rows

    def by_setting(self) -> dict[str, Any]:
        """JSON-able counts by setting, in the order of the settings' first rows."""
        counts: dict[str, Any] = {}
        for name, setting in self.settings.items():
            counts[name] = {
                "prompts": len(setting.prompts),
                **setting.counts,
                "finish": {finish: setting.finish[finish] for finish in FINISHES},
                "problems": dict(sorted(setting.problems.items())),
            }
        return counts


def _tokens(step: Mapping[str, Any]) -> int:
    """Count the tokens that the model wrote; without ids, tags and stop token are left out."""
    if step["ids"] is None:
        return step["reasoning_tokens"] + step["answer_tokens"]
    return len(step["ids"])
