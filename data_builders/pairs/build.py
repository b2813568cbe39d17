"""The preference stage in three passes: grade and propose, choose, write.

    proposed = propose_sampled(samples, …)      every prompt's candidates, completions left on disk
    selection = select(proposed.candidates, …)  shares and totals over all of them
    write_sampled(selection, …)                 the samples again, now only the chosen ones

What is held in memory is a few numbers a completion, not its text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_builders.pairs.candidates import Candidate, Rules, candidates_of
from data_builders.pairs.encode import Encoded, Encoder, distance, encode_completions
from data_builders.pairs.grading import (
    Asked,
    Graded,
    grade_samples,
    graded,
    read_groups,
    reading_text,
)
from data_builders.pairs.shards import read_pairs
from data_builders.pairs.stats import Books
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.pairs import Category, Pair, Side
from posttrain.records import json_text
from reward.graders.base import Grader

Progress = Callable[[str, int], None]


@dataclass
class Proposed:
    """Every candidate pair, with the books so far."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    books: Books = field(default_factory=Books)
    prompts: int = 0
    offline_rows: int = 0
    dropped_rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def rules_of(recipe: BuildDpoConfig) -> Rules:
    """What of the recipe decides a prompt's pairs."""
    return Rules(
        categories=frozenset(recipe.categories),
        rule=recipe.rule,
        pairs_per_prompt=recipe.pairs_per_prompt,
        right_at=recipe.right_at,
        minimum_distance=recipe.minimum_distance,
        max_length=recipe.max_length,
        seed=recipe.seed,
    )


def propose_sampled(
    recipe: BuildDpoConfig,
    graders: Mapping[str, Grader],
    encoder: Encoder,
    *,
    out: Path,
    work: Path,
    progress: Progress,
) -> Proposed:
    """Grade every completion, write `scores.jsonl`, and collect each prompt's candidates."""
    proposed, rules = Proposed(), rules_of(recipe)
    with (out / "scores.jsonl").open("w", encoding="utf-8") as scores:
        for number, samples in enumerate(recipe.samples):
            asked_all = grade_samples(
                Path(samples), graders, work=work / f"{number}", first=proposed.prompts
            )
            for asked in asked_all:
                proposed.prompts += 1
                _propose(asked, proposed, rules, encoder, keep_dropped=recipe.write_dropped)
                scores.writelines(f"{json_text(row)}\n" for row in _score_rows(asked))
                progress("grading", proposed.books.completions)
    return proposed


def _propose(
    asked: Asked, proposed: Proposed, rules: Rules, encoder: Encoder, *, keep_dropped: bool
) -> None:
    encoded = encode_completions(asked.prompt, asked.completions, encoder)
    seen = [
        graded(completion, ids, score, verdict)
        for completion, ids, score, verdict in zip(
            asked.completions, encoded, asked.scores, asked.verdicts, strict=True
        )
    ]
    by_index = {c.index: ids for c, ids in zip(asked.completions, encoded, strict=True)}

    def compare(a: Graded, b: Graded) -> float:
        left, right = by_index[a.index], by_index[b.index]
        assert left is not None
        assert right is not None
        return distance(left, right)

    found = candidates_of(asked.number, asked.prompt, seen, rules, compare)
    proposed.candidates += found.pairs
    proposed.books.see(asked, found, right_at=rules.right_at)
    if keep_dropped:
        proposed.dropped_rows += [
            {"prompt_id": asked.prompt.id, "index": index, "reason": reason}
            for index, reason in sorted(found.unusable.items())
        ]


def _score_rows(asked: Asked) -> Iterator[dict[str, Any]]:
    for completion, score, verdict in zip(
        asked.completions, asked.scores, asked.verdicts, strict=True
    ):
        yield {
            "prompt_id": asked.prompt.id,
            "index": completion.index,
            "value": score.value,
            "answer": score.answer,
            "explanation": score.explanation,
            "finish": completion.finish,
            "calls": [
                {"form": c.form, "part": c.part, "kind": c.kind, "text": c.text}
                for c in verdict.calls
            ],
        }


def chosen_pairs(
    recipe: BuildDpoConfig,
    pairs: Iterable[Candidate],
    proposed: Proposed,
    encoder: Encoder,
    *,
    work: Path,
) -> Iterator[Pair]:
    """The selected pairs with their ids and texts, in order of prompt."""
    wanted: dict[int, list[Candidate]] = defaultdict(list)
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
            ids = dict(zip((c.index for c in some), encode_completions(prompt, some, encoder),
                           strict=True))  # fmt: skip
            texts = {c.index: reading_text(c) for c in some}
            for p in picked:
                yield _sampled_pair(p, prompt.id, prompt.task, prompt.source, ids, texts)
    assert number == proposed.prompts
    for place, pair in enumerate(read_pairs(work, "offline") if recipe.offline else ()):
        if number + place in wanted:
            yield pair


def _sampled_pair(
    pair: Candidate,
    prompt_id: str,
    task: str,
    source: str,
    ids: Mapping[int, Encoded | None],
    texts: Mapping[int, str],
) -> Pair:
    chosen, rejected = ids[pair.chosen.index], ids[pair.rejected.index]
    assert chosen is not None
    assert rejected is not None
    assert chosen.prompt_ids == rejected.prompt_ids, "samples of one prompt have one rendering"
    return Pair(
        id=f"{prompt_id}/{_SHORT[pair.category]}/{pair.chosen.index}-{pair.rejected.index}",
        task=task,
        category=pair.category,
        thinking=pair.thinking,
        prompt_ids=chosen.prompt_ids,
        chosen=_side(pair.chosen, chosen, texts),
        rejected=_side(pair.rejected, rejected, texts),
        source=source,
    )


_SHORT: dict[Category, str] = {
    "no_tools": "right",
    "with_tools": "right",
    "hallucination_penalty": "call",
    "offline": "offline",
}


def _side(graded: Graded, encoded: Encoded, texts: Mapping[int, str]) -> Side:
    return Side(
        ids=encoded.ids,
        mask=encoded.mask,
        text=texts[graded.index],
        index=graded.index,
        score=graded.score,
        calls=graded.calls,
        reasoning_tokens=graded.reasoning_tokens,
        answer_tokens=graded.answer_tokens,
    )


def sample_rows(
    pairs: Sequence[Pair], decode: Callable[[Sequence[int]], str]
) -> list[dict[str, Any]]:
    """Pairs to read, as rows of `samples.jsonl`."""
    return [
        {
            "id": pair.id,
            "category": pair.category,
            "thinking": pair.thinking,
            "prompt": decode(pair.prompt_ids),
            "chosen": pair.chosen.text,
            "rejected": pair.rejected.text,
            "chosen_score": pair.chosen.score,
            "rejected_score": pair.rejected.score,
            "rejected_calls": pair.rejected.calls,
        }
        for pair in pairs
    ]
