"""Pairs that exist as text: rows of preference files → candidate pairs with ids.

    {"instruction": …, "completions": [{"response": …, "overall_score": 8.5}, …]}   UltraFeedback
    {"context": […], "response1": …, "response2": …, "overall_preference": -3 … 3}  HelpSteer3
    {"prompt": …, "response_1": …, "response_2": …, "preference_strength": -3 … 3}  HelpSteer2
    {"prompt": …, "response": …, "helpfulness": 0 … 4}    HelpSteer2, the rows of a prompt raw_rows

Of rated responses the best is chosen, and rejected is one of those rated lower, by a keyed hash
(as `HuggingFaceH4/ultrafeedback_binarized` does at random).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_builders.dialects import Conversation, RowProblem, canonical, reading_of
from data_builders.dialects.texts import read_side
from data_builders.filters.structure import structural_drop
from data_builders.judging.dialects import number
from data_builders.judging.pair import marked_turns, shared_messages
from data_builders.keyed import key64
from data_builders.pairs.candidates import CandidatePair
from data_builders.pairs.encode import Encoded, PairEncoder, distance, encode_turns, last_turn
from data_builders.pairs.grading import Graded
from data_builders.rows.raw import Drop, RawRow, RawRows
from data_builders.rows.read import RowCounts, end_on_assistant, read_rows
from posttrain.chat import TrainingSample
from posttrain.chat.masks import message_texts
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.records import Message, Pair, Side, content_id, json_text, make_example

BATCH = 256
Row = Mapping[str, Any]
Rated = tuple[Any, float]  # a response and its rating
PairRow = tuple[RawRow | Drop, int]  # a pair's row, or why there is none; rows it was read from
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
_RATED = {"prompt", "response", "helpfulness"}


def read_offline(
    config: SourceConfig,
    encoder: PairEncoder,
    *,
    base_dir: Path,
    seed: int = 0,
    counts: RowCounts | None = None,
) -> Iterator[tuple[Pair | Drop, int]]:
    """Stream a source's pairs or drops, each with the number of rows that it was read from.

    Args:
        seed: takes the rejected response where a row has several.
        counts: gets the columns that neither side was read from.

    Raises:
        ConfigError: a bad `where` or path.
        DataError: a file that cannot be read; with `strict`, a row that is no pair.
    """
    counts = counts or RowCounts()
    raws = pair_rows(read_rows(config, base_dir), config, seed=seed)
    while batch := list(itertools.islice(raws, BATCH)):
        found = [
            r if isinstance(r, Drop) else _render(r, config, encoder, counts) for r, _ in batch
        ]
        turns = [
            (s, one.shared) for one in found if isinstance(one, _Rendered) for s in one.samples
        ]
        encoded = iter(encode_turns(turns, encoder))
        for one, (_, rows) in zip(found, batch, strict=True):
            item = one.pair(next(encoded), next(encoded)) if isinstance(one, _Rendered) else one
            if config.strict and isinstance(item, Drop) and item.reason != "where":
                raise DataError(f"{item.file}:{item.line}: {item.reason}: {item.detail}")
            yield item, rows


@dataclass(frozen=True, slots=True)
class _Rendered:
    """Both sides of a row as sequences that share their first messages."""

    row: RawRow
    id: str
    source: str
    shared: int
    samples: tuple[TrainingSample, TrainingSample]
    calls: tuple[int, ...]

    def pair(self, chosen: Encoded, rejected: Encoded) -> Pair | Drop:
        place = (self.row.file, self.row.line, self.id)
        if chosen.prompt_ids != rejected.prompt_ids:
            return Drop("different_prompts", "the sides do not share a prompt", *place)
        if not chosen.ids or not rejected.ids:
            return Drop("empty_side", "a side has no tokens of its own", *place)
        texts = (
            "".join(s.text for s in sample.segments if s.trained and s.message_index >= self.shared)
            for sample in self.samples
        )
        sides = (
            Side(own.ids, own.mask, text, calls=calls)
            for own, text, calls in zip((chosen, rejected), texts, self.calls, strict=True)
        )
        thinking = self.samples[0].reasoning == "on"
        return Pair(
            self.id, self.id, "offline", thinking, chosen.prompt_ids, *sides, source=self.source
        )


def _render(
    raw: RawRow, config: SourceConfig, encoder: PairEncoder, counts: RowCounts
) -> _Rendered | Drop:
    try:
        reading = reading_of(config)
        chosen, rejected = (
            _ended(read_side(raw.row, side, reading), config) for side in ("chosen", "rejected")
        )
    except RowProblem as problem:
        return raw.dropped(problem.drop)
    counts.note_unread({k: value for k, value in chosen.unread.items() if k in rejected.unread})
    shared = shared_messages(chosen.messages, rejected.messages)
    sides = [(side.messages[:shared], side.messages[shared:]) for side in (chosen, rejected)]
    pair_id = content_id((*chosen.messages, *sides[1][1]), chosen.tools)

    def dropped(reason: str, detail: str = "") -> Drop:
        return Drop(reason, detail, raw.file, raw.line, pair_id)

    if problem := _problem(chosen, rejected, shared):
        return dropped(problem)
    # what is rejected may be rejected for just such a fault
    example = make_example(
        chosen.messages, tools=chosen.tools, source=config.name, dialect="chosen_rejected"
    )
    if (drop := structural_drop(example, config.filters)) is not None:
        return dropped(drop.reason, drop.detail)
    one, other = (last_turn(*side, chosen.tools, encoder.template) for side in sides)
    if one is None or other is None:
        return dropped("render_error", "the template refuses a side")
    if token := _special_token((*chosen.messages, *rejected.messages), encoder):
        return dropped("special_token", f"a text spells the special token {token!r}")
    calls = tuple(sum(len(m.tool_calls) for m in turns) for _, turns in sides)
    return _Rendered(raw, pair_id, config.name, shared, (one, other), calls)


def _special_token(messages: Sequence[Message], encoder: PairEncoder) -> str | None:
    """A special token that a text spells: encoded, it would be that token and not its text."""
    own = encoder.template.source
    texts = [part for message in messages for part in message_texts(message)]
    foreign = (token for token in encoder.special if token not in own)
    return next((token for token in foreign if any(token in text for text in texts)), None)


def _ended(side: Conversation, config: SourceConfig) -> Conversation:
    messages = end_on_assistant(side.messages, config.ending)
    if isinstance(messages, Drop):
        raise RowProblem(messages.reason, "chosen/rejected", "a side has no answer at its end")
    return replace(side, messages=messages)


def _problem(chosen: Conversation, rejected: Conversation, shared: int) -> str | None:
    """Why two conversations are no pair: the drop reason."""
    left, right = chosen.messages[shared:], rejected.messages[shared:]
    if left == right:
        return "identical"
    if not left or not right or left[0].role != "assistant" or right[0].role != "assistant":
        return "different_prompts"
    if chosen.tools != rejected.tools:
        return "different_tools"
    # a reasoning and a bare answer are continuations of different prompts
    reasons = [any(message.reasons for message in side) for side in (left, right)]
    return "mixed_reasoning" if reasons[0] != reasons[1] else None


def why_dropped(
    found: Pair | Drop, seen: Container[str], recipe: BuildDpoConfig
) -> dict[str, Any] | None:
    """The row of `dropped.jsonl` for what cannot be a candidate, None for what can."""
    if isinstance(found, Drop):
        place = {"file": Path(found.file).name, "line": found.line, "detail": found.detail}
        return {"reason": found.reason, **place}
    chosen, rejected = found.chosen.ids, found.rejected.ids
    longest = len(found.prompt_ids) + max(len(chosen), len(rejected))
    if found.id in seen:
        reason = "duplicate"
    elif recipe.max_length is not None and longest > recipe.max_length:
        reason = "overlong"
    elif chosen == rejected:
        reason = "identical"
    elif distance(chosen, rejected) < recipe.minimum_distance:
        reason = "nearly_identical"
    else:
        return None
    return {"reason": reason, "id": found.id}


def offline_candidate(pair: Pair, number: int, rows: int, seed: int) -> CandidatePair:
    """A pair that exists as text, read from so many rows, as it competes with the sampled ones."""
    prompt = len(pair.prompt_ids)
    chosen, rejected = (
        Graded(-1, None, side.calls, "stop", sum(side.mask), prompt + len(side.ids), 0, 0, "", "")
        for side in (pair.chosen, pair.rejected)
    )
    return CandidatePair(
        prompt=number,
        key=key64(seed, "pair given", pair.id),
        thinking=pair.thinking,
        category="offline",
        rank=0,
        chosen=chosen,
        rejected=rejected,
        distance=distance(pair.chosen.ids, pair.rejected.ids),
        rows=rows,
    )


def pair_rows(raws: RawRows, config: SourceConfig, *, seed: int) -> Iterator[PairRow]:
    """Each pair as one row with `chosen` and `rejected`; rows that are none with their reason."""
    group: list[RawRow] = []  # rated responses to one prompt, until another row comes
    for raw in raws:
        if isinstance(raw, Drop):
            yield raw, 1
            continue
        raw = raw._replace(row=dict(canonical(raw.row, config)))
        rated = _RATED.issubset(raw.row)
        if group and not (rated and raw.row["prompt"] == group[0].row["prompt"]):
            yield _pair(group, seed), len(group)
            group = []
        if rated:
            group.append(raw)
        else:
            yield _pair([raw], seed), 1
    if group:
        yield _pair(group, seed), len(group)


def _pair(raws: Sequence[RawRow], seed: int) -> RawRow | Drop:
    first = raws[0]
    try:
        return first._replace(row=_as_pair([raw.row for raw in raws], seed))
    except RowProblem as problem:
        return first.dropped(problem.drop)


def _as_pair(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    row = rows[0]
    if "chosen" in row or "rejected" in row:
        return _checked(row)
    if _RATED.issubset(row):
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
