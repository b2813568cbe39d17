"""Episodes: the references themselves are played to full marks, and each way to fail has its name."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.items import message_of
from posttrain.chat import nemotron_3_nano_template, render, strip_reasoning
from posttrain.errors import DataError
from posttrain.models.load import build_model, set_special_tokens
from posttrain.records import json_text, make_example
from posttrain.tokens.tokenizer import load_tokenizer, special_tokens

ROOT = Path(__file__).parents[2]
TEMPLATE = nemotron_3_nano_template()
END = "<|im_end|>"
sys.path.insert(0, str(ROOT / "benchmarks"))
episodes = importlib.import_module("tiny_episodes")


def load_benchmark():
    path = ROOT / "benchmarks" / "tiny_accuracy.py"
    spec = importlib.util.spec_from_file_location("tiny_accuracy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@dataclass
class Written:
    ids: tuple[int, ...]
    finished: bool = True
    forced_at: int | None = None


@pytest.fixture(scope="module")
def tokenizer(world):
    return load_tokenizer(world / "tokenizer")


def items(world: Path, families=tuple(FAMILIES)) -> list[dict]:
    files = [world / "heldout" / f"{family}.jsonl" for family in families]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def script(item: dict, *, thinking: bool) -> dict[str, str]:
    """Prompt text → what the reference says next, for every assistant step of an item."""
    tools = json_text(item["tools"]) if item["tools"] else None
    rows = [message_of(row) for row in [*item["messages"], *item["reference"]]]
    if not thinking:
        rows = strip_reasoning(make_example(rows, source="s", dialect="openai")).messages
    found = {}
    for k in range(len(item["messages"]), len(rows)):
        if rows[k].role == "assistant":
            prompt = render(
                rows[:k],
                TEMPLATE,
                tools=tools,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            whole = render(rows[: k + 1], TEMPLATE, tools=tools, enable_thinking=thinking)
            assert whole.startswith(prompt)
            found[prompt] = whole[len(prompt) :].removesuffix("\n")
    return found


def run(chosen, tokenizer, say, *, thinking: bool):
    """Play items with a generator given as prompt text → completion text."""

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    def generate(prompts):
        texts = [say(tokenizer.decode(ids)) for ids in prompts]
        return [Written(tuple(encode(text)), finished=text.endswith(END)) for text in texts]

    return episodes.play(
        chosen,
        TEMPLATE,
        generate=generate,
        encode=encode,
        decode=tokenizer.decode,
        close_id=tokenizer.convert_tokens_to_ids("</think>"),
        thinking=thinking,
    )


@pytest.mark.parametrize("thinking", [True, False], ids=["on", "off"])
def test_references_get_full_marks_in_every_family(world, tokenizer, thinking):
    episodes = []
    for item in items(world):  # alone: two items may ask the same of different hidden states
        said = script(item, thinking=thinking)
        episodes += run([item], tokenizer, said.__getitem__, thinking=thinking)
    assert {e.metadata["family"] for e in episodes} == set(FAMILIES)
    wrong = [
        (e.item["id"], e.grade, [s.text for s in e.steps]) for e in episodes if not e.grade.correct
    ]
    assert wrong == []
    assert max(len(e.steps) for e in episodes) > 3
    for episode in episodes:
        assert tokenizer.decode(episode.ids) == episode.text
        for step in episode.steps:
            assert step.has_think_tag == thinking
            assert (step.reasoning_tokens > 0) == thinking


@pytest.mark.parametrize(
    ("family", "completion", "reason", "truncated"),
    [
        ("maths", f"1\n</think>\n-1{END}", "wrong_answer", False),
        ("maths", f"never closed{END}", "wrong_answer", False),
        ("maths", "runs on and on", "wrong_answer", True),
        (
            "lookups",
            "x\n</think>\n<tool_call>\n<function=no_such>\n<parameter=a>\nb\n</parameter>\n"
            f"</function>\n</tool_call>\n{END}",
            "undeclared_call",
            False,
        ),
        ("lookups", f"x\n</think>\n<tool_call>\n<function=get{END}", "unexecuted_call", False),
        (
            "lookups",  # a declared tool for ever
            "x\n</think>\n<tool_call>\n<function=get_price>\n<parameter=item>\nb\n</parameter>\n"
            f"</function>\n</tool_call>\n{END}",
            "wrong_answer",
            True,
        ),
        ("plans", f"x\n</think>\ndone{END}", "wrong_state", False),
        ("clarify", f"x\n</think>\n17{END}", "no_question", False),
    ],
)
def test_each_failure_has_its_reason(world, tokenizer, family, completion, reason, truncated):
    chosen = [
        item
        for item in items(world, [family])
        if (family != "clarify" or item["metadata"]["grading"] == "question")
        and (family != "lookups" or "get_price" in item["metadata"]["tools_declared"])
    ][:1]
    (episode,) = run(chosen, tokenizer, lambda _: completion, thinking=True)
    assert (episode.grade.correct, episode.grade.reason) == (False, reason)
    assert episode.truncated == truncated


@pytest.fixture(scope="module")
def checkpoint(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("checkpoint")
    tokenizer = load_tokenizer(world / "tokenizer")
    special = special_tokens(tokenizer, end_token=None, pad_token=None)
    torch.manual_seed(0)
    model = build_model(
        {
            "model_type": "llama",
            "vocab_size": 512,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "initializer_range": 0.5,
        }
    )
    set_special_tokens(model, special)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def test_the_command_writes_the_same_bytes_twice(world, checkpoint, tmp_path, capsys):
    benchmark = load_benchmark()
    texts = []
    for name in ("a", "b"):
        out = tmp_path / f"{name}.json"
        arguments = ["--checkpoint", checkpoint, "--checkpoint", checkpoint, "--world", world]
        arguments += ["--prompts", 22, "--budgets", "9,3", "--max-new-tokens", 12, "--out", out]
        benchmark.main([str(argument) for argument in arguments])
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    printed = capsys.readouterr().out
    assert "22 held-out prompts of" in printed
    found = json.loads(texts[0])
    assert len(found["runs"]) == 2
    rows = found["runs"][0]["conditions"]
    assert [row["condition"] for row in rows] == ["on", "off", "budget 3", "budget 9"]
    for row in rows:
        assert row["all"]["prompts"] == sum(f["prompts"] for f in row["families"].values()) == 22
        assert sum(row["reasons"].values()) == 22
    assert rows[2]["forced"] > 0
    # a model that seldom closes its reasoning has nearly always the budget's tokens of it
    assert 2.5 < rows[2]["reasoning_tokens"] <= 3.0


def test_unknown_family_and_too_few_prompts_are_refused(world):
    with pytest.raises(DataError, match="no held-out prompts of family 'sums'"):
        episodes.held_out_items(world, {"sums": ()}, 4)
    with pytest.raises(DataError, match="16 such prompts, 100 are asked"):
        episodes.held_out_items(world, {"calendar": ()}, 100)
    assert (
        len(episodes.held_out_items(world, dict.fromkeys(["maths", "lists", "logs"], ()), 10)) == 10
    )
