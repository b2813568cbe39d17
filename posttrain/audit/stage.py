"""The audit of a data set as a stage: read it, print its figures, keep them as an artifact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.audit.figures import Audit, audit_set
from posttrain.audit.limits import bounds, violations
from posttrain.audit.reader import SetReader, data_files
from posttrain.config.audit import AuditConfig
from posttrain.hashing import sha256_file
from posttrain.pages.supervision import ROWS, supervision
from posttrain.pages.write import ensure_report, write_report
from posttrain.records import json_text
from posttrain.report.console import open_console, print_sections
from posttrain.report.section import counted
from posttrain.runs import (
    MANIFEST,
    Counts,
    Parent,
    atomic_write_text,
    open_run,
    parent_of,
    read_artifact,
)
from posttrain.tokens.marks import marks_of
from posttrain.tokens.renderer import AuditTokens, audit_tokens

KIND = "audit"


def audit_data(recipe: AuditConfig) -> list[str]:
    """Print the figures of a data set and, with `out`, keep them; returns what crosses a limit."""
    console = open_console()
    tokens = audit_tokens(recipe, first=Path(recipe.data[0]))
    if recipe.out is None:
        return _show(console, recipe, *_audit(recipe, tokens))["violations"]
    out, parents, files = Path(recipe.out), list[Parent](), list[str]()
    for path in map(Path, recipe.data):
        if (path / MANIFEST).is_file():
            parents.append(parent_of(path, relative_to=out, manifest=read_artifact(path)))
        else:
            files += [sha256_file(file) for file, _ in data_files(path)]
    config = recipe.model_dump(mode="json", exclude={"out", "data"}) | {
        "data": [parent.digest for parent in parents] + files,
        "tokenizer_digest": tokens.encoder.digest,
    }
    with open_run(out, kind=KIND, config=config) as stage:
        if stage.complete:
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return list(read_artifact(out, verify=False).stats["violations"])
        reader, audit = _audit(recipe, tokens)
        stats = _show(console, recipe, reader, audit)
        rows = audit.worst.rows(tokens.encoder.decode)
        atomic_write_text(stage.path / ROWS, "".join(json_text(row) + "\n" for row in rows))
        dropped = sum(reader.dropped.values(), Counter[str]())
        rows_in = reader.rows_in.total()
        stage.finish(
            counts=Counts(rows_in, rows_in - dropped.total(), dict(sorted(dropped.items()))),
            files={ROWS: len(rows)},
            parents=parents,
            stats=stats,
        )
        console.print(f"{write_report(out)}")
        return stats["violations"]


def _audit(recipe: AuditConfig, tokens: AuditTokens) -> tuple[SetReader, Audit]:
    reader = SetReader([Path(p) for p in recipe.data], largest_id=tokens.largest_id)
    marks = marks_of(
        tokens.encoder.encode,
        special=tokens.special,
        stop_ids=tokens.stop_ids,
        pad_id=tokens.pad_id,
        template=tokens.template,
    )
    return reader, audit_set(reader, marks)


def _show(console: Console, recipe: AuditConfig, reader: SetReader, audit: Audit) -> dict[str, Any]:
    """Print the figures; returns the stats, with what crosses a limit as `violations`."""
    figures = {name: found.stats() for name, found in audit.figures.items()}
    limits = bounds(recipe.limits)
    print_sections(console, [supervision(figures, limits)])
    rows = {
        source: {"in": number, "dropped": dict(sorted(reader.dropped.get(source, {}).items()))}
        for source, number in reader.rows_in.items()
    }
    for source, own in rows.items():
        if own["dropped"]:
            console.print(f"{source}: of {own['in']:,} rows left out: {counted(own['dropped'])}")
    crossed = [
        f"source {source!r}: none of its {own['in']:,} rows could be audited"
        for source, own in rows.items()
        if source not in figures
    ]
    if not rows:
        crossed = ["nothing was audited: the data has no rows"]
    for name, found in figures.items():
        crossed += violations(name, found, recipe.limits)
    stats = {"rows": rows, "supervision": figures, "supervision_limits": limits}
    return stats | {"violations": crossed}
