from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from transformers import AutoTokenizer

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.items import message_of
from data_builders.tiny_world.write import END, PAD, TAGS, check_families, tool_frame, write_world
from posttrain.chat.template import nemotron_3_nano_template
from posttrain.config.load import load_recipe, validate
from posttrain.config.tiny_world import TinyWorldConfig
from posttrain.errors import ConfigError
from posttrain.records import message_to_template
from posttrain.runs import Manifest, Run

TEMPLATE = nemotron_3_nano_template()
RECIPE = Path(__file__).parents[3] / "recipes" / "tiny" / "world.yaml"


def small(**families: dict) -> TinyWorldConfig:
    return validate({"out": "unused", "families": families}, TinyWorldConfig, where="test")


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def rows(written: dict[str, bytes], name: str) -> list[dict]:
    return [json.loads(line) for line in written[name].splitlines()]


def write(folder: Path) -> Manifest:
    config = small(
        maths={"train": 50, "heldout": 200, "difficulties": [1]},
        recover={"train": 20, "heldout": 10},
        calendar={"train": 0, "heldout": 10},
    )
    run = Run.open(folder, kind="tiny_world", config=config.owner_config())
    # seventy rows do not fill the vocabulary of the real world
    with patch("data_builders.tiny_world.write.VOCAB_SIZE", 400):
        return write_world(run, config, template=TEMPLATE)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("world") / "one"
    return folder, write(folder)


def test_the_same_config_gives_the_same_bytes_and_every_row_is_counted(
    world: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, one = world
    written = files(folder)
    assert (one, written) == (write(tmp_path / "two"), files(tmp_path / "two"))
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


def test_its_tokenizer_is_exact_and_parts_digits_tags_and_the_frame_of_tools(world) -> None:
    loaded = AutoTokenizer.from_pretrained(world[0] / "tokenizer")
    assert (loaded.eos_token, loaded.pad_token, len(loaded)) == (END, PAD, 400)
    row = json.loads((world[0] / "train" / "recover.jsonl").read_text().splitlines()[0])
    messages = [message_to_template(message_of(message)) for message in row["messages"]]
    text = loaded.apply_chat_template(messages, tools=row["tools"], tokenize=False)
    assert text == TEMPLATE.text(messages, tools=row["tools"])
    tokenizer = loaded.backend_tokenizer
    for said in (text, "", "naïve 漢字 🙂", "a\x00b\ud7ff", "\n\n  \t", "<think", "</thinking>"):
        ids = tokenizer.encode(said, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == said
    assert len(tokenizer.encode("3456789", add_special_tokens=False).ids) == 7
    before, after = tool_frame(TEMPLATE)
    assert (before[:7], after[-12:]) == ("# Tools", "</IMPORTANT>")
    for token in (*TAGS, END, PAD, before, after):
        assert tokenizer.encode(token, add_special_tokens=False).tokens == [token]


def test_the_recipe_generates_every_family_and_holds_some_out() -> None:
    config = load_recipe(RECIPE, TinyWorldConfig)
    check_families(config)
    assert set(config.families) == set(FAMILIES)
    untrained = {name for name, family in config.families.items() if not family.train}
    assert untrained == {"documents", "calendar"}


def test_seeds_that_are_alike_and_unknown_families_are_refused() -> None:
    with pytest.raises(ConfigError, match="must differ"):
        load_recipe(RECIPE, TinyWorldConfig, ["heldout_seed=1"])
    with pytest.raises(ConfigError, match="did you mean 'lookups'"):
        check_families(small(lookup={"train": 1, "heldout": 1}))
