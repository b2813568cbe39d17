from __future__ import annotations

import random

import pytest

from posttrain.errors import ConfigError
from posttrain.training.isolation import (
    check_probe,
    choose_isolation,
    make_collator,
    probe_isolation,
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


@pytest.mark.parametrize("isolation", ["varlen", "block_diagonal", "unpacked"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_equals_alone_on_the_attention_model(isolation, attention):
    model = attention_model()
    model.set_attn_implementation(attention)
    probe = probe_isolation(model, make_collator(isolation, 0), packs())
    assert probe.apart < 1e-5
    assert probe.leaking > 0.01
    check_probe(probe, isolation)


def test_the_hybrid_is_done_right_unpacked():
    model = hybrid_model()
    assert choose_isolation("auto", model) == "unpacked"
    probe = probe_isolation(model, make_collator("unpacked", 0), packs())
    assert probe.apart < 1e-5


@pytest.mark.parametrize("asked", ["varlen", "block_diagonal"])
def test_packing_the_hybrid_is_refused_with_what_to_do(asked):
    with pytest.raises(ConfigError, match="isolation: unpacked"):
        choose_isolation(asked, hybrid_model())


def test_the_probe_sees_state_leak_through_a_mamba_layer():
    probe = probe_isolation(hybrid_model(), make_collator("block_diagonal", 0), packs())
    assert probe.apart > 1e-3
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(probe, "block_diagonal")


def test_positions_alone_do_not_keep_a_recurrent_layer_apart():
    """What TRL sends, without the `seq_idx` that only the kernels take."""

    def positions_only(rows: list[dict]) -> dict:
        batch = make_collator("varlen", 0)(rows)
        return {key: batch[key] for key in ("input_ids", "labels", "position_ids")}

    probe = probe_isolation(hybrid_model(), positions_only, packs())
    with pytest.raises(ConfigError, match="leaks on this model"):
        check_probe(probe, "varlen")


def test_block_diagonal_is_refused_under_flash_attention():
    model = attention_model()
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ConfigError, match="isolation: varlen"):
        choose_isolation("block_diagonal", model)
    assert choose_isolation("auto", model) == "varlen"
