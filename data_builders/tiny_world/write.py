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

# -- the tokenizer: a byte-level BPE, every digit one token, every tag one token, any text exact --
# The some 200 words that Nemotron's template writes around tool declarations are two added tokens,
# read off the template: they would fill half of a small model's context.

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CONTROL = (PAD, START, END)
# ordinary text to a decoder, so that skipping special tokens loses no reasoning and no call
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

# words (tool names among them), single digits, runs of XML-like tags, the rest
PIECES = r" ?\p{L}[\p{L}_]*|\p{N}|(?:\n?</?[a-z_]+[>=])+| ?[^\s\p{L}\p{N}<]+|<|\s"


def tool_frame(template: ChatTemplate) -> tuple[str, str]:
    """The constant text before and after the declared tools in a template's system block."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    text = template.text(
        [{"role": "user", "content": ""}], tools=[{"type": "function", "function": function}]
    )
    first, last = text.index("\n<function>"), text.index("</function>") + len("</function>")
    begin = text.index("\n", text.index(START)) + 1
    return text[begin:first], text[last : text.index(END)]


def train_tokenizer(texts: Iterable[str], *, template: ChatTemplate, vocab_size: int) -> Tokenizer:
    """Train on rendered conversations; deterministic for the same texts in the same order."""
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
    tokenizer.train_from_iterator(
        _without(texts, [*tool_frame(template), *TAGS, *CONTROL]), trainer
    )
    tokenizer.add_tokens([*tags, *frame])
    return tokenizer


def _without(texts: Iterable[str], fixed: list[str]) -> Iterable[str]:
    """What is left of the texts once every added token is taken out: it needs no merges."""
    for text in texts:
        for token in fixed:
            text = text.replace(token, "\x00")
        yield from (piece for piece in text.split("\x00") if piece)


def write_tokenizer(tokenizer: Tokenizer, out: Path, *, template: ChatTemplate) -> list[str]:
    """Write the files `transformers.AutoTokenizer` reads; returns their names."""
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
    for name in config.families:
        if name not in FAMILIES:
            raise ConfigError(f"families.{name}: no such family{nearest(name, tuple(FAMILIES))}")


def items_of(config: TinyWorldConfig, family: str, split: Split) -> Iterator[dict[str, Any]]:
    """A family's items of one split in order, repeats included."""
    rows, words, train = config.families[family], config.verbosity, split == "train"
    choices = Choices(
        difficulties=rows.difficulties,
        verbosity=(words.terse, words.plain, words.chatty),
        tools_declared=rows.tools_declared,
        several_turns=rows.several_turns,
    )
    seed, count = (config.seed, rows.train) if train else (config.heldout_seed, rows.heldout)
    return (make_item(Place(seed, split, family, k), choices) for k in range(count))


def _tokenizer_texts(config: TinyWorldConfig, template: ChatTemplate) -> Iterator[str]:
    for family in config.families:
        items = items_of(config, family, "train")
        for item in itertools.islice(items, config.tokenizer.rows_per_family):
            row = training_row(item)
            messages = [message_to_template(message_of(message)) for message in row["messages"]]
            yield template.text(messages, tools=row["tools"])


def _write_rows(config: TinyWorldConfig, split: Split, out: Path) -> dict[str, int]:
    """One file a family that has rows in the split; the rows of each."""
    sizes: dict[str, int] = {}
    for family, rows in config.families.items():
        if not (rows.train if split == "train" else rows.heldout):
            continue
        lines: dict[object, str] = {}
        for place, item in enumerate(items_of(config, family, split)):
            content: object = place
            if split == "heldout":
                state = item["metadata"]["initial_state"]
                content = json_text([item["prompt"], item["tools"], state])
            row = training_row(item) if split == "train" else heldout_row(item)
            lines.setdefault(content, json_text(row) + "\n")
        atomic_write_text(out / split / f"{family}.jsonl", "".join(lines.values()))
        sizes[family] = len(lines)
    return sizes


def write_world(run: Run, config: TinyWorldConfig, *, template: ChatTemplate) -> Manifest:
    """Write the artifact: rows, tokenizer and manifest."""
    check_families(config)
    out = run.path
    sizes = {split: _write_rows(config, split, out) for split in SPLITS}
    tokenizer = train_tokenizer(
        _tokenizer_texts(config, template),
        template=template,
        vocab_size=config.tokenizer.vocab_size,
    )
    names = write_tokenizer(tokenizer, out / "tokenizer", template=template)
    files: dict[str, int | None] = {
        f"{split}/{family}.jsonl": rows
        for split, families in sizes.items()
        for family, rows in families.items()
    }
    kept = sum(filter(None, files.values()))
    requested = sum(rows.train + rows.heldout for rows in config.families.values())
    return run.finish(
        counts=Counts(requested, kept, {"repeated_heldout": requested - kept}),
        files=files | {f"tokenizer/{name}": None for name in names},
        template_digest=template.digest,
        seed=config.seed,
        stats={
            "train_rows": sizes["train"],
            "heldout_rows": sizes["heldout"],
            "vocabulary": tokenizer.get_vocab_size(),
        },
    )
