"""Loading tokenizers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from posttrain.errors import DataError
from posttrain.tokens.tokenizer import load_tokenizer


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


def test_building_data_with_it_imports_no_torch(saved: Path):
    program = (
        "import sys, data_builders.sft.build, posttrain.tokens.tokenizer as t; from pathlib import Path\n"
        f"t.load_tokenizer(Path({str(saved)!r})); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_folder_that_is_not_there_holds_no_tokenizer(tmp_path: Path):
    with pytest.raises(DataError, match="no tokenizer"):
        load_tokenizer(tmp_path / "tokenizer")
