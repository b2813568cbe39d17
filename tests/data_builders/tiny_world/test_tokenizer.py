from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.items import family_items, message_of, training_row
from data_builders.tiny_world.write import (
    END,
    PAD,
    TAGS,
    tool_frame,
    train_tokenizer,
    write_tokenizer,
)
from posttrain.chat.template import nemotron_3_nano_template
from posttrain.records import message_to_template

TEMPLATE = nemotron_3_nano_template()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rendered = []
    for family in FAMILIES:
        for item in islice(family_items(seed=1, split="train", family=family), 40):
            row = training_row(item)
            messages = [message_to_template(message_of(message)) for message in row["messages"]]
            rendered.append(TEMPLATE.text(messages, tools=row["tools"]))
    return rendered


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Tokenizer:
    return train_tokenizer(texts, template=TEMPLATE, vocab_size=512)


def test_the_same_texts_give_the_same_bytes(tokenizer: Tokenizer, texts: list[str]) -> None:
    again = train_tokenizer(texts, template=TEMPLATE, vocab_size=512)
    assert again.to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == 512


def test_every_text_comes_back_byte_for_byte(tokenizer: Tokenizer, texts: list[str]) -> None:
    for text in (*texts, "", "naïve 漢字 🙂", "a\x00b\ud7ff", "\n\n  \t", "<think", "</thinking>"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_tags_and_the_frame_around_declared_tools_are_single_tokens(tokenizer: Tokenizer):
    assert len(tokenizer.encode("3456789", add_special_tokens=False).ids) == 7
    before, after = tool_frame(TEMPLATE)
    assert before.startswith("# Tools")
    assert after.endswith("</IMPORTANT>")
    for token in (*TAGS, END, PAD, before, after):
        assert tokenizer.encode(token, add_special_tokens=False).tokens == [token]


def test_transformers_loads_it_and_renders_alike(
    tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    names = write_tokenizer(tokenizer, tmp_path, template=TEMPLATE)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.eos_token, loaded.pad_token) == (END, PAD)
    row = training_row(next(family_items(seed=1, split="train", family="recover")))
    messages = [message_to_template(message_of(message)) for message in row["messages"]]
    text = loaded.apply_chat_template(messages, tools=row["tools"], tokenize=False)
    assert text in texts
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert loaded(text, add_special_tokens=False)["input_ids"] == ids
