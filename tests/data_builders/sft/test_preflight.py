"""A dry run fails where the build would, and says why; a build counts what its template loses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.chat.template import trl_templates
from posttrain.errors import ConfigError, DataError
from tests.data_builders.small_build import (
    TOOL,
    build,
    index,
    manifest,
    plain_rows,
    write_recipe,
    write_rows,
    write_tokenizer,
)

CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "lookup", "arguments": '{"item": "pear"}'},
}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "3"}
BESIDE = {
    "messages": [
        {"role": "user", "content": "How much?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        RESULT,
        {"role": "assistant", "content": "Three."},
    ],
    "tools": [TOOL],
}
GPT_OSS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")


def recipe_of(folder: Path, rows: list[dict], **keys) -> Path:
    """One source of these rows; `source` adds keys to it."""
    source = {"name": "a", "path": str(write_rows(folder / "a.jsonl", rows))} | keys.pop(
        "source", {}
    )
    return write_recipe(folder, sources=[source], held_out={"rate": 0.0}, **keys)


@pytest.mark.parametrize(
    ("rows", "keys", "pattern"),
    [
        (plain_rows(30), {"source": {"fields": {"instruction": "instructoin"}}}, "did you mean 'instruction'"),
        (plain_rows(30), {"source": {"fields": {"system": "persona"}}}, "'persona', which none of"),
        (plain_rows(30), {"source": {"license_field": "licence"}}, "'licence', which none of"),
        (plain_rows(30), {"source": {"rows": 3000}}, "3,000 rows requested"),
        (plain_rows(30), {"source": {"share": 1.0}, "mixture": {"total": 10**7}}, "tokens requested"),
        ([{"x": 1}] * 30, {"source": {"rows": 10}}, "none of its first 30 rows.* keys x; it fits no dialect"),
        (plain_rows(30), {"licenses": ["MIT"]}, "nothing is left to train on"),
        (plain_rows(30), {"limits": {"max_empty_think": 0.5}}, "max_empty_think"),
        ([{**row, "output": " ".join(map(str, range(900)))} if k > 9 else row for k, row in enumerate(plain_rows(30))],
         {"packing": {"max_length": 512}}, "overlong took 66.7%"),
    ],
)  # fmt: skip
def test_a_dry_run_fails_where_the_build_does(tmp_path, capsys, rows, keys, pattern):
    recipe = recipe_of(tmp_path, rows, **keys)
    with pytest.raises(ConfigError, match=pattern):
        build(recipe, "--dry-run")
    assert not (tmp_path / "out").exists()
    with pytest.raises((ConfigError, DataError)):
        build(recipe)


def test_a_plan_is_printed_and_drops_with_an_example_each(tmp_path, capsys):
    rows = [*plain_rows(20), {"x": 1}, {**plain_rows(1)[0], "output": ""}]
    build(recipe_of(tmp_path, rows, source={"share": 1.0}), "--dry-run")
    out = capsys.readouterr().out
    for shown in (
        "100.0% of tokens",
        "Each record once",
        "unrecognised",
        "a.jsonl:21",
        "empty_answer",
    ):
        assert shown in out
    assert not (tmp_path / "out").exists()


def test_the_problems_of_all_sources_are_listed_at_once(tmp_path):
    long = [{**row, "instruction": "q" * 500} for row in plain_rows(9)]
    files = {name: write_rows(tmp_path / f"{name}.jsonl", long) for name in "ab"}
    sources = [
        {"name": "a", "path": str(files["a"])},
        {"name": "b", "path": str(files["b"]), "fields": {"system": "persona"}},
    ]
    recipe = write_recipe(tmp_path, sources=sources, packing={"max_length": 256})
    for more in ((), ("--dry-run",)):
        with pytest.raises(ConfigError) as error:
            build(recipe, *more)
        for problem in ("prompts of source 'a'", "prompts of source 'b'", "'b' names 'persona'"):
            assert problem in str(error.value)


def test_sources_that_keep_hardly_any_row_are_named_in_one_warning(tmp_path, capsys):
    """Rows that `where` leaves out are not lost."""
    few = [{"x": k} for k in range(98)] + plain_rows(2)
    some = [{**row, "take": k < 2} for k, row in enumerate(plain_rows(99))]
    sources = [
        {"name": "few", "path": str(write_rows(tmp_path / "few.jsonl", few))},
        {
            "name": "some",
            "path": str(write_rows(tmp_path / "some.jsonl", some)),
            "where": {"take": True},
        },
        {"name": "all", "path": str(write_rows(tmp_path / "all.jsonl", plain_rows(40)))},
    ]
    recipe = write_recipe(tmp_path, sources=sources)
    build(recipe, "--dry-run")
    assert capsys.readouterr().out.count("of their rows: 'few' 2 of 100") == 1
    build(recipe)
    (warning,) = (w for w in manifest(tmp_path / "out")["stats"]["warnings"] if "few" in w)
    assert warning.endswith("'few' 2 of 100")


def test_a_field_that_only_late_rows_have_is_no_mistake(tmp_path):
    rows = plain_rows(90)
    rows[80]["persona"] = "You are terse."
    build(recipe_of(tmp_path, rows, source={"fields": {"system": "persona"}}))
    assert manifest(tmp_path / "out")["counts"]["kept"] == 90


@pytest.fixture
def gpt_oss(tmp_path: Path) -> dict[str, object]:
    """gpt-oss's template with a tokenizer that has its tokens."""
    folder = write_tokenizer(tmp_path / "gpt", more=GPT_OSS, eos_token="<|return|>")  # noqa: S106
    (tmp_path / "gptoss.jinja").write_text(trl_templates()["gptoss"])
    date = {"date_string": "1 Jan 2026"}
    path = str(tmp_path / "gptoss.jinja")
    return {"path": str(folder), "chat_template": path, "template_variables": date}


def test_what_a_template_leaves_out_stops_the_build_is_dropped_or_allowed(tmp_path, gpt_oss):
    rows = [*plain_rows(40), *[BESIDE] * 4]
    recipe = recipe_of(tmp_path, rows, tokenizer=gpt_oss)
    for more in ((), ("--dry-run",)):
        with pytest.raises(ConfigError, match=r"(?s)text of 4\).*split_steps would write all of 4"):
            build(recipe, *more)
    build(recipe, "limits.left_out=0.2", f"out={tmp_path / 'dropped'}")
    assert manifest(tmp_path / "dropped")["counts"]["dropped"] == {"left_out_text": 4}
    build(recipe, "tokenizer.allow_left_out=[text]", f"out={tmp_path / 'allowed'}")
    source = manifest(tmp_path / "allowed")["stats"]["sources"]["a"]
    assert (source["kept"], source["left_out"]) == (44, {"text": 4})
    build(recipe, "tokenizer.split_steps=true", f"out={tmp_path / 'split'}")
    body = manifest(tmp_path / "split")
    assert body["stats"]["sources"]["a"]["left_out"] == {}
    assert len(index(tmp_path / "split")) == 40 + 4 * 2


def test_only_ways_out_that_help_are_named(tmp_path, capsys):
    """A template without tools: no split writes them, and no trace is lost."""
    chatml = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    (tmp_path / "plain.jinja").write_text(
        chatml + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    folder = write_tokenizer(tmp_path / "plain")
    tokenizer = {"path": str(folder), "chat_template": str(tmp_path / "plain.jinja")}
    with pytest.raises(ConfigError, match=r"allow_left_out: \[") as error:
        build(recipe_of(tmp_path, [*plain_rows(40), BESIDE], tokenizer=tokenizer))
    assert "split_steps: true" not in str(error.value)
    assert "strip: 1.0" not in str(error.value)


def test_a_build_for_gpt_oss_raises_no_alarm(tmp_path, gpt_oss):
    build(recipe_of(tmp_path, plain_rows(40), tokenizer=gpt_oss))
    figures = manifest(tmp_path / "out")["stats"]["supervision"]["a"]
    assert figures["prompt_trained"] == figures["turn_tokens"] == figures["no_end"] == 0
    assert figures["end_trained"] == 40


def test_a_refused_template_names_a_variant_that_works(tmp_path):
    (tmp_path / "refused.jinja").write_text(trl_templates()["deepseek_r1_distill"])
    tokenizer = {
        "path": str(write_tokenizer(tmp_path / "tokenizer")),
        "chat_template": str(tmp_path / "refused.jinja"),
    }
    with pytest.raises(ConfigError, match=r"deepseek_r1_distill_training\.jinja"):
        build(recipe_of(tmp_path, plain_rows(30), tokenizer=tokenizer))


def test_a_dropped_row_says_what_was_left_out(tmp_path, gpt_oss):
    recipe = recipe_of(tmp_path, [*plain_rows(10), BESIDE], tokenizer=gpt_oss)
    build(recipe, "limits.left_out=1.0", "write_dropped=true")
    (line,) = map(json.loads, (tmp_path / "out" / "dropped.jsonl").read_text().splitlines())
    assert (line["reason"], line["line"]) == ("left_out_text", 11)
    assert "the text of message 1" in line["detail"]
