"""Preference rows of any dialect → pairs, each with a gold ranking from 1 to 6 and perhaps scores.

To add a dialect: one function here, one line in `DIALECTS`, its shape in `recognise`, its name in
`posttrain.config.build_genrm.PreferenceDialect`, a row in `docs/guides/genrm.md`. A row without a
preference is dropped under a name; the mappings to a ranking are ours, where a row has none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from data_builders.dialects import Reading, RowProblem, mapped
from data_builders.dialects.content import read_text
from data_builders.dialects.messages import as_messages, read_messages
from data_builders.dialects.reading import Row
from data_builders.dialects.texts import read_side
from data_builders.judging.pair import (
    RESPONSE_KEYS,
    PreferencePair,
    final_answer,
    frame_of,
    history_of,
    interleaved,
    plain_history,
    responses_of,
    shared_messages,
    turns_of,
)
from posttrain.config.build_genrm import PreferenceSource
from posttrain.records import Message
from reward.judge.verdict import (
    HIGHEST_RANKING,
    HIGHEST_SCORE,
    LOWEST_RANKING,
    LOWEST_SCORE,
    MIDDLE_RANKING,
    Gold,
)

_RANKINGS = ("ranking", "preference_ranking")
_PREFERENCES = ("overall_preference", "preference_strength")
_ONE_HOT = {"model_a": "winner_model_a", "model_b": "winner_model_b", "tie": "winner_tie"}

Outcome = Literal["1", "2", "tie", "both_bad"]
# HelpSteer3 has six strengths and a tie, the ranking six values and no middle
_STRENGTHS = {-3: 1.0, -2: 2.0, -1: 3.0, 1: 4.0, 2: 5.0, 3: 6.0}
_WINNERS: dict[str, Outcome] = {
    "model_a": "1", "a": "1", "1": "1", "model_1": "1", "response_1": "1", "response1": "1",
    "response_a": "1",
    "model_b": "2", "b": "2", "2": "2", "model_2": "2", "response_2": "2", "response2": "2",
    "response_b": "2",
    "tie": "tie", "0": "tie", "both_good": "tie",
    "both_bad": "both_bad", "tie (bothbad)": "both_bad", "bothbad": "both_bad",
}  # fmt: skip


def helpsteer3(row: Row, how: Reading, source: PreferenceSource) -> PreferencePair:
    """`context`, two responses, `overall_preference` from −3 (response 1) to 3 (response 2).

    HelpSteer2's preferences are the same with a `prompt` and `preference_strength`.
    """
    ranking = strength(*_preference(row, _PREFERENCES), source)
    return _answered(row, how, gold_of(ranking, row, source))


def arena(row: Row, how: Reading, source: PreferenceSource) -> PreferencePair:
    """`conversation_a` and `conversation_b`, or a prompt and two responses, and a `winner`.

    The winner may be one of three columns, and prompt and responses JSON lists of their turns.
    """
    ranking = won(outcome_of(_winner(row), "winner"), "winner", source)
    gold = gold_of(ranking, row, source)
    if row.get("conversation_a") is None:
        questions = turns_of(row.get("prompt"))
        if questions is None:
            return _answered(row, how, gold)
        answered = (turns_of(row.get(key)) for key in ("response_a", "response_b"))
        first, second = (interleaved(questions, side) for side in answered)
        return _parted(first, second, gold)
    first, second = (_conversation(row, how, f"conversation_{side}") for side in "ab")
    return _parted(first, second, gold)


def pandalm(row: Row, how: Reading, source: PreferenceSource) -> PreferencePair:
    """`instruction`, `input`, two responses, and what each annotator said: 0 (tie), 1 or 2."""
    names = sorted(key for key in row if key.startswith("annotator"))
    votes = [row[name] for name in names if row[name] is not None]
    ranking = won(majority(votes, "annotator…", source), "annotator…", source)
    return _answered(row, how, gold_of(ranking, row, source))


def chosen_rejected(row: Row, how: Reading, source: PreferenceSource) -> PreferencePair:
    """Any form of the chosen/rejected dialect; the chosen is read as response 1."""
    chosen, rejected = (read_side(row, side, how).messages for side in ("chosen", "rejected"))
    gold = gold_of(source.win, _scores_by_side(row, source), source)
    return _parted(chosen, rejected, gold, sided=False)


def ranked_pair(row: Row, how: Reading, source: PreferenceSource) -> PreferencePair:
    """A conversation, two responses and a `ranking` from 1 to 6; perhaps scores and a principle.

    The rows of Nemotron-RL-Safety-v1 are of this kind.
    """
    gold = gold_of(ranked(*_preference(row, _RANKINGS), source), row, source)
    principle = read_text(row.get("principle"), "principle").strip() or None
    return replace(_answered(row, how, gold), principle=principle)


def judging_prompt(row: Row, how: Reading, source: PreferenceSource) -> PreferencePair:
    """A judging prompt under `messages`, its `ranking` and scores, as Nemotron-RLHF-GenRM-v1."""
    if row.get("num_responses") not in (None, 2):
        raise RowProblem("several_responses", "num_responses", f"{row['num_responses']!r:.20}")
    frame, first, second = frame_of(_conversation(row, how, "messages"), "messages")
    gold = gold_of(ranked(*_preference(row, _RANKINGS), source), row, source)
    return PreferencePair((), first, second, gold, frame=frame)


DIALECTS: dict[str, Callable[[Row, Reading, PreferenceSource], PreferencePair]] = {
    "helpsteer3": helpsteer3,
    "arena": arena,
    "pandalm": pandalm,
    "chosen_rejected": chosen_rejected,
    "ranked": ranked_pair,
    "judging_prompt": judging_prompt,
}


def read_pair(row: Row, source: PreferenceSource) -> tuple[str, PreferencePair]:
    """The row's dialect (the recipe's, else recognised by structure) and its pair.

    Raises RowProblem: no dialect fits, something is malformed, or no preference is there to take.
    """
    how = Reading(
        roles=source.roles,
        role=source.fields.get("role"),
        content=source.fields.get("content"),
        trains=False,
    )
    view = mapped(row, source.fields)
    try:
        dialect = source.dialect or recognise(view)
        return dialect, DIALECTS[dialect](view, how, source)
    except RecursionError:
        raise RowProblem("malformed_json", "the row", "nested too deep") from None


def recognise(row: Row) -> str:
    """The dialect whose structure the row has. Raises RowProblem `unrecognised`."""
    there = {key for key, value in row.items() if value is not None}
    pair = any({*keys} <= there for keys in RESPONSE_KEYS)
    if there & {*_RANKINGS}:
        if pair:
            return "ranked"
        if "messages" in there:
            return "judging_prompt"
    if {"chosen", "rejected"} <= there and not pair:
        return "chosen_rejected"
    if pair and there & {*_PREFERENCES}:
        return "helpsteer3"
    if there & {"winner", *_ONE_HOT.values()} and (
        pair or {"conversation_a", "conversation_b"} <= there
    ):
        return "arena"
    if pair and any(key.startswith("annotator") for key in there):
        return "pandalm"
    raise RowProblem("unrecognised", ", ".join(map(str, row))[:200], "no known preference row")


def _answered(row: Row, how: Reading, gold: Gold) -> PreferencePair:
    return PreferencePair(history_of(row, how), *responses_of(row, how), gold)


def _preference(row: Row, fields: Sequence[str]) -> tuple[Any, str]:
    """The first of the fields that says something, and its name."""
    for field in fields:
        if row.get(field) is not None:
            return row[field], field
    raise RowProblem("no_preference", fields[0], "the row does not say which is better")


def _winner(row: Row) -> Any:
    """Who won, from `winner` or from the one of three columns that is 1."""
    marked = [name for name, column in _ONE_HOT.items() if row.get(column) in (1, True, "1")]
    given = {"winner": marked[0]} if len(marked) == 1 and row.get("winner") is None else row
    return _preference(given, ("winner",))[0]


def _conversation(row: Row, how: Reading, field: str) -> tuple[Message, ...]:
    """Messages, also as JSON text, or as the one conversation of a list of them."""
    if field not in row:
        raise RowProblem("unrecognised", field, "the row has no such conversation")
    value: Any = row[field]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    listed = as_messages(value)
    if listed is None:
        raise RowProblem("malformed_message", field, f"no conversation: {value!r:.80}")
    return read_messages(listed, how, field)


def _scores_by_side(row: Row, source: PreferenceSource) -> Mapping[str, Any]:
    """Scores of the chosen and the rejected; the usual names say nothing without a scale."""
    if source.scores is None or row.get("score_1") is not None:
        return row
    return {"score_1": row.get("score_chosen"), "score_2": row.get("score_rejected")}


def _parted(
    first: tuple[Message, ...], second: tuple[Message, ...], gold: Gold, *, sided: bool = True
) -> PreferencePair:
    """Two whole conversations that differ in their last turn alone."""
    same = shared_messages(first, second)
    if not same:
        raise RowProblem("different_histories", "the sides", "they do not answer the same")
    rests = first[same:], second[same:]
    if any(any(m.role == "user" for m in rest) for rest in rests):
        raise RowProblem("different_histories", "the sides", "they part before the last answer")
    answers = [final_answer(rest, "a side") for rest in rests]
    return PreferencePair(plain_history(first[:same]), answers[0], answers[1], gold, sided=sided)


# -- labels --------------------------------------------------------------------------------------


def number(value: Any, field: str) -> float:
    """A finite number, also as text. Raises RowProblem `malformed_label`."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise RowProblem("malformed_label", field, f"a number is needed, found {value!r:.80}")
    return found


def strength(value: Any, field: str, source: PreferenceSource) -> float:
    """A preference from −3 (response 1 much better) to 3 (response 2), as HelpSteer3 gives it."""
    found = number(value, field)
    if found == 0:
        return tied("tie", field, source)
    if found not in _STRENGTHS:
        raise RowProblem("malformed_label", field, f"{found:g} is none of -3 … 3")
    return _STRENGTHS[int(found)]


def ranked(value: Any, field: str, source: PreferenceSource) -> float:
    """A ranking from 1 (response 1 much better) to 6 (response 2), as it stands."""
    found = number(value, field)
    if not LOWEST_RANKING <= found <= HIGHEST_RANKING:
        raise RowProblem("malformed_label", field, f"{found:g} is not within 1 … 6")
    return tied("tie", field, source) if found == MIDDLE_RANKING else found


def outcome_of(value: Any, field: str) -> Outcome:
    """Who won. Raises RowProblem `malformed_label`."""
    name = str(value).strip().lower()
    if isinstance(value, bool) or name not in _WINNERS:
        known = "model_a, model_b, tie, both_bad"
        raise RowProblem("malformed_label", field, f"{value!r:.80} is none of {known}")
    return _WINNERS[name]


def won(outcome: Outcome, field: str, source: PreferenceSource) -> float:
    """The ranking of a pair of which only the winner is known."""
    if outcome == "1":
        return source.win
    if outcome == "2":
        return LOWEST_RANKING + HIGHEST_RANKING - source.win
    return tied(outcome, field, source)


def tied(outcome: Literal["tie", "both_bad"], field: str, source: PreferenceSource) -> float:
    """The ranking of a pair of which neither is better, if the recipe takes such pairs."""
    if source.ties == "drop":
        raise RowProblem(outcome, field, "neither response is preferred")
    return MIDDLE_RANKING


def majority(votes: Sequence[Any], field: str, source: PreferenceSource) -> Outcome:
    """What enough annotators agree on. Raises RowProblem `disagreement`."""
    counts: Counter[Outcome] = Counter(outcome_of(vote, field) for vote in votes)
    if not counts:
        raise RowProblem("no_preference", field, "nobody annotated this pair")
    outcome, count = counts.most_common(1)[0]
    if count < source.agreement * len(votes):
        votes_by_outcome = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        raise RowProblem("disagreement", field, f"annotators say {votes_by_outcome}")
    return outcome


def gold_of(ranking: float, row: Row, source: PreferenceSource) -> Gold:
    """The ranking with the row's own scores, if any, on the scale of 1 to 5. Raises RowProblem."""
    names = ("score_1", "score_2")
    values = [row.get(name) for name in names]
    if values == [None, None]:
        return Gold(None, None, ranking)
    scale = source.scores
    low, high = (LOWEST_SCORE, HIGHEST_SCORE) if scale is None else (scale.low, scale.high)

    def score(name: str, value: Any) -> float:
        if value is None:
            raise RowProblem("malformed_label", name, "one of two scores is missing")
        found = number(value, name)
        if not low <= found <= high:
            raise RowProblem("malformed_label", name, f"{found:g} is not within {low:g} … {high:g}")
        return LOWEST_SCORE + (found - low) / (high - low) * (HIGHEST_SCORE - LOWEST_SCORE)

    first, second = map(score, names, values)
    return Gold(first, second, ranking)
