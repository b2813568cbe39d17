"""The tiny world on disk: train/<family>.jsonl, heldout/<family>.jsonl and tokenizer/.

Held-out prompts are unique: an item whose messages, tools and state were already drawn is dropped
as `repeated_heldout` and counted. Training rows may repeat, as in any sample of a finite world.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.items import (
    SPLITS,
    Choices,
    Place,
    Split,
    heldout_row,
    make_item,
    message_of,
    training_row,
)
from posttrain.chat.template import ChatTemplate
from posttrain.config.load import nearest
from posttrain.config.tiny_world import TinyWorldConfig
from posttrain.errors import ConfigError
from posttrain.records import json_text, message_to_template
from posttrain.runs import Counts, Manifest, Run, atomic_write_json, atomic_write_text

# -- the tokenizer --------------------------------------------------------------------------------
# A byte-level BPE that keeps any text exactly; every digit and every tag is one token. The some 200
# words that Nemotron's template writes around tool declarations are two added tokens, read off the
# template: they would fill half of a small model's context.

PAD = "<|pad|>"
START = "<|im_start|>"
END = "<|im_end|>"
CONTROL = (PAD, START, END)
# ordinary text to a decoder, so that skipping special tokens loses no reasoning and no call
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

# the families say little: more tokens would be whole sentences
VOCAB_SIZE = 1024
# first training rows of each family that the tokenizer is trained on
TOKENIZER_ROWS = 400

# words (tool names among them), single digits, runs of XML-like tags, the rest
PIECES = r" ?\p{L}[\p{L}_]*|\p{N}|(?:\n?</?[a-z_]+[>=])+| ?[^\s\p{L}\p{N}<]+|<|\s"


def tool_frame(template: ChatTemplate) -> tuple[str, str]:
    """Constant text before and after the declared tools in a template's system block."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    text = template.text(
        [{"role": "user", "content": ""}], tools=[{"type": "function", "function": function}]
    )
    block_start = text.index("\n", text.index(START)) + 1
    tools_start = text.index("\n<function>")
    tools_end = text.index("</function>") + len("</function>")
    return text[block_start:tools_start], text[tools_end : text.index(END)]


def train_tokenizer(texts: Iterable[str], *, template: ChatTemplate, vocab_size: int) -> Tokenizer:
    """Train a tokenizer on rendered conversations; the same texts in order give the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    frame = [AddedToken(text, normalized=False) for text in tool_frame(template)]
    tags = [AddedToken(tag, normalized=False) for tag in TAGS]
    control = [AddedToken(token, normalized=False, special=True) for token in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(frame) - len(tags),
        special_tokens=control,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.add_special_tokens(control)
    # added tokens need no merges
    added_texts = [*tool_frame(template), *TAGS, *CONTROL]
    tokenizer.train_from_iterator(_split_at(texts, added_texts), trainer)
    tokenizer.add_tokens([*tags, *frame])
    return tokenizer


def _split_at(texts: Iterable[str], separators: list[str]) -> Iterator[str]:
    """Split texts at all separators, which are left out, into pieces that are not empty."""
    for text in texts:
        for separator in separators:
            # a character that no text of the tiny world has
            text = text.replace(separator, "\x00")
        for piece in text.split("\x00"):
            if piece:
                yield piece


def write_tokenizer(tokenizer: Tokenizer, out: Path, *, template: ChatTemplate) -> list[str]:
    """Write the files that `transformers.AutoTokenizer` reads. Returns their names."""
    out.mkdir(parents=True, exist_ok=True)
    atomic_write_text(out / "tokenizer.json", tokenizer.to_str(pretty=False) + "\n")
    atomic_write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [START],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
        },
    )
    atomic_write_text(out / "chat_template.jinja", template.source)
    return ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]


# -- the artifact ----------------------------------------------------------------------------------


def check_families(config: TinyWorldConfig) -> None:
    """Raise ConfigError for a family that there is not."""
    for name in config.families:
        if name not in FAMILIES:
            raise ConfigError(f"families.{name}: no such family{nearest(name, tuple(FAMILIES))}")


def items_of(config: TinyWorldConfig, family: str, split: Split) -> Iterator[dict[str, Any]]:
    """Items of one family and split, in order, repeats included."""
    rows = config.families[family]
    choices = Choices(difficulties=rows.difficulties, tools_declared=rows.tools_declared)
    if split == "train":
        seed = config.seed
        count = rows.train
    else:
        seed = config.heldout_seed
        count = rows.heldout
    for index in range(count):
        yield make_item(Place(seed, split, family, index), choices)


def _render_tokenizer_texts(config: TinyWorldConfig, template: ChatTemplate) -> Iterator[str]:
    """Render the conversations that the tokenizer is trained on: the first rows of each family."""
    for family in config.families:
        items = items_of(config, family, "train")
        for item in itertools.islice(items, TOKENIZER_ROWS):
            row = training_row(item)
            messages = [message_to_template(message_of(message)) for message in row["messages"]]
            yield template.text(messages, tools=row["tools"])


def _write_rows(config: TinyWorldConfig, split: Split, out: Path) -> dict[str, int]:
    """Write a file for each family that has rows in the split. Returns the rows of each."""
    row_counts: dict[str, int] = {}
    for family, rows in config.families.items():
        if not (rows.train if split == "train" else rows.heldout):
            continue
        items = items_of(config, family, split)
        if split == "train":
            lines = [json_text(training_row(item)) + "\n" for item in items]
        else:
            lines = _distinct_heldout_lines(items)
        atomic_write_text(out / split / f"{family}.jsonl", "".join(lines))
        row_counts[family] = len(lines)
    return row_counts


def _distinct_heldout_lines(items: Iterable[dict[str, Any]]) -> list[str]:
    """JSON lines of the held-out items; of those that ask the same the first alone."""
    lines: dict[str, str] = {}
    for item in items:
        state = item["metadata"]["initial_state"]
        content = json_text([item["prompt"], item["tools"], state])
        lines.setdefault(content, json_text(heldout_row(item)) + "\n")
    return list(lines.values())


def write_world(run: Run, config: TinyWorldConfig, *, template: ChatTemplate) -> Manifest:
    """Write the artifact: rows, tokenizer and manifest."""
    check_families(config)
    out = run.path
    row_counts = {split: _write_rows(config, split, out) for split in SPLITS}
    tokenizer = train_tokenizer(
        _render_tokenizer_texts(config, template),
        template=template,
        vocab_size=VOCAB_SIZE,
    )
    names = write_tokenizer(tokenizer, out / "tokenizer", template=template)
    files: dict[str, int | None] = {}
    kept = 0
    for split, count_by_family in row_counts.items():
        for family, count in count_by_family.items():
            files[f"{split}/{family}.jsonl"] = count
            kept += count
    for name in names:
        files[f"tokenizer/{name}"] = None
    requested = sum(rows.train + rows.heldout for rows in config.families.values())
    return run.finish(
        counts=Counts(requested, kept, {"repeated_heldout": requested - kept}),
        files=files,
        template_digest=template.digest,
        seed=config.seed,
        stats={
            "train_rows": row_counts["train"],
            "heldout_rows": row_counts["heldout"],
            "vocabulary": tokenizer.get_vocab_size(),
        },
    )
