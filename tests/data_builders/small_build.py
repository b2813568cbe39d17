"""A small data set, tokenizer and recipe to build from, and the build script as a function."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import yaml
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from data_builders.rows.inputs import PART_BYTES
from posttrain.chat import ChatTemplate, nemotron_3_nano_template
from posttrain.tokens.tiktoken import TiktokenEncoder
from posttrain.tokens.tokenizer import _has_same_offsets as prove_same_offsets

ROOT = Path(__file__).resolve().parent.parent.parent
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a price.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}},
            "required": ["item"],
        },
    },
}


def script(name: str) -> ModuleType:
    """A command's module."""
    return import_module(f"scripts.{name}")


# proofs and probes of these tokenizers, which hold for the whole session: what they take is several
# times what the few rows of a build take
_same_offsets: dict[str, bool] = {}
_templates: dict[str, ChatTemplate] = {}


def _has_same_offsets(backend: Tokenizer, fast: TiktokenEncoder) -> bool:
    text = backend.to_str()
    if text not in _same_offsets:
        _same_offsets[text] = prove_same_offsets(backend, fast)
    return _same_offsets[text]


def _nemotron_3_nano_template(**choices: Any) -> ChatTemplate:
    """One object for equal choices, so that its profile is made once."""
    key = json.dumps(choices)
    if key not in _templates:
        _templates[key] = nemotron_3_nano_template(**choices)
    return _templates[key]


def build(
    recipe: Path, *overrides: str, part_bytes: int = PART_BYTES, report: bool = False
) -> None:
    """`posttrain build_sft --config recipe …` in this process; errors are raised.

    Args:
        part_bytes: bytes of the largest parts that the input is cut into.
        report: with its page, whose charts cost as much as the rest.
    """
    with ExitStack() as stack:
        stack.enter_context(patch("data_builders.sft.build.PART_BYTES", part_bytes))
        stack.enter_context(
            patch("posttrain.tokens.tokenizer._has_same_offsets", _has_same_offsets)
        )
        stack.enter_context(
            patch("posttrain.tokens.renderer.nemotron_3_nano_template", _nemotron_3_nano_template)
        )
        if not report:
            stack.enter_context(patch("posttrain.pages.write.write_report", lambda out: out))
        script("build_sft").main(["--config", str(recipe), *overrides])


def source_of(
    folder: Path, rows: list[dict[str, Any]], name: str = "a", /, **keys: Any
) -> dict[str, Any]:
    """A source of these rows."""
    path = write_rows(folder / f"{name}.jsonl", rows)
    return {"name": name, "path": str(path), "license": "MIT", **keys}


def dropped_lines(out: Path) -> list[dict[str, Any]]:
    """All rows of `dropped.jsonl`."""
    return [json.loads(line) for line in (out / "dropped.jsonl").read_text("utf-8").splitlines()]


def write_tokenizer(folder: Path, *, more: tuple[str, ...] = (), **config: Any) -> Path:
    """A tokenizer of single bytes and five special tokens, and some more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in (*SPECIAL, *more)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def reasoning_rows(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """One or two turns with traces, some with a tool call between."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        messages: list[dict[str, Any]] = []
        for turn in range(rng.choice([1, 1, 2])):
            a, b = rng.randrange(100), rng.randrange(100)
            trace = f"{a} and {b}. " * rng.randrange(1, 8) + "é🙂 so be it"
            messages.append({"role": "user", "content": f"{number}.{turn}: {a}+{b}?"})
            if rng.random() < 0.2:
                call = {"name": "lookup", "arguments": json.dumps({"item": f"i{a}"})}
                messages += [
                    {
                        "role": "assistant",
                        "content": "",
                        "reasoning_content": "look",
                        "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": str(b)},
                ]
            answer = {"role": "assistant", "content": str(a + b), "reasoning_content": trace}
            messages.append(answer)
        rows.append({"messages": messages, "tools": [TOOL], "level": number % 3})
    return rows


def plain_rows(count: int, *, seed: int = 1) -> list[dict[str, Any]]:
    """Alpaca rows without reasoning."""
    rng = random.Random(seed)
    return [
        {"instruction": f"Say {i}", "input": "", "output": f"word {i} " * rng.randrange(1, 6)}
        for i in range(count)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def write_recipe(folder: Path, **keys: Any) -> Path:
    """Two sources, a tokenizer and a recipe that mixes them; `keys` replace its keys."""
    raw: dict[str, Any] = {
        "out": str(folder / "out"),
        "tokenizer": {
            "path": str(write_tokenizer(folder / "tokenizer")),
            "chat_template": "nemotron_3_nano",
        },
        # one token a byte makes the tools of the system block long
        "packing": {"max_length": 4096},
        "held_out": {"rate": 0.1},
        "mixture": {"max_epochs": 4},
        "reasoning": {"strip": 0.2, "truncate": 0.3, "budgets": {"kind": "log_uniform", "low": 4}},
        "sources": keys.pop("sources", None)
        or [
            source_of(folder, reasoning_rows(120), "reasoning", metadata=["level"], share=0.8),
            source_of(folder, plain_rows(300), "plain", license="CC0-1.0", share=0.2),
        ],
        **keys,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def packs(out: Path, split: str = "train") -> list[dict[str, Any]]:
    """All packs of a split."""
    files = sorted((out / "packed").glob(f"{split}-*.arrow"))
    return [row for file in files for row in Dataset.from_file(str(file))]


def index(out: Path, split: str = "train") -> list[dict[str, Any]]:
    """All index rows of a split."""
    files = sorted((out / "index").glob(f"{split}-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def manifest(out: Path) -> dict[str, Any]:
    """The manifest as written."""
    return json.loads((out / "manifest.json").read_text("utf-8"))


def shard_bytes(out: Path) -> dict[str, bytes]:
    """The bytes of every file that holds data."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for folder in ("packed", "index")
        for path in sorted((out / folder).iterdir())
    }
