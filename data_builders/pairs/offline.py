"""Preference pairs that exist as text: rows of preference files → candidate pairs with token ids.

    {"instruction": …, "completions": [{"response": …, "overall_score": 8.5}, …]}   UltraFeedback
    {"context": […], "response1": …, "response2": …, "overall_preference": -3 … 3}  HelpSteer3
    {"prompt": …, "response_1": …, "response_2": …, "preference_strength": -3 … 3}  HelpSteer2
    {"prompt": …, "response": …, "helpfulness": 0 … 4}    HelpSteer2, consecutive rows of a prompt

Of rated responses the best is chosen. A keyed hash picks the rejected one among those rated lower,
where `HuggingFaceH4/ultrafeedback_binarized` picks at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_builders.dialects import Conversation, RowProblem, canonicalise, read_side, reading_of
from data_builders.filters.structure import structural_drop
from data_builders.judging.dialects import read_number
from data_builders.judging.pair import marked_turns, shared_messages
from data_builders.keyed import key64
from data_builders.pairs.candidates import CandidatePair
from data_builders.pairs.encode import Encoded, PairEncoder, distance, encode_turns, last_turn
from data_builders.pairs.grading import GradedCompletion
from data_builders.rows.raw import Drop, RawRow, RawRows
from data_builders.rows.read import RowCounts, end_on_assistant, read_rows
from posttrain.chat import TrainingSample
from posttrain.chat.masks import message_texts
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.records import Message, Pair, Side, content_id, json_text, make_example

BATCH = 256  # rows rendered and encoded together
Row = Mapping[str, Any]
RatedResponse = tuple[Any, float]
PairRow = tuple[RawRow | Drop, int]  # a pair's row, or why there is none; rows it was read from
# Columns that rate both sides of a chosen/rejected row, in the names of public data sets.
_RATING_COLUMNS = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen-rating", "rejected-rating"),
    ("chosen_rating", "rejected_rating"),
)
# Two responses and the column that compares them: HelpSteer3, HelpSteer2.
_COMPARISON_COLUMNS = (
    ("response1", "response2", "overall_preference"),
    ("response_1", "response_2", "preference_strength"),
)
_MAX_STRENGTH = 3  # of both columns: -3 … 3
_RATED_COLUMNS = {"prompt", "response", "helpfulness"}


def read_offline(
    config: SourceConfig,
    encoder: PairEncoder,
    *,
    base_dir: Path,
    seed: int = 0,
    counts: RowCounts | None = None,
) -> Iterator[tuple[Pair | Drop, int]]:
    """Stream the pairs and drops of a source, each with the number of rows that it was read from.

    Args:
        seed: key of the choice of a rejected response where a row has several.
        counts: receives the columns that neither side was read from.

    Raises:
        ConfigError: a bad `where` or path.
        DataError: a file that cannot be read; with `strict`, a row that is no pair.
    """
    counts = counts or RowCounts()
    raws = pair_rows(read_rows(config, base_dir), config, seed=seed)
    while batch := list(itertools.islice(raws, BATCH)):
        rendered: list[_RenderedPair | Drop] = []
        turns: list[tuple[TrainingSample, int]] = []
        for raw, _ in batch:
            pair = raw if isinstance(raw, Drop) else _render(raw, config, encoder, counts)
            rendered.append(pair)
            if isinstance(pair, _RenderedPair):
                turns += [(sample, pair.n_shared) for sample in pair.samples]
        encoded = iter(encode_turns(turns, encoder))
        for pair, (_, n_rows) in zip(rendered, batch, strict=True):
            if isinstance(pair, _RenderedPair):
                pair = pair.to_pair(next(encoded), next(encoded))
            if config.strict and isinstance(pair, Drop) and pair.reason != "where":
                raise DataError(f"{pair.file}:{pair.line}: {pair.reason}: {pair.detail}")
            yield pair, n_rows


@dataclass(frozen=True, slots=True)
class _RenderedPair:
    """Both sides of a row as training samples that begin with the same messages.

    Attributes:
        n_shared: number of messages that both sides begin with.
        samples: sample of the chosen and of the rejected side.
        calls: number of tool calls after the shared messages, chosen and rejected.
    """

    row: RawRow
    id: str
    source: str
    n_shared: int
    samples: tuple[TrainingSample, TrainingSample]
    calls: tuple[int, int]

    def to_pair(self, chosen: Encoded, rejected: Encoded) -> Pair | Drop:
        """The pair of the two encoded sides; a drop where they share no prompt or one is empty."""
        if chosen.prompt_ids != rejected.prompt_ids:
            return self._drop("different_prompts", "the sides do not share a prompt")
        if not chosen.ids or not rejected.ids:
            return self._drop("empty_side", "a side has no tokens of its own")
        return Pair(
            id=self.id,
            task=self.id,
            category="offline",
            thinking=self.samples[0].reasoning == "on",
            prompt_ids=chosen.prompt_ids,
            chosen=self._side(0, chosen),
            rejected=self._side(1, rejected),
            source=self.source,
        )

    def _drop(self, reason: str, detail: str) -> Drop:
        return Drop(reason, detail, self.row.file, self.row.line, self.id)

    def _side(self, k: int, encoded: Encoded) -> Side:
        trained_texts = [
            segment.text
            for segment in self.samples[k].segments
            if segment.trained and segment.message_index >= self.n_shared
        ]
        text = "".join(trained_texts)
        return Side(encoded.ids, encoded.mask, text, calls=self.calls[k])


def _render(
    raw: RawRow, config: SourceConfig, encoder: PairEncoder, counts: RowCounts
) -> _RenderedPair | Drop:
    """Render both sides of a row; a drop where they are no pair or the template refuses one."""
    try:
        reading = reading_of(config)
        chosen = _end_on_answer(read_side(raw.row, "chosen", reading), config)
        rejected = _end_on_answer(read_side(raw.row, "rejected", reading), config)
    except RowProblem as problem:
        return raw.dropped(problem.drop)
    # a column that one of the sides was read from has been read
    counts.note_unread({k: value for k, value in chosen.unread.items() if k in rejected.unread})
    n_shared = shared_messages(chosen.messages, rejected.messages)
    prompt = chosen.messages[:n_shared]
    chosen_turns = chosen.messages[n_shared:]
    rejected_turns = rejected.messages[n_shared:]
    pair_id = content_id((*chosen.messages, *rejected_turns), chosen.tools)

    def drop(reason: str, detail: str = "") -> Drop:
        return Drop(reason, detail, raw.file, raw.line, pair_id)

    if reason := _pair_problem(chosen, rejected, n_shared):
        return drop(reason)
    # the chosen side alone: a rejected answer may be rejected for just such a fault
    example = make_example(
        chosen.messages, tools=chosen.tools, source=config.name, dialect="chosen_rejected"
    )
    structure = structural_drop(example, config.filters)
    if structure is not None:
        return drop(structure.reason, structure.detail)
    chosen_sample = last_turn(prompt, chosen_turns, chosen.tools, encoder.template)
    rejected_sample = last_turn(prompt, rejected_turns, chosen.tools, encoder.template)
    if chosen_sample is None or rejected_sample is None:
        return drop("render_error", "the template refuses a side")
    if token := _special_token((*chosen.messages, *rejected.messages), encoder):
        return drop("special_token", f"a text spells the special token {token!r}")
    return _RenderedPair(
        row=raw,
        id=pair_id,
        source=config.name,
        n_shared=n_shared,
        samples=(chosen_sample, rejected_sample),
        calls=(_count_calls(chosen_turns), _count_calls(rejected_turns)),
    )


def _count_calls(messages: Sequence[Message]) -> int:
    return sum(len(message.tool_calls) for message in messages)


def _special_token(messages: Sequence[Message], encoder: PairEncoder) -> str | None:
    """First special token that a text spells, None where there is none.

    Encoded, such a text becomes the token itself. Tokens that the template writes are not checked.
    """
    texts = [part for message in messages for part in message_texts(message)]
    for token in encoder.special:
        if token not in encoder.template.source and any(token in text for text in texts):
            return token
    return None


def _end_on_answer(side: Conversation, config: SourceConfig) -> Conversation:
    """The side cut after its last answer, as the source's `ending` says.

    Raises:
        RowProblem: the side has no answer at its end.
    """
    messages = end_on_assistant(side.messages, config.ending)
    if isinstance(messages, Drop):
        raise RowProblem(messages.reason, "chosen/rejected", "a side has no answer at its end")
    return replace(side, messages=messages)


def _pair_problem(chosen: Conversation, rejected: Conversation, n_shared: int) -> str | None:
    """Drop reason of two conversations that are no pair; None where they are one."""
    chosen_turns = chosen.messages[n_shared:]
    rejected_turns = rejected.messages[n_shared:]
    if chosen_turns == rejected_turns:
        return "identical"
    for turns in (chosen_turns, rejected_turns):
        if not turns or turns[0].role != "assistant":
            return "different_prompts"
    if chosen.tools != rejected.tools:
        return "different_tools"
    # a reasoning and a bare answer are continuations of different prompts
    chosen_reasons = any(message.reasons for message in chosen_turns)
    rejected_reasons = any(message.reasons for message in rejected_turns)
    return "mixed_reasoning" if chosen_reasons != rejected_reasons else None


def why_dropped(
    pair: Pair | Drop, seen: Container[str], recipe: BuildDpoConfig
) -> dict[str, Any] | None:
    """Row of `dropped.jsonl` for a drop or an unusable pair; None for a pair that can be used.

    Args:
        seen: ids of the pairs before this one.
    """
    if isinstance(pair, Drop):
        return {
            "reason": pair.reason,
            "file": Path(pair.file).name,
            "line": pair.line,
            "detail": pair.detail,
        }
    chosen = pair.chosen.ids
    rejected = pair.rejected.ids
    length = len(pair.prompt_ids) + max(len(chosen), len(rejected))
    if pair.id in seen:
        reason = "duplicate"
    elif recipe.max_length is not None and length > recipe.max_length:
        reason = "overlong"
    elif chosen == rejected:
        reason = "identical"
    elif distance(chosen, rejected) < recipe.minimum_distance:
        reason = "nearly_identical"
    else:
        return None
    return {"reason": reason, "id": pair.id}


def offline_candidate(pair: Pair, number: int, rows: int, seed: int) -> CandidatePair:
    """Candidate for a pair of a file, under the prompt number `number`, read from `rows` rows."""
    return CandidatePair(
        prompt=number,
        # the label is part of the key: another one would shuffle pairs differently
        key=key64(seed, "pair given", pair.id),
        thinking=pair.thinking,
        category="offline",
        rank=0,
        chosen=_summarize_side(pair.chosen, len(pair.prompt_ids)),
        rejected=_summarize_side(pair.rejected, len(pair.prompt_ids)),
        distance=distance(pair.chosen.ids, pair.rejected.ids),
        rows=rows,
    )


def _summarize_side(side: Side, prompt_tokens: int) -> GradedCompletion:
    """Figures of a side that was not sampled: no index, score, or keys to compare it by."""
    return GradedCompletion(
        index=-1,
        score=None,
        calls=side.calls,
        finish="stop",
        length=sum(side.mask),
        tokens=prompt_tokens + len(side.ids),
        reasoning_tokens=0,
        answer_tokens=0,
        ids_key="",
        text_key="",
    )


def pair_rows(raws: RawRows, config: SourceConfig, *, seed: int) -> Iterator[PairRow]:
    """Each pair as one row with `chosen` and `rejected`; a drop for rows that give no pair."""
    # consecutive rated responses to one prompt: their pair is known when another prompt comes
    group: list[RawRow] = []
    for raw in raws:
        if isinstance(raw, Drop):
            yield raw, 1
            continue
        raw = raw._replace(row=dict(canonicalise(raw.row, config)))
        is_rated = _RATED_COLUMNS.issubset(raw.row)
        if group and not (is_rated and raw.row["prompt"] == group[0].row["prompt"]):
            yield _pair_row(group, seed), len(group)
            group = []
        if is_rated:
            group.append(raw)
        else:
            yield _pair_row([raw], seed), 1
    if group:
        yield _pair_row(group, seed), len(group)


def _pair_row(raws: Sequence[RawRow], seed: int) -> RawRow | Drop:
    """One row with `chosen` and `rejected` from the rows of a prompt, or the first row's drop."""
    first = raws[0]
    try:
        return first._replace(row=_paired([raw.row for raw in raws], seed))
    except RowProblem as problem:
        return first.dropped(problem.drop)


def _paired(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Columns `prompt`, `chosen` and `rejected` from the columns of any supported data set."""
    row = rows[0]
    if "chosen" in row or "rejected" in row:
        return _check_ratings(row)
    if _RATED_COLUMNS.issubset(row):
        rated: list[tuple[Any, float]] = []
        for rated_row in rows:
            rating = read_number(rated_row["helpfulness"], "helpfulness")
            rated.append((rated_row["response"], rating))
        chosen, rejected = _best_and_lower(rated, seed, row["prompt"])
        return _with_sides(row, row["prompt"], chosen, rejected)
    if isinstance(row.get("completions"), list):
        rated = [_rated_completion(c, k) for k, c in enumerate(row["completions"])]
        prompt = row.get("instruction", row.get("prompt"))
        chosen, rejected = _best_and_lower(rated, seed, prompt)
        return _with_sides(row, prompt, chosen, rejected)
    for first, second, strength in _COMPARISON_COLUMNS:
        if {first, second, strength} <= row.keys():
            prompt = row.get("context", row.get("prompt"))
            if _preference(row[strength], strength) < 0:  # negative: the first is preferred
                return _with_sides(row, prompt, row[first], row[second])
            return _with_sides(row, prompt, row[second], row[first])
    return dict(row)  # the reader of the dialect says what it lacks


def _with_sides(row: Row, prompt: Any, chosen: Any, rejected: Any) -> dict[str, Any]:
    """Chosen/rejected row that keeps the system text and the tools of `row`."""
    context = {key: row[key] for key in ("system", "tools") if row.get(key) is not None}
    return {"prompt": marked_turns(prompt), "chosen": chosen, "rejected": rejected, **context}


def _check_ratings(row: Row) -> dict[str, Any]:
    """The row, once its ratings, where it has any, are seen to prefer the chosen side.

    Raises:
        RowProblem: equal ratings, or a higher one for the rejected side.
    """
    for names in _RATING_COLUMNS:
        if all(row.get(name) is not None for name in names):
            chosen, rejected = (read_number(row[name], name) for name in names)
            if chosen == rejected:
                raise RowProblem("tie", ", ".join(names), f"both sides have {chosen:g}")
            if chosen < rejected:
                detail = f"{chosen:g} is below {rejected:g}"
                raise RowProblem("scores_reversed", ", ".join(names), detail)
    return dict(row)


def _rated_completion(completion: Any, index: int) -> RatedResponse:
    """Response and rating of one entry of UltraFeedback's `completions`."""
    field = f"completions[{index}]"
    if not isinstance(completion, dict) or not {"response", "overall_score"} <= completion.keys():
        raise RowProblem("malformed_message", field, "response and overall_score are needed")
    score = read_number(completion["overall_score"], f"{field}.overall_score")
    return completion["response"], score


def _best_and_lower(responses: Sequence[RatedResponse], seed: int, prompt: Any) -> tuple[Any, Any]:
    """The best response, and one of those rated lower, picked by a keyed hash."""
    if len(responses) < 2:
        raise RowProblem("single_response", "the prompt", "there is nothing to compare it with")
    best, best_rating = max(responses, key=lambda rated: rated[1])
    lower = [response for response, rating in responses if rating < best_rating]
    if not lower:
        raise RowProblem("tie", "the responses", f"all of them have {best_rating:g}")

    def keyed_hash(response: Any) -> int:
        return key64(seed, "rejected response", json_text([prompt, response]))

    return best, min(lower, key=keyed_hash)


def _preference(value: Any, field: str) -> float:
    """Strength of a preference, in [-3, 3] without 0; negative where the first is preferred."""
    if value is None:
        raise RowProblem("no_preference", field, "the row does not say which is better")
    strength = read_number(value, field)
    if strength == 0:
        raise RowProblem("tie", field, "neither response is preferred")
    if abs(strength) > _MAX_STRENGTH:
        raise RowProblem("malformed_label", field, f"{strength:g} is not within -3 … 3")
    return strength
