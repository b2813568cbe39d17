"""Pairs that came as text: encoded, spooled and proposed beside the sampled ones.

    propose_given(recipe, encoder, proposed, …)   adds Candidate("offline", …) and counts what drops

The spool keeps the ids, so that nothing is rendered twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_builders.keyed import key64
from data_builders.preferences.build import Progress, Proposed, rules_of
from data_builders.preferences.candidates import Candidate, Rules
from data_builders.preferences.encoded import Encoder, distance
from data_builders.preferences.graded import Graded
from data_builders.preferences.offline import OfflinePair, read_offline
from data_builders.preferences.write import PairWriter
from data_builders.rows.raw import Dropped
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.pairs import Pair, Side


def propose_offline(
    recipe: BuildDpoConfig,
    encoder: Encoder,
    proposed: Proposed,
    *,
    work: Path,
    base_dir: Path,
    progress: Progress,
) -> None:
    """Encode pairs that came as text, spool them, and add their candidates."""
    seen: set[str] = set()
    rules, spooled = rules_of(recipe), 0
    with PairWriter(work, "offline", shard_pairs=recipe.shard_pairs) as spool:
        for source in recipe.offline:
            for found in read_offline(source, encoder, base_dir=base_dir):
                proposed.offline_rows += 1
                progress("reading offline pairs", proposed.offline_rows)
                reason = _refuse(found, seen, rules)
                if reason is not None:
                    proposed.books.unused[reason] += 1
                    if recipe.write_dropped:
                        proposed.dropped_rows.append(_dropped_row(source.name, found, reason))
                    continue
                assert isinstance(found, OfflinePair)
                seen.add(found.id)
                spool.add(offline_pair(found))
                proposed.candidates.append(
                    _offline_candidate(found, proposed.prompts + spooled, rules.seed)
                )
                spooled += 1


def _refuse(found: OfflinePair | Dropped, seen: set[str], rules: Rules) -> str | None:
    if isinstance(found, Dropped):
        return found.reason
    if found.id in seen:
        return "duplicate"
    longest = max(found.chosen.tokens, found.rejected.tokens)
    if rules.max_length is not None and longest > rules.max_length:
        return "overlong"
    if found.chosen.ids == found.rejected.ids:
        return "identical"
    near = distance(found.chosen, found.rejected) < rules.minimum_distance
    return "nearly_identical" if near else None


def _dropped_row(source: str, found: OfflinePair | Dropped, reason: str) -> dict[str, Any]:
    if isinstance(found, Dropped):
        place = {"file": Path(found.file).name, "line": found.line, "detail": found.detail}
        return {"source": source, "reason": reason, **place}
    return {"source": source, "reason": reason, "id": found.id}


def _offline_candidate(found: OfflinePair, number: int, seed: int) -> Candidate:
    sides = [
        Graded(-1, None, 0, "stop", sum(e.mask), e.tokens, 0, 0, "", "")
        for e in (found.chosen, found.rejected)
    ]
    return Candidate(
        prompt=number,
        key=key64(seed, "pair given", found.id),
        thinking=found.thinking,
        category="offline",
        rank=0,
        chosen=sides[0],
        rejected=sides[1],
        distance=distance(found.chosen, found.rejected),
    )


def offline_pair(found: OfflinePair) -> Pair:
    chosen, rejected = found.chosen, found.rejected
    return Pair(
        id=found.id,
        task=found.id,
        category="offline",
        thinking=found.thinking,
        prompt_ids=chosen.prompt_ids,
        chosen=Side(chosen.ids, chosen.mask, found.chosen_text),
        rejected=Side(rejected.ids, rejected.mask, found.rejected_text),
        source=found.source,
    )
