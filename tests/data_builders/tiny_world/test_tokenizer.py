from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from data_builders.tiny_world.families import FAMILIES
from data_builders.tiny_world.items import family_items, message_of, training_row
from data_builders.tiny_world.tokenizer import (
    END,
    PAD,
    TAGS,
    tool_frame,
    train_tokenizer,
    write_tokenizer,
)
from posttrain.chat.template import ChatTemplate, nemotron_3_nano_template
from posttrain.records import message_to_template


def texts(count: int = 40) -> list[str]:
    template = nemotron_3_nano_template()
    rendered = []
    for family in FAMILIES:
        for item in islice(family_items(seed=1, split="train", family=family), count):
            row = training_row(item)
            messages = [message_to_template(message_of(message)) for message in row["messages"]]
            rendered.append(template.text(messages, tools=row["tools"]))
    return rendered


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return nemotron_3_nano_template()


@pytest.fixture(scope="module")
def tokenizer(template: ChatTemplate) -> Tokenizer:
    return train_tokenizer(texts(), template=template, vocab_size=512)


def test_the_same_texts_give_the_same_bytes(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    again = train_tokenizer(texts(), template=template, vocab_size=512)
    assert again.to_str() == tokenizer.to_str()
    assert tokenizer.get_vocab_size() == 512


def test_every_conversation_comes_back_byte_for_byte(tokenizer: Tokenizer) -> None:
    for text in texts(60):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["", "naïve 漢字 🙂", "a\x00b\ud7ff", "\n\n  \t", "<think", "</thinking>"]
)
def test_any_other_text_comes_back_too(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens_and_tags_too(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("3456789", add_special_tokens=False).ids) == 7
    for token in (*TAGS, END, PAD):
        assert tokenizer.encode(token, add_special_tokens=False).tokens == [token]


def test_the_frame_around_declared_tools_is_two_tokens(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    before, after = tool_frame(template)
    assert before.startswith("# Tools")
    assert after.endswith("</IMPORTANT>")
    assert len(tokenizer.encode(before + after, add_special_tokens=False).ids) == 2


def test_transformers_loads_it_and_renders_alike(
    tokenizer: Tokenizer, template: ChatTemplate, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    names = write_tokenizer(tokenizer, tmp_path, template=template)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.eos_token, loaded.pad_token) == (END, PAD)
    assert loaded.pad_token_id != loaded.eos_token_id
    row = training_row(next(family_items(seed=1, split="train", family="recover")))
    messages = [message_to_template(message_of(message)) for message in row["messages"]]
    expected = template.text(messages, tools=row["tools"])
    assert loaded.apply_chat_template(messages, tools=row["tools"], tokenize=False) == expected
    assert (
        loaded(expected, add_special_tokens=False)["input_ids"]
        == tokenizer.encode(expected, add_special_tokens=False).ids
    )
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == END
