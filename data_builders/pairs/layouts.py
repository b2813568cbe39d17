"""Preference rows as published sets lay them out → rows with `prompt`, `chosen` and `rejected`.

    {"instruction": …, "completions": [{"response": …, "overall_score": 8.5}, …]}   UltraFeedback
    {"context": […], "response1": …, "response2": …, "overall_preference": -3 … 3}  HelpSteer3
    {"prompt": …, "response_1": …, "response_2": …, "preference_strength": -3 … 3}  HelpSteer2
    {"prompt": …, "response": …, "helpfulness": 0 … 4}    HelpSteer2, the rows of a prompt together

Of rated responses the best is chosen, and rejected is one of those rated lower, by a keyed hash
(as `HuggingFaceH4/ultrafeedback_binarized` does at random). Rows that hold `chosen` and `rejected`
stay as they are. Where the ratings are equal nothing is preferred: `tie`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data_builders.dialects import RowProblem, canonical
from data_builders.judging.labels import number
from data_builders.judging.pair import marked_turns
from data_builders.keyed import key64
from data_builders.rows.raw import Dropped, RawRow, RawRows
from posttrain.config.source import SourceConfig
from posttrain.records import json_text

Row = Mapping[str, Any]
Rated = tuple[Any, float]  # a response and its rating
PairRow = tuple[RawRow | Dropped, int]  # a pair's row, or why there is none; rows it was read from
_SCORES = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen-rating", "rejected-rating"),
    ("chosen_rating", "rejected_rating"),
)
_COMPARED = (
    ("response1", "response2", "overall_preference"),
    ("response_1", "response_2", "preference_strength"),
)
_STRONGEST = 3


def pair_rows(raws: RawRows, config: SourceConfig, *, seed: int) -> Iterator[PairRow]:
    """Each pair as one row with `chosen` and `rejected`; rows that are none with their reason."""
    group: list[RawRow] = []  # rated responses to one prompt, until another row comes
    for raw in raws:
        if isinstance(raw, Dropped):
            yield raw, 1
            continue
        raw = raw._replace(row=dict(canonical(raw.row, config)))
        if group and not (_rates_one(raw.row) and raw.row["prompt"] == group[0].row["prompt"]):
            yield _pair(group, seed), len(group)
            group = []
        if _rates_one(raw.row):
            group.append(raw)
        else:
            yield _pair([raw], seed), 1
    if group:
        yield _pair(group, seed), len(group)


def _rates_one(row: Row) -> bool:
    return {"prompt", "response", "helpfulness"} <= row.keys()


def _pair(raws: Sequence[RawRow], seed: int) -> RawRow | Dropped:
    first = raws[0]
    try:
        return first._replace(row=_as_pair([raw.row for raw in raws], seed))
    except RowProblem as problem:
        return Dropped(problem.reason, str(problem), first.file, first.line)


def _as_pair(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    row = rows[0]
    if "chosen" in row or "rejected" in row:
        return _checked(row)
    if _rates_one(row):
        rated = [(one["response"], number(one["helpfulness"], "helpfulness")) for one in rows]
        return _of(row, row["prompt"], *_best_and_lower(rated, seed, row["prompt"]))
    if isinstance(row.get("completions"), list):
        rated = [_rated(one, place) for place, one in enumerate(row["completions"])]
        prompt = row.get("instruction", row.get("prompt"))
        return _of(row, prompt, *_best_and_lower(rated, seed, prompt))
    for one, other, strength in _COMPARED:
        if {one, other, strength} <= row.keys():
            preferred = _strength(row[strength], strength)
            sides = (row[one], row[other]) if preferred < 0 else (row[other], row[one])
            return _of(row, row.get("context", row.get("prompt")), *sides)
    return dict(row)  # the reader of the dialect says what it lacks


def _of(row: Row, prompt: Any, chosen: Any, rejected: Any) -> dict[str, Any]:
    """The pair with what else a conversation has."""
    rest = {key: row[key] for key in ("system", "tools") if row.get(key) is not None}
    return {"prompt": marked_turns(prompt), "chosen": chosen, "rejected": rejected, **rest}


def _checked(row: Row) -> dict[str, Any]:
    """A pair whose scores, where it has any, prefer the chosen."""
    for names in _SCORES:
        if all(row.get(name) is not None for name in names):
            chosen, rejected = (number(row[name], name) for name in names)
            if chosen == rejected:
                raise RowProblem("tie", ", ".join(names), f"both sides have {chosen:g}")
            if chosen < rejected:
                detail = f"{chosen:g} is below {rejected:g}"
                raise RowProblem("scores_reversed", ", ".join(names), detail)
    return dict(row)


def _rated(completion: Any, place: int) -> Rated:
    field = f"completions[{place}]"
    if not isinstance(completion, dict) or not {"response", "overall_score"} <= completion.keys():
        raise RowProblem("malformed_message", field, "response and overall_score are needed")
    return completion["response"], number(completion["overall_score"], f"{field}.overall_score")


def _best_and_lower(rated: Sequence[Rated], seed: int, prompt: Any) -> tuple[Any, Any]:
    if len(rated) < 2:
        raise RowProblem("single_response", "the prompt", "there is nothing to compare it with")
    chosen, best = max(rated, key=lambda one: one[1])
    lower = [response for response, rating in rated if rating < best]
    if not lower:
        raise RowProblem("tie", "the responses", f"all of them have {best:g}")

    def order(response: Any) -> int:
        return key64(seed, "rejected response", json_text([prompt, response]))

    return chosen, min(lower, key=order)


def _strength(value: Any, field: str) -> float:
    if value is None:
        raise RowProblem("no_preference", field, "the row does not say which is better")
    found = number(value, field)
    if found == 0:
        raise RowProblem("tie", field, "neither response is preferred")
    if abs(found) > _STRONGEST:
        raise RowProblem("malformed_label", field, f"{found:g} is not within -3 … 3")
    return found
