"""The preference stage in three passes: grade and propose, choose, write.

Between the passes a few numbers a completion are held in memory, not its text.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_builders.pairs.candidates import CandidatePair, Selection, candidates_of, select
from data_builders.pairs.encode import Encoded, PairEncoder, distance, encode_completions
from data_builders.pairs.grading import (
    Graded,
    Grades,
    grade_samples,
    graded,
    read_groups,
    reading_text,
)
from data_builders.pairs.offline import offline_candidate, read_offline, why_dropped
from data_builders.pairs.shards import read_pairs, write_pairs
from data_builders.pairs.stats import (
    Proposed,
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
from posttrain.rollouts import Prompt
from posttrain.runs import Counts, Manifest
from posttrain.tokens.renderer import PromptRenderer, load_renderer
from posttrain.tokens.tokenizer import encoder_of, special_ids
from reward.graders.base import Grader

TO_READ = 24  # pairs of each category kept as text for the report
_SHORT: dict[Category, str] = {
    "no_tools": "right",
    "with_tools": "right",
    "hallucination_penalty": "call",
    "offline": "offline",
}
_OF_SAMPLE = ("index", "score", "calls", "reasoning_tokens", "answer_tokens")
OnProgress = Callable[[str, int], None]


@dataclass(frozen=True)
class BuiltPairs:
    """The data set: its shards with their pairs, and the first pairs of each category to read."""

    recipe: BuildDpoConfig
    proposed: Proposed
    selection: Selection
    files: Mapping[str, int]
    to_read: Sequence[Pair]

    def counts(self) -> Counts:
        """Completions and offline rows in, those in a pair kept, the others by reason."""
        used = len(used_completions(self.selection.pairs))
        offline = sum(pair.rows for pair in self.selection.pairs)
        rows = self.proposed.completions + self.proposed.offline_rows
        dropped = +Counter(self.proposed.unused)
        not_drawn = rows - used - offline - sum(dropped.values())
        return Counts(
            rows_in=rows,
            kept=used + offline,
            dropped=dict(sorted((dropped + Counter(not_drawn=not_drawn)).items())),
        )

    def stats(self) -> dict[str, Any]:
        """For the manifest."""
        pairs, proposed = self.selection.pairs, self.proposed
        dropped = proposed.pairs_dropped + Counter(self.selection.dropped)
        return {
            "pairs": pair_counts(pairs),
            "requested_shares": dict(self.recipe.categories),
            "limited_by": self.selection.limited_by,
            "rule": self.recipe.rule,
            "pair_counts": {
                "in": len(proposed.candidates) + sum(proposed.pairs_dropped.values()),
                "kept": len(pairs),
                "dropped": dict(sorted(dropped.items())),
            },
            "prompts": plain(proposed.outcomes),
            "samples": plain(proposed.rates),
            "lengths": lengths(pairs),
            "distances": distances(pairs),
            "unread": proposed.unread,
        }


def load_pair_renderer(recipe: BuildDpoConfig, parents: Sequence[Manifest]) -> PromptRenderer:
    """The tokenizer and template of the samples; the recipe's where there is none with them.

    Raises ConfigError: neither or both are there, two artifacts differ, a template reads a clock.
    """
    for (a, left), (b, right) in itertools.pairwise(zip(recipe.samples, parents, strict=True)):
        tokenizers = [parent.stats.get("tokenizer", {}).get("digest") for parent in (left, right)]
        if left.template_digest != right.template_digest or tokenizers[0] != tokenizers[1]:
            raise ConfigError(
                f"{a} and {b} were sampled with different templates or tokenizers: pair them apart"
            )
    own = Path(recipe.samples[0]) / "tokenizer" if recipe.samples else None
    if own is not None and own.is_dir():
        if recipe.tokenizer is not None:
            raise ConfigError(f"tokenizer: leave it out, {own} is that of the samples")
        made_by = parents[0].stats.get("sampler", {})
        variables = dict(made_by.get("template_variables", {}))
        config = TokenizerConfig(path=str(own), chat_template="own", template_variables=variables)
    elif recipe.tokenizer is None:
        raise ConfigError("tokenizer: is needed, a server made these samples and hid its own")
    else:
        config = recipe.tokenizer
    renderer = load_renderer(config)
    check_template(renderer.template)
    return renderer


def build_pairs(
    recipe: BuildDpoConfig,
    graders: Mapping[str, Grader],
    renderer: PromptRenderer,
    *,
    out: Path,
    base_dir: Path,
    on_progress: OnProgress,
) -> BuiltPairs:
    """Write `scores.jsonl` and `pairs/`; what is kept in `work/` is not done again.

    Raises:
        ConfigError: a grader or a path that is not there.
        DataError: samples or rows that cannot be read; a category without pairs.
    """
    # -- every completion graded, every prompt's candidate pairs
    tokenizer, work, proposed = renderer.tokenizer, out / "work", Proposed()
    encode = encoder_of(tokenizer).arrays
    encoder = PairEncoder(renderer.template, encode, special_ids(tokenizer))
    with (out / "scores.jsonl").open("w", encoding="utf-8") as file:
        for number, samples in enumerate(recipe.samples):
            for prompt, grades in grade_samples(Path(samples), graders, work=work / f"{number}"):
                _propose(prompt, grades, proposed, recipe, encoder)
                file.writelines(f"{json_text(row)}\n" for row in _score_rows(prompt, grades))
                on_progress("grading", proposed.completions)
    offline = _propose_offline(recipe, encoder, proposed, base_dir, on_progress)
    write_pairs(offline, work, "offline", shard_pairs=recipe.shard_pairs)

    # -- shares and totals over all of them
    sampled = completions_line(proposed.rates, overlong=proposed.unused["overlong"])
    if not recipe.samples:
        sampled = _offline_line(proposed)
    selection = select(proposed.candidates, recipe, sampled)

    # -- the chosen pairs, with their ids
    to_read: list[Pair] = []

    def noted() -> Iterator[Pair]:
        shown: Counter[str] = Counter()
        for pair in chosen_pairs(recipe, selection.pairs, proposed, encoder, work=work):
            shown[pair.category] += 1
            if shown[pair.category] <= TO_READ:
                to_read.append(pair)
            on_progress("writing", shown.total())
            yield pair

    files = write_pairs(noted(), out / "pairs", "train", shard_pairs=recipe.shard_pairs)
    assert sum(files.values()) == len(selection.pairs)
    return BuiltPairs(recipe, proposed, selection, files, to_read)


def _offline_line(proposed: Proposed) -> str:
    """What became of the rows, for the error where there are no pairs."""
    reasons = [
        f"{count:,} {reason} ({proposed.examples.get(reason, 'no example')})"
        for reason, count in proposed.unused.most_common()
    ]
    return f"{proposed.offline_rows:,} rows: {'; '.join(reasons)}"


def _propose(
    prompt: Prompt,
    grades: Grades,
    proposed: Proposed,
    recipe: BuildDpoConfig,
    encoder: PairEncoder,
) -> None:
    encoded = encode_completions(prompt, [completion for completion, *_ in grades], encoder)
    seen = [graded(*row, ids) for row, ids in zip(grades, encoded, strict=True)]
    known = {one.index: e for one, e in zip(seen, encoded, strict=True) if e is not None}

    def compare(a: Graded, b: Graded) -> float | None:
        left, right = known[a.index], known[b.index]
        # rendered from text, an answer without a trace has the prompt of thinking off
        return distance(left.ids, right.ids) if left.prompt_ids == right.prompt_ids else None

    found = candidates_of(proposed.prompts, prompt, seen, recipe, compare)
    proposed.add(prompt, grades, found, right_at=recipe.right_at)
    if recipe.write_dropped:
        proposed.dropped_rows += [
            {"prompt_id": prompt.id, "index": index, "reason": reason}
            for index, reason in sorted(found.unusable.items())
        ]


def _score_rows(prompt: Prompt, grades: Grades) -> Iterator[dict[str, Any]]:
    for completion, score, verdict in grades:
        yield {
            "prompt_id": prompt.id,
            "index": completion.index,
            **asdict(score),
            "finish": completion.finish,
            "calls": [
                {"form": c.form, "part": c.part, "kind": c.kind, "text": c.text}
                for c in verdict.calls
            ],
        }


def _propose_offline(
    recipe: BuildDpoConfig,
    encoder: PairEncoder,
    proposed: Proposed,
    base_dir: Path,
    on_progress: OnProgress,
) -> Iterator[Pair]:
    """The pairs that exist as text, encoded; those of them that can be used become candidates."""
    seen: set[str] = set()
    for source in recipe.offline:
        own = RowCounts()
        pairs = read_offline(source, encoder, base_dir=base_dir, seed=recipe.seed, counts=own)
        for found, rows in pairs:
            proposed.offline_rows += rows
            on_progress("reading offline pairs", proposed.offline_rows)
            dropped = why_dropped(found, seen, recipe)
            if dropped is not None:
                proposed.unused[dropped["reason"]] += rows
                if "file" in dropped:
                    place = f"{dropped['file']}:{dropped['line']}: {dropped['detail']}"
                    proposed.examples.setdefault(dropped["reason"], place)
                if recipe.write_dropped:
                    proposed.dropped_rows.append({"source": source.name, "rows": rows, **dropped})
                continue
            assert isinstance(found, Pair)
            number = proposed.prompts + len(seen)
            seen.add(found.id)
            proposed.candidates.append(offline_candidate(found, number, rows, recipe.seed))
            yield found
        proposed.unread += [[source.name, name, *column] for name, column in own.unread.items()]


def chosen_pairs(
    recipe: BuildDpoConfig,
    pairs: Iterable[CandidatePair],
    proposed: Proposed,
    encoder: PairEncoder,
    *,
    work: Path,
) -> Iterator[Pair]:
    """The selected pairs with their ids and texts, in order of prompt."""
    wanted: dict[int, list[CandidatePair]] = defaultdict(list)
    for pair in pairs:
        wanted[pair.prompt].append(pair)
    number = 0
    for samples in recipe.samples:
        for prompt, completions in read_groups(Path(samples)):
            picked = wanted.get(number, [])
            number += 1
            if not picked:
                continue
            used = {side.index for p in picked for side in (p.chosen, p.rejected)}
            some = [c for c in completions if c.index in used]
            encoded = encode_completions(prompt, some, encoder)
            sides = {c.index: (e, reading_text(c)) for c, e in zip(some, encoded, strict=True) if e}
            for p in picked:
                chosen, rejected = (_side(one, *sides[one.index]) for one in (p.chosen, p.rejected))
                prompt_ids = {sides[one.index][0].prompt_ids for one in (p.chosen, p.rejected)}
                assert len(prompt_ids) == 1, "samples of one prompt have one rendering"
                yield Pair(
                    id=f"{prompt.id}/{_SHORT[p.category]}/{p.chosen.index}-{p.rejected.index}",
                    task=prompt.task,
                    category=p.category,
                    thinking=p.thinking,
                    prompt_ids=prompt_ids.pop(),
                    chosen=chosen,
                    rejected=rejected,
                    source=prompt.source,
                )
    assert number == proposed.prompts
    for place, pair in enumerate(read_pairs(work, "offline") if recipe.offline else ()):
        if number + place in wanted:
            yield pair


def _side(graded: Graded, encoded: Encoded, text: str) -> Side:
    own = {name: getattr(graded, name) for name in _OF_SAMPLE}
    return Side(encoded.ids, encoded.mask, text, **own)


def write_beside_pairs(
    built: BuiltPairs, out: Path, renderer: PromptRenderer
) -> dict[str, int | None]:
    """Write the tokenizer, pairs to read and what was dropped; every file of rows with them."""
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
        for pair in built.to_read
    ]
    files |= {f"pairs/{name}": count for name, count in built.files.items()}
    files["scores.jsonl"] = built.proposed.completions
    files["samples.jsonl"] = write_jsonl(out / "samples.jsonl", rows)
    if built.recipe.write_dropped:
        files["dropped.jsonl"] = write_jsonl(out / "dropped.jsonl", built.proposed.dropped_rows)
    return files
