"""Layouts that keep the sequences of a pack apart, and a check on the real model that they do.

    varlen          [1, all tokens]       TRL's padding-free collator: varlen kernels, or seq_idx
    block_diagonal  [rows, longest]       sequences side by side, positions restart at each
    unpacked        [sequences, longest]  one sequence per row, right-padded: for recurrent layers,
                                          and for sequences that several processes share

The first label of a sequence is ignored, because nothing predicts it, and padding is never trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from posttrain.errors import ConfigError, DataError
from posttrain.models.load import (
    VARLEN_ATTENTION,
    has_only_scans,
    has_recurrent_kernels,
    recurrent_layers,
)
from posttrain.tokens.encode import IGNORED

Batch = dict[str, Any]
Collator = Callable[[list[dict[str, Any]]], Batch]
# tokens of the longest probed sequence: enough for a leak to show, and quick on any model
PROBE_TOKENS = 32
FP32_TOLERANCE = 1e-5


def choose_document_masking(requested: str, model: PreTrainedModel, *, context: int = 1) -> str:
    """Resolve `auto`, and refuse a layout that would leak on this model.

    Args:
        context: number of processes among which each sequence is split.

    Raises:
        ConfigError: saying which setting works.
    """
    if context > 1:
        _refuse_split_sequences(requested, model)
        return "unpacked"
    attention = model.config._attn_implementation
    varlen = attention in VARLEN_ATTENTION
    recurrent = recurrent_layers(model)
    kernels = has_recurrent_kernels() and has_only_scans(model)
    if requested == "auto":
        if recurrent and not kernels:
            return "unpacked"
        return "varlen" if varlen or recurrent else "block_diagonal"
    if requested == "block_diagonal" and recurrent:
        raise ConfigError(
            f"document_masking block_diagonal masks attention only: the {recurrent} recurrent "
            f"layers of {type(model).__name__} would carry state across sequences. "
            "Set document_masking: unpacked (one sequence a row)"
        )
    if requested == "varlen" and recurrent and not has_only_scans(model):
        raise ConfigError(
            f"document_masking varlen: the {recurrent} recurrent layers of {type(model).__name__} "
            "would carry state across sequences, and no kernel is known that keeps them apart. "
            "Set document_masking: unpacked (one sequence a row)"
        )
    if requested == "varlen" and recurrent and not kernels:
        raise ConfigError(
            f"packing {type(model).__name__} needs the mamba_ssm and causal_conv1d kernels on a "
            "GPU, they are not usable here. Set document_masking: unpacked (one sequence a row), "
            "or install them"
        )
    if requested == "block_diagonal" and varlen:
        raise ConfigError(
            f"document_masking block_diagonal with {attention}: flash-attention reads boundaries "
            "of one row only. Set document_masking: varlen, or model.attention: sdpa"
        )
    return requested


def _refuse_split_sequences(requested: str, model: PreTrainedModel) -> None:
    """Refuse what ring attention cannot express: it drops every mask but the causal one.

    TRL refuses its own packing for the same reason, and cannot know that shards are packed.

    Raises:
        ConfigError: naming what stands against it.
    """
    name = type(model).__name__
    attention = model.config._attn_implementation
    problem = None
    if recurrent := recurrent_layers(model):
        problem = (
            f"the {recurrent} recurrent layers of {name} carry a state from token to token, which "
            "processes do not pass on"
        )
    elif not model.supports_context_parallel:
        problem = f"not all layers of {name} attend to everything before a token"
    elif attention != "sdpa":
        problem = f"it is a part of PyTorch's SDPA, not of {attention}: set model.attention: sdpa"
    elif requested not in ("auto", "unpacked"):
        problem = (
            f"document_masking {requested} packs sequences under a mask, which it drops: documents "
            "would attend to each other. Set document_masking: unpacked (one sequence a row)"
        )
    if problem is not None:
        raise ConfigError(f"context parallelism (the launcher's cp_size): {problem}")


def describe_document_masking(document_masking: str, attention: str) -> str:
    """Line of the plan on the active mask."""
    kernels = "varlen kernels" if attention in VARLEN_ATTENTION else "a block-diagonal mask"
    text = {
        "varlen": f"a micro-batch is one row, {kernels}",
        "block_diagonal": "sequences side by side, masked from each other",
        "unpacked": "one sequence per row, right-padded",
    }[document_masking]
    return f"{document_masking}: {text} ({attention})"


def make_collator(document_masking: str, pad_id: int, *, context: int = 1) -> Collator:
    """Build the collator of a resolved layout; that of `varlen` is TRL's own.

    Args:
        context: number of processes among which each row is split.
    """
    if document_masking == "varlen":
        return DataCollatorForLanguageModeling(pad_token_id=pad_id, padding_free=True)
    if context > 1:
        return partial(_split_rows, pad_id, context)
    collate = {"block_diagonal": _block_diagonal, "unpacked": _unpacked}[document_masking]
    return partial(collate, pad_id)


def sequences(pack: dict[str, Any]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Iterate over the (input ids, labels) of the sequences of a pack.

    Raises:
        DataError: the lengths of the sequences do not add up to that of the pack.
    """
    start = 0
    for length in pack["seq_lengths"]:
        end = start + length
        yield pack["input_ids"][start:end], pack["labels"][start:end]
        start = end
    if start != len(pack["input_ids"]) or start != len(pack["labels"]):
        raise DataError(
            f"a pack's seq_lengths sum to {start}, "
            f"it has {len(pack['input_ids'])} ids and {len(pack['labels'])} labels"
        )


def pad_rows(rows: Iterable[Sequence[int]], fill: int) -> torch.Tensor:
    """Rows of unequal length as one int64 tensor, padded on the right with `fill`."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)


def padded(ids: Sequence[Sequence[int]], labels: Iterable[Sequence[int]], pad_id: int) -> Batch:
    """Batch of right-padded rows: ids, labels and attention mask, int64 `[rows, longest]` each."""
    return {
        "input_ids": pad_rows(ids, pad_id),
        "labels": pad_rows(labels, IGNORED),
        "attention_mask": pad_rows(([1] * len(row) for row in ids), 0),
    }


def _sequences_of_packs(
    packs: Iterable[dict[str, Any]],
) -> list[tuple[Sequence[int], Sequence[int]]]:
    """List the (input ids, labels) of the sequences of all packs, in order."""
    pairs: list[tuple[Sequence[int], Sequence[int]]] = []
    for pack in packs:
        pairs.extend(sequences(pack))
    return pairs


def _ignore_first_label(labels: Sequence[int]) -> list[int]:
    """Copy the labels of a sequence with the first one ignored, which nothing predicts."""
    return [IGNORED, *labels[1:]]


def _block_diagonal(pad_id: int, packs: list[dict[str, Any]]) -> Batch:
    """Collate sequences side by side: ids, labels and positions, int64 `[rows, width]` each.

    Attention over a masked row costs its width squared, so the sequences of the micro-batch are
    distributed anew over rows as narrow as the longest of them. transformers finds the blocks by
    positions that restart; padding is a block too, so that no query is left without a key.
    """
    pack_sequences = _sequences_of_packs(packs)
    lengths = [len(sequence) for sequence, _ in pack_sequences]
    width = max(lengths)
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    positions: list[list[int]] = []
    for row in deal_rows(lengths, width):
        row_ids: list[int] = []
        row_labels: list[int] = []
        row_positions: list[int] = []
        for number in row:
            sequence, sequence_labels = pack_sequences[number]
            row_ids += sequence
            row_labels += _ignore_first_label(sequence_labels)
            row_positions += range(len(sequence))
        padding = width - len(row_ids)
        row_positions += range(padding)  # `pad_rows` pads ids and labels
        ids.append(row_ids)
        labels.append(row_labels)
        positions.append(row_positions)
    return {
        "input_ids": pad_rows(ids, pad_id),
        "labels": pad_rows(labels, IGNORED),
        "position_ids": torch.tensor(positions),
    }


def deal_rows(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Distribute sequences over rows of at most `width` tokens, by first-fit decreasing.

    Returns:
        Indices of the sequences in each row.
    """
    rows: list[list[int]] = []
    free_tokens: list[int] = []  # of each row
    longest_first = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    for number in longest_first:
        length = lengths[number]
        rows_with_room = (row for row, free in enumerate(free_tokens) if free >= length)
        row = next(rows_with_room, None)
        if row is None:
            row = len(rows)
            rows.append([])
            free_tokens.append(width)
        rows[row].append(number)
        free_tokens[row] -= length
    return rows


def _unpacked(pad_id: int, packs: list[dict[str, Any]]) -> Batch:
    """Collate one sequence per row, right-padded."""
    pack_sequences = _sequences_of_packs(packs)
    ids = [sequence for sequence, _ in pack_sequences]
    labels = [_ignore_first_label(sequence_labels) for _, sequence_labels in pack_sequences]
    return padded(ids, labels, pad_id)


def _split_rows(pad_id: int, context: int, packs: list[dict[str, Any]]) -> Batch:
    """Collate one sequence per row, in columns that divide among processes, with positions.

    Each process takes a column block from the front and one from the end, for equal work.
    """
    batch = _unpacked(pad_id, packs)
    rows, columns = batch["input_ids"].shape
    padding = -columns % (2 * context)
    fills = {"input_ids": pad_id, "labels": IGNORED, "attention_mask": 0}
    for key, fill in fills.items():
        batch[key] = torch.nn.functional.pad(batch[key], (0, padding), value=fill)
    # transformers would take one row of numbers for all rows, which cannot be split in place
    batch["position_ids"] = torch.arange(columns + padding).repeat(rows, 1)
    return batch


def sequence_ids(batch: Batch) -> tuple[torch.Tensor, int]:
    """Number the *trained* sequences of a batch, and tell which of them each token belongs to.

    Returns:
        ids: int64 `[rows * columns]`, in the order of the flattened batch; -1 for padding and for
            sequences with nothing trained, such as fillers.
        count: number of sequences with at least one trained token.
    """
    numbers, real = _sequence_numbers(batch)
    trained_tokens = torch.zeros(int(numbers.max()) + 1, dtype=torch.long, device=numbers.device)
    trained_tokens.index_add_(0, numbers, (batch["labels"].reshape(-1) != IGNORED).long())
    trained = trained_tokens > 0
    renumbered = torch.where(trained, trained.cumsum(0) - 1, -1)
    return torch.where(real, renumbered[numbers], -1), int(trained.sum())


def _sequence_numbers(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Number of each token's sequence, and a mask that is false for padding: `[rows * columns]`.

    Padding of a batch without attention mask counts as a sequence, whose labels are ignored.
    """
    ids = batch["input_ids"]
    if "attention_mask" in batch:
        rows = torch.arange(ids.size(0), device=ids.device)[:, None].expand_as(ids)
        return rows.reshape(-1), batch["attention_mask"].reshape(-1).bool()
    numbers = (batch["position_ids"].reshape(-1) == 0).cumsum(0) - 1
    return numbers, torch.ones_like(numbers, dtype=torch.bool)


@dataclass(frozen=True, slots=True)
class MaskingProbe:
    """Measurement of how well a layout keeps sequences apart.

    Attributes:
        apart: Largest logit difference of a sequence in its batch from the same sequence alone.
        leaking: The same difference where sequences are packed with nothing between them.
        scale: Largest magnitude of a logit.
        dtype: Dtype of the model, such as "float32".
    """

    apart: float
    leaking: float
    scale: float
    dtype: str


def probe_document_masking(
    model: PreTrainedModel, collator: Collator, packs: Sequence[dict[str, Any]]
) -> MaskingProbe:
    """Compare the logits of short sequences run in the layout, alone and unprotected."""
    short_packs = [_shorten(pack) for pack in packs]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = _logits_by_sequence(model, collator(short_packs))
            probed = [tuple(sequence) for sequence, _ in _sequences_of_packs(short_packs)]
            alone = [_logits(model, sequence) for sequence in probed]
            # a whole pack as if it were one sequence: what a leak does to the logits
            unprotected = torch.cat([_logits(model, pack["input_ids"]) for pack in short_packs])
    finally:
        model.train(was_training)
    apart = 0.0
    for sequence, logits in zip(probed, alone, strict=True):
        apart = max(apart, float((packed[sequence] - logits).abs().max()))
    all_alone = torch.cat(alone)
    return MaskingProbe(
        apart=apart,
        leaking=float((unprotected - all_alone).abs().max()),
        scale=float(all_alone.abs().max()),
        dtype=str(model.dtype).removeprefix("torch."),
    )


def describe_leak(probe: MaskingProbe, document_masking: str) -> str | None:
    """Describe the measured leak of a layout; None for one that keeps sequences apart."""
    if probe.dtype == "float32":
        # rounding errors grow with the numbers rounded
        limit = FP32_TOLERANCE * max(1.0, probe.scale)
    else:
        # half precision rounds too coarsely for a fixed limit: compare with what a leak does
        limit = 0.05 * probe.leaking
    if probe.apart <= limit:
        return None
    return (
        f"document_masking {document_masking} leaks on this model: logits of a sequence in its "
        f"pack differ by {probe.apart:.2g} from the same sequence alone (limit {limit:.2g}, "
        f"unprotected {probe.leaking:.2g})"
    )


def check_probe(probe: MaskingProbe, document_masking: str) -> None:
    """Refuse a layout that leaks.

    Raises:
        ConfigError: with the measured differences.
    """
    leak = describe_leak(probe, document_masking)
    if leak is not None:
        raise ConfigError(f"{leak}. Set document_masking: unpacked")


def _shorten(pack: dict[str, Any]) -> dict[str, Any]:
    """Cut a pack to three sequences at most, the later ones short enough to share a row."""
    leading = list(sequences(pack))[:3]
    first_length = min(PROBE_TOKENS, len(leading[0][0]))
    later_length = max(first_length // 2, 2)
    short: dict[str, Any] = {"input_ids": [], "labels": [], "seq_lengths": []}
    for number, (ids, labels) in enumerate(leading):
        length = later_length if number else first_length
        short["input_ids"] += ids[:length]
        short["labels"] += labels[:length]
        short["seq_lengths"].append(len(ids[:length]))
    return short


def _logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """Logits of one sequence alone, `[tokens, vocabulary]`."""
    inputs = torch.tensor([list(ids)], device=model.device)
    return model(input_ids=inputs, use_cache=False).logits[0].float()


def _logits_by_sequence(
    model: PreTrainedModel, batch: dict[str, Any]
) -> dict[tuple[int, ...], torch.Tensor]:
    """Logits of each sequence of a collated batch, keyed by its ids."""
    inputs: dict[str, Any] = {}
    for key, value in batch.items():
        if key != "labels":
            inputs[key] = value.to(model.device) if isinstance(value, torch.Tensor) else value
    logits = model(**inputs, use_cache=False).logits.float().flatten(0, 1)
    numbers, real = _sequence_numbers(batch)
    real_ids = batch["input_ids"].flatten()[real]
    real_logits = logits[real.to(logits.device)]
    lengths = numbers[real].bincount().tolist()
    ids_and_logits = zip(real_ids.split(lengths), real_logits.split(lengths), strict=True)
    return {tuple(ids.tolist()): sequence_logits for ids, sequence_logits in ids_and_logits}
