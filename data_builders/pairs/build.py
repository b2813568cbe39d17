"""Preference data in three passes: grade completions and propose pairs, select pairs, write them.

Between the passes a few figures of each completion are held in memory, not its text.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_builders.pairs.candidates import CandidatePair, Selection, propose_pairs, select_pairs
from data_builders.pairs.encode import Encoded, PairEncoder, distance, encode_completions
from data_builders.pairs.grading import (
    GradedCompletion,
    Grades,
    grade_samples,
    read_groups,
    reading_text,
    summarize_completion,
)
from data_builders.pairs.offline import offline_candidate, read_offline, why_dropped
from data_builders.pairs.shards import read_pairs, write_pairs
from data_builders.pairs.stats import (
    CandidatePool,
    completions_line,
    distances,
    lengths,
    pair_counts,
    plain,
    used_completions,
)
from data_builders.rows.read import RowCounts
from data_builders.sft.preflight import check_template
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.build_sft import TokenizerConfig
from posttrain.errors import ConfigError
from posttrain.jsontext import write_jsonl
from posttrain.records import Category, Pair, Side, json_text
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import Counts, Manifest
from posttrain.tokens.renderer import PromptRenderer, load_renderer
from posttrain.tokens.tokenizer import encoder_of, special_ids
from reward.graders.base import Grader

SHOWN_PAIRS = 24  # pairs of each category kept as text for the report
# middle of a pair's id: what its two sides differ in
_ID_PART: dict[Category, str] = {
    "no_tools": "right",
    "with_tools": "right",
    "hallucination_penalty": "call",
    "offline": "offline",
}
OnProgress = Callable[[str, int], None]


@dataclass(frozen=True)
class BuiltPairs:
    """A written data set of pairs, with the figures of its build.

    Attributes:
        pool: candidates and counts of everything read.
        files: shard → number of pairs.
        shown: first pairs of each category, for a person to read.
    """

    recipe: BuildDpoConfig
    pool: CandidatePool
    selection: Selection
    files: Mapping[str, int]
    shown: Sequence[Pair]

    def counts(self) -> Counts:
        """Completions and offline rows read, those that are in a pair, and the others by reason."""
        completions_used = len(used_completions(self.selection.pairs))
        rows_used = sum(pair.rows for pair in self.selection.pairs)
        rows_in = self.pool.completions + self.pool.offline_rows
        dropped = +Counter(self.pool.unused)
        not_drawn = rows_in - completions_used - rows_used - dropped.total()
        return Counts(
            rows_in=rows_in,
            kept=completions_used + rows_used,
            dropped=dict(sorted((dropped + Counter(not_drawn=not_drawn)).items())),
        )

    def stats(self) -> dict[str, Any]:
        """Stats of the manifest."""
        pairs = self.selection.pairs
        pool = self.pool
        dropped = pool.pairs_dropped + Counter(self.selection.dropped)
        return {
            "pairs": pair_counts(pairs),
            "requested_shares": dict(self.recipe.categories),
            "limited_by": self.selection.limited_by,
            "pair_counts": {
                "in": len(pool.candidates) + sum(pool.pairs_dropped.values()),
                "kept": len(pairs),
                "dropped": dict(sorted(dropped.items())),
            },
            "prompts": plain(pool.outcomes),
            "samples": plain(pool.rates),
            "lengths": lengths(pairs),
            "distances": distances(pairs),
            "unread": pool.unread,
        }


def load_pair_renderer(recipe: BuildDpoConfig, parents: Sequence[Manifest]) -> PromptRenderer:
    """Load tokenizer and template of the samples, or those of the recipe if the samples hold none.

    Raises:
        ConfigError: neither or both name a tokenizer, two artifacts differ, or the template reads
            a clock.
    """
    named_parents = zip(recipe.samples, parents, strict=True)
    for (path_a, a), (path_b, b) in itertools.pairwise(named_parents):
        same_tokenizer = _tokenizer_digest(a) == _tokenizer_digest(b)
        if a.template_digest != b.template_digest or not same_tokenizer:
            raise ConfigError(
                f"{path_a} and {path_b} were sampled with different templates or tokenizers: "
                "pair them apart"
            )
    saved = Path(recipe.samples[0]) / "tokenizer" if recipe.samples else None
    if saved is not None and saved.is_dir():
        if recipe.tokenizer is not None:
            raise ConfigError(f"tokenizer: leave it out, {saved} is that of the samples")
        sampler = parents[0].stats.get("sampler", {})
        variables = dict(sampler.get("template_variables", {}))
        config = TokenizerConfig(path=str(saved), chat_template="own", template_variables=variables)
    elif recipe.tokenizer is None:
        raise ConfigError("tokenizer: is needed, a server made these samples and hid its own")
    else:
        config = recipe.tokenizer
    renderer = load_renderer(config)
    check_template(renderer.template)
    return renderer


def _tokenizer_digest(samples: Manifest) -> str | None:
    """Digest of the tokenizer that sampled; None if the samples do not name it."""
    return samples.stats.get("tokenizer", {}).get("digest")


def build_pairs(
    recipe: BuildDpoConfig,
    graders: Mapping[str, Grader],
    renderer: PromptRenderer,
    *,
    out: Path,
    base_dir: Path,
    on_progress: OnProgress,
) -> BuiltPairs:
    """Write `scores.jsonl` and `pairs/`; a resumed run reuses the scores in `work/`.

    Raises:
        ConfigError: an unknown grader or a missing path.
        DataError: samples or rows that cannot be read; a category without pairs.
    """
    # -- grade every completion, propose the candidate pairs of every prompt
    tokenizer = renderer.tokenizer
    encoder = PairEncoder(renderer.template, encoder_of(tokenizer).arrays, special_ids(tokenizer))
    work = out / "work"
    pool = CandidatePool()
    with (out / "scores.jsonl").open("w", encoding="utf-8") as file:
        for number, samples in enumerate(recipe.samples):
            for prompt, grades in grade_samples(Path(samples), graders, work=work / f"{number}"):
                _propose_sampled(prompt, grades, pool, recipe, encoder)
                file.writelines(f"{json_text(row)}\n" for row in _score_rows(prompt, grades))
                on_progress("grading", pool.completions)
    offline = _propose_offline(recipe, encoder, pool, base_dir, on_progress)
    write_pairs(offline, work, "offline")

    # -- select over all candidates, so that shares and total hold
    if recipe.samples:
        summary = completions_line(pool.rates, overlong=pool.unused["overlong"])
    else:
        summary = _offline_line(pool)
    selection = select_pairs(pool.candidates, recipe, summary)

    # -- write the selected pairs with their ids
    shown: list[Pair] = []

    def keep_first_pairs() -> Iterator[Pair]:
        """Yield the selected pairs; those shown in the report are kept on the way."""
        written: Counter[str] = Counter()
        for pair in selected_pairs(recipe, selection.pairs, pool, encoder, work=work):
            written[pair.category] += 1
            if written[pair.category] <= SHOWN_PAIRS:
                shown.append(pair)
            on_progress("writing", written.total())
            yield pair

    files = write_pairs(keep_first_pairs(), out / "pairs", "train")
    assert sum(files.values()) == len(selection.pairs)
    return BuiltPairs(recipe, pool, selection, files, shown)


def _offline_line(pool: CandidatePool) -> str:
    """Line of the offline rows by drop reason, for the error if there are no pairs."""
    reasons = [
        f"{count:,} {reason} ({pool.examples.get(reason, 'no example')})"
        for reason, count in pool.unused.most_common()
    ]
    return f"{pool.offline_rows:,} rows: {'; '.join(reasons)}"


def _propose_sampled(
    prompt: Prompt,
    grades: Grades,
    pool: CandidatePool,
    recipe: BuildDpoConfig,
    encoder: PairEncoder,
) -> None:
    """Add the candidate pairs of one graded prompt to the pool, with the reasons of the unused."""
    encoded = encode_completions(prompt, [completion for completion, *_ in grades], encoder)
    summaries: list[GradedCompletion] = []
    encoded_by_index: dict[int, Encoded] = {}
    for (completion, score, detection), ids in zip(grades, encoded, strict=True):
        summaries.append(summarize_completion(completion, score, detection, ids))
        if ids is not None:
            encoded_by_index[completion.index] = ids

    def compare(a: GradedCompletion, b: GradedCompletion) -> float | None:
        """Distance of two completions; None if they have no common prompt."""
        encoded_a = encoded_by_index[a.index]
        encoded_b = encoded_by_index[b.index]
        # rendered from text, an answer without a trace has the prompt of thinking off
        if encoded_a.prompt_ids != encoded_b.prompt_ids:
            return None
        return distance(encoded_a.ids, encoded_b.ids)

    candidates = propose_pairs(pool.prompts, prompt, summaries, recipe, compare)
    pool.add(prompt, grades, candidates, right_at=recipe.right_at)
    if recipe.write_dropped:
        pool.dropped_rows += [
            {"prompt_id": prompt.id, "index": index, "reason": reason}
            for index, reason in sorted(candidates.unusable.items())
        ]


def _score_rows(prompt: Prompt, grades: Grades) -> Iterator[dict[str, Any]]:
    """Yield the rows of `scores.jsonl`: the score of each completion, and its tool calls."""
    for completion, score, detection in grades:
        calls = [
            {"form": call.form, "part": call.part, "kind": call.kind, "text": call.text}
            for call in detection.calls
        ]
        yield {
            "prompt_id": prompt.id,
            "index": completion.index,
            **asdict(score),
            "finish": completion.finish,
            "calls": calls,
        }


def _propose_offline(
    recipe: BuildDpoConfig,
    encoder: PairEncoder,
    pool: CandidatePool,
    base_dir: Path,
    on_progress: OnProgress,
) -> Iterator[Pair]:
    """Add the usable pairs of files to the pool, and yield them with their token ids."""
    accepted_ids: set[str] = set()
    for source in recipe.offline:
        counts = RowCounts()
        pairs = read_offline(source, encoder, base_dir=base_dir, seed=recipe.seed, counts=counts)
        for pair, rows in pairs:
            pool.offline_rows += rows
            on_progress("reading offline pairs", pool.offline_rows)
            dropped = why_dropped(pair, accepted_ids, recipe)
            if dropped is not None:
                pool.unused[dropped["reason"]] += rows
                if "file" in dropped:
                    example = f"{dropped['file']}:{dropped['line']}: {dropped['detail']}"
                    pool.examples.setdefault(dropped["reason"], example)
                if recipe.write_dropped:
                    pool.dropped_rows.append({"source": source.name, "rows": rows, **dropped})
                continue
            assert isinstance(pair, Pair)
            # an offline pair counts as a prompt of its own, after the sampled ones
            number = pool.prompts + len(accepted_ids)
            accepted_ids.add(pair.id)
            pool.candidates.append(offline_candidate(pair, number, rows, recipe.seed))
            yield pair
        pool.unread += [[source.name, name, *column] for name, column in counts.unread.items()]


def selected_pairs(
    recipe: BuildDpoConfig,
    pairs: Iterable[CandidatePair],
    pool: CandidatePool,
    encoder: PairEncoder,
    *,
    work: Path,
) -> Iterator[Pair]:
    """Yield the selected pairs with their ids and texts, in order of prompt.

    The samples are read a second time, since the pool holds no texts.
    """
    by_prompt: dict[int, list[CandidatePair]] = defaultdict(list)
    for pair in pairs:
        by_prompt[pair.prompt].append(pair)
    number = 0  # of the prompt, as it was counted when the candidates were proposed
    for samples in recipe.samples:
        for prompt, completions in read_groups(Path(samples)):
            if selected := by_prompt.get(number):
                yield from _encode_pairs(prompt, completions, selected, encoder)
            number += 1
    assert number == pool.prompts
    if recipe.offline:
        for pair in read_pairs(work, "offline"):
            if number in by_prompt:
                yield pair
            number += 1


def _encode_pairs(
    prompt: Prompt,
    completions: Sequence[Completion],
    pairs: Sequence[CandidatePair],
    encoder: PairEncoder,
) -> Iterator[Pair]:
    """Yield pairs of one prompt with ids and texts; only the completions in a pair are encoded."""
    paired_indices: set[int] = set()
    for pair in pairs:
        paired_indices.add(pair.chosen.index)
        paired_indices.add(pair.rejected.index)
    paired = [completion for completion in completions if completion.index in paired_indices]
    encoded_by_index: dict[int, Encoded] = {}
    text_by_index: dict[int, str] = {}
    for completion, ids in zip(paired, encode_completions(prompt, paired, encoder), strict=True):
        assert ids is not None, "a completion without ids is in no candidate pair"
        encoded_by_index[completion.index] = ids
        text_by_index[completion.index] = reading_text(completion)

    def make_side(graded: GradedCompletion) -> Side:
        encoded = encoded_by_index[graded.index]
        return Side(
            ids=encoded.ids,
            mask=encoded.mask,
            text=text_by_index[graded.index],
            index=graded.index,
            score=graded.score,
            calls=graded.calls,
            reasoning_tokens=graded.reasoning_tokens,
            answer_tokens=graded.answer_tokens,
        )

    for pair in pairs:
        prompt_ids = encoded_by_index[pair.chosen.index].prompt_ids
        assert prompt_ids == encoded_by_index[pair.rejected.index].prompt_ids
        indices = f"{pair.chosen.index}-{pair.rejected.index}"
        yield Pair(
            id=f"{prompt.id}/{_ID_PART[pair.category]}/{indices}",
            task=prompt.task,
            category=pair.category,
            thinking=pair.thinking,
            prompt_ids=prompt_ids,
            chosen=make_side(pair.chosen),
            rejected=make_side(pair.rejected),
            source=prompt.source,
        )


def write_side_files(
    built: BuiltPairs, out: Path, renderer: PromptRenderer
) -> dict[str, int | None]:
    """Write tokenizer, pairs to read and dropped rows. Returns all files with their rows."""
    files: dict[str, int | None] = {
        f"tokenizer/{name}": None for name in renderer.save(out / "tokenizer")
    }
    decode = encoder_of(renderer.tokenizer).decode
    rows = [
        {
            "id": pair.id,
            "category": pair.category,
            "thinking": pair.thinking,
            "prompt": decode(pair.prompt_ids),
            "chosen": pair.chosen.text,
            "rejected": pair.rejected.text,
            "chosen_score": pair.chosen.score,
            "rejected_score": pair.rejected.score,
            "chosen_calls": pair.chosen.calls,
            "rejected_calls": pair.rejected.calls,
        }
        for pair in built.shown
    ]
    files |= {f"pairs/{name}": count for name, count in built.files.items()}
    files["scores.jsonl"] = built.pool.completions
    files["samples.jsonl"] = write_jsonl(out / "samples.jsonl", rows)
    if built.recipe.write_dropped:
        files["dropped.jsonl"] = write_jsonl(out / "dropped.jsonl", built.pool.dropped_rows)
    return files
