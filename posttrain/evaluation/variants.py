"""Accuracy on originals and on their variants, paired question by question.

Tasks of `posttrain synthesize` with `kind: twin` say in `metadata.variant_of` which question they
belong to, and in `metadata.arm` whether they are the original. A model that knows the answers by
heart solves the originals alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from posttrain.evaluation.run import Record
from posttrain.rollouts import metadata_of

Row = dict[str, Any]
Arms = dict[str, list[float]]  # arm → scores of a question
ORIGINAL = "original"
VARIANT = "variant"


def variant_rows(records: Sequence[Record]) -> list[Row]:
    """A row for each checkpoint, setting and mode that has both arms of at least two questions.

    Returns:
        Mean scores of both arms over the same questions, and `drop`, the mean of original minus
        variants, with the t interval of its pairs.
    """
    rows: list[Row] = []
    arms_of_cell: dict[tuple[str, str, str], dict[str, Arms]] = {}
    for record in records:
        metadata = metadata_of(record.prompt)
        if "variant_of" not in metadata or record.score.value is None:
            continue
        mode = "on" if record.prompt.thinking else "off"
        questions = arms_of_cell.setdefault((record.checkpoint, record.prompt.setting, mode), {})
        arms = questions.setdefault(metadata["variant_of"], {})
        arms.setdefault(metadata["arm"], []).append(record.score.value)
    for (checkpoint, setting, thinking), questions in arms_of_cell.items():
        originals: list[float] = []
        variants: list[float] = []
        for arms in questions.values():
            if {*arms} == {ORIGINAL, VARIANT}:
                originals.append(float(np.mean(arms[ORIGINAL])))
                variants.append(float(np.mean(arms[VARIANT])))
        if len(originals) < 2:  # one question has no variance
            continue
        drops = np.array(originals) - np.array(variants)
        drop = float(drops.mean())
        error = float(drops.std(ddof=1)) / math.sqrt(len(drops))
        half = float(special.stdtrit(len(drops) - 1, 0.975)) * error
        rows.append(
            {
                "checkpoint": checkpoint,
                "setting": setting,
                "thinking": thinking,
                "questions": len(drops),
                "original": float(np.mean(originals)),
                "variant": float(np.mean(variants)),
                "drop": {"value": drop, "low": drop - half, "high": drop + half},
            }
        )
    return rows
