"""The checks that run before step 1, and alone under `--dry-run`. Each gives one line or stops.

tokens       512 of 8,000 packs: ids 0…1023 of 1,024 rows, pad <|pad|> ≠ end <|im_end|>
end token    <|im_end|> is trained in 100.0 % of 2,113 sequences
document_masking    block_diagonal: …; packed vs alone 2.1e-07, unprotected 0.83
stops        generation stops at [2], pads with 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel

from posttrain.errors import ConfigError, DataError
from posttrain.models.adapters import AdapterReach, trainable_routers
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.document_masking import (
    check_probe,
    describe_document_masking,
    make_collator,
    probe_document_masking,
)
from posttrain.training.packed_data import IGNORED, sequences

SAMPLED_PACKS = 512
END_TRAINED = 0.5


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found, as (check, sentence) lines for the plan and stats for the manifest."""

    lines: tuple[tuple[str, str], ...]
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataSample:
    """What a sample of the packs holds."""

    packs: int
    of: int
    sequences: int
    smallest_id: int
    largest_id: int
    longest: int
    end_trained: float
    untrained: int
    pad_trained: bool


def sample_data(packs: Dataset, special: SpecialTokens) -> DataSample:
    """Look into evenly spaced packs (the last row, the filler, is left out)."""
    total = len(packs) - 1
    taken = min(total, SAMPLED_PACKS)
    rows = sorted({i * total // taken for i in range(taken)})
    seen = ended = untrained = longest = 0
    smallest, largest, pad_trained = 1 << 60, -1, False
    for pack in packs.select(rows):
        for ids, labels in sequences(dict(pack)):
            seen += 1
            ended += special.end_id in labels
            untrained += all(label == IGNORED for label in labels[1:])
            pad_trained |= special.pad_id in labels
            smallest, largest = min(smallest, *ids), max(largest, *ids)
            longest = max(longest, len(ids))
    return DataSample(
        len(rows), total, seen, smallest, largest, longest, ended / seen, untrained, pad_trained
    )


def check_data(sample: DataSample, special: SpecialTokens, *, rows: int, positions: int) -> None:
    """Stop on data that this model cannot train on.

    Args:
        rows: rows of the model's embedding.
        positions: the longest sequence the model has positions for.

    Raises:
        DataError: ids outside the embedding, sequences too long or with nothing trained, a trained
            pad, or an end token that is not trained.
    """
    if sample.smallest_id < 0 or sample.largest_id >= rows:
        raise DataError(
            f"ids {sample.smallest_id}…{sample.largest_id} in the shards, the model's embedding "
            f"has rows 0…{rows - 1}: they were made with another tokenizer"
        )
    if sample.longest > positions:
        raise DataError(
            f"a sequence has {sample.longest} tokens, the model has positions for {positions}"
        )
    if sample.untrained:
        raise DataError(
            f"{sample.untrained} of {sample.sequences} sequences have nothing trained; "
            "build_sft drops such sequences, so these shards come from elsewhere"
        )
    if sample.pad_trained:
        raise DataError(f"the pad token {special.pad_token!r} is trained in the shards")
    if sample.end_trained < END_TRAINED:
        raise DataError(
            f"{special.end_token!r} is trained in {sample.end_trained:.1%} of the sequences: the "
            "model would not learn to stop. Set end_token: to the token that closes a turn, or "
            "build the data with its end tokens trained"
        )


def run_preflight(
    *,
    model: PreTrainedModel,
    train: Dataset,
    special: SpecialTokens,
    document_masking: str,
    reach: tuple[AdapterReach, ...],
    sharded: bool,
) -> Preflight:
    """All checks that need the model and the data.

    Args:
        sharded: parameters are already split over processes (ZeRO-3), so no forward is possible.

    Raises:
        ConfigError, DataError: from the first check that fails.
    """
    rows, longest = embedding_rows(model), positions(model)
    sample = sample_data(train, special)
    check_data(sample, special, rows=rows, positions=longest)
    lines = [
        ("tokens", _tokens_line(sample, special, rows)),
        (
            "end token",
            f"{special.end_token} is trained in {sample.end_trained:.1%} of "
            f"{sample.sequences:,} sequences",
        ),
        ("stops", check_stops(model, special)),
    ]
    line, probe = _document_masking_line(model, train, special, document_masking, sharded)
    lines.append(("document_masking", line))
    lines += adapter_lines(model, reach)
    stats = {
        "document_masking": document_masking,
        "end_trained": round(sample.end_trained, 4),
        **probe,
    }
    return Preflight(tuple(lines), stats)


def _tokens_line(sample: DataSample, special: SpecialTokens, rows: int) -> str:
    return (
        f"{sample.packs:,} of {sample.of:,} packs looked at: ids {sample.smallest_id}…"
        f"{sample.largest_id} of {rows:,} rows; pad {special.pad_token} ≠ end {special.end_token}"
    )


def check_stops(model: PreTrainedModel, special: SpecialTokens) -> str:
    """One line on the generation config.

    Raises:
        ConfigError: generation would not stop at the end of a turn.
    """
    generation = model.generation_config
    assert generation is not None
    stops = generation.eos_token_id
    stop_ids = stops if isinstance(stops, list) else [stops]
    if special.end_id not in stop_ids or generation.pad_token_id in stop_ids:
        raise ConfigError(
            f"generation config stops at {stop_ids} and pads with {generation.pad_token_id}; "
            f"it must stop at {special.end_id} and pad with something else"
        )
    return f"generation stops at {stop_ids}, pads with {generation.pad_token_id}"


def _document_masking_line(
    model: PreTrainedModel,
    train: Dataset,
    special: SpecialTokens,
    document_masking: str,
    sharded: bool,
) -> tuple[str, dict[str, Any]]:
    described = describe_document_masking(document_masking, str(model.config._attn_implementation))
    if sharded:
        return f"{described}; not measured, the parameters are sharded", {}
    packs = [train[row] for row in range(min(2, len(train) - 1))]
    probe = probe_document_masking(model, make_collator(document_masking, special.pad_id), packs)
    check_probe(probe, document_masking)
    line = f"{described}; packed vs alone {probe.apart:.1e}, unprotected {probe.leaking:.1e}"
    return line, {"packed_vs_alone": _rounded(probe.apart)}


def _rounded(value: float) -> float:
    # an upper bound to one digit: the last bits differ between machines, the manifest must not
    return float(f"{value:.0e}")


def adapter_lines(model: PreTrainedModel, reach: tuple[AdapterReach, ...]) -> list[tuple[str, str]]:
    """What an adapter reaches; () where there is none.

    Raises:
        ConfigError: it would train routers.
    """
    if not reach:
        return []
    lines = [
        (f"adapter {r.target}", f"{r.tensors} tensors, {r.share:.1%} of the parameters")
        for r in reach
    ]
    if trained := trainable_routers(model):
        raise ConfigError(f"the adapter would train routers: {', '.join(trained)}")
    return lines


def embedding_rows(model: PreTrainedModel) -> int:
    """Token ids that the model has an embedding for, sharded or not."""
    weight: Any = model.get_input_embeddings().weight
    # DeepSpeed keeps a partitioned parameter's real shape here
    return int(getattr(weight, "ds_shape", weight.shape)[0])


def positions(model: PreTrainedModel) -> int:
    """The longest sequence the model has positions for."""
    text = model.config.get_text_config()
    return int(getattr(text, "max_position_embeddings", None) or 1 << 60)
