"""The checks of a DPO run before step 1, and alone under `--dry-run`. Each gives one line or stops.

tokens       ids 0…1023 of 1,024 rows; longest sequence 412 of 2,048 positions
stops        generation stops at [2], pads with 0
layout       shared_prompt: …; log-probabilities of a pair in its batch vs alone 2.1e-06
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from posttrain.artifacts import Manifest
from posttrain.errors import ConfigError, DataError
from posttrain.models.adapters import AdapterReach
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.dpo_collate import Batch, make_pair_collator
from posttrain.training.dpo_loss import Scored
from posttrain.training.packed_data import IGNORED
from posttrain.training.pair_data import SIDES, Pairs
from posttrain.training.preflight import (
    Preflight,
    adapter_lines,
    check_stops,
    embedding_rows,
    positions,
)

Score = Callable[[Batch], Scored]
PROBED_PAIRS = 3
# nats a token, in fp32 and in half precision
PROBE_LIMIT = {"float32": 1e-4}
PROBE_LIMIT_HALF = 5e-2


def check_same_template(data: Manifest, policy: Manifest | None) -> None:
    """Refuse pairs that were rendered by another chat template than the policy was trained with.

    Raises:
        ConfigError: both are known and differ.
    """
    theirs = policy.template_digest if policy is not None else None
    if theirs and data.template_digest and theirs != data.template_digest:
        raise ConfigError(
            f"the pairs were rendered with template {data.template_digest[:12]}, the policy was "
            f"trained with {theirs[:12]}; sample and build the pairs with the policy's template"
        )


def check_pairs(pairs: Pairs, *, rows: int, longest: int) -> str:
    """One line on ids and lengths.

    Args:
        rows: of the model's embedding.
        longest: sequence the model has positions for.

    Raises:
        DataError: ids outside the embedding, or a pair that is too long; by name.
    """
    smallest, largest = pairs.id_range
    if smallest < 0 or largest >= rows:
        raise DataError(
            f"ids {smallest}…{largest} in the pairs, the model's embedding has rows 0…{rows - 1}: "
            "they were made with another tokenizer"
        )
    at = int(np.argmax(pairs.longest))
    if pairs.longest[at] > longest:
        raise DataError(
            f"pair {pairs.ids[at]!r} has a sequence of {pairs.longest[at]} tokens, the model has "
            f"positions for {longest}; set max_length: {longest} in the recipe that builds the "
            "pairs"
        )
    room = f"of {longest:,} positions" if longest < 1 << 60 else "tokens"
    return (
        f"ids {smallest}…{largest} of {rows:,} rows; longest sequence {pairs.longest[at]:,} {room}"
    )


def run_preflight(
    *,
    model: PreTrainedModel,
    score: Score,
    pairs: Pairs,
    special: SpecialTokens,
    layout: str,
    reach: tuple[AdapterReach, ...],
    sharded: bool,
) -> Preflight:
    """All checks that need the model and the data.

    Args:
        score: log-probabilities of a collated batch under this model.
        sharded: parameters are already split over processes (ZeRO-3), so no forward is possible.

    Raises:
        ConfigError, DataError: from the first check that fails.
    """
    tokens = check_pairs(pairs, rows=embedding_rows(model), longest=positions(model))
    lines = [("tokens", tokens), ("stops", check_stops(model, special))]
    stats: dict[str, Any] = {"layout": layout}
    if sharded:
        lines.append(("probe", "not measured, the parameters are sharded"))
    else:
        apart = probe_layout(score, pairs, layout, special.pad_id)
        check_probe(apart, layout, str(model.dtype).removeprefix("torch."))
        lines.append(
            ("probe", f"{layout}: log-probability a token in its batch vs alone {apart:.1e}")
        )
        # an upper bound to one digit: the last bits differ between machines
        stats["batch_vs_alone"] = float(f"{apart:.0e}")
    lines += adapter_lines(model, reach)
    return Preflight(tuple(lines), stats)


def probe_layout(score: Score, pairs: Pairs, layout: str, pad_id: int) -> float:
    """Largest difference, a token, between pairs in the batch layout and each completion alone."""
    order = np.argsort(pairs.lengths, kind="stable")
    places = np.linspace(0, len(order) - 1, min(PROBED_PAIRS, len(order))).astype(int)
    probed = [pairs.data[int(row)] for row in order[places]]
    with torch.no_grad():
        together = score(make_pair_collator(layout, pad_id)(probed))
        alone = [[score(_alone(pair, side)).chosen[0] for side in SIDES] for pair in probed]
    tokens = torch.tensor([[sum(pair[f"{side}_mask"]) for side in SIDES] for pair in probed])
    sums = torch.stack([together.chosen, together.rejected], dim=1).cpu()
    return float(((sums - torch.tensor(alone)).abs() / tokens).max())


def _alone(pair: dict[str, Any], side: str) -> Batch:
    """One completion, nothing beside it, no padding, no mask; as if it were a chosen one."""
    prompt, ids = list(pair["prompt_ids"]), list(pair[f"{side}_ids"])
    labels = [i if m else IGNORED for i, m in zip(ids, pair[f"{side}_mask"], strict=True)]
    return {
        "input_ids": torch.tensor([prompt + ids]),
        "labels": torch.tensor([[IGNORED] * len(prompt) + labels]),
        "segment": torch.zeros(1, len(prompt) + len(ids), dtype=torch.long),
        "row": torch.tensor([pair["row"]]),
    }


def check_probe(apart: float, layout: str, dtype: str) -> None:
    """Refuse a layout in which tokens see what they should not.

    Raises:
        ConfigError: with the measured difference.
    """
    limit = PROBE_LIMIT.get(dtype, PROBE_LIMIT_HALF)
    if apart > limit:
        raise ConfigError(
            f"layout {layout} is not right for this model: log-probabilities in a batch differ by "
            f"{apart:.2g} nats a token from the same completion alone (limit {limit:g} in "
            f"{dtype}). Set layout: unpacked"
        )
