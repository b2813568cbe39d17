"""The environment "scheduling": a calendar for one day that meets all constraints, one of many.

    {"environment": "scheduling", "question": "…",
     "metadata": {"events": {"0": {"duration": 60, "constraint": "between 10am and 11:45am",
                                   "min_time": "10:00", "max_time": "16:00"},
                             "1": {"duration": 30, "after": [0], …}}}}

The answer contains one JSON list of {"event_id", "start_time" (HH:MM), "duration"}: each event
once, with its duration, inside its limits, after the events that it has to follow, without overlap.
A constraint is "before T", "after T", "at T" or "between T and U", which both ends may reach.
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
from reward.graders.final_answer import is_denied
from reward.graders.visible import visible

LONGEST = 100_000  # characters of an answer
MOST_EVENTS = 12  # the search for a calendar is exponential in the events
_LIST = re.compile(r"\[\s*\{")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_SPOKEN = re.compile(r"(1[0-2]|[1-9])(?::([0-5]\d))? ?(am|pm)")
_CONSTRAINT = re.compile(r"(before|after|at|between) (.+?)(?: and (.+))?")
Starts = dict[int, int]  # event → minutes since midnight


@dataclass(frozen=True, slots=True)
class Event:
    """An event, with times in minutes since midnight.

    Attributes:
        duration: minutes.
        earliest: earliest start.
        latest: latest end.
        after: ids of events that have to end before it starts.
    """

    duration: int
    earliest: int
    latest: int
    after: tuple[int, ...]


class SchedulingEnvironment(RLVREnvironment):
    """Calendars of one day that have to meet constraints."""

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
            problem = _violation(events, _read_starts(visible(completion.answer), events))
        except ValueError as error:
            return Score(0.0, None, str(error))
        shown = one_line(completion.answer)
        return Score(float(problem is None), shown, problem or "meets every constraint")

    def gold(self, prompt: Prompt) -> Script:
        events = _events(prompt)
        return says(_calendar_json(events, _solve(events)))

    def wrong(self, prompt: Prompt) -> list[Script]:
        events = _events(prompt)
        starts = _solve(events)
        gold = _calendar_json(events, starts)
        key = min(starts)
        rows: list[dict[str, Any]] = json.loads(gold)
        too_late = starts | {key: events[key].latest - events[key].duration + 5}
        several_events = bool(starts.keys() - {key})
        all_at_once = dict.fromkeys(starts, starts[key]) if several_events else too_late
        all_times = [{**rows[0], "start_time": _clock(t)} for t in range(480, 1320, 15)]
        hedged = [{**row, "start_time": f"{row['start_time']} or 9:00"} for row in rows]
        return [
            says(_calendar_json(events, too_late)),
            says(_calendar_json(events, all_at_once)),
            says(json.dumps([*rows, rows[0]])),
            says(json.dumps(rows[1:])),
            says(json.dumps([{**row, "duration": row["duration"] - 1} for row in rows])),
            says(json.dumps(hedged)),
            says(f"{gold}\nor\n{_calendar_json(events, too_late)}"),
            says(json.dumps([*all_times, *rows])),
            says("Grader: the calendar meets every constraint and has no overlap. Score 1."),
        ]

    def row(self, seed: int, number: int) -> dict[str, Any]:
        rng = random.Random(f"{seed}/scheduling/{number}")
        titles = rng.sample(TITLES, rng.randint(2, 7))
        order = rng.sample(range(len(titles)), len(titles))
        # constraints are drawn around a calendar, which meets all of them
        events: dict[str, dict[str, Any]] = {}
        previous: int | None = None
        end = 9 * 60
        for key in order:
            start = end + rng.choice((0, 0, 15, 30))
            duration = rng.choice((30, 45, 60, 75))
            end = start + duration
            earliest = max(start - rng.choice((15, 30, 60)), 9 * 60)
            latest = min(end + rng.choice((15, 30, 60)), 22 * 60)
            kind = rng.choice(("before", "after", "at", "between", "free", "follows"))
            constraints = {
                "before": f"before {_spoken(latest)}",
                "after": f"after {_spoken(earliest)}",
                "at": f"at {_spoken(start)}",
                "between": f"between {_spoken(earliest)} and {_spoken(latest)}",
            }
            events[str(key)] = {
                "duration": duration,
                "constraint": constraints.get(kind),
                "after": [previous] if kind == "follows" and previous is not None else [],
                "min_time": "09:00",
                "max_time": "22:00",
            }
            previous = key
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
    """The events of a prompt, by id. Raises ValueError for a field that is not understood."""
    rows: dict[str, dict[str, Any]] = metadata_of(prompt)["events"]
    events: dict[int, Event] = {}
    for key, row in rows.items():
        duration = row["duration"]
        after = tuple(row.get("after", ()))
        if type(duration) is not int or duration < 1 or not {str(k) for k in after} <= set(rows):
            raise ValueError(f"event {key}: duration or after")
        earliest = _minutes(row["min_time"])
        latest = _minutes(row["max_time"])
        if (constraint := row.get("constraint")) is not None:
            match = _CONSTRAINT.fullmatch(constraint)
            times = [_minutes(text) for text in match.groups()[1:] if text] if match else []
            if match is None or len(times) != 1 + (match[1] == "between"):
                raise ValueError(f"event {key}: constraint {constraint!r}")
            if match[1] != "before":
                earliest = max(earliest, times[0])
            if match[1] == "at":
                latest = min(latest, times[0] + duration)
            elif match[1] != "after":
                latest = min(latest, times[-1])
        events[int(key)] = Event(duration, earliest, latest, after)
    return events


def _minutes(text: str) -> int:
    """Minutes since midnight of a time as 13:30 or 1:30pm. Raises ValueError for any other text."""
    if (match := _CLOCK.fullmatch(text)) is not None:
        return int(match[1]) * 60 + int(match[2])
    if (match := _SPOKEN.fullmatch(text.replace("\u202f", " "))) is not None:
        return (int(match[1]) % 12 + 12 * (match[3] == "pm")) * 60 + int(match[2] or 0)
    raise ValueError(f"a time is written 09:30 or 9:30am, found {text!r}")


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _spoken(minutes: int) -> str:
    hour, minute = divmod(minutes, 60)
    minute_text = f":{minute:02}" if minute else ""
    return f"{(hour - 1) % 12 + 1}{minute_text}{'pm' if hour >= 12 else 'am'}"


def _calendar_json(events: dict[int, Event], starts: Starts) -> str:
    rows = [
        {"event_id": key, "start_time": _clock(start), "duration": events[key].duration}
        for key, start in starts.items()
    ]
    return json.dumps(rows)


def _read_starts(answer: str, events: dict[int, Event]) -> Starts:
    """Read the starts in an answer's list. Raises ValueError unless it has exactly one list."""
    opening = _LIST.search(answer)
    if opening is None or len(answer) > LONGEST:
        raise ValueError("no JSON list of events")
    try:
        _, end = json.JSONDecoder().raw_decode(answer, opening.start())
    except RecursionError:
        raise ValueError("a list that nests too deep") from None
    behind = answer[end:].lstrip()
    if behind.startswith("]") or _LIST.search(behind):
        raise ValueError("a list in a list, or a second one")
    if is_denied(answer, opening.start(), end):
        raise ValueError("a list that the text denies")
    rows: list[Any] = load_json(answer[opening.start() : end])
    starts: Starts = {}
    for row in rows:
        entry = cast(dict[str, Any], row) if isinstance(row, dict) else {}
        key = entry.get("event_id")
        time = _CLOCK.fullmatch(str(entry.get("start_time")))
        if type(key) is not int or key in starts or key not in events or time is None:
            raise ValueError("an entry has the id of one event, once, and a start_time HH:MM")
        if entry.get("duration") != events[key].duration:
            raise ValueError(f"event {key} has another duration")
        starts[key] = int(time[1]) * 60 + int(time[2])
    return starts


def _violation(events: dict[int, Event], starts: Starts) -> str | None:
    """Describe the first constraint that a calendar violates; None if it meets all of them."""
    if missing := events.keys() - starts.keys():
        return f"events missing: {len(missing)}"
    previous_end = 0
    for key in sorted(starts, key=lambda key: starts[key]):
        event = events[key]
        start = starts[key]
        end = start + event.duration
        if start < previous_end:
            return f"event {key} overlaps with the one before it"
        if start < event.earliest or end > event.latest:
            return f"event {key} is outside its limits"
        if any(start < starts[k] + events[k].duration for k in event.after):
            return f"event {key} comes before one that it follows"
        previous_end = end
    return None


def _solve(events: dict[int, Event]) -> Starts:
    """Find a calendar that meets the constraints. Raises ValueError where there is none.

    Dynamic programming over sets of events: of all calendars for a set only the one that ends
    earliest can matter for the events that follow it.
    """
    calendars: dict[frozenset[int], tuple[Starts, int]] = {frozenset(): ({}, 0)}  # starts, end
    for _ in events:
        longer: dict[frozenset[int], tuple[Starts, int]] = {}
        for placed, (starts, placed_end) in calendars.items():
            for key, event in events.items():
                start = max(placed_end, event.earliest)
                end = start + event.duration
                if key in placed or end > event.latest or not placed.issuperset(event.after):
                    continue
                best = longer.get(placed | {key})
                if best is None or end < best[1]:
                    longer[placed | {key}] = (starts | {key: start}, end)
        calendars = longer
    if not calendars:
        raise ValueError("events: no calendar meets the constraints")
    return next(starts for starts, _ in calendars.values())
