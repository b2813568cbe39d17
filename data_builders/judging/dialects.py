"""Preference rows of any dialect → pairs, each with a gold ranking from 1 to 6 and perhaps scores.

To add a dialect: one function here, one line in `DIALECTS`, its structure in `recognise`, its name
in `posttrain.config.build_genrm.PreferenceDialect`, a row in `docs/guides/genrm.md`. A row without
a preference is dropped with a reason. If a row has no ranking, the mapping to one is ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from data_builders.dialects import Reading, RowProblem, read_side, rename_columns
from data_builders.dialects.messages import as_messages, read_messages, read_text
from data_builders.dialects.reading import Row
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

_RANKING_KEYS = ("ranking", "preference_ranking")
_STRENGTH_KEYS = ("overall_preference", "preference_strength")
# winner → the column that is 1 if it won
_WINNER_COLUMNS = {"model_a": "winner_model_a", "model_b": "winner_model_b", "tie": "winner_tie"}

Outcome = Literal["1", "2", "tie", "both_bad"]
# strength of HelpSteer3 (a tie is 0) → ranking
_STRENGTHS = {-3: 1.0, -2: 2.0, -1: 3.0, 1: 4.0, 2: 5.0, 3: 6.0}
_LABELS_OF_OUTCOME: dict[Outcome, tuple[str, ...]] = {
    "1": ("model_a", "a", "1", "model_1", "response_1", "response1", "response_a"),
    "2": ("model_b", "b", "2", "model_2", "response_2", "response2", "response_b"),
    "tie": ("tie", "0", "both_good"),
    "both_bad": ("both_bad", "tie (bothbad)", "bothbad"),
}
_OUTCOMES: dict[str, Outcome] = {}
for _outcome, _labels in _LABELS_OF_OUTCOME.items():
    for _label in _labels:
        _OUTCOMES[_label] = _outcome


def helpsteer3(row: Row, reading: Reading, source: PreferenceSource) -> PreferencePair:
    """Read `context`, two responses, `overall_preference` from −3 (response 1) to 3 (response 2).

    HelpSteer2's preferences are the same with a `prompt` and `preference_strength`.
    """
    value, key = _first_filled(row, _STRENGTH_KEYS)
    ranking = ranking_of_strength(value, key, source)
    return _pair_of_responses(row, reading, gold_of(ranking, row, source))


def arena(row: Row, reading: Reading, source: PreferenceSource) -> PreferencePair:
    """Read `conversation_a` and `conversation_b`, or a prompt and two responses, and a `winner`.

    The winner may be one of three columns, and prompt and responses JSON lists of their turns.
    """
    outcome = outcome_of(_winner(row), "winner")
    ranking = ranking_of_outcome(outcome, "winner", source)
    gold = gold_of(ranking, row, source)
    if row.get("conversation_a") is None:
        questions = turns_of(row.get("prompt"))
        if questions is None:
            return _pair_of_responses(row, reading, gold)
        first = interleaved(questions, turns_of(row.get("response_a")))
        second = interleaved(questions, turns_of(row.get("response_b")))
        return _pair_of_conversations(first, second, gold)
    first = _read_conversation(row, reading, "conversation_a")
    second = _read_conversation(row, reading, "conversation_b")
    return _pair_of_conversations(first, second, gold)


def pandalm(row: Row, reading: Reading, source: PreferenceSource) -> PreferencePair:
    """Read `instruction`, `input`, two responses, each annotator's vote: 0 (tie), 1 or 2."""
    names = sorted(key for key in row if key.startswith("annotator"))
    votes = [row[name] for name in names if row[name] is not None]
    outcome = majority_outcome(votes, "annotator…", source)
    ranking = ranking_of_outcome(outcome, "annotator…", source)
    return _pair_of_responses(row, reading, gold_of(ranking, row, source))


def chosen_rejected(row: Row, reading: Reading, source: PreferenceSource) -> PreferencePair:
    """Read any form of the chosen/rejected dialect, the chosen one as response 1."""
    chosen = read_side(row, "chosen", reading).messages
    rejected = read_side(row, "rejected", reading).messages
    gold = gold_of(source.win, _scores_by_side(row, source), source)
    return _pair_of_conversations(chosen, rejected, gold, has_order=False)


def ranked_pair(row: Row, reading: Reading, source: PreferenceSource) -> PreferencePair:
    """Read a conversation, two responses, a `ranking` from 1 to 6, perhaps scores, a principle.

    The rows of Nemotron-RL-Safety-v1 are of this kind.
    """
    gold = _gold_from_ranking(row, source)
    principle = read_text(row.get("principle"), "principle").strip() or None
    return replace(_pair_of_responses(row, reading, gold), principle=principle)


def judging_prompt(row: Row, reading: Reading, source: PreferenceSource) -> PreferencePair:
    """Read a judging prompt under `messages`, its `ranking` and scores: Nemotron-RLHF-GenRM-v1."""
    if row.get("num_responses") not in (None, 2):
        raise RowProblem("several_responses", "num_responses", f"{row['num_responses']!r:.20}")
    messages = _read_conversation(row, reading, "messages")
    frame, response_1, response_2 = frame_of(messages, "messages")
    gold = _gold_from_ranking(row, source)
    return PreferencePair((), response_1, response_2, gold, frame=frame)


DIALECTS: dict[str, Callable[[Row, Reading, PreferenceSource], PreferencePair]] = {
    "helpsteer3": helpsteer3,
    "arena": arena,
    "pandalm": pandalm,
    "chosen_rejected": chosen_rejected,
    "ranked": ranked_pair,
    "judging_prompt": judging_prompt,
}


def read_pair(row: Row, source: PreferenceSource) -> tuple[str, PreferencePair]:
    """Read a row. Returns its dialect (the recipe's, else by structure) and its pair.

    Raises:
        RowProblem: no dialect fits, something is malformed, or the row has no preference.
    """
    reading = Reading(
        roles=source.roles,
        role=source.fields.get("role"),
        content=source.fields.get("content"),
        trains=False,
    )
    mapped_row = rename_columns(row, source.fields)
    try:
        dialect = source.dialect or recognise(mapped_row)
        return dialect, DIALECTS[dialect](mapped_row, reading, source)
    except RecursionError:
        raise RowProblem("malformed_json", "the row", "nested too deep") from None


def recognise(row: Row) -> str:
    """Recognise the dialect of a row by its structure. Raises RowProblem `unrecognised`."""
    filled_columns = {key for key, value in row.items() if value is not None}
    has_responses = any({*keys} <= filled_columns for keys in RESPONSE_KEYS)
    if filled_columns & {*_RANKING_KEYS}:
        if has_responses:
            return "ranked"
        if "messages" in filled_columns:
            return "judging_prompt"
    if {"chosen", "rejected"} <= filled_columns and not has_responses:
        return "chosen_rejected"
    if has_responses and filled_columns & {*_STRENGTH_KEYS}:
        return "helpsteer3"
    has_sides = has_responses or {"conversation_a", "conversation_b"} <= filled_columns
    if has_sides and filled_columns & {"winner", *_WINNER_COLUMNS.values()}:
        return "arena"
    if has_responses and any(key.startswith("annotator") for key in filled_columns):
        return "pandalm"
    raise RowProblem("unrecognised", ", ".join(map(str, row))[:200], "no known preference row")


def _pair_of_responses(row: Row, reading: Reading, gold: Gold) -> PreferencePair:
    """Build the pair of a row with a conversation, and two responses in columns of their own."""
    history = history_of(row, reading)
    response_1, response_2 = responses_of(row, reading)
    return PreferencePair(history, response_1, response_2, gold)


def _first_filled(row: Row, keys: Sequence[str]) -> tuple[Any, str]:
    """Value and name of the first key that the row fills. Raises RowProblem `no_preference`."""
    for key in keys:
        if row.get(key) is not None:
            return row[key], key
    raise RowProblem("no_preference", keys[0], "the row does not say which is better")


def _gold_from_ranking(row: Row, source: PreferenceSource) -> Gold:
    """Gold of a row that states a ranking from 1 to 6."""
    value, key = _first_filled(row, _RANKING_KEYS)
    return gold_of(read_ranking(value, key, source), row, source)


def _winner(row: Row) -> Any:
    """Label of the winner, from `winner` or from the one of three columns that is 1."""
    marked_labels: list[str] = []
    for label, column in _WINNER_COLUMNS.items():
        if row.get(column) in (1, True, "1"):
            marked_labels.append(label)
    if row.get("winner") is None and len(marked_labels) == 1:
        return marked_labels[0]
    label, _ = _first_filled(row, ("winner",))
    return label


def _read_conversation(row: Row, reading: Reading, field: str) -> tuple[Message, ...]:
    """Read messages, also from JSON text, or from a list with one conversation."""
    if field not in row:
        raise RowProblem("unrecognised", field, "the row has no such conversation")
    value: Any = row[field]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    messages = as_messages(value)
    if messages is None:
        raise RowProblem("malformed_message", field, f"no conversation: {value!r:.80}")
    return read_messages(messages, reading, field)


def _scores_by_side(row: Row, source: PreferenceSource) -> Mapping[str, Any]:
    """Scores of chosen and rejected as `score_1` and `score_2`; or the row, if it has its own.

    They are taken only if the recipe gives their scale: data sets have many.
    """
    if source.scores is None or row.get("score_1") is not None:
        return row
    return {"score_1": row.get("score_chosen"), "score_2": row.get("score_rejected")}


def _pair_of_conversations(
    first: tuple[Message, ...], second: tuple[Message, ...], gold: Gold, *, has_order: bool = True
) -> PreferencePair:
    """Build the pair of two whole conversations that differ in their last turn alone.

    Args:
        has_order: False if the row does not say which conversation is response 1.

    Raises:
        RowProblem: `different_histories`.
    """
    shared = shared_messages(first, second)
    if not shared:
        raise RowProblem("different_histories", "the sides", "they do not answer the same")
    first_turns = first[shared:]
    second_turns = second[shared:]
    if any(turn.role == "user" for turn in (*first_turns, *second_turns)):
        raise RowProblem("different_histories", "the sides", "they part before the last answer")
    response_1 = final_answer(first_turns, "a side")
    response_2 = final_answer(second_turns, "a side")
    history = plain_history(first[:shared])
    return PreferencePair(history, response_1, response_2, gold, has_order=has_order)


# -- labels --------------------------------------------------------------------------------------


def read_number(value: Any, field: str) -> float:
    """Read a finite number, also from text. Raises RowProblem `malformed_label`."""
    try:
        label = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        label = math.nan
    if not math.isfinite(label):
        raise RowProblem("malformed_label", field, f"a number is needed, found {value!r:.80}")
    return label


def ranking_of_strength(value: Any, field: str, source: PreferenceSource) -> float:
    """Ranking for HelpSteer3's strength, from −3 (response 1 much better) to 3 (response 2)."""
    label = read_number(value, field)
    if label == 0:
        return ranking_of_tie("tie", field, source)
    if label not in _STRENGTHS:
        raise RowProblem("malformed_label", field, f"{label:g} is none of -3 … 3")
    return _STRENGTHS[int(label)]


def read_ranking(value: Any, field: str, source: PreferenceSource) -> float:
    """Read a ranking from 1 (response 1 much better) to 6 (response 2); 3.5 is a tie."""
    ranking = read_number(value, field)
    if not LOWEST_RANKING <= ranking <= HIGHEST_RANKING:
        raise RowProblem("malformed_label", field, f"{ranking:g} is not within 1 … 6")
    if ranking == MIDDLE_RANKING:
        return ranking_of_tie("tie", field, source)
    return ranking


def outcome_of(value: Any, field: str) -> Outcome:
    """Outcome for a label. Raises RowProblem `malformed_label`."""
    name = str(value).strip().lower()
    if isinstance(value, bool) or name not in _OUTCOMES:
        labels = "model_a, model_b, tie, both_bad"
        raise RowProblem("malformed_label", field, f"{value!r:.80} is none of {labels}")
    return _OUTCOMES[name]


def ranking_of_outcome(outcome: Outcome, field: str, source: PreferenceSource) -> float:
    """Ranking for an outcome without a strength, which the recipe gives."""
    if outcome == "1":
        return source.win
    if outcome == "2":
        return LOWEST_RANKING + HIGHEST_RANKING - source.win
    return ranking_of_tie(outcome, field, source)


def ranking_of_tie(
    outcome: Literal["tie", "both_bad"], field: str, source: PreferenceSource
) -> float:
    """Ranking of a pair in which neither is better. Raises RowProblem if the recipe drops these."""
    if source.ties == "drop":
        raise RowProblem(outcome, field, "neither response is preferred")
    return MIDDLE_RANKING


def majority_outcome(votes: Sequence[Any], field: str, source: PreferenceSource) -> Outcome:
    """Outcome that enough annotators agree on. Raises RowProblem `disagreement`."""
    counts: Counter[Outcome] = Counter(outcome_of(vote, field) for vote in votes)
    if not counts:
        raise RowProblem("no_preference", field, "nobody annotated this pair")
    outcome, count = counts.most_common(1)[0]
    if count < source.agreement * len(votes):
        votes_by_outcome = [f"{name} {n}" for name, n in sorted(counts.items())]
        raise RowProblem("disagreement", field, f"annotators say {', '.join(votes_by_outcome)}")
    return outcome


def gold_of(ranking: float, row: Row, source: PreferenceSource) -> Gold:
    """Build the gold from a ranking and the row's own scores, if any, on the scale of 1 to 5.

    Raises:
        RowProblem: `malformed_label`, a score that is missing or not within the scale.
    """
    if row.get("score_1") is None and row.get("score_2") is None:
        return Gold(None, None, ranking)
    score_1 = _read_score(row, "score_1", source)
    score_2 = _read_score(row, "score_2", source)
    return Gold(score_1, score_2, ranking)


def _read_score(row: Row, name: str, source: PreferenceSource) -> float:
    """Read the score of one response, mapped from the scale of the source to 1 … 5."""
    value = row.get(name)
    if value is None:
        raise RowProblem("malformed_label", name, "one of two scores is missing")
    low = LOWEST_SCORE if source.scores is None else source.scores.low
    high = HIGHEST_SCORE if source.scores is None else source.scores.high
    score = read_number(value, name)
    if not low <= score <= high:
        raise RowProblem("malformed_label", name, f"{score:g} is not within {low:g} … {high:g}")
    return LOWEST_SCORE + (score - low) / (high - low) * (HIGHEST_SCORE - LOWEST_SCORE)
