"""tiktoken gives the ids of `tokenizers`, or is not used."""

from __future__ import annotations

import json
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from posttrain.errors import ConfigError
from posttrain.tokens import tiktoken as tiktoken_encoder
from posttrain.tokens.tiktoken import GPT_2, PATTERNS, Ranks, probe_texts, ranks_of
from posttrain.tokens.tokenizer import Encoder, encoder_of

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ("<|im_start|>", "<|im_end|>", "<think>")
CORPUS = [
    "It's the caf\u00e9's 1234 tokens, they'RE fine.\n\n\tdef f(x):\n        return x == 10\n" * 3,
    "日本語の文と中文，русский текст 😀😀 e\u0301e\u0301  spaces   end " * 3,
]


def split(pattern: str):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def add_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    return tokenizer


@cache
def trained(name: str, *, nfc: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split(PATTERNS[name])
    if name == "gpt_2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = BpeTrainer(vocab_size=450, initial_alphabet=ALPHABET, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return add_special(tokenizer)


def plain(*, vocab=(), merges=(), pattern=GPT_2, **settings) -> Tokenizer:
    """Single bytes and the given tokens and merges."""
    tokens = {c: i for i, c in enumerate([*ALPHABET, *vocab])}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=list(merges), **settings))
    tokenizer.pre_tokenizer = split(pattern)
    return add_special(tokenizer)


def encoder(tokenizer: Tokenizer, **options) -> Encoder:
    return encoder_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer), **options)


def same(fast: Encoder, texts: list[str]) -> None:
    assert fast.fast is not None, fast.describe()
    for text, ids in zip(texts, fast.arrays(texts), strict=True):
        plainly = fast.backend.encode(text, add_special_tokens=False)
        assert ids.tolist() == plainly.ids
        assert ids.dtype == np.int32
        assert fast.offsets(text) == plainly.offsets


@pytest.mark.parametrize("nfc", [False, True], ids=["", "nfc"])
@pytest.mark.parametrize("name", PATTERNS)
def test_every_listed_pattern_gives_the_same_ids(name, nfc):
    rng, texts = random.Random(name), probe_texts(SPECIAL)
    mixed = ["".join(rng.choices(texts, k=5)) for _ in range(20)]
    same(encoder_for(name, nfc), ["", *CORPUS, *mixed])


NASTY = st.text(
    st.one_of(
        st.sampled_from(list(" \t\n\r\u00a0\u2028'sſKlLvVeE19١²½aé\u0301<|_>/{}😀日\u200d\u0378")),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(NASTY, max_size=6), marks=st.lists(st.sampled_from(SPECIAL), max_size=6))
def test_any_text_gives_the_same_ids(texts, marks):
    mixed = [a + b for a, b in zip(texts, marks, strict=False)]
    for name in ("qwen_2", "tekken, nemotron"):
        for nfc in (False, True):
            same(encoder_for(name, nfc), [*texts, *mixed])


@cache
def encoder_for(name: str, nfc: bool) -> Encoder:
    return encoder(trained(name, nfc=nfc), backend="tiktoken")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_list_of_merges_is_refused_or_gives_the_same_ids(data):
    """Also lists that no training makes: pairs out of order, tokens their own merges never reach."""
    tokens = list("abc")
    merges: list[tuple[str, str]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        pair = data.draw(st.tuples(st.sampled_from(tokens), st.sampled_from(tokens)))
        if pair not in merges:
            merges.append(pair)
            tokens = list(dict.fromkeys([*tokens, "".join(pair)]))
    whole = data.draw(st.booleans())
    more = data.draw(st.lists(st.text("abc", min_size=2, max_size=5), max_size=2))
    vocab = list(dict.fromkeys([*tokens[3:], *(t for t in more if t not in tokens)]))
    tokenizer = plain(vocab=vocab, merges=merges, ignore_merges=whole)
    texts = data.draw(st.lists(st.text("abc", max_size=12), min_size=1, max_size=8))
    ranks = ranks_of(tokenizer, json.loads(tokenizer.to_str()))
    if isinstance(ranks, Ranks):
        fast = tiktoken_encoder.TiktokenEncoder(ranks, slow=lambda _: [])
        for text, ids in zip(texts, fast.arrays(texts), strict=True):
            assert ids.tolist() == tokenizer.encode(text).ids


def test_text_that_the_quick_way_could_mistake_goes_the_slow_way():
    slow: list[str] = []
    tokenizer = trained("qwen_2", nfc=True)
    fast = encoder(tokenizer, backend="tiktoken").fast
    assert fast is not None

    def remember(texts):
        slow.extend(texts)
        return [np.array(tokenizer.encode(t).ids, np.int32) for t in texts]

    fast._slow = remember
    runs = ["a" * shift + " \n" * 50_000 + "b" for shift in (0, 1, 999)]
    texts = ["plain", *runs, "e\u0301", "é", "a " * 60_000, " " * 99_999 + "b"]
    found = fast.arrays(texts)
    assert slow == [*runs, "e\u0301"]
    assert [ids.tolist() for ids in found] == [tokenizer.encode(t).ids for t in texts]


def with_token(content: str, **flags) -> Tokenizer:
    tokenizer = plain()
    tokenizer.add_tokens([AddedToken(content, normalized=False, **flags)])
    return tokenizer


def nfkc() -> Tokenizer:
    tokenizer = plain()
    tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def missing_bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(ALPHABET[:99])}, merges=[]))
    tokenizer.pre_tokenizer = split(GPT_2)
    return tokenizer


REFUSED = {
    "is lstrip": lambda: with_token("<x>", lstrip=True),
    "begins another": lambda: with_token("<think>ing"),
    "it normalises text": nfkc,
    "not one that tiktoken can express": lambda: plain(pattern=r"\w+|\W"),
    "its model is WordLevel": lambda: Tokenizer(models.WordLevel({"a": 0}, "a")),
    "its model sets dropout": lambda: plain(dropout=0.1),
    "its vocabulary lacks bytes": missing_bytes,
    "are not listed together": lambda: plain(
        vocab=["ab", "bc", "abc", "cd"],
        merges=[("a", "b"), ("b", "c"), ("ab", "c"), ("c", "d"), ("a", "bc")],
    ),
    "is a piece but no merge": lambda: plain(vocab=["ab"], ignore_merges=True),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_tiktoken_cannot_express_is_left_to_tokenizers(reason):
    tokenizer = REFUSED[reason]()
    found = encoder(tokenizer, backend="auto")
    assert found.fast is None
    assert reason in found.describe()
    with pytest.raises(ConfigError, match="tiktoken cannot stand for"):
        encoder(tokenizer, backend="tiktoken")


def test_saved_truncation_and_padding_are_off_and_no_part_of_the_digest():
    tokenizer = trained("qwen_2")
    clipped = Tokenizer.from_str(tokenizer.to_str())
    clipped.enable_truncation(7)
    for backend in ("auto", "tokenizers"):
        ours, theirs = encoder(tokenizer, backend=backend), encoder(clipped, backend=backend)
        assert ours.digest == theirs.digest == encoder(tokenizer).digest
        assert theirs.encode(CORPUS) == ours.encode(CORPUS)
        assert theirs.arrays(["", "a"])[0].shape == (0,)


def test_real_tokenizer(shared):
    text = json.loads((shared / "tokenizers/cl100k_chatml/tokenizer.json").read_text("utf-8"))
    assert text["model"]["ignore_merges"]
    tokenizer = Tokenizer.from_file(str(shared / "tokenizers/cl100k_chatml/tokenizer.json"))
    fast = encoder(tokenizer, backend="tiktoken")
    lines = (shared / "data/lf_alpaca_zh.jsonl").read_text("utf-8").splitlines()[:50]
    same(fast, [*lines, *probe_texts(["<|im_end|>"])])
