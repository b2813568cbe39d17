"""Which library makes the ids changes nothing about what is built, and is written down."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from posttrain.runs import read_artifact
from posttrain.tokens.tiktoken.ranks import PATTERNS
from tests.data_builders.small_build import (
    SPECIAL,
    build,
    plain_rows,
    reasoning_rows,
    shard_bytes,
    write_recipe,
    write_tokenizer,
)


def trained_tokenizer(folder: Path) -> Path:
    """A vocabulary of merges, with a pattern that tiktoken can express."""
    tokenizer = Tokenizer(models.BPE())
    pattern = Regex(PATTERNS["cl100k, llama_3"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[AddedToken(token, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    traces = (m["reasoning_content"] for r in reasoning_rows(60) for m in r["messages"][1::2])
    texts = [*traces, *(row["output"] for row in plain_rows(60))]
    tokenizer.train_from_iterator(texts, trainer)
    write_tokenizer(folder)  # its configuration; the vocabulary is replaced
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_both_libraries_build_the_same_bytes(tmp_path):
    """Traces are cut by tokens as well: at the same places, then."""
    recipe = write_recipe(tmp_path, reasoning={"strip": 0.1, "truncate": 0.8})
    tokenizer = trained_tokenizer(tmp_path / "trained")
    made = {}
    for backend in ("auto", "tokenizers"):
        out = tmp_path / backend
        build(recipe, f"out={out}", f"tokenizer.path={tokenizer}", f"tokenizer.backend={backend}")
        made[backend] = read_artifact(out)
    quick, plain = made["auto"], made["tokenizers"]
    assert quick.run["tokenizer"] == "tiktoken"
    assert plain.run["tokenizer"] == "tokenizers"
    assert quick.stats["control"]["truncated"] > 50
    assert quick.digest == plain.digest
    assert shard_bytes(tmp_path / "auto") == shard_bytes(tmp_path / "tokenizers")
