"""Loading tokenizers; long texts in pieces have the ids of the whole."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from posttrain.errors import DataError
from posttrain.tokens import tokenizer as long_texts
from posttrain.tokens.tiktoken import PATTERNS, probe_texts
from posttrain.tokens.tokenizer import (
    _GENERIC,
    _MODEL_TYPES,
    _NAMED_CLASSES,
    PIECE,
    _named_class,
    cut_lines,
    load_tokenizer,
    parts_at_lines,
)
from tests.tokens.test_tiktoken import SPECIAL, encoder, trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[end]": 2}, unk_token="a"))  # noqa: S106 - a token of text
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="[end]",  # noqa: S106 - likewise
        pad_token="[pad]",  # noqa: S106 - likewise
        chat_template="{{ messages[0].content }}",
    )
    tokenizer.save_pretrained(folder)
    return folder


def test_a_saved_tokenizer_is_the_one_that_transformers_would_choose(saved: Path):
    ours, theirs = load_tokenizer(saved), AutoTokenizer.from_pretrained(saved)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.chat_template == theirs.chat_template


CLASSES = [*_GENERIC, *_NAMED_CLASSES, "Qwen2TokenizerFast"]


def save_as(name: str, folder: Path) -> None:
    """A tokenizer of a byte-level vocabulary whose settings name this class."""
    PreTrainedTokenizerFast(tokenizer_object=trained("qwen_2")).save_pretrained(folder)
    settings_file = folder / "tokenizer_config.json"
    named = json.loads(settings_file.read_text()) | {"tokenizer_class": name}
    settings_file.write_text(json.dumps(named))


@pytest.mark.parametrize("name", CLASSES)
def test_of_a_model_it_is_the_one_that_transformers_would_choose(name: str, tmp_path: Path):
    """Of byte-level vocabularies, which these classes have."""
    save_as(name, tmp_path)
    for model_type in _MODEL_TYPES:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert _named_class(tmp_path) is not None
        ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        assert type(ours) is type(theirs), model_type
        assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
        assert ours.special_tokens_map == theirs.special_tokens_map
    for model in ({"model_type": "qwen2"}, {"model_type": "llama", "model_name": "x"}):
        (tmp_path / "config.json").write_text(json.dumps(model))
        assert _named_class(tmp_path) is None


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(DataError, match=folder.name):
            load_tokenizer(folder)


def test_building_data_with_it_imports_no_torch(saved: Path, tmp_path: Path):
    """In one process for all classes: each load is checked before the next."""
    folders = [str(saved)]
    for name in CLASSES:
        save_as(name, tmp_path / name)
        config = json.dumps({"model_type": _MODEL_TYPES[-1]})
        (tmp_path / name / "config.json").write_text(config)
        folders.append(str(tmp_path / name))
    program = (
        "import sys, data_builders.sft.build, posttrain.tokens.tokenizer as t; from pathlib import Path\n"
        f"for folder in {folders}:\n"
        "    t.load_tokenizer(Path(folder))\n"
        "    assert 'torch' not in sys.modules, folder"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


CUT = [name for name in PATTERNS if name not in ("gpt_2", "tiny_world")]


def test_pieces_join_to_the_text_and_part_at_lines():
    text = "".join(f"line {k}\n{' ' if k % 3 else ''}" for k in range(2000))
    pieces = cut_lines(text)
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert all(PIECE < len(piece) <= 3 * PIECE for piece in pieces)
    assert all(a.endswith("\n") and b[0] == "l" for a, b in pairwise(pieces))
    for whole in ("", "-\nb", "x" * 9000, "\n" * 9000, "- \n" * PIECE + " b"):
        assert cut_lines(whole) == [whole]


@pytest.mark.parametrize("nfc", [False, True], ids=["", "nfc"])
@pytest.mark.parametrize("name", CUT)
def test_pieces_have_the_ids_of_the_whole(name, nfc, monkeypatch):
    monkeypatch.setattr(long_texts, "PIECE", 1)  # cut wherever it is allowed
    plain = encoder(trained(name, nfc=nfc), backend="tokenizers")
    assert plain.cuts
    rng = random.Random(name)
    lines = [*probe_texts(SPECIAL), "\n", "\r\n", "b", "1", " \n", "!\n", "'s", "\t\n"]
    texts = ["".join(rng.choices(lines, k=4)) + "\nb\n\n1" for _ in range(25)]
    texts += ["\n".join(rng.choices(lines, k=6)) for _ in range(25)]
    assert sum(len(cut_lines(text)) for text in texts) > 2 * len(texts)
    for text, ids in zip(texts, plain.arrays(texts), strict=True):
        assert ids.tolist() == plain.backend.encode(text, add_special_tokens=False).ids, text


@settings(deadline=None, max_examples=50)
@given(st.text(st.sampled_from("aB1 \n\r\t'/.!é\u0301中\u3000"), min_size=6, max_size=60))
def test_any_text_may_be_cut(text):
    for name in CUT:
        whole = trained(name)
        ids = whole.encode(text, add_special_tokens=False).ids
        pieces = [p for p in long_texts._LINE_START.sub("\n\x00", text).split("\x00") if p]
        parts = whole.encode_batch(pieces, add_special_tokens=False)
        assert [i for part in parts for i in part.ids] == ids, (name, text)


def test_only_tokenizers_that_part_there_are_cut():
    assert not encoder(trained("gpt_2"), backend="tokenizers").cuts
    assert not encoder(trained("tiny_world"), backend="tokenizers").cuts
    assert parts_at_lines(trained("qwen_2"))
    for token in (AddedToken("<a>\n"), AddedToken("<b>", rstrip=True)):
        with_token = Tokenizer.from_str(trained("qwen_2").to_str())
        with_token.add_special_tokens([token])
        assert not parts_at_lines(with_token)
    changed = Tokenizer.from_str(trained("qwen_2").to_str())
    changed.normalizer = normalizers.NFC()
    assert parts_at_lines(changed)
    changed.normalizer = normalizers.NFKC()
    assert not parts_at_lines(changed)
    changed.normalizer = None
    changed.model.dropout = 0.1
    assert not parts_at_lines(changed)
