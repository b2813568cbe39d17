"""Preference data of any dialect → judging prompts for training and held out, counts and stats.

The split is by question: all pairs of a question are on the same side.
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
from reward.judge.prompt import judging_messages
from reward.judge.quoting import quoted
from reward.judge.verdict import MIDDLE_RANKING, Gold

TRAIN = "prompts.jsonl"
HELD_OUT = "heldout.jsonl"
GRADER = "genrm"
SETTING = "judging"
# order of the responses of a prompt: as in the row, or the other way round
GIVEN = "given"
SWAPPED = "swapped"
CountTokens = Callable[[Sequence[Prompt]], list[int]]
OnProgress = Callable[[str, int], None]
# key of a pair → its gold, with the responses in alphabetical order
KnownGolds = dict[str, Gold]


@dataclass(slots=True)
class SplitStats:
    """Counts of one side of the split.

    Attributes:
        rankings: gold ranking → prompts.
        at_odds: pairs whose scores prefer one response and whose ranking prefers the other.
        characters: length of each prompt.
    """

    pairs: int = 0
    prompts: int = 0
    rankings: Counter[float] = field(default_factory=Counter[float])
    with_scores: int = 0
    with_principle: int = 0
    at_odds: int = 0
    characters: list[int] = field(default_factory=list[int])

    def add(self, pair: PreferencePair, prompts: list[Prompt]) -> None:
        """Count a pair and its prompts."""
        gold = pair.gold
        self.pairs += 1
        self.prompts += len(prompts)
        self.rankings.update(json.loads(prompt.gold or "{}")["ranking"] for prompt in prompts)
        self.with_principle += pair.principle is not None
        if gold.score_1 is not None and gold.score_2 is not None:
            self.with_scores += 1
            score_preference = gold.score_1 - gold.score_2
            # rankings below the middle prefer the first response
            self.at_odds += score_preference * (MIDDLE_RANKING - gold.ranking) < 0
        for prompt in prompts:
            self.characters.append(sum(len(message.content) for message in prompt.messages))

    def stats(self) -> dict[str, Any]:
        """Stats of this side for the manifest."""
        lengths = np.quantile(self.characters, [0.5, 0.9, 1.0]) if self.characters else np.zeros(3)
        median, p90, longest = map(int, lengths)
        return {
            "pairs": self.pairs,
            "prompts": self.prompts,
            "rankings": {f"{ranking:g}": n for ranking, n in sorted(self.rankings.items())},
            "with_scores": self.with_scores,
            "with_principle": self.with_principle,
            "scores_and_ranking_at_odds": self.at_odds,
            "characters": {"median": median, "p90": p90, "longest": longest},
        }


@dataclass(slots=True)
class JudgingPrompts:
    """Row counts of each source, and the stats of both sides of the split."""

    recipe: BuildGenRmConfig
    row_counts: dict[str, RowCounts]
    train: SplitStats = field(default_factory=SplitStats)
    held_out: SplitStats = field(default_factory=SplitStats)

    def files(self) -> dict[str, int | None]:
        """Name of each file → number of its rows."""
        return {TRAIN: self.train.prompts, HELD_OUT: self.held_out.prompts}

    def counts(self) -> Counts:
        return total_counts(self.row_counts.values())

    def stats(self, inputs: Sequence[Input]) -> dict[str, Any]:
        """Stats of the manifest."""
        recipe = self.recipe
        sources: dict[str, Any] = {}
        for name, counts in self.row_counts.items():
            dialects = dict(sorted(counts.dialects.items()))
            sources[name] = counts.stats() | {"held_out": counts.held_out, "dialects": dialects}
        return {
            "layout": recipe.layout,
            "principle": recipe.principle,
            "swap": recipe.swap,
            "thinking": recipe.thinking,
            "files": {"train": TRAIN, "held_out": HELD_OUT},
            "inputs": as_stats(inputs),
            "train": self.train.stats(),
            "held_out": self.held_out.stats(),
            "sources": sources,
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
        count: function that counts tokens of prompts, if the recipe limits them.
        on_progress: called with the name of a source and the number of its pairs written.

    Raises:
        ConfigError, DataError: errors of `chosen_pairs`; no pair remains to train on.
    """
    judging = JudgingPrompts(recipe, {source.name: RowCounts() for source in recipe.sources})
    known_golds: KnownGolds = {}
    reserved_questions: set[str] = set()  # of sources that are held out as a whole
    with ExitStack() as stack:
        files: dict[str, TextIO] = {}
        if out is not None:
            for name in (TRAIN, HELD_OUT):
                files[name] = stack.enter_context((out / name).open("w", encoding="utf-8"))
        # sources held out as a whole come first: their questions are refused in all others
        for source in sorted(recipe.sources, key=lambda source: not source.held_out):
            counts = judging.row_counts[source.name]
            pairs = chosen_pairs(
                source, counts, known_golds=known_golds, seed=recipe.seed, base_dir=base_dir
            )
            for pair in pairs:
                question = pair.question
                if question in reserved_questions and not source.held_out:
                    counts.drop("held_out_question")
                    continue
                share = unit(recipe.seed, "held_out", question)
                held_out = source.held_out or share < recipe.held_out
                try:
                    prompts = judging_prompts(
                        pair,
                        source=source.name,
                        recipe=recipe,
                        swap=recipe.swap or held_out,  # both orders show a judge's position bias
                        count=count,
                    )
                except RowProblem as problem:
                    counts.drop(problem.reason, str(problem))
                    continue
                if source.held_out:
                    reserved_questions.add(question)
                counts.kept += 1
                counts.held_out += held_out
                split_stats = judging.held_out if held_out else judging.train
                split_stats.add(pair, prompts)
                if out is not None:
                    file = files[HELD_OUT if held_out else TRAIN]
                    for prompt in prompts:
                        file.write(f"{json_text(prompt_to_row(prompt))}\n")
                on_progress(source.name, counts.kept)
    if judging.train.prompts == 0:
        dropped = judging.counts().dropped
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
        raise DataError(f"no pair is left to train on: {reasons or 'the sources have no rows'}")
    return judging


def chosen_pairs(
    source: PreferenceSource,
    counts: RowCounts,
    *,
    known_golds: KnownGolds,
    seed: int,
    base_dir: Path,
) -> Iterator[PreferencePair]:
    """Distinct pairs of a source in row order; `count` of them by a keyed hash if it is set.

    Raises:
        ConfigError: a missing path, a `where` that matches nothing.
        DataError: a file that cannot be read, fewer pairs than `count`, with `strict` a bad row.
    """
    pairs = distinct_pairs(source, counts, known_golds=known_golds, seed=seed, base_dir=base_dir)
    if source.count is None:
        yield from pairs
        return
    chosen = heapq.nsmallest(
        source.count,
        enumerate(pairs),
        key=lambda numbered: (key64(seed, "preference", numbered[1].key), numbered[0]),
    )
    if len(chosen) < source.count:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.dropped.items())
        raise DataError(
            f"source {source.name!r}: {len(chosen):,} pairs can be used, count is "
            f"{source.count:,} (of {counts.rows_in:,} rows; {reasons or 'no row'})"
        )
    usable = counts.rows_in - sum(counts.dropped.values())
    counts.dropped["not_chosen"] += usable - len(chosen)
    counts.dropped = +counts.dropped
    for _, pair in sorted(chosen, key=lambda numbered: numbered[0]):
        yield pair


def distinct_pairs(
    source: PreferenceSource,
    counts: RowCounts,
    *,
    known_golds: KnownGolds,
    seed: int,
    base_dir: Path,
) -> Iterator[PreferencePair]:
    """Pairs of a source without duplicates, whichever order their responses came in.

    Args:
        known_golds: golds of the pairs of earlier sources; those of this one are added.
    """
    config = source.rows()
    read = partial(_read_row, source=source, counts=counts)
    for result in read_each(read_rows(config, base_dir), config, read=read, counts=counts):
        if isinstance(result, Drop):
            continue
        raw, pair = result
        # a chosen/rejected row gets its order by a keyed hash: else response 1 would always win
        if not pair.has_order and unit(seed, "side", pair.key) >= 0.5:
            pair = pair.swapped()
        ordered = pair if pair.response_1 <= pair.response_2 else pair.swapped()
        gold = ordered.gold
        first_gold = known_golds.setdefault(pair.key, gold)
        if first_gold is gold:
            yield pair
        else:
            reason = "duplicate" if first_gold == gold else "duplicate_other_gold"
            counts.drop(reason, f"{raw.file}:{raw.line}")


def _read_row(
    raw: RawRow, *, source: PreferenceSource, counts: RowCounts
) -> tuple[RawRow, PreferencePair] | Drop:
    """Read the pair of a row. Raises the RowProblem of a malformed row, at which `strict` stops."""
    try:
        dialect, pair = read_pair(raw.row, source)
        refuse(pair)
    except RowProblem as problem:
        if problem.reason in _MALFORMED:
            raise
        return problem.drop
    counts.dialects[dialect] += 1
    return raw, pair


# reasons at which `strict` stops: rows that cannot be read, not those with nothing to train on
_MALFORMED = frozenset({"unrecognised", "malformed_message", "malformed_label", "unsplit_prompt"})


def refuse(pair: PreferencePair) -> None:
    """Raise RowProblem for a pair that gives nothing to judge."""
    responses = (pair.response_1, pair.response_2)
    if pair.response_1.strip() == pair.response_2.strip():
        raise RowProblem("identical", "the responses", "there is nothing to compare")
    if not all(text.strip() for text in responses):
        raise RowProblem("empty_response", "the responses", "one of them is empty")
    try:
        texts = [*responses, *(message.content for message in pair.history), pair.principle or ""]
        if pair.frame is not None:
            texts.append(pair.frame.around("", ""))
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise RowProblem("bad_unicode", "the row", "text that cannot be written") from None


def judging_prompts(
    pair: PreferencePair,
    *,
    source: str,
    recipe: BuildGenRmConfig,
    swap: bool,
    count: CountTokens | None = None,
) -> list[Prompt]:
    """Make a prompt with the responses in their order and, with `swap`, one in the other order.

    Both share `task`.

    Args:
        count: function that counts tokens of prompts; None leaves `max_tokens` unchecked.

    Raises:
        RowProblem: `too_long`, `render_error`.
    """
    name = f"{source}-{pair.key}"
    orders = [(GIVEN, pair)]
    if swap:
        orders.append((SWAPPED, pair.swapped()))
    prompts: list[Prompt] = []
    for order, ordered_pair in orders:
        messages = _judging_messages(ordered_pair, recipe)
        characters = sum(len(message.content) for message in messages)
        if recipe.max_characters is not None and characters > recipe.max_characters:
            raise RowProblem("too_long", "the judging prompt", f"{characters:,} characters")
        metadata = {
            "pair": name,
            "question": pair.question,
            "swapped": order == SWAPPED,
            "source": source,
        }
        prompt = Prompt(
            id=f"{name}/{order}",
            task=name,
            setting=SETTING,
            messages=messages,
            thinking=recipe.thinking,
            grader=GRADER,
            gold=json_text(asdict(ordered_pair.gold)),
            source=source,
            metadata=json_text(metadata),
        )
        prompts.append(prompt)
    if count is not None and recipe.max_tokens is not None:
        try:
            tokens = max(count(prompts))
        except RenderError as error:
            raise RowProblem("render_error", "the judging prompt", str(error)) from None
        if tokens > recipe.max_tokens:
            raise RowProblem("too_long", "the judging prompt", f"{tokens:,} tokens")
    return prompts


def _judging_messages(pair: PreferencePair, recipe: BuildGenRmConfig) -> tuple[Message, ...]:
    """Messages of a pair's judging prompt: in the row's own frame, or in the recipe's layout."""
    if pair.frame is not None:
        # quoted, so that no text of it begins a message of its own
        framed = pair.frame.around(pair.response_1, pair.response_2)
        return (Message("user", quoted(framed)),)
    return judging_messages(
        pair.history,
        pair.response_1,
        pair.response_2,
        layout=recipe.layout,
        principle=pair.principle or recipe.principle,
    )


def token_counter(config: TokenizerConfig) -> CountTokens:
    """Function that counts the tokens of prompts as the judge receives them."""
    # imported here: they load transformers, which a recipe without a limit of tokens does without
    from posttrain.tokens.renderer import load_renderer
    from posttrain.tokens.tokenizer import encoder_of

    renderer = load_renderer(config)
    encoder = encoder_of(renderer.tokenizer)

    def count(prompts: Sequence[Prompt]) -> list[int]:
        texts = [renderer.text(prompt) for prompt in prompts]
        return [len(ids) for ids in encoder.encode(texts)]

    return count
