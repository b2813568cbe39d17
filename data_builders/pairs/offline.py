"""Pairs that exist as text: rows of preference files → candidate pairs with ids.

Each side is rendered once, and each distinct text of a batch is tokenised once.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_builders.dialects import Conversation, RowProblem, reading_of
from data_builders.dialects.texts import read_side
from data_builders.filters.structure import structural_drop
from data_builders.judging.pair import shared_messages
from data_builders.keyed import key64
from data_builders.pairs.candidates import CandidatePair
from data_builders.pairs.encode import Encoded, PairEncoder, distance, encode_turns, last_turn
from data_builders.pairs.grading import Graded
from data_builders.pairs.layouts import pair_rows
from data_builders.rows.raw import Dropped, RawRow
from data_builders.rows.read import RowCounts, end_on_assistant, read_rows
from posttrain.chat import TrainingSample
from posttrain.chat.masks import message_texts
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.records import Message, Pair, Side, content_id, make_example

BATCH = 256


def read_offline(
    config: SourceConfig,
    encoder: PairEncoder,
    *,
    base_dir: Path,
    seed: int = 0,
    counts: RowCounts | None = None,
) -> Iterator[tuple[Pair | Dropped, int]]:
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
            r if isinstance(r, Dropped) else _render(r, config, encoder, counts) for r, _ in batch
        ]
        turns = [
            (s, one.shared) for one in found if isinstance(one, _Rendered) for s in one.samples
        ]
        encoded = iter(encode_turns(turns, encoder))
        for one, (_, rows) in zip(found, batch, strict=True):
            item = one.pair(next(encoded), next(encoded)) if isinstance(one, _Rendered) else one
            if config.strict and isinstance(item, Dropped) and item.reason != "where":
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

    def pair(self, chosen: Encoded, rejected: Encoded) -> Pair | Dropped:
        place = (self.row.file, self.row.line, self.id)
        if chosen.prompt_ids != rejected.prompt_ids:
            return Dropped("different_prompts", "the sides do not share a prompt", *place)
        if not chosen.ids or not rejected.ids:
            return Dropped("empty_side", "a side has no tokens of its own", *place)
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
) -> _Rendered | Dropped:
    try:
        reading = reading_of(config)
        chosen, rejected = (
            _ended(read_side(raw.row, side, reading), config) for side in ("chosen", "rejected")
        )
    except RowProblem as problem:
        return Dropped(problem.reason, str(problem), raw.file, raw.line)
    counts.note_unread(raw.row, (name for name in chosen.unread if name in rejected.unread))
    shared = shared_messages(chosen.messages, rejected.messages)
    sides = [(side.messages[:shared], side.messages[shared:]) for side in (chosen, rejected)]
    pair_id = content_id((*chosen.messages, *sides[1][1]), chosen.tools)

    def dropped(reason: str, detail: str = "") -> Dropped:
        return Dropped(reason, detail, raw.file, raw.line, pair_id)

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
    messages, reason = end_on_assistant(side.messages, config.ending)
    if reason is not None:
        raise RowProblem(reason, "chosen/rejected", "a side has no answer at its end")
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
    found: Pair | Dropped, seen: Container[str], recipe: BuildDpoConfig
) -> dict[str, Any] | None:
    """The row of `dropped.jsonl` for what cannot be a candidate, None for what can."""
    if isinstance(found, Dropped):
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
