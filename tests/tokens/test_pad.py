# ruff: noqa: S105, S106 - tokens of vocabularies, no passwords
"""A pad to train with is used nowhere else; inference takes the pad that there is."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from posttrain.chat import ChatTemplate
from posttrain.config.backend import TransformersBackend
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.load import load_model
from posttrain.tokens.renderer import renderer_of
from posttrain.tokens.tokenizer import (
    describe_choice,
    free_tokens,
    load_tokenizer,
    special_ids,
    special_tokens,
    training_tokens,
)
from tests.sampling.small_models import byte_tokenizer, small_model

END, START = "<|im_end|>", "<|im_start|>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# the names of roles stand nowhere in it
ROLES = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer_with(*tokens: str, **roles: str | None) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer((START, END, *tokens))
    for role, token in {"eos_token": END, "pad_token": END, **roles}.items():
        setattr(tokenizer, role, token)
    return tokenizer


def chosen(tokenizer: PreTrainedTokenizerFast, source: str = CHATML, **keys) -> str:
    template = ChatTemplate(source, name="test")
    keys = {"end_token": None, "pad_token": None, "key": "pad_token"} | keys
    return training_tokens(tokenizer, template=template, **keys).pad_token


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("<a>", "<b>"), "<b>"),
        (("<a>", "<|reserved_7|>", "<b>"), "<|reserved_7|>"),
        (("<|finetune_right_pad_id|>", "<|reserved_7|>"), "<|finetune_right_pad_id|>"),
        (("<a>", "<|image_pad|>"), "<a>"),
        (("<a>", "<|endoftext|>", "<|eom_id|>"), "<a>"),
        (("<|endoftext|>",), "<|endoftext|>"),
    ],
)
def test_the_likeliest_unused_token_is_chosen(tokens: tuple[str, ...], expected: str):
    tokenizer = tokenizer_with(*tokens)
    # byte_tokenizer brings a pad of its own into the vocabulary
    free = free_tokens(
        tokenizer, ChatTemplate(CHATML, name="test"), special_tokens(tokenizer).stop_ids
    )
    assert next(token for token, _ in free if token != "<|pad|>") == expected


def test_what_template_stops_and_data_use_is_never_chosen():
    tokenizer = tokenizer_with(
        "<s>", "<|user|>", "<|tool|>", "<|end|>", "<unused>", "<held>", "<stop>"
    )
    tokenizer.bos_token = "<s>"
    ids = special_ids(tokenizer)
    template = ChatTemplate(ROLES, name="test")
    free = free_tokens(tokenizer, template, {ids[END], ids["<stop>"]})
    assert {token for token, _ in free} == {"<|pad|>", "<unused>", "<held>", START}

    def in_data(text: str, number: int) -> bool:
        assert ids[text] == number
        return text in ("<|pad|>", "<unused>")

    assert chosen(tokenizer, ROLES, stops={ids["<stop>"]}, in_data=in_data) == "<held>"
    assert tokenizer.pad_token == "<held>"
    with pytest.raises(
        ConfigError, match="no special token that is used nowhere: set pad_token to"
    ):
        chosen(tokenizer_with(), in_data=lambda text, number: True)


def test_the_end_is_what_the_template_writes():
    """Gemma's eos ends documents; its template ends turns otherwise."""
    tokenizer = byte_tokenizer(("<eos>", "<turn>", "<pad>"), pad="<pad>")
    tokenizer.eos_token = "<eos>"
    source = CHATML.replace("<|im_end|>", "<turn>").replace("<|im_start|>", "")
    template = ChatTemplate(source, name="test", special_tokens=("<eos>", "<turn>", "<pad>"))
    special = special_tokens(tokenizer, template=template)
    ids = special_ids(tokenizer)
    assert (special.end_token, special.stop_ids) == ("<turn>", (ids["<eos>"], ids["<turn>"]))
    # an eos that is written, if behind another token, stays
    both = ChatTemplate(
        source.replace("<turn>", "<turn><eos>"), name="both", special_tokens=("<eos>", "<turn>")
    )
    assert special_tokens(tokenizer, template=both).end_token == "<eos>"


def test_a_vocabulary_without_a_free_token_gets_an_override_that_works(tmp_path):
    """GPT-2 has one special token."""
    tokenizer = byte_tokenizer((END,), pad=None)
    tokenizer.eos_token = tokenizer.bos_token = END
    with pytest.raises(ConfigError, match=r"tokenizer\.pad_token='(.)'$") as refused:
        chosen(tokenizer, key="tokenizer.pad_token")
    pad = str(refused.value).rpartition("=")[2].strip("'")
    assert chosen(tokenizer, pad_token=pad) == pad
    ids = tokenizer(["naïve ÿ", "漢字 🙂"], add_special_tokens=False)["input_ids"]
    assert all(tokenizer.pad_token_id not in row for row in ids)
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).pad_token_id == tokenizer.pad_token_id


def test_a_pad_of_its_own_stays():
    """Qwen's pad is among the ids at which its generation config stops."""
    tokenizer = tokenizer_with("<|endoftext|>", "<|reserved_1|>", pad_token="<|endoftext|>")
    stop = special_ids(tokenizer)["<|endoftext|>"]
    assert chosen(tokenizer, stops={stop}) == "<|endoftext|>"


def test_the_recipes_pad_is_taken_or_refused_by_its_full_key():
    key = "tokenizer.pad_token"
    assert chosen(tokenizer_with("<a>", "<b>"), pad_token="<a>", key=key) == "<a>"
    with pytest.raises(
        ConfigError, match=r"tokenizer.pad_token 'nope' is not .* try <\|pad\|>, <b>"
    ):
        chosen(tokenizer_with("<b>"), pad_token="nope", key=key)
    with pytest.raises(ConfigError, match=r"tokenizer.pad_token '<\|im_end\|>' ends turns"):
        chosen(tokenizer_with("<b>"), pad_token=END, key=key)


def test_the_choice_is_described():
    tokenizer = tokenizer_with("<a>")
    before = special_tokens(tokenizer)
    assert describe_choice(END, before) is None
    template = ChatTemplate(CHATML, name="test")
    keys = {"end_token": None, "pad_token": "<a>", "key": "pad_token"}
    special = training_tokens(tokenizer, template=template, **keys)
    assert (
        describe_choice(END, special)
        == f"<a> (id {special.pad_id}): the tokenizer's {END} ends turns"
    )
    assert "the tokenizer has none" in (describe_choice(None, special) or "")


@pytest.mark.parametrize("pad", [END, None])
def test_inference_needs_no_pad_of_its_own(tmp_path, pad: str | None):
    tokenizer = tokenizer_with(pad_token=pad)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path)
    renderer = renderer_of(TransformersBackend(kind="transformers"), str(tmp_path))
    assert renderer is not None
    assert renderer.tokenizer.pad_token == pad
    assert renderer.stats()["tokenizer"]["end"] == END


def test_the_end_of_a_turn_is_trained_where_the_config_pads_with_it(tmp_path):
    """torch's embedding gives the row of its pad no gradient."""
    tokenizer = tokenizer_with("<a>")
    ids = special_ids(tokenizer)
    model = small_model("attention", vocabulary=288)
    model.config.pad_token_id = ids[END]
    model.save_pretrained(tmp_path)
    special = training_tokens(tokenizer, end_token=None, pad_token="<a>", key="pad_token")
    spec = ModelConfig(path=str(tmp_path))
    loaded = load_model(spec, special=special, vocabulary=288, seed=0)
    # the end opens the answer to come; it is predicted nowhere, so tied weights cannot hide it
    out = loaded(input_ids=torch.tensor([[5, ids[END], 7]]), use_cache=False).logits[0, 1, 7]
    out.backward()
    gradient = loaded.get_input_embeddings().weight.grad
    assert gradient is not None
    assert gradient[ids[END]].abs().sum() > 0
