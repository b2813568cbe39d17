from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from posttrain.errors import ConfigError
from posttrain.training.document_masking import (
    MaskingProbe,
    check_probe,
    choose_document_masking,
    make_collator,
    probe_document_masking,
)
from tests.training.tiny import attention_model, hybrid_model, make_sequence


def packs(count: int = 3, lengths: tuple[int, ...] = (9, 14, 11)) -> list[dict]:
    rng = random.Random(1)
    made = []
    for _ in range(count):
        parts = [make_sequence(rng, length) for length in lengths]
        made.append(
            {
                "input_ids": [i for ids, _ in parts for i in ids],
                "labels": [i for _, labels in parts for i in labels],
                "seq_lengths": list(lengths),
            }
        )
    return made


@pytest.mark.parametrize("document_masking", ["varlen", "block_diagonal", "unpacked"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_equals_alone_on_the_attention_model(document_masking, attention):
    model = attention_model()
    model.set_attn_implementation(attention)
    probe = probe_document_masking(model, make_collator(document_masking, 0), packs())
    assert probe.apart < 1e-5
    assert probe.leaking > 0.01
    check_probe(probe, document_masking)


STORIES = (
    "Once upon a time, there was a little girl named Lily. She loved to play in the park.",
    "Tom had a big red ball. One day the ball rolled away and Tom began to cry.",
    "The dog and the cat were best friends.",
)


@pytest.mark.parametrize("document_masking", ["varlen", "block_diagonal", "unpacked"])
def test_packed_equals_alone_on_a_trained_model(shared: Path, document_masking: str):
    """Its logits reach 22, where fp32 rounds a hundred times more coarsely than at 0.2."""
    folder = shared / "models" / "stories260k"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    parts = [tokenizer.encode(text).ids for text in STORIES]
    ids = [i for part in parts for i in part]
    pack = {"input_ids": ids, "labels": ids, "seq_lengths": [len(part) for part in parts]}
    model = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True)
    probe = probe_document_masking(model, make_collator(document_masking, 0), [pack])
    assert probe.leaking > 1
    assert probe.apart < 1e-5 * probe.scale
    check_probe(probe, document_masking)
    # what is left is rounding: it goes away with more digits
    precise = probe_document_masking(model.double(), make_collator(document_masking, 0), [pack])
    assert precise.apart < 5e-6


def test_a_small_leak_in_fp32_is_refused_whatever_the_scale():
    check_probe(MaskingProbe(apart=9e-6, leaking=0.5, scale=0.3, dtype="float32"), "varlen")
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(MaskingProbe(apart=2e-5, leaking=0.5, scale=0.3, dtype="float32"), "varlen")
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(MaskingProbe(apart=1e-3, leaking=9.0, scale=20.0, dtype="float32"), "varlen")


def test_the_hybrid_is_done_right_unpacked():
    model = hybrid_model()
    assert choose_document_masking("auto", model) == "unpacked"
    probe = probe_document_masking(model, make_collator("unpacked", 0), packs())
    assert probe.apart < 1e-5


@pytest.mark.parametrize("asked", ["varlen", "block_diagonal"])
def test_packing_the_hybrid_is_refused_with_what_to_do(asked):
    with pytest.raises(ConfigError, match="document_masking: unpacked"):
        choose_document_masking(asked, hybrid_model())


def test_the_probe_sees_state_leak_through_a_mamba_layer():
    probe = probe_document_masking(hybrid_model(), make_collator("block_diagonal", 0), packs())
    assert probe.apart > 1e-3
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(probe, "block_diagonal")


def test_positions_alone_do_not_keep_a_recurrent_layer_apart():
    """What TRL sends, without the `seq_idx` that only the kernels take."""

    def positions_only(rows: list[dict]) -> dict:
        batch = make_collator("varlen", 0)(rows)
        return {key: batch[key] for key in ("input_ids", "labels", "position_ids")}

    probe = probe_document_masking(hybrid_model(), positions_only, packs())
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(probe, "varlen")


def test_block_diagonal_is_refused_under_flash_attention():
    model = attention_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ConfigError, match="document_masking: varlen"):
        choose_document_masking("block_diagonal", model)
    assert choose_document_masking("auto", model) == "varlen"
