"""A small tiny world, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.write import write_world
from posttrain.artifacts import StageDir
from posttrain.chat import nemotron_3_nano_template
from posttrain.config.tiny_world import FamilyConfig, TinyWorldConfig, TokenizerConfig


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """A `tiny_world` artifact with every family."""
    out = tmp_path_factory.mktemp("world")
    config = TinyWorldConfig(
        out=str(out),
        families={name: FamilyConfig(train=40, heldout=16) for name in FAMILIES},
        tokenizer=TokenizerConfig(vocab_size=512),
    )
    stage = StageDir.open(out, kind="tiny_world", config=config.owner_config())
    written = write_world(config, out, template=nemotron_3_nano_template())
    stage.finish(counts=written.counts, files=written.files, facts=written.facts)
    return out
