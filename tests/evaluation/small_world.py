"""A tiny world of few rows."""

from __future__ import annotations

from pathlib import Path

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.write import write_world
from posttrain.chat import nemotron_3_nano_template
from posttrain.config.tiny_world import FamilyConfig, TinyTokenizerConfig, TinyWorldConfig
from posttrain.runs import Run


def make_world(out: Path) -> Path:
    """Write a `tiny_world` artifact with 40 training rows and 16 held-out prompts a family."""
    config = TinyWorldConfig(
        out=str(out),
        families={name: FamilyConfig(train=40, heldout=16) for name in FAMILIES},
        tokenizer=TinyTokenizerConfig(vocab_size=512),
    )
    stage = Run.open(out, kind="tiny_world", config=config.owner_config())
    write_world(stage, config, template=nemotron_3_nano_template())
    return out
