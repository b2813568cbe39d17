"""Pairs that exist as text: rows of the chosen/rejected dialect → candidate pairs with ids.

    for found in read_offline(SourceConfig(name="hh", path="pairs.jsonl"), encoder, base_dir=…):
        → Pair(id, category="offline", chosen=Side(…), …) or Dropped("mixed_reasoning", …)

Each side is rendered once, and each distinct text of a batch is tokenised once.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.dialects import Conversation, RowProblem, canonical, reading_of
from data_builders.dialects.chosen_rejected import read_side
from data_builders.filters.structure import structural_drop
from data_builders.keyed import key64
from data_builders.pairs.candidates import CandidatePair
from data_builders.pairs.encode import Encoded, PairEncoder, distance, encode_turns, last_turn
from data_builders.pairs.grading import Graded
from data_builders.rows.examples import end_on_assistant
from data_builders.rows.raw import Dropped, RawRow
from data_builders.rows.read import read_rows
from posttrain.chat import TrainingSample
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.pairs import Pair, Side
from posttrain.records import Message, content_id, make_example

BATCH = 256


@dataclass(frozen=True, slots=True)
class _Rendered:
    id: str
    file: str
    line: int
    thinking: bool
    shared: int
    chosen: TrainingSample
    rejected: TrainingSample


def read_offline(
    config: SourceConfig, encoder: PairEncoder, *, base_dir: Path
) -> Iterator[Pair | Dropped]:
    """Stream a source's pairs; every row comes out as a pair or as dropped with its reason.

    Raises:
        ConfigError: a bad `where` or path.
        DataError: a file that cannot be read.
    """
    found = _rendered(config, encoder, base_dir)
    while batch := list(itertools.islice(found, BATCH)):
        whole = [item for item in batch if isinstance(item, _Rendered)]
        encoded = iter(_encode(whole, encoder))
        for item in batch:
            if isinstance(item, Dropped):
                yield item
                continue
            chosen, rejected = next(encoded)
            if chosen.prompt_ids != rejected.prompt_ids:
                yield Dropped(
                    "different_prompts", "the sides do not share a prompt", "", 0, item.id
                )
            elif not chosen.ids or not rejected.ids:
                yield Dropped("empty_side", "a side has no tokens of its own", "", 0, item.id)
            else:
                sides = (
                    Side(encoded.ids, encoded.mask, _answer(sample, item.shared))
                    for encoded, sample in ((chosen, item.chosen), (rejected, item.rejected))
                )
                ids = chosen.prompt_ids
                yield Pair(
                    item.id, item.id, "offline", item.thinking, ids, *sides, source=config.name
                )


def _encode(items: Sequence[_Rendered], encoder: PairEncoder) -> Iterator[tuple[Encoded, Encoded]]:
    by_shared: dict[int, list[TrainingSample]] = {}
    for item in items:
        by_shared.setdefault(item.shared, []).extend((item.chosen, item.rejected))
    done = {n: iter(encode_turns(samples, n, encoder)) for n, samples in by_shared.items()}
    for item in items:
        yield next(done[item.shared]), next(done[item.shared])


def _rendered(
    config: SourceConfig, encoder: PairEncoder, base_dir: Path
) -> Iterator[_Rendered | Dropped]:
    for raw in read_rows(config, base_dir):
        found = raw if isinstance(raw, Dropped) else _render(raw, config, encoder)
        if config.strict and isinstance(found, Dropped) and found.reason != "where":
            raise DataError(f"{found.file}:{found.line}: {found.reason}: {found.detail}")
        yield found


def _render(raw: RawRow, config: SourceConfig, encoder: PairEncoder) -> _Rendered | Dropped:
    try:
        row, how = canonical(raw.row, config), reading_of(config)
        sides = [_ended(read_side(row, side, how), config) for side in ("chosen", "rejected")]
    except RowProblem as problem:
        return Dropped(problem.reason, str(problem), raw.file, raw.line)
    chosen, rejected = sides
    shared = _shared(chosen.messages, rejected.messages)
    example = make_example(
        chosen.messages, tools=chosen.tools, source=config.name, dialect="chosen_rejected"
    )
    pair_id = content_id((*chosen.messages, *rejected.messages[shared:]), chosen.tools)
    problem = _problem(chosen, rejected, shared)
    if problem:
        return Dropped(problem, "", raw.file, raw.line, pair_id)
    # what is rejected may be rejected for just such a fault
    drop = structural_drop(example, config.filters)
    if drop is not None:
        return Dropped(drop.reason, drop.detail, raw.file, raw.line, pair_id)
    rendered = [
        last_turn(s.messages[:shared], s.messages[shared:], chosen.tools, encoder.template)
        for s in sides
    ]
    if rendered[0] is None or rendered[1] is None:
        return Dropped("render_error", "the template refuses a side", raw.file, raw.line, pair_id)
    thinking = rendered[0].reasoning == "on"
    return _Rendered(pair_id, raw.file, raw.line, thinking, shared, rendered[0], rendered[1])


def _ended(side: Conversation, config: SourceConfig) -> Conversation:
    messages, reason = end_on_assistant(side.messages, config.ending)
    if reason is not None:
        raise RowProblem(reason, "chosen/rejected", "a side has no answer at its end")
    return Conversation(messages, side.tools)


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
    return "mixed_reasoning" if _reasons(left) != _reasons(right) else None


def _shared(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Messages that both sides begin with, up to the last user turn at most."""
    same = sum(
        1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(chosen, rejected, strict=False))
    )
    while same and chosen[same - 1].role == "assistant":
        same -= 1
    return same


def _reasons(messages: Sequence[Message]) -> bool:
    return any(m.reasons for m in messages)


def _answer(sample: TrainingSample, shared: int) -> str:
    return "".join(s.text for s in sample.segments if s.trained and s.message_index >= shared)


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


def offline_candidate(pair: Pair, number: int, seed: int) -> CandidatePair:
    """A pair that exists as text, as it competes with the sampled ones."""
    prompt = len(pair.prompt_ids)
    chosen, rejected = (
        Graded(-1, None, 0, "stop", sum(side.mask), prompt + len(side.ids), 0, 0, "", "")
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
    )
