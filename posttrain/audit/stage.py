"""Stage `audit`: identify and read a data set, compute its figures, write the artifact of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.audit.figures import Audit, audit_set
from posttrain.audit.limits import bounds, violations
from posttrain.audit.reader import SetReader, data_files
from posttrain.config.audit import AuditConfig
from posttrain.hashing import sha256_file
from posttrain.records import json_text
from posttrain.runs import (
    MANIFEST,
    Counts,
    Parent,
    Run,
    atomic_write_text,
    parent_of,
    read_artifact,
)
from posttrain.tokens.renderer import AuditTokens, audit_tokens
from posttrain.tokens.supervision import marks_of

KIND = "audit"
ROWS = "supervision.jsonl"


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """Inputs of an audit, with their identity.

    Attributes:
        parents: artifacts among the data.
        config: the recipe with its data by digest and without `out`, which names the audit.
    """

    recipe: AuditConfig
    tokens: AuditTokens
    parents: list[Parent]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditedData:
    """Results of an audit.

    Attributes:
        stats: figures of each source, limits and what crosses them, for the manifest.
    """

    reader: SetReader
    audit: Audit
    stats: dict[str, Any]


def load_inputs(recipe: AuditConfig) -> AuditInputs:
    """Load the tokenizer and identify the data. Without `out` the data is not hashed."""
    tokens = audit_tokens(recipe, first=Path(recipe.data[0]))
    parents: list[Parent] = []
    if recipe.out is None:
        return AuditInputs(recipe, tokens, parents, {})
    files: list[str] = []
    for path in map(Path, recipe.data):
        if (path / MANIFEST).is_file():
            manifest = read_artifact(path)
            parents.append(parent_of(path, relative_to=Path(recipe.out), manifest=manifest))
        else:
            files += [sha256_file(file) for file, _ in data_files(path)]
    config = recipe.model_dump(mode="json", exclude={"out", "data"}) | {
        "data": [parent.digest for parent in parents] + files,
        "tokenizer_digest": tokens.encoder.digest,
    }
    return AuditInputs(recipe, tokens, parents, config)


def audit_data(inputs: AuditInputs) -> AuditedData:
    """Read the whole data set and count what its masks teach."""
    recipe = inputs.recipe
    tokens = inputs.tokens
    reader = SetReader([Path(path) for path in recipe.data], largest_id=tokens.largest_id)
    marks = marks_of(
        tokens.encoder.encode,
        special=tokens.special,
        stop_ids=tokens.stop_ids,
        pad_id=tokens.pad_id,
        template=tokens.template,
    )
    audit = audit_set(reader, marks)
    return AuditedData(reader, audit, _stats(recipe, reader, audit))


def _stats(recipe: AuditConfig, reader: SetReader, audit: Audit) -> dict[str, Any]:
    """Stats of the manifest: rows, figures and limits by source, and the violations."""
    figures = {name: source.stats() for name, source in audit.figures.items()}
    rows: dict[str, dict[str, Any]] = {}
    for source, rows_in in reader.rows_in.items():
        dropped = dict(sorted(reader.dropped.get(source, {}).items()))
        rows[source] = {"in": rows_in, "dropped": dropped}
    crossed: list[str] = []
    for source, counts in rows.items():
        if source not in figures:
            crossed.append(f"source {source!r}: none of its {counts['in']:,} rows could be audited")
    if not rows:
        crossed = ["nothing was audited: the data has no rows"]
    for name, source_figures in figures.items():
        crossed += violations(name, source_figures, recipe.limits)
    return {
        "rows": rows,
        "supervision": figures,
        "supervision_limits": bounds(recipe.limits),
        "violations": crossed,
    }


def keep_audit(run: Run, inputs: AuditInputs, audited: AuditedData) -> None:
    """Write the worst sequences and the manifest."""
    rows = audited.audit.worst.rows(inputs.tokens.encoder.decode)
    atomic_write_text(run.path / ROWS, "".join(json_text(row) + "\n" for row in rows))
    reader = audited.reader
    dropped = sum(reader.dropped.values(), Counter[str]())
    rows_in = reader.rows_in.total()
    run.finish(
        counts=Counts(rows_in, rows_in - dropped.total(), dict(sorted(dropped.items()))),
        files={ROWS: len(rows)},
        parents=inputs.parents,
        stats=audited.stats,
    )
