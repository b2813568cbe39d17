"""A file of damaged rows of one dialect, read and prepared row by row, with what must hold of each.

run("alpaca", folder, rows=100, preparer=preparer)  →  Run(outcomes=Counter(…), slowest=…)
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_builders.rows.raw import Drop
from data_builders.rows.read import RowCounts, read_examples
from data_builders.sft.prepare import Preparer, prepare
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.source import SourceConfig
from posttrain.errors import DataError
from posttrain.records import Example, message_from_row, message_to_row
from posttrain.tokens.renderer import load_data_renderer
from tests.data_builders.rows.mutations import ROWS, mutated
from tests.data_builders.small_build import build, manifest, write_tokenizer

# reasons for which a row could not be read; `strict` stops at the first of them
UNREADABLE = {
    "malformed_json", "unrecognised", "unknown_role", "malformed_message", "untrained_turn",
    "malformed_row", "unsupported_content", "conflicting_reasoning", "malformed_tool_call",
    "malformed_arguments", "malformed_tools", "malformed_metadata", "unread_column",
}  # fmt: skip
# where in a row: a field by name, a message by number; in text that is no JSON, a place in it
_NAMED = re.compile(r"messages?\b|conversations?\b|history|instruction|input|output|prompt|completion"
                    r"|chosen|rejected|tools|functions?|system|reasoning|content|metadata|license"
                    r"|label|images?|videos?|audios?|response|the row|the answer|turn \d|call of")  # fmt: skip
_PLACED = re.compile(r"char \d|at byte \d|key '|column \d|a row is an|nested too deep|digits"
                     r"|is not JSON|beyond the range|array needs")  # fmt: skip


@dataclass
class Run:
    """Outcomes by (mutation, reason or "kept"); the row that took longest, in CPU seconds."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    slowest: tuple[float, str, int] = (0.0, "", 0)
    nameless: list[str] = field(default_factory=list[str])
    sequences: int = 0
    lines: int = 0


def write_mutated(dialect: str, path: Path, rows: int, *, big: int = 0) -> list[str]:
    """Write a file of damaged rows; `big` of them hold 5 MB. Returns what was done to each."""
    every = rows // big if big else 0
    done: list[str] = []
    with path.open("wb") as file:
        for seed in range(rows):
            name, line = mutated(dialect, seed, big=bool(every) and seed % every == every - 1)
            assert line.count(b"\n") == 1
            assert line.strip()
            file.write(line)
            done.append(name)
    return done


def _labels(dialect: str) -> tuple[str, ...]:
    """A field that no row has is a mistake of the recipe."""
    return ("label",) if any("label" in row for row in ROWS[dialect]) else ()


def run(
    dialect: str, folder: Path, *, rows: int, big: int = 0, preparer: Preparer, named: bool = False
) -> Run:
    """Read and prepare a file of damaged rows and assert what must hold of each and of all."""
    path = folder / f"{dialect}.jsonl"
    done = write_mutated(dialect, path, rows, big=big)
    found = Run(lines=rows)
    report = RowCounts()
    config = SourceConfig(name=dialect, path=path.name, metadata=_labels(dialect))
    if named:  # recognition by structure is forbidden
        config = config.model_copy(update={"dialect": dialect})
    outcomes: list[tuple[str, str]] = []
    for line, (item, seconds) in enumerate(_timed(config, folder, report), start=1):
        started = time.process_time()
        reason, detail = _outcome(item, line, path.name, preparer, found)
        seconds += time.process_time() - started
        found.outcomes[done[line - 1], reason] += 1
        found.slowest = max(found.slowest, (seconds, done[line - 1], line))
        outcomes.append((reason, detail))
        placed = _NAMED.search(detail) or (reason == "malformed_json" and _PLACED.search(detail))
        if reason != "kept" and not placed:
            found.nameless.append(f"{reason}: {detail}")
    assert report.rows_in == rows == report.kept + report.dropped.total() == len(outcomes)
    _check_strict(config, folder, outcomes)
    return found


def _timed(
    config: SourceConfig, folder: Path, report: RowCounts
) -> Iterator[tuple[Example | Drop, float]]:
    rows = read_examples(config, folder, counts=report)
    while True:
        started = time.process_time()
        item = next(rows, None)
        if item is None:
            return
        yield item, time.process_time() - started


def _outcome(
    item: Example | Drop, line: int, name: str, preparer: Preparer, found: Run
) -> tuple[str, str]:
    """The reason and detail of a row's drop, ("kept", "") of a record that became sequences."""
    if isinstance(item, Drop):
        assert (item.file, item.line) == (name, line)
        assert item.reason.isidentifier()
        assert item.detail.encode("utf-8")
        return item.reason, item.detail
    assert item.messages[-1].role == "assistant"
    rows = json.loads(json.dumps([message_to_row(message) for message in item.messages]))
    assert tuple(map(message_from_row, rows)) == item.messages
    (prepared,) = prepare([item], preparer)
    found.sequences += len(prepared.sequences)
    if prepared.drop is not None:
        assert not prepared.sequences
        return prepared.drop.reason, prepared.drop.detail
    for sequence in prepared.sequences:
        assert 0 < sequence.tokens.trained <= len(sequence.tokens.ids) <= CAPACITY
    return "kept", ""


def _check_strict(config: SourceConfig, folder: Path, outcomes: list[tuple[str, str]]) -> None:
    """`strict` stops at the first row that cannot be read, and says where it stands and why."""
    strict = config.model_copy(update={"strict": True})
    rows = read_examples(strict, folder)
    for line, (reason, detail) in enumerate(outcomes, start=1):
        if reason in UNREADABLE:
            with pytest.raises(DataError) as error:
                next(rows)
            assert str(error.value) == f"{config.path}:{line}: {reason}: {detail}"
            return
        next(rows)


CAPACITY = 4096


def preparer_for(folder: Path) -> Preparer:
    """What renders and tokenises, with reasoning control switched well up."""
    recipe = BuildSftConfig.model_validate(_recipe(folder, []))
    renderer = load_data_renderer(recipe.tokenizer)
    return Preparer(recipe, recipe.sources[0], renderer)


def _recipe(folder: Path, dialects: list[str]) -> dict[str, Any]:
    found = [
        {"name": d, "path": str(folder / f"{d}.jsonl"), "metadata": _labels(d)} for d in dialects
    ]
    return {
        "out": str(folder / "out"),
        "tokenizer": {
            "path": str(write_tokenizer(folder / "tokenizer")),
            "chat_template": "nemotron_3_nano",
        },
        "packing": {"max_length": CAPACITY},
        "reasoning": {"strip": 0.2, "truncate": 0.5, "budgets": {"kind": "log_uniform", "low": 1}},
        "sources": tuple(found or [{"name": "none", "path": "none.jsonl"}]),
        "limits": {
            "nothing_trained": 1.0, "overlong": 1.0, "render_error": 1.0, "min_end_trained": None,
            "max_turn_tokens": None, "max_prompt_trained": None,
        },
        "write_dropped": True,
    }  # fmt: skip


def build_all(folder: Path, runs: Mapping[str, Run], *, workers: int = 2) -> dict[str, Any]:
    """Build the files of all runs into one data set; every row is kept or dropped as it was alone."""
    recipe = _recipe(folder, list(runs)) | {"workers": workers}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    build(path, part_bytes=200_000)
    body = manifest(folder / "out")
    counts, lines = body["counts"], (folder / "out" / "dropped.jsonl").read_text("utf-8")
    assert counts["in"] == sum(r.lines for r in runs.values())
    assert counts["in"] == counts["kept"] + sum(counts["dropped"].values())
    rows = [json.loads(line) for line in lines.splitlines()]
    written = Counter((row["source"], row["reason"]) for row in rows)
    alone = Counter[tuple[str, str]]()
    for dialect, found in runs.items():
        for (_, reason), count in found.outcomes.items():
            if reason != "kept":
                alone[dialect, reason] += count
    assert written == alone
    return body
