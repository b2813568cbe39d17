"""The tiny world on disk: train/<family>.jsonl, heldout/<family>.jsonl and tokenizer/.

    write_world(config, Path("runs/tiny/world"))  → WrittenWorld(counts, files, stats)

Held-out prompts are unique: an item whose messages, tools and state were already drawn is dropped
as `repeated_heldout` and counted. Training rows may repeat, as in any sample of a finite world.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.items import (
    Choices,
    Split,
    family_items,
    heldout_row,
    message_of,
    training_row,
)
from data_builders.tiny_world.tokenizer import train_tokenizer, write_tokenizer
from posttrain.chat.template import ChatTemplate
from posttrain.config.load import nearest
from posttrain.config.tiny_world import TinyWorldConfig
from posttrain.errors import ConfigError
from posttrain.records import json_text, message_to_template
from posttrain.runs import Counts, atomic_write_text


@dataclass(frozen=True, slots=True)
class WrittenWorld:
    """What was written: the books, files with their rows, and what the manifest should state."""

    counts: Counts
    files: Mapping[str, int | None]
    stats: Mapping[str, Any]


def check_families(config: TinyWorldConfig) -> None:
    """Raises ConfigError for a family that does not exist, naming the nearest."""
    for name in config.families:
        if name not in FAMILIES:
            raise ConfigError(f"families.{name}: no such family{nearest(name, tuple(FAMILIES))}")


def choices_of(config: TinyWorldConfig, family: str) -> Choices:
    """The choices a recipe gives one family."""
    rows, words = config.families[family], config.verbosity
    return Choices(
        difficulties=rows.difficulties,
        verbosity=(words.terse, words.plain, words.chatty),
        tools_declared=rows.tools_declared,
        several_turns=rows.several_turns,
    )


def items_of(config: TinyWorldConfig, family: str, split: Split) -> Iterator[dict[str, Any]]:
    """A family's items of one split in order, repeats included."""
    choices, rows = choices_of(config, family), config.families[family]
    train = split == "train"
    seed, count = (config.seed, rows.train) if train else (config.heldout_seed, rows.heldout)
    items = family_items(seed=seed, split=split, family=family, choices=choices)
    return itertools.islice(items, count)


def _tokenizer_texts(config: TinyWorldConfig, template: ChatTemplate) -> Iterator[str]:
    for family in config.families:
        items = items_of(config, family, "train")
        for item in itertools.islice(items, config.tokenizer.rows_per_family):
            row = training_row(item)
            messages = [message_to_template(message_of(message)) for message in row["messages"]]
            yield template.text(messages, tools=row["tools"])


def _write_train(config: TinyWorldConfig, family: str, out: Path) -> int:
    lines = [json_text(training_row(item)) + "\n" for item in items_of(config, family, "train")]
    atomic_write_text(out / "train" / f"{family}.jsonl", "".join(lines))
    return len(lines)


def _write_heldout(config: TinyWorldConfig, family: str, out: Path) -> int:
    seen: set[str] = set()
    lines = []
    for item in items_of(config, family, "heldout"):
        row = heldout_row(item)
        content = json_text([row["messages"], row["tools"], item["metadata"]["initial_state"]])
        if content not in seen:
            seen.add(content)
            lines.append(json_text(row) + "\n")
    (out / "heldout").mkdir(parents=True, exist_ok=True)
    atomic_write_text(out / "heldout" / f"{family}.jsonl", "".join(lines))
    return len(lines)


def write_world(config: TinyWorldConfig, out: Path, *, template: ChatTemplate) -> WrittenWorld:
    """Write every file of the artifact but its manifest."""
    check_families(config)
    train = {
        family: _write_train(config, family, out)
        for family, rows in config.families.items()
        if rows.train
    }
    heldout = {
        family: _write_heldout(config, family, out)
        for family, rows in config.families.items()
        if rows.heldout
    }
    tokenizer = train_tokenizer(
        _tokenizer_texts(config, template),
        template=template,
        vocab_size=config.tokenizer.vocab_size,
    )
    names = write_tokenizer(tokenizer, out / "tokenizer", template=template)
    kept = sum(train.values()) + sum(heldout.values())
    requested = sum(rows.train + rows.heldout for rows in config.families.values())
    return WrittenWorld(
        counts=Counts(requested, kept, {"repeated_heldout": requested - kept}),
        files={
            **{f"train/{family}.jsonl": rows for family, rows in train.items()},
            **{f"heldout/{family}.jsonl": rows for family, rows in heldout.items()},
            **{f"tokenizer/{name}": None for name in names},
        },
        stats={
            "train_rows": train,
            "heldout_rows": heldout,
            "vocabulary": tokenizer.get_vocab_size(),
        },
    )
