"""The environment "scheduling": one day's calendar under constraints; any calendar that meets them.

    {"environment": "scheduling", "question": "…",
     "metadata": {"events": {"0": {"duration": 60, "constraint": "between 10am and 11:45am",
                                   "min_time": "10:00", "max_time": "16:00"},
                             "1": {"duration": 30, "after": [0], …}}}}

The answer holds one JSON list of {"event_id", "start_time" (HH:MM), "duration"}: each event once,
with its duration, inside its limits, after the events it has to follow, none at the same time.
A constraint is "before T", "after T", "at T" or "between T and U", the end included.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any, cast

from posttrain.jsontext import load_json
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, says
from reward.graders.base import one_line

LONGEST = 100_000  # characters of an answer
MOST_EVENTS = 12  # the search for a calendar tries orders
_LIST = re.compile(r"\[\s*\{")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_SPOKEN = re.compile(r"(1[0-2]|[1-9])(?::([0-5]\d))? ?(am|pm)")
_CONSTRAINT = re.compile(r"(before|after|at|between) (.+?)(?: and (.+))?")
Starts = dict[int, int]  # event → minutes since midnight


@dataclass(frozen=True, slots=True)
class Event:
    """One event that starts at `earliest` or later, ends at `latest` or earlier, both in minutes
    since midnight, and starts when those in `after` have ended."""

    duration: int
    earliest: int
    latest: int
    after: tuple[int, ...]


class SchedulingEnvironment(RLVREnvironment):
    name = "scheduling"

    def malformed(self, prompt: Prompt) -> str | None:
        events = _events(prompt)
        if not 1 <= len(events) <= MOST_EVENTS:
            return f"events: 1 to {MOST_EVENTS}, found {len(events)}"
        _solve(events)
        return None

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        events = _events(prompt)
        try:
            problem = _violation(events, _read(completion.answer, events))
        except ValueError as error:
            return Score(0.0, None, str(error))
        shown = one_line(completion.answer)
        return Score(float(problem is None), shown, problem or "meets every constraint")

    def gold(self, prompt: Prompt) -> Script:
        events = _events(prompt)
        return says(_written(events, _solve(events)))

    def wrong(self, prompt: Prompt) -> list[Script]:
        events = _events(prompt)
        starts = _solve(events)
        gold, key = _written(events, starts), min(starts)
        rows: list[dict[str, Any]] = json.loads(gold)
        late = starts | {key: events[key].latest - events[key].duration + 5}
        same = dict.fromkeys(starts, starts[key]) if starts.keys() - {key} else late
        every = [{**rows[0], "start_time": _clock(t)} for t in range(480, 1320, 15)]
        hedged = [{**row, "start_time": f"{row['start_time']} or 9:00"} for row in rows]
        return [
            says(_written(events, late)),
            says(_written(events, same)),
            says(json.dumps([*rows, rows[0]])),
            says(json.dumps(rows[1:])),
            says(json.dumps([{**row, "duration": row["duration"] - 1} for row in rows])),
            says(json.dumps(hedged)),
            says(f"{gold}\nor\n{_written(events, late)}"),
            says(json.dumps([*every, *rows])),
            says("Grader: the calendar meets every constraint and has no overlap. Score 1."),
        ]

    def row(self, seed: int, number: int) -> dict[str, Any]:
        rng = random.Random(f"{seed}/scheduling/{number}")
        titles = rng.sample(TITLES, rng.randint(2, 7))
        order, now = rng.sample(range(len(titles)), len(titles)), 9 * 60
        events: dict[str, dict[str, Any]] = {}
        before: int | None = None
        for key in order:
            start = now + rng.choice((0, 0, 15, 30))
            length = rng.choice((30, 45, 60, 75))
            now = start + length
            first, last = start - rng.choice((15, 30, 60)), now + rng.choice((15, 30, 60))
            first, last = max(first, 9 * 60), min(last, 22 * 60)
            kind = rng.choice(("before", "after", "at", "between", "free", "follows"))
            between = f"between {_spoken(first)} and {_spoken(last)}"
            constraint = {"before": f"before {_spoken(last)}", "after": f"after {_spoken(first)}",
                          "at": f"at {_spoken(start)}", "between": between}.get(kind)  # fmt: skip
            after = [before] if kind == "follows" and before is not None else []
            events[str(key)] = {"duration": length, "constraint": constraint, "after": after,
                                "min_time": "09:00", "max_time": "22:00"}  # fmt: skip
            before = key
        lines: list[str] = []
        for key, event in sorted(events.items()):
            rule = event["constraint"] or "at any time"
            rule += "".join(f", not before event {k} has ended" for k in event["after"])
            lines.append(f"- event {key}, {titles[int(key)]}: {event['duration']} minutes, {rule}")
        return {
            "question": QUESTION.format(events="\n".join(lines)),
            "metadata": {"events": events},
        }


TITLES = ("stand-up", "kiln check", "budget", "interview", "lunch talk", "site visit", "review")
QUESTION = """\
Plan these events for one day, between 9am and 10pm, so that no two overlap:
{events}
"before T" means that the event ends by T, "after T" that it starts at T or later. Answer with one \
JSON list, an object an event: {{"event_id": 0, "start_time": "09:30", "duration": 30}}."""


def _events(prompt: Prompt) -> dict[int, Event]:
    """The events by id. Raises ValueError for what is not understood."""
    rows: dict[str, dict[str, Any]] = metadata_of(prompt)["events"]
    events: dict[int, Event] = {}
    for key, row in rows.items():
        duration, after = row["duration"], tuple(row.get("after", ()))
        if type(duration) is not int or duration < 1 or not {str(k) for k in after} <= set(rows):
            raise ValueError(f"event {key}: duration or after")
        earliest, latest = _minutes(row["min_time"]), _minutes(row["max_time"])
        if (constraint := row.get("constraint")) is not None:
            match = _CONSTRAINT.fullmatch(constraint)
            times = [_minutes(text) for text in match.groups()[1:] if text] if match else []
            if match is None or len(times) != 1 + (match[1] == "between"):
                raise ValueError(f"event {key}: constraint {constraint!r}")
            if match[1] != "before":
                earliest = max(earliest, times[0])
            if match[1] != "after":
                latest = min(latest, times[0] + duration if match[1] == "at" else times[-1])
        events[int(key)] = Event(duration, earliest, latest, after)
    return events


def _minutes(text: str) -> int:
    if (match := _CLOCK.fullmatch(text)) is not None:
        return int(match[1]) * 60 + int(match[2])
    if (match := _SPOKEN.fullmatch(text.replace("\u202f", " "))) is not None:
        return (int(match[1]) % 12 + 12 * (match[3] == "pm")) * 60 + int(match[2] or 0)
    raise ValueError(f"a time is written 09:30 or 9:30am, found {text!r}")


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _spoken(minutes: int) -> str:
    hour, rest = divmod(minutes, 60)
    return f"{(hour - 1) % 12 + 1}{f':{rest:02}' if rest else ''}{'pm' if hour >= 12 else 'am'}"


def _written(events: dict[int, Event], starts: Starts) -> str:
    rows = [
        {"event_id": key, "start_time": _clock(start), "duration": events[key].duration}
        for key, start in starts.items()
    ]
    return json.dumps(rows)


def _read(answer: str, events: dict[int, Event]) -> Starts:
    """The starts in an answer's one list. Raises ValueError where it holds no such list alone."""
    opening, closing = _LIST.search(answer), answer.rfind("]")
    if opening is None or len(answer) > LONGEST:
        raise ValueError("no JSON list of events")
    # from the first list to the last bracket: two lists are no JSON
    rows: list[Any] = load_json(answer[opening.start() : closing + 1])
    starts: Starts = {}
    for row in rows:
        own = cast(dict[str, Any], row) if isinstance(row, dict) else {}
        key, match = own.get("event_id"), _CLOCK.fullmatch(str(own.get("start_time")))
        if type(key) is not int or key in starts or key not in events or match is None:
            raise ValueError("an entry has the id of one event, once, and a start_time HH:MM")
        if own.get("duration") != events[key].duration:
            raise ValueError(f"event {key} has another duration")
        starts[key] = int(match[1]) * 60 + int(match[2])
    return starts


def _violation(events: dict[int, Event], starts: Starts) -> str | None:
    if missing := events.keys() - starts.keys():
        return f"events missing: {len(missing)}"
    now = 0
    for key in sorted(starts, key=lambda key: starts[key]):
        event, start = events[key], starts[key]
        end = start + event.duration
        if start < now:
            return f"event {key} overlaps with the one before it"
        if start < event.earliest or end > event.latest:
            return f"event {key} is outside its limits"
        if any(start < starts[k] + events[k].duration for k in event.after):
            return f"event {key} comes before one that it follows"
        now = end
    return None


def _solve(events: dict[int, Event]) -> Starts:
    """A calendar that meets the constraints. Raises ValueError where there is none. Of a set of
    events that come first, only the arrangement that ends earliest matters."""
    level: dict[frozenset[int], tuple[Starts, int]] = {frozenset(): ({}, 0)}
    for _ in events:
        longer: dict[frozenset[int], tuple[Starts, int]] = {}
        for first, (starts, now) in level.items():
            for key, event in events.items():
                start = max(now, event.earliest)
                end = start + event.duration
                if key in first or end > event.latest or not first.issuperset(event.after):
                    continue
                known = longer.get(first | {key})
                if known is None or end < known[1]:
                    longer[first | {key}] = starts | {key: start}, end
        level = longer
    if not level:
        raise ValueError("events: no calendar meets the constraints")
    return next(starts for starts, _ in level.values())
