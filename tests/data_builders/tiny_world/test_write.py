from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.write import check_families, write_world
from posttrain.chat.template import nemotron_3_nano_template
from posttrain.config.load import load_recipe, validate
from posttrain.config.tiny_world import TinyWorldConfig
from posttrain.errors import ConfigError
from posttrain.runs import Run

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny" / "world.yaml"


def small(**families: dict) -> TinyWorldConfig:
    raw = {"out": "unused", "families": families, "tokenizer": {"vocab_size": 400}}
    return validate(raw, TinyWorldConfig, where="test")


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def rows(written: dict[str, bytes], name: str) -> list[dict]:
    return [json.loads(line) for line in written[name].splitlines()]


def test_the_same_config_gives_the_same_bytes_and_every_row_is_counted(tmp_path: Path) -> None:
    config = small(
        maths={"train": 50, "heldout": 200, "difficulties": [1]},
        recover={"train": 20, "heldout": 10},
        calendar={"train": 0, "heldout": 10},
    )
    one, two = (
        write_world(
            Run.open(tmp_path / name, kind="tiny_world", config=config.owner_config()),
            config,
            template=nemotron_3_nano_template(),
        )
        for name in ("one", "two")
    )
    written = files(tmp_path / "one")
    assert (one, written) == (two, files(tmp_path / "two"))
    sizes = {file.path: file.rows for file in one.files}
    assert {*sizes, "manifest.json", "stage.json"} == set(written)
    assert "train/calendar.jsonl" not in written
    assert one.counts.rows_in == 290
    # one-digit sums are few: some held-out draws must repeat
    assert one.counts.dropped["repeated_heldout"] > 0
    train = [row for name in ("maths", "recover") for row in rows(written, f"train/{name}.jsonl")]
    assert [row["metadata"]["family"] for row in train] == ["maths"] * 50 + ["recover"] * 20
    assert len({row["id"] for row in train}) == 70
    held_out = rows(written, "heldout/maths.jsonl")
    contents = {json.dumps([row["messages"], row["tools"]]) for row in held_out}
    assert len(contents) == len(held_out) == sizes["heldout/maths.jsonl"]


def test_the_recipe_generates_every_family_and_holds_some_out() -> None:
    config = load_recipe(RECIPE, TinyWorldConfig)
    check_families(config)
    assert set(config.families) == set(FAMILIES)
    untrained = {name for name, family in config.families.items() if not family.train}
    assert untrained == {"documents", "calendar"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("heldout_seed=1", "must differ"),
        ("families.maths.difficulties=[9]", "difficulties"),
        ("families.maths.tools_declared=1.5", "tools_declared"),
        ("tokenizer.vocab_size=12", "vocab_size"),
    ],
)
def test_a_wrong_recipe_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(RECIPE, TinyWorldConfig, [override])


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lookups'"):
        check_families(small(lookup={"train": 1, "heldout": 1}))
