"""Pathological repetition: traces and answers that go round in circles (paper 3.1.3).

find_repetitions(["… I check again. I check again. I check again. …"], RepetitionFilter())
    → [Repetition(rule="cycle", start=410, end=2210, detail="96% of 640 words equal the word 4 …")]

Two passes. The first looks at all texts together and names those that might hold a loop; it is
generous and costs two sorts of n-grams. The second judges those alone, exactly, by six rules:
blanks, unbroken, cycle, shifting, window and whole. Both are linear in the text but for the sorts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from data_builders.filters.cycle import cycle
from data_builders.filters.loop import Loop
from data_builders.filters.recurring import recurring
from data_builders.filters.runs import blank_run, unbroken_run
from data_builders.filters.shifting import shifting
from data_builders.filters.suspects import suspects
from data_builders.filters.words import TextWords, split_texts
from posttrain.config.filters import RepetitionFilter

BATCH = 1 << 18  # characters looked at together
_LONGEST = 1 << 23  # characters; of a longer text, parts are judged
_RULES = (blank_run, unbroken_run, cycle, shifting, recurring)


@dataclass(frozen=True, slots=True)
class Repetition:
    """A loop in a text, `start` to `end` in characters; `rule` names which rule found it."""

    rule: str
    start: int
    end: int
    detail: str


def find_repetitions(texts: Sequence[str], limits: RepetitionFilter) -> list[Repetition | None]:
    """The loop of each text, `None` where there is none; each result depends on its text alone."""
    found: list[Repetition | None] = [None] * len(texts)
    for batch in _batches(texts, limits):
        words = split_texts([part for _, _, part in batch])
        for suspect in suspects(words, limits):
            index, offset, part = batch[suspect]
            own = words.of_text(suspect)
            loop = rules_on(own, limits)
            if loop is not None and found[index] is None:
                found[index] = _located(loop, own, part, offset)
    return found


def rules_on(words: TextWords, limits: RepetitionFilter) -> Loop | None:
    """The second pass: what the first rule to object finds in one text."""
    return next((loop for rule in _RULES if (loop := rule(words, limits))), None)


def _batches(
    texts: Sequence[str], limits: RepetitionFilter
) -> Iterator[list[tuple[int, int, str]]]:
    """(index, offset, text) of the texts that are long enough to hold a loop, in batches."""
    # every word has a character at least
    shortest = min(limits.shortest, limits.unbroken)
    batch, size = list[tuple[int, int, str]](), 0
    for index, text in enumerate(texts):
        if len(text) < shortest:
            continue
        for offset in range(0, len(text), _LONGEST):
            batch.append((index, offset, text[offset : offset + _LONGEST]))
            size += len(batch[-1][2])
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _located(loop: Loop, words: TextWords, text: str, offset: int) -> Repetition:
    begin = int(words.offsets[0])
    start = len(words.data[begin : loop.start].decode("utf-8", "surrogatepass"))
    length = len(words.data[loop.start : loop.end].decode("utf-8", "surrogatepass"))
    end = min(start + length, len(text))
    return Repetition(loop.rule, offset + start, offset + end, loop.detail)
