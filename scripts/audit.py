"""What do a data set's loss masks teach? Figures of every source, limits, and the worst to read.

    python scripts/audit.py runs/tiny/sft_data
    python scripts/audit.py data/packed tokenizer.path=Qwen/Qwen3-0.6B tokenizer.revision=c1899de…
    python scripts/audit.py --config audit.yaml out=runs/audit limits.max_duplicated=0.1

Reads tokenised data: our artifacts, `datasets.save_to_disk`, Parquet and Arrow with `input_ids` and
`labels`, `completion_mask` or `assistant_masks`, packed or not. A crossed limit ends it with an
error, after everything is printed and, with `out`, written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from posttrain.artifacts import (
    MANIFEST,
    Counts,
    Parent,
    StageDir,
    atomic_write_text,
    parent_of,
    read_artifact,
    sha256_file,
)
from posttrain.audit.figures import violations
from posttrain.audit.marks import marks_of
from posttrain.audit.run import Audit, audit_set
from posttrain.audit.sets import SetReader, data_files
from posttrain.audit.tables import print_supervision
from posttrain.claim import claimed, run_command
from posttrain.config.audit import AuditConfig
from posttrain.config.load import apply_overrides, read_recipe, validate
from posttrain.errors import DataError
from posttrain.models.chat_template import AuditTokens, audit_tokens
from posttrain.records import json_text
from posttrain.report import ensure_report, write_report
from posttrain.report.supervision import ROWS

KIND = "audit"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Audit the loss masks of tokenised data.")
    parser.add_argument("--config", help="a recipe, a YAML file; its keys may also be given here")
    parser.add_argument(
        "arguments", nargs="*", metavar="PATH | key.path=value", help="data, and keys of the recipe"
    )
    recipe = _recipe(parser.parse_intermixed_args(arguments))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    tokens = audit_tokens(recipe, first=Path(recipe.data[0]))
    if recipe.out is None:
        crossed = _show(console, recipe, *_audit(recipe, tokens))
    else:
        crossed = _keep(console, recipe, tokens, Path(recipe.out))
    if crossed:
        raise DataError("\n  ".join(["limits were crossed:", *crossed]))


def _recipe(options: argparse.Namespace) -> AuditConfig:
    """The recipe file, the paths laid over its `data`, the overrides over everything."""
    raw = read_recipe(options.config) if options.config else {}
    given = [a for a in options.arguments if "=" not in a]
    if given:
        raw["data"] = given
    keys = [a for a in options.arguments if "=" in a]
    where = options.config or "scripts/audit.py"
    return validate(apply_overrides(raw, keys), AuditConfig, where=where)


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


def _show(console: Console, recipe: AuditConfig, reader: SetReader, audit: Audit) -> list[str]:
    """Print the figures; returns what crosses a limit."""
    figures = {name: found.stats() for name, found in audit.figures.items()}
    print_supervision(console, figures)
    for source, reasons in reader.dropped.items():
        lost = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
        console.print(f"{source}: of {reader.rows_in[source]:,} rows left out: {lost}")
    return [line for name, f in figures.items() for line in violations(name, f, recipe.limits)]


def _keep(console: Console, recipe: AuditConfig, tokens: AuditTokens, out: Path) -> list[str]:
    """The audit as an artifact with a report; returns what crosses a limit."""
    parents, files = _inputs(recipe, out)
    config = recipe.model_dump(mode="json", exclude={"out", "data"}) | {
        "data": [parent.digest for parent in parents] + [digest for _, digest in files],
        "tokenizer_digest": tokens.encoder.digest,
    }
    with claimed(out, kind=KIND, config=config) as stage:
        if stage.complete:
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do")
            return list(read_artifact(out, verify=False).stats["violations"])
        reader, audit = _audit(recipe, tokens)
        crossed = _show(console, recipe, reader, audit)
        _finish(stage, reader, audit, tokens, crossed, parents)
        console.print(f"{write_report(out)}")
        return crossed


def _inputs(recipe: AuditConfig, out: Path) -> tuple[list[Parent], list[tuple[str, str]]]:
    """The artifacts that are looked at, verified; the other files with their hashes."""
    parents: list[Parent] = []
    files: list[tuple[str, str]] = []
    for path in map(Path, recipe.data):
        if (path / MANIFEST).is_file():
            parents.append(parent_of(path, relative_to=out, manifest=read_artifact(path)))
        else:
            files += [(file.name, sha256_file(file)) for file, _ in data_files(path)]
    return parents, files


def _finish(
    stage: StageDir,
    reader: SetReader,
    audit: Audit,
    tokens: AuditTokens,
    crossed: list[str],
    parents: list[Parent],
) -> None:
    rows = audit.worst.rows(tokens.encoder.decode)
    atomic_write_text(stage.path / ROWS, "".join(json_text(row) + "\n" for row in rows))
    dropped = {s: dict(sorted(reasons.items())) for s, reasons in reader.dropped.items()}
    reasons = sorted({reason for own in dropped.values() for reason in own})
    total = {reason: sum(own.get(reason, 0) for own in dropped.values()) for reason in reasons}
    rows_in = reader.rows_in.total()
    stage.finish(
        counts=Counts(rows_in, rows_in - sum(total.values()), total),
        files={ROWS: len(rows)},
        parents=parents,
        stats={
            "rows": {
                source: {"in": number, "dropped": dropped.get(source, {})}
                for source, number in reader.rows_in.items()
            },
            "supervision": {name: found.stats() for name, found in audit.figures.items()},
            "violations": crossed,
        },
    )


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
