"""What a build refuses and a dry run says beforehand, each with what to do about it."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_builders.sft import preflight
from data_builders.sft.preflight import check_probe, first_texts, probe_source
from data_builders.sft.prepare import Preparer
from posttrain.chat import nemotron_3_nano_template
from posttrain.chat.template import trl_templates
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.errors import ConfigError, DataError
from posttrain.tokens.renderer import load_data_renderer
from posttrain.tokens.supervision import NO_MARKS
from tests.data_builders.small_build import (
    TOOL,
    build,
    dropped_lines,
    index,
    manifest,
    plain_rows,
    source_of,
    write_recipe,
    write_tokenizer,
)

CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "lookup", "arguments": '{"item": "pear"}'},
}
BESIDE = {
    "messages": [
        {"role": "user", "content": "How much?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call00000", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ],
    "tools": [TOOL],
}
THOUGHT = {
    "messages": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "two and two"},
    ]
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GPT_OSS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
PLAIN = plain_rows(30)
EMPTY = [{**row, "output": ""} if k > 20 else row for k, row in enumerate(PLAIN)]
LONG = [{**row, "output": " ".join(map(str, range(900)))} if k > 9 else row
        for k, row in enumerate(PLAIN)]  # fmt: skip


def recipe_of(folder: Path, rows: list[dict], **keys: Any) -> Path:
    """One source of these rows; `source` adds keys to it."""
    source = source_of(folder, rows, **keys.pop("source", {}))
    return write_recipe(folder, sources=[source], **{"held_out": {"rate": 0.0}, **keys})


def templated(folder: Path, source: str) -> dict[str, str]:
    """A tokenizer with this template."""
    (folder / "own.jinja").write_text(source)
    path = str(write_tokenizer(folder / "tokenizer"))
    return {"path": path, "chat_template": str(folder / "own.jinja")}


@pytest.mark.parametrize(
    ("rows", "keys", "pattern"),
    [
        (PLAIN, {"tokenizer": {"path": "no/such/folder"}}, "no such directory"),
        (PLAIN, {"packing": {"max_length": 8}}, r"8 is shorter than the prompts of source"),
        (PLAIN, {"source": {"fields": {"instruction": "instructoin"}}}, "did you mean 'instruction'"),
        (PLAIN, {"source": {"rows": 3000}}, "3,000 rows requested"),
        (PLAIN, {"source": {"share": 1.0}, "mixture": {"total": 10**7}}, "tokens requested"),
        ([{"x": 1}] * 30, {"source": {"rows": 10}}, "none of its first 30 rows.* keys x; it fits no dialect"),
        (PLAIN, {"licenses": ["CC0"]}, "nothing is left to train on, of 30 rows of source"),
        ([], {}, "nothing is left to train on, of 0 rows of source"),
        (EMPTY, {"source": {"filters": {"empty_answer": False}}}, "max_empty_answers"),
        (LONG, {"packing": {"max_length": 512}}, "overlong took 66.7%"),
    ],
)  # fmt: skip
def test_a_dry_run_fails_where_the_build_does(tmp_path, rows, keys, pattern):
    recipe = recipe_of(tmp_path, rows, **keys)
    with pytest.raises(ConfigError, match=pattern):
        build(recipe, "--dry-run")
    assert not (tmp_path / "out").exists()
    with pytest.raises((ConfigError, DataError)):
        build(recipe)


def test_a_plan_is_printed_with_drops_and_sources_that_keep_hardly_any_row(tmp_path, capsys):
    """Rows that `where` leaves out are not lost; a field that only late rows have is no mistake."""
    few = [*({"x": k} for k in range(97)), {**plain_rows(1)[0], "output": ""}, *plain_rows(2)]
    some = [{**row, "take": k < 2} for k, row in enumerate(plain_rows(99))]
    late = plain_rows(90)
    late[80]["persona"] = "You are terse."
    sources = [
        source_of(tmp_path, few, "few"),
        source_of(tmp_path, some, "some", where={"take": True}),
        source_of(tmp_path, late, "late", fields={"system": "persona"}),
    ]
    recipe = write_recipe(tmp_path, sources=sources)
    build(recipe, "--dry-run")
    out = capsys.readouterr().out
    assert out.count("of their rows: 'few' 2 of 100") == 1
    for shown in ("Each record once", "unrecognised", "few.jsonl:1", "empty_answer"):
        assert shown in out
    build(recipe)
    stats = manifest(tmp_path / "out")["stats"]
    (warning,) = (w for w in stats["warnings"] if "few" in w)
    assert warning.endswith("'few' 2 of 100")
    assert stats["sources"]["late"]["kept"] == 90


def test_a_dry_run_shows_what_of_the_rows_is_not_read(tmp_path, capsys):
    rows = [row | {"topic": "sums"} for row in plain_rows(300)]
    rows[200]["persona"] = "I am a shy gardener."
    build(write_recipe(tmp_path, sources=[source_of(tmp_path, rows)]), "--dry-run")
    out = capsys.readouterr().out
    table = out[out.index("Not read, or only in part") :]
    assert table.index("topic") < table.index("persona")  # the commonest first
    for shown in ("100%", "'sums'", "<1%", "'I am a shy gardener.'"):
        assert shown in table


def test_the_problems_of_all_sources_are_listed_at_once(tmp_path):
    long = [{**row, "instruction": "q" * 500} for row in plain_rows(9)]
    sources = [
        source_of(tmp_path, long),
        source_of(tmp_path, long, "b", fields={"system": "persona"}),
    ]
    recipe = write_recipe(tmp_path, sources=sources, packing={"max_length": 256})
    for more in ((), ("--dry-run",)):
        with pytest.raises(ConfigError) as error:
            build(recipe, *more)
        for problem in ("prompts of source 'a'", "prompts of source 'b'", "'b' names 'persona'"):
            assert problem in str(error.value)


@pytest.fixture
def gpt_oss(tmp_path: Path) -> dict[str, object]:
    """gpt-oss's template with a tokenizer that has its tokens."""
    folder = write_tokenizer(tmp_path / "gpt", more=GPT_OSS, eos_token="<|return|>")  # noqa: S106
    own = templated(tmp_path, trl_templates()["gptoss"])
    return own | {"path": str(folder), "template_variables": {"date_string": "1 Jan 2026"}}


def test_what_a_template_leaves_out_stops_the_build_is_dropped_or_allowed(tmp_path, gpt_oss):
    rows = [*plain_rows(40), *[BESIDE] * 4]
    recipe = recipe_of(tmp_path, rows, tokenizer=gpt_oss, write_dropped=True)
    for more in ((), ("--dry-run",)):
        with pytest.raises(ConfigError, match=r"(?s)text of 4\).*split_steps would write all of 4"):
            build(recipe, *more)
    build(recipe, "limits.left_out=0.2", f"out={tmp_path / 'dropped'}")
    body, line = manifest(tmp_path / "dropped"), dropped_lines(tmp_path / "dropped")[0]
    assert body["counts"]["dropped"] == {"left_out_text": 4}
    assert (line["reason"], line["line"]) == ("left_out_text", 41)
    assert "the text of message 1" in line["detail"]
    figures = body["stats"]["supervision"]["a"]
    assert figures["prompt_trained"] == figures["turn_tokens"] == figures["no_end"] == 0
    assert figures["end_trained"] == 40
    build(recipe, "tokenizer.allow_left_out=[text]", f"out={tmp_path / 'allowed'}")
    source = manifest(tmp_path / "allowed")["stats"]["sources"]["a"]
    assert (source["kept"], source["left_out"]) == (44, {"text": 4})
    build(recipe, "tokenizer.split_steps=true", f"out={tmp_path / 'split'}")
    assert manifest(tmp_path / "split")["stats"]["sources"]["a"]["left_out"] == {}
    assert len(index(tmp_path / "split")) == 40 + 4 * 2


def test_only_ways_out_that_help_are_named(tmp_path):
    """A template without tools: no split writes them, and no trace is lost."""
    tokenizer = templated(tmp_path, CHATML)
    with pytest.raises(ConfigError, match=r"allow_left_out: \[") as error:
        build(recipe_of(tmp_path, [*plain_rows(40), BESIDE], tokenizer=tokenizer))
    assert "split_steps: true" not in str(error.value)
    assert "strip: 1.0" not in str(error.value)
    recipe = recipe_of(tmp_path, [*plain_rows(40), THOUGHT], tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"leaves out .*the reasoning of message 1"):
        build(recipe)
    build(recipe, "reasoning.strip=1.0")
    assert {row["reasoning"] for row in index(tmp_path / "out")} == {"off"}


@pytest.mark.parametrize(
    ("source", "error", "pattern"),
    [
        ("{% for m in messages %}{{ m.__class__.__mro__ }}{% endfor %}", ValueError, r"own\.jinja"),
        ("{{ strftime_now('%d %b') }}" + CHATML, ConfigError, "writes today's date.*date_string"),
        (
            trl_templates()["deepseek_r1_distill"],
            ConfigError,
            r"deepseek_r1_distill_training\.jinja",
        ),
    ],
)
def test_a_template_that_is_refused_says_why(tmp_path, monkeypatch, source, error, pattern):
    """It is unsafe, reads the clock, or has a variant that works."""
    # TRL has 30 more, which take a second to try
    variants = {name: text for name, text in trl_templates().items() if "deepseek" in name}
    monkeypatch.setattr("posttrain.chat.profile.trl_templates", lambda: variants)
    with pytest.raises(error, match=pattern):
        build(recipe_of(tmp_path, PLAIN, tokenizer=templated(tmp_path, source)))


@pytest.mark.parametrize(
    "spaced",
    [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "Ġ", "prepend_scheme": "always", "split": True},
    ],
)
def test_a_tokenizer_that_begins_every_text_with_a_space_is_refused(tmp_path, spaced):
    folder = write_tokenizer(tmp_path / "spaced")
    raw = json.loads((folder / "tokenizer.json").read_text()) | {"pre_tokenizer": spaced}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = {"path": str(folder), "chat_template": "nemotron_3_nano"}
    with pytest.raises(ConfigError, match="puts a space before every text"):
        build(recipe_of(tmp_path, PLAIN, tokenizer=tokenizer))


def test_a_pad_that_ends_turns_is_replaced_by_a_token_that_is_used_nowhere(tmp_path, capsys):
    recipe = recipe_of(tmp_path, PLAIN)
    write_tokenizer(tmp_path / "tokenizer", more=("<|spare|>",), pad_token="<|im_end|>")  # noqa: S106
    build(recipe)
    printed = capsys.readouterr().out
    assert re.search(
        r"^pad: <\|pad\|> \(id \d+\): the tokenizer's <\|im_end\|> ends turns$", printed, re.M
    )
    saved = json.loads((tmp_path / "out" / "tokenizer" / "tokenizer_config.json").read_text())
    assert saved["pad_token"] == "<|pad|>"  # noqa: S105 - a token


def test_a_prompt_tokenised_otherwise_in_pieces_is_refused(tmp_path):
    def with_a_start_token(texts):
        return [np.array([0, *map(ord, text)], np.int32) for text in texts]

    renderer: Any = SimpleNamespace(
        template=nemotron_3_nano_template(),
        encode=with_a_start_token,
        offsets=lambda text: [(i, i + 1) for i in range(len(text))],
        marks=NO_MARKS,
        special_texts={},
        special=SimpleNamespace(stop_ids=[ord("\n")]),
        encoder=SimpleNamespace(decode=str),
    )
    recipe = load_recipe(recipe_of(tmp_path, PLAIN), BuildSftConfig)
    preparer = Preparer(recipe, recipe.sources[0], renderer)
    _, problems = check_probe(probe_source(preparer, Path()), preparer)
    assert any("encodes a prompt in pieces otherwise than as one" in line for line in problems)


def test_of_very_long_records_few_are_tried(tmp_path, monkeypatch):
    rows = [{"instruction": f"Say {n}", "input": "x " * 50_000, "output": "1"} for n in range(9)]
    recipe = load_recipe(recipe_of(tmp_path, rows, packing={"max_length": 200_000}), BuildSftConfig)
    texts = first_texts(recipe, Path())
    assert len(texts) == 36
    assert max(map(len, texts)) == 32_768
    monkeypatch.setattr(preflight, "_MAX_CHARACTERS", 250_000)
    renderer = load_data_renderer(recipe.tokenizer)
    probe = probe_source(Preparer(recipe, recipe.sources[0], renderer), Path())
    assert (probe.rows, probe.complete) == (3, False)
    assert probe.expected is not None
    assert probe.expected.rows == 9, "and the others are estimated"


def test_an_output_directory_of_another_config_is_refused(world):
    with pytest.raises(ConfigError, match=r"made by another config \(they differ in: seed\)"):
        build(world / "recipe.yaml", "seed=5")
    with pytest.raises(ConfigError, match="another config"):
        build(world / "recipe.yaml", "seed=5", "--dry-run")
    for out in (world / "recipe.yaml", world / "recipe.yaml" / "below"):
        with pytest.raises(ConfigError, match="is a file"):
            build(world / "recipe.yaml", f"out={out}", "--dry-run")
    if find_spec("ray") is None:
        with pytest.raises(ConfigError, match="executor: ray needs the extra"):
            build(world / "recipe.yaml", "executor=ray", "--dry-run")


def test_a_corrected_recipe_may_have_the_directory_of_the_wrong_one(tmp_path):
    """And the source that has nothing to give says where its rows went."""
    recipe = recipe_of(tmp_path, PLAIN, source={"share": 1.0})
    with pytest.raises(DataError, match=r"'a' has share 1 .*\(30 license\)"):
        build(recipe, "licenses=[CC0]")
    assert (tmp_path / "out" / "stage.json").exists()
    build(recipe)
    assert manifest(tmp_path / "out")["counts"]["kept"] == 30
