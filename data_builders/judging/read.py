"""A source's rows → its distinct pairs; every other row is counted with its reason.

counts = RowCounts()
for pair in distinct_pairs(source, counts, seen={}, base_dir=Path(".")): …
counts.dropped  → {"tie": 120, "identical": 4, "disagreement": 20, "duplicate": 3}
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_builders.dialects import RowProblem
from data_builders.judging.dialects import read_pair
from data_builders.judging.pair import PreferencePair
from data_builders.keyed import key64, unit
from data_builders.rows.raw import Dropped, RawRow
from data_builders.rows.read import RowCounts, read_each, read_rows
from posttrain.config.build_genrm import PreferenceSource
from posttrain.errors import DataError
from reward.judge.verdict import Gold

Seen = dict[str, Gold]  # key of a pair → what was held of it, the lesser response first


def chosen_pairs(
    source: PreferenceSource, counts: RowCounts, *, seen: Seen, seed: int, base_dir: Path
) -> Iterator[PreferencePair]:
    """The distinct pairs of a source, or `count` of them by a keyed hash, in the rows' order.

    Raises:
        ConfigError: a path that is not there, a `where` that matches nothing.
        DataError: a file that cannot be read, fewer pairs than `count`, with `strict` a bad row.
    """
    pairs = distinct_pairs(source, counts, seen=seen, seed=seed, base_dir=base_dir)
    if source.count is None:
        yield from pairs
        return
    found = heapq.nsmallest(
        source.count,
        enumerate(pairs),
        key=lambda item: (key64(seed, "preference", item[1].key), item[0]),
    )
    if len(found) < source.count:
        reasons = ", ".join(f"{name} {count:,}" for name, count in counts.dropped.items())
        raise DataError(
            f"source {source.name!r}: {len(found):,} pairs can be used, count is "
            f"{source.count:,} (of {counts.rows_in:,} rows; {reasons or 'no row'})"
        )
    usable = counts.rows_in - sum(counts.dropped.values())
    counts.dropped["not_chosen"] += usable - len(found)
    counts.dropped = +counts.dropped
    yield from (pair for _, pair in sorted(found, key=lambda item: item[0]))


def distinct_pairs(
    source: PreferenceSource, counts: RowCounts, *, seen: Seen, seed: int, base_dir: Path
) -> Iterator[PreferencePair]:
    """Each pair of a source once, in whatever order its responses came; `seen` lasts over all."""
    config, read = source.rows(), partial(_read, source=source, counts=counts)
    for item in read_each(read_rows(config, base_dir), config, read=read, counts=counts):
        if isinstance(item, Dropped):
            continue
        raw, pair = item
        where, one = f"{raw.file}:{raw.line}", _sided(pair, seed)
        lesser_first = one if one.response_1 <= one.response_2 else one.swapped()
        before = seen.setdefault(one.key, lesser_first.gold)
        if before is lesser_first.gold:
            yield one
        else:
            same = before == lesser_first.gold
            counts.drop("duplicate" if same else "duplicate_other_gold", where)


def _sided(pair: PreferencePair, seed: int) -> PreferencePair:
    """A row without an order of its own gets one by a keyed hash: the first is not the chosen."""
    return pair if pair.sided or unit(seed, "side", pair.key) < 0.5 else pair.swapped()


def _read(
    raw: RawRow, *, source: PreferenceSource, counts: RowCounts
) -> tuple[RawRow, PreferencePair] | Dropped:
    try:
        dialect, pair = read_pair(raw.row, source)
        refuse(pair)
    except RowProblem as problem:
        if problem.reason in _MALFORMED:
            raise
        return Dropped(problem.reason, str(problem), raw.file, raw.line)
    counts.dialects[dialect] += 1
    return raw, pair


# what `strict` stops at: a row that cannot be read, not one that merely says nothing to train on
_MALFORMED = frozenset({"unrecognised", "malformed_message", "malformed_label", "unsplit_prompt"})


def refuse(pair: PreferencePair) -> None:
    """Refuse a pair of which nothing can be judged. Raises RowProblem."""
    responses = (pair.response_1, pair.response_2)
    if pair.response_1.strip() == pair.response_2.strip():
        raise RowProblem("identical", "the responses", "there is nothing to compare")
    if not all(text.strip() for text in responses):
        raise RowProblem("empty_response", "the responses", "one of them is empty")
    try:
        texts = (*responses, *(m.content for m in pair.history))
        frame = () if pair.frame is None else (pair.frame.around("", ""),)
        "".join((*texts, *frame, pair.principle or "", pair.reasoning or "")).encode()
    except UnicodeEncodeError:
        raise RowProblem("bad_unicode", "the row", "text that cannot be written") from None
