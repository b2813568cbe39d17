"""Preference data of any dialect → two files of judging prompts, counts of every row, and stats.

What is held out is chosen by question: no pair of a question is on the other side of the split.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from data_builders.dialects import RowProblem
from data_builders.judging.dialects import read_pair
from data_builders.judging.pair import PreferencePair
from data_builders.keyed import key64, unit
from data_builders.prompts.questions import total_counts
from data_builders.rows.inputs import Input, as_stats
from data_builders.rows.raw import Drop, RawRow
from data_builders.rows.read import RowCounts, read_each, read_rows
from posttrain.config.build_genrm import BuildGenRmConfig, PreferenceSource
from posttrain.config.build_sft import TokenizerConfig
from posttrain.errors import DataError, RenderError
from posttrain.records import Message, json_text
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.runs import Counts
from posttrain.tokens.renderer import load_renderer
from posttrain.tokens.tokenizer import encoder_of
from reward.judge.prompt import judging_messages
from reward.judge.quoting import quoted
from reward.judge.verdict import MIDDLE_RANKING, Gold

TRAIN, HELD_OUT = "prompts.jsonl", "heldout.jsonl"
GRADER, SETTING = "genrm", "judging"
GIVEN, SWAPPED = "given", "swapped"
CountTokens = Callable[[Sequence[Prompt]], list[int]]
OnProgress = Callable[[str, int], None]
Seen = dict[str, Gold]  # key of a pair → its gold, the lesser response first


@dataclass(slots=True)
class SplitStats:
    """What one side of the split holds."""

    pairs: int = 0
    prompts: int = 0
    rankings: Counter[float] = field(default_factory=Counter[float])
    with_scores: int = 0
    with_principle: int = 0
    at_odds: int = 0
    characters: list[int] = field(default_factory=list[int])

    def add(self, pair: PreferencePair, prompts: list[Prompt]) -> None:
        gold = pair.gold
        self.pairs += 1
        self.prompts += len(prompts)
        self.rankings.update(json.loads(p.gold or "{}")["ranking"] for p in prompts)
        self.with_principle += pair.principle is not None
        if gold.score_1 is not None and gold.score_2 is not None:
            self.with_scores += 1
            # scores that prefer the one response under a ranking that prefers the other
            self.at_odds += (gold.score_1 - gold.score_2) * (MIDDLE_RANKING - gold.ranking) < 0
        self.characters += [sum(len(m.content) for m in p.messages) for p in prompts]

    def stats(self) -> dict[str, Any]:
        long = np.quantile(self.characters, [0.5, 0.9, 1.0]) if self.characters else np.zeros(3)
        return {
            "pairs": self.pairs,
            "prompts": self.prompts,
            "rankings": {f"{r:g}": n for r, n in sorted(self.rankings.items())},
            "with_scores": self.with_scores,
            "with_principle": self.with_principle,
            "scores_and_ranking_at_odds": self.at_odds,
            "characters": dict(zip(("median", "p90", "longest"), map(int, long), strict=True)),
        }


@dataclass(slots=True)
class JudgingPrompts:
    """Row counts by source, and the stats of both sides."""

    recipe: BuildGenRmConfig
    row_counts: dict[str, RowCounts]
    train: SplitStats = field(default_factory=SplitStats)
    held_out: SplitStats = field(default_factory=SplitStats)

    def files(self) -> dict[str, int | None]:
        """Each file with its rows."""
        return {TRAIN: self.train.prompts, HELD_OUT: self.held_out.prompts}

    def counts(self) -> Counts:
        return total_counts(self.row_counts.values())

    def stats(self, inputs: Sequence[Input]) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "layout": recipe.layout,
            "principle": recipe.principle,
            "swap": recipe.swap,
            "thinking": recipe.thinking,
            "files": {"train": TRAIN, "held_out": HELD_OUT},
            "inputs": as_stats(inputs),
            "train": self.train.stats(),
            "held_out": self.held_out.stats(),
            "sources": {
                name: counts.stats()
                | {"held_out": counts.held_out, "dialects": dict(sorted(counts.dialects.items()))}
                for name, counts in self.row_counts.items()
            },
        }


def build(
    recipe: BuildGenRmConfig,
    out: Path | None,
    *,
    base_dir: Path,
    count: CountTokens | None = None,
    on_progress: OnProgress = lambda name, rows: None,
) -> JudgingPrompts:
    """Read every source and write the prompts; `out` None writes nothing.

    Args:
        count: tokens of rendered prompts, where the recipe limits them.
        on_progress: called with a source and how many of its pairs are done.

    Raises:
        ConfigError, DataError: as `chosen_pairs`; or nothing is left to train on.
    """
    built = JudgingPrompts(recipe, {source.name: RowCounts() for source in recipe.sources})
    seen: Seen = {}
    kept_apart: set[str] = set()
    with ExitStack() as stack:
        files: dict[str, TextIO] = {}
        if out is not None:
            for name in (TRAIN, HELD_OUT):
                files[name] = stack.enter_context((out / name).open("w", encoding="utf-8"))
        # what is held out as a whole decides which questions the others may not have
        for source in sorted(recipe.sources, key=lambda one: not one.held_out):
            counts = built.row_counts[source.name]
            pairs = chosen_pairs(source, counts, seen=seen, seed=recipe.seed, base_dir=base_dir)
            for pair in pairs:
                question = pair.question
                if question in kept_apart and not source.held_out:
                    counts.drop("held_out_question")
                    continue
                share = unit(recipe.seed, "held_out", question)
                held_out = source.held_out or share < recipe.held_out
                own = {"source": source.name, "swap": recipe.swap or held_out, "count": count}
                try:
                    prompts = prompts_of(pair, recipe=recipe, **own)
                except RowProblem as problem:
                    counts.drop(problem.reason, str(problem))
                    continue
                if source.held_out:
                    kept_apart.add(question)
                counts.kept += 1
                counts.held_out += held_out
                side, name = (built.held_out, HELD_OUT) if held_out else (built.train, TRAIN)
                side.add(pair, prompts)
                if name in files:
                    files[name].writelines(f"{json_text(prompt_to_row(p))}\n" for p in prompts)
                on_progress(source.name, counts.kept)
    if built.train.prompts == 0:
        reasons = ", ".join(f"{k} {n:,}" for k, n in built.counts().dropped.items())
        raise DataError(f"no pair is left to train on: {reasons or 'the sources have no rows'}")
    return built


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
        if isinstance(item, Drop):
            continue
        raw, pair = item
        # a row without an order of its own gets one by a keyed hash: the first is not the chosen
        one = pair if pair.sided or unit(seed, "side", pair.key) < 0.5 else pair.swapped()
        gold = (one if one.response_1 <= one.response_2 else one.swapped()).gold
        before = seen.setdefault(one.key, gold)
        if before is gold:
            yield one
        else:
            reason = "duplicate" if before == gold else "duplicate_other_gold"
            counts.drop(reason, f"{raw.file}:{raw.line}")


def _read(
    raw: RawRow, *, source: PreferenceSource, counts: RowCounts
) -> tuple[RawRow, PreferencePair] | Drop:
    try:
        dialect, pair = read_pair(raw.row, source)
        refuse(pair)
    except RowProblem as problem:
        if problem.reason in _MALFORMED:
            raise
        return problem.drop
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
        "".join((*texts, *frame, pair.principle or "")).encode()
    except UnicodeEncodeError:
        raise RowProblem("bad_unicode", "the row", "text that cannot be written") from None


def prompts_of(
    pair: PreferencePair,
    *,
    source: str,
    recipe: BuildGenRmConfig,
    swap: bool,
    count: CountTokens | None = None,
) -> list[Prompt]:
    """The pair asked as it came and, with `swap`, in the other order; both share `task`.

    Args:
        count: tokens of rendered prompts; where it is given they go by `max_tokens`.

    Raises:
        RowProblem: `too_long`; `render_error`.
    """
    name, prompts = f"{source}-{pair.key}", list[Prompt]()
    for order, one in ((GIVEN, pair), (SWAPPED, pair.swapped()))[: 2 if swap else 1]:
        messages = _messages(one, recipe)
        long = sum(len(message.content) for message in messages)
        if recipe.max_characters is not None and long > recipe.max_characters:
            raise RowProblem("too_long", "the judging prompt", f"{long:,} characters")
        kept = {"pair": name, "question": pair.question, "swapped": order == SWAPPED}
        prompt = Prompt(
            id=f"{name}/{order}",
            task=name,
            setting=SETTING,
            messages=messages,
            thinking=recipe.thinking,
            grader=GRADER,
            gold=json_text(asdict(one.gold)),
            source=source,
            metadata=json_text(kept | {"source": source}),
        )
        prompts.append(prompt)
    if count is not None and recipe.max_tokens is not None:
        try:
            long = max(count(prompts))
        except RenderError as error:
            raise RowProblem("render_error", "the judging prompt", str(error)) from None
        if long > recipe.max_tokens:
            raise RowProblem("too_long", "the judging prompt", f"{long:,} tokens")
    return prompts


def _messages(pair: PreferencePair, recipe: BuildGenRmConfig) -> tuple[Message, ...]:
    sides = pair.response_1, pair.response_2
    if pair.frame is not None:
        # as it came, but for what would frame a message of its own
        return (Message("user", quoted(pair.frame.around(*sides))),)
    principle = pair.principle or recipe.principle
    return judging_messages(pair.history, *sides, layout=recipe.layout, principle=principle)


def token_counter(config: TokenizerConfig) -> CountTokens:
    """Counts the tokens of prompts as the judge gets them."""
    renderer = load_renderer(config)
    encoder = encoder_of(renderer.tokenizer)
    return lambda prompts: [len(ids) for ids in encoder.encode([*map(renderer.text, prompts)])]
