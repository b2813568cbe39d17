"""A recipe's chat template by name: ours, a family's, a file; and how prompts are described."""

from __future__ import annotations

import pytest

from posttrain.errors import ConfigError, RenderError
from posttrain.models.room import check_room
from posttrain.records import Message
from posttrain.rollouts import Prompt
from posttrain.tokens.renderer import chat_template_of
from tests.sampling.small_models import byte_tokenizer

PROMPT = Prompt("p", "t", "s", (Message("user", "q"),), thinking=True)


@pytest.mark.parametrize("choice", ["hermes", "chatml", "trl:qwen3", "nemotron_3_nano"])
def test_templates_by_name(choice: str):
    template = chat_template_of(byte_tokenizer(), choice=choice)
    assert template.name == choice
    text = template.text([{"role": "user", "content": "q"}], add_generation_prompt=True)
    assert "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" in text


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ("herms", "'hermes'"),
        ("qwen3", "'trl:qwen3'"),
        ("jamba", "valid: chatml, hermes"),
        ("trl:quen3", "did you mean trl:qwen3"),
    ],
)
def test_a_misspelt_name_names_the_nearest_and_the_key(choice: str, meant: str):
    with pytest.raises(
        (ConfigError, RenderError), match=rf"tokenizer\.chat_template '{choice}'.*{meant}"
    ):
        chat_template_of(byte_tokenizer(), choice=choice, key="tokenizer.chat_template")


def test_plans_speak_of_reasoning_where_the_template_knows_it():
    for choice, speaks in (("hermes", False), ("nemotron_3_nano", True)):
        template = chat_template_of(byte_tokenizer(), choice=choice)
        line = check_room([PROMPT], [8], template=template, max_tokens=4, room=64)
        assert ("with reasoning" in line) is speaks
        assert "longest 8 tokens + 4 new of 64 positions" in line
