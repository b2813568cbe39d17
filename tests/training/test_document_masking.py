from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, set_seed

from posttrain.errors import ConfigError, DataError
from posttrain.models.load import build_model, recurrent_layers
from posttrain.training.activations import StepShape, measure_step
from posttrain.training.document_masking import (
    MaskingProbe,
    check_probe,
    choose_document_masking,
    deal_rows,
    make_collator,
    probe_document_masking,
    sequence_ids,
    sequences,
)
from posttrain.training.launch import Launched
from tests.training.tiny import attention_model, hybrid_model, make_sequence

LAYOUTS = ("varlen", "block_diagonal", "unpacked")


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


@pytest.mark.parametrize("document_masking", LAYOUTS)
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


@pytest.mark.parametrize("document_masking", LAYOUTS)
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
    for asked in ("varlen", "block_diagonal"):
        with pytest.raises(ConfigError, match="document_masking: unpacked"):
            choose_document_masking(asked, model)


SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0,
}  # fmt: skip
HEAD = {"head_dim": 16, **SMALL}
# by what carries the state: short convolutions, a scan of the class's own, linear attention, keys
# that are convolved or compressed, gated delta nets, Mamba; and the number of such layers
FAMILIES = {
    "lfm2": ({**SMALL, "layer_types": ["conv", "full_attention"]}, 1),
    "lfm3": ({**SMALL, "layer_types": ["conv", "full_attention"]}, 1),
    "rwkv": ({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}, 2),
    "recurrent_gemma": ({**SMALL, "block_types": ["recurrent", "attention"], "lru_width": 32}, 1),
    "minimax": ({**HEAD, "num_local_experts": 2, "num_experts_per_tok": 1}, 1),
    "zaya": (
        {name: value for name, value in HEAD.items() if name != "intermediate_size"}
        | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
        2,
    ),
    "qwen3_next": (
        HEAD | {
            "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2,
            "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
        1,
    ),
    "mamba": ({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}, 2),
    "xlstm": ({"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2}, 2),
    "zamba2": (
        {
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
            "layers_block_type": ["mamba", "hybrid"], "num_attention_heads": 2, "adapter_rank": 4,
            "mamba_d_state": 8, "n_mamba_heads": 4,
        },
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_family_with_a_state_is_packed(model_type: str):
    """Measured: packed, its logits differ from those alone; in rows of their own they do not."""
    fields, layers = FAMILIES[model_type]
    set_seed(0)
    model = build_model({"model_type": model_type, **fields})
    assert recurrent_layers(model) == layers
    assert choose_document_masking("auto", model) == "unpacked"
    for requested in ("varlen", "block_diagonal"):
        with pytest.raises(ConfigError, match="document_masking: unpacked"):
            choose_document_masking(requested, model)
    with pytest.raises(ConfigError, match=r"layers of .* carry a state"):
        choose_document_masking("auto", model, context=2)
    packed = probe_document_masking(model, make_collator("block_diagonal", 0), packs(1))
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(packed, "block_diagonal")
    check_probe(probe_document_masking(model, make_collator("unpacked", 0), packs(1)), "unpacked")


def test_a_layer_with_several_convolutions_is_one_layer():
    inkling = {
        **HEAD, "swa_head_dim": 16, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1,
        "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "d_rel": 4,
    }  # fmt: skip
    model = build_model({"model_type": "inkling_text", **inkling})
    with pytest.raises(ConfigError, match="the 2 recurrent layers of InklingForCausalLM"):
        choose_document_masking("block_diagonal", model)


# positions of OPT, distances of BLOOM and of Falcon with alibi follow from a mask of padding
OPT = {
    "vocab_size": 64, "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "word_embed_proj_dim": 32, "pad_token_id": 0,
}  # fmt: skip
BLOOM = {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 2}
FALCON = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "alibi": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("lfm2", FAMILIES["lfm2"][0]),
        ("mamba", FAMILIES["mamba"][0]),
        ("opt", OPT),
        ("bloom", BLOOM),
        ("falcon", FALCON),
    ],
)
def test_the_plan_measures_the_memory_of_a_family(model_type: str, fields: dict):
    model = build_model({"model_type": model_type, **fields})
    alone = Launched(1, "none", "cpu", "fp32")
    for masked in (False, True):
        shape = StepShape(rows=2, columns=16, labels=8, masked=masked)
        assert measure_step(model.config, shape, None, alone).activations > 0


@pytest.mark.parametrize("document_masking", ["block_diagonal", "varlen"])
def test_the_probe_sees_state_leak_through_a_mamba_layer(document_masking: str):
    """Under `varlen` with what TRL sends, but for the `seq_idx` that only the kernels take."""

    def collate(rows: list[dict]) -> dict:
        batch = make_collator(document_masking, 0)(rows)
        return {key: batch[key] for key in ("input_ids", "labels", "position_ids")}

    probe = probe_document_masking(hybrid_model(), collate, packs())
    assert probe.apart > 1e-3
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(probe, document_masking)


def test_block_diagonal_is_refused_under_flash_attention():
    model = attention_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ConfigError, match="document_masking: varlen"):
        choose_document_masking("block_diagonal", model)
    assert choose_document_masking("auto", model) == "varlen"


# ---- collators ----

PACKS = [
    {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, 7, -100, 9], "seq_lengths": [3, 2]},
    {"input_ids": [4, 3, 2], "labels": [-100, -100, 2], "seq_lengths": [3]},
    {"input_ids": [0, 0], "labels": [-100, -100], "seq_lengths": [2]},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_tokens_of_the_same_sequences_are_trained_in_every_layout(layout):
    batch = make_collator(layout, pad_id=0)(PACKS)
    labels = batch["labels"]
    assert sorted(labels[labels != -100].tolist()) == [2, 6, 7, 9]
    # the counts the trainer's loss divides by
    assert int((labels[:, 1:] != -100).sum()) == 4
    ids, count = sequence_ids(batch)
    tokens = batch["input_ids"].reshape(-1)
    found = sorted(tokens[ids == i].tolist() for i in range(count))
    assert found == [[4, 3, 2], [5, 6, 7], [8, 9]]
    assert int((ids >= 0).sum()) == 8


def test_rows_are_as_narrow_as_the_longest_sequence():
    """Padding is a sequence of its own: position 0 at each start, none without a key."""
    batch = make_collator("block_diagonal", pad_id=0)(PACKS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [4, 3, 2], [8, 9, 0], [0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 0], [0, 1, 0]]
    assert "attention_mask" not in batch
    padded = make_collator("unpacked", pad_id=0)(PACKS[:1])
    assert padded["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_sequences_share_rows_first_fit_decreasing():
    assert deal_rows([2, 7, 3, 5, 4], width=7) == [[1], [3, 0], [4, 2]]
    rng = random.Random(0)
    lengths = [rng.randint(1, 200) for _ in range(400)]
    rows = deal_rows(lengths, 200)
    assert sorted(n for row in rows for n in row) == list(range(400))
    assert max(sum(lengths[n] for n in row) for row in rows) <= 200
    assert sum(lengths) / (200 * len(rows)) > 0.97


def test_a_first_label_is_never_trained():
    """Nothing predicts it; in a pack the previous sequence would."""
    pack = {"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4], "seq_lengths": [2, 2]}
    for layout in LAYOUTS:
        labels = make_collator(layout, pad_id=0)([pack])["labels"]
        assert labels[labels != -100].tolist() == [2, 4], layout


def test_lengths_that_do_not_cover_the_pack_are_refused():
    pack = {"input_ids": [1, 2, 3], "labels": [1, 2, 3], "seq_lengths": [2]}
    with pytest.raises(DataError, match="seq_lengths sum to 2"):
        list(sequences(pack))
