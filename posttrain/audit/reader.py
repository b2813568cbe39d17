"""Reader of tokenised data sets of any origin, as a stream of sequences with their loss masks.

Rows of a pre-tokenised table are read as the installed TRL would see them: the loss is where
`labels` is not -100; without labels, where `completion_mask` and `assistant_masks` are 1, as far as
they are there; without any, everywhere. `seq_lengths`, or `position_ids` that start again at 0,
bound the sequences of a pack; padding that `attention_mask` names is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.errors import DataError
from posttrain.runs import MANIFEST, read_artifact
from posttrain.tokens.encode import IGNORED
from posttrain.tokens.supervision import Ids, Mask

MASKS = ("completion_mask", "assistant_masks")
COLUMNS = ("input_ids", "labels", *MASKS, "attention_mask", "seq_lengths", "position_ids", "source")
Int = npt.NDArray[np.int64]
Row = Callable[[int], Int | None]
_ROWS = 64  # rows of a pack file looked at together
_INDEX = ("source", "record_id", "turn", "epoch", "truncated_budget")
_SUFFIXES = (".parquet", ".arrow")


@dataclass(frozen=True, slots=True)
class MaskedSequence:
    """Tokenised sequence with its loss mask.

    Attributes:
        ids, trained: (tokens,).
        about: origin of the sequence, for people.
        cut: its reasoning trace was cut to a budget; None where the data do not say.
        again: it is a repeat that the mixture requests.
        rejected: it is the rejected side of a pair, whose answer may be empty.
    """

    source: str
    ids: Ids
    trained: Mask
    about: str
    cut: bool | None = None
    again: bool = False
    rejected: bool = False

    @property
    def shown(self) -> tuple[Ids, Mask, str]:
        """Arguments of `excerpt`."""
        return self.ids, self.trained, self.about


@dataclass
class SetReader:
    """Iterable over the sequences of a data set, in order.

    It can be iterated again; rows are counted the first time alone.

    Args:
        paths: our artifacts (`sft_data`, `dpo_data`), HF dataset directories, files or folders.
        largest_id: of the tokenizer; rows with larger ids are dropped.
        rows_in: by source.
        dropped: by source and reason.
        counted: the rows have been counted, by a first iteration that reached the end.
    """

    paths: Sequence[Path]
    largest_id: int
    rows_in: Counter[str] = field(default_factory=Counter[str])
    dropped: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    counted: bool = False

    def __iter__(self) -> Iterator[MaskedSequence]:
        for path in self.paths:
            yield from self._sequences_of(path)
        self.counted = True

    def _sequences_of(self, path: Path) -> Iterator[MaskedSequence]:
        if not (path / MANIFEST).is_file():
            for file, source in data_files(path):
                yield from self._sequences_of_table(file, source)
            return
        manifest = read_artifact(path, verify=False)
        names = sorted(file.path for file in manifest.files)
        if manifest.kind == "sft_data":
            packed = [name for name in names if name.startswith("packed/")]
            for name in sorted(packed, key=lambda name: "/eval-" in name):
                yield from self._sequences_of_packs(path, name)
        elif manifest.kind == "dpo_data":
            for name in names:
                if name.startswith("pairs/"):
                    yield from self._sequences_of_pairs(path / name)
        else:
            raise DataError(f"{path} is a {manifest.kind!r} artifact: it holds no loss masks")

    def _sequences_of_packs(self, root: Path, name: str) -> Iterator[MaskedSequence]:
        index = root / name.replace("packed/", "index/").replace(".arrow", ".parquet")
        batches = pq.ParquetFile(index).iter_batches(batch_size=8192, columns=list(_INDEX))
        entries = (entry for batch in batches for entry in batch.to_pylist())
        for batch in arrow_batches(root / name):
            for row in rows_of(batch, name):
                if isinstance(row, str):
                    raise DataError(f"{root / name}: {row}: this shard was not built so")
                for ids, trained in row:
                    entry = next(entries)
                    self._count(entry["source"])
                    yield MaskedSequence(
                        entry["source"],
                        ids,
                        trained,
                        about=f"{entry['record_id']} turn {entry['turn']}",
                        cut=entry["truncated_budget"] is not None,
                        again=entry["epoch"] > 0,
                    )

    def _sequences_of_pairs(self, file: Path) -> Iterator[MaskedSequence]:
        number = 0
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_ROWS):
            for pair in batch.to_pylist():
                number += 1
                for side in ("chosen", "rejected"):
                    source = f"{pair['category']}/{side}"
                    self._count(source)
                    ids = np.array([*pair["prompt_ids"], *pair[f"{side}_ids"]], np.int32)
                    prompt = [False] * len(pair["prompt_ids"])
                    mask = np.array([*prompt, *pair[f"{side}_mask"]], np.bool_)
                    about = f"{pair['id']} ({file.name}:{number})"
                    yield MaskedSequence(source, ids, mask, about, rejected=side == "rejected")

    def _sequences_of_table(self, file: Path, source: str) -> Iterator[MaskedSequence]:
        number = 0
        for batch in arrow_batches(file):
            sources = _sources(batch, source)
            for name, row in zip(sources, rows_of(batch, str(file)), strict=True):
                about = f"{file.name}, row {number}"
                number += 1
                self._count(name)
                if not isinstance(row, str):
                    beyond = any(int(ids.max()) > self.largest_id for ids, _ in row)
                    row = "ids_beyond_the_vocabulary" if beyond else row or "empty_row"
                if isinstance(row, str):
                    if not self.counted:
                        self.dropped.setdefault(name, Counter())[row] += 1
                    continue
                for index, (ids, trained) in enumerate(row):
                    suffix = f", sequence {index}" if len(row) > 1 else ""
                    yield MaskedSequence(name, ids, trained, about + suffix)

    def _count(self, source: str) -> None:
        if not self.counted:
            self.rows_in[source] += 1


def data_files(path: Path) -> list[tuple[Path, str]]:
    """List the files of a foreign data set with their sources; DataError if there are none."""
    if path.is_file():
        if path.suffix.lower() not in _SUFFIXES:
            raise DataError(f"{path}: known are .parquet and .arrow, and directories of them")
        return [(path, path.name)]
    if not path.is_dir():
        raise DataError(f"{path} does not exist")
    if (path / "dataset_dict.json").is_file():
        splits = sorted(state.parent for state in path.glob("*/state.json"))
        return [(file, split.name) for split in splits for file in _saved_files(split)]
    if (path / "state.json").is_file():
        return [(file, path.name) for file in _saved_files(path)]
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _SUFFIXES)
    if not files:
        raise DataError(f"{path} holds no .parquet and no .arrow file")
    return [(file, path.name) for file in files]


def _saved_files(folder: Path) -> list[Path]:
    """Arrow files of a directory that `datasets` saved, in order."""
    state = json.loads((folder / "state.json").read_text("utf-8"))
    return [folder / entry["filename"] for entry in state["_data_files"]]


def arrow_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Read a file's rows, a few at a time, with the columns that an audit needs.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        if file.suffix.lower() == ".parquet":
            with pq.ParquetFile(file) as table:
                present = table.schema_arrow.names
                # without any of them all columns are read, for the message that names them
                names = [column for column in COLUMNS if column in present] or present
                yield from table.iter_batches(batch_size=_ROWS, columns=names)
            return
        with pa.memory_map(str(file)) as source:
            for batch in _ipc_batches(source):
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _ipc_batches(source: pa.MemoryMappedFile) -> Iterator[pa.RecordBatch]:
    """Read the batches of an Arrow stream, as `datasets` writes it, or of an Arrow file."""
    if source.read(6) == b"ARROW1":
        source.seek(0)
        file = pa.ipc.open_file(source)
        yield from (file.get_batch(k) for k in range(file.num_record_batches))
    else:
        source.seek(0)
        yield from pa.ipc.open_stream(source)


def _sources(batch: pa.RecordBatch, otherwise: str) -> list[str]:
    """Source of each row, from a column `source` of texts if there is one."""
    names = batch.schema.names
    if "source" not in names or not pa.types.is_string(batch.column("source").type):
        return [otherwise] * batch.num_rows
    return [value or otherwise for value in batch.column("source").to_pylist()]


def rows_of(batch: pa.RecordBatch, name: str) -> list[list[tuple[Ids, Mask]] | str]:
    """Split each row into its sequences, or give the reason why it cannot be audited.

    Raises:
        DataError: the table has no `input_ids`, or a column of another type.
    """
    if "input_ids" not in batch.schema.names:
        raise DataError(
            f"{name} has no column input_ids, found {', '.join(batch.schema.names)}; "
            "an audit reads data that is tokenised already"
        )
    present = [column for column in COLUMNS[:-1] if column in batch.schema.names]
    getters = {column: _list_getter(batch, column, name) for column in present}
    rows: list[list[tuple[Ids, Mask]] | str] = []
    for number in range(batch.num_rows):
        cells = {column: get_list(number) for column, get_list in getters.items()}
        rows.append(_sequences_of_row(cells))
    return rows


def _list_getter(batch: pa.RecordBatch, column: str, name: str) -> Row:
    """Return a function from a row's number to its list of a column, None where it has none."""
    cells = batch.column(column)
    if pa.types.is_fixed_size_list(cells.type):
        cells = cells.cast(pa.list_(cells.type.value_type))
    if not (pa.types.is_list(cells.type) or pa.types.is_large_list(cells.type)):
        raise DataError(f"{name}: column {column} is {cells.type}, a list of integers is expected")
    value_type = cells.type.value_type
    if not (pa.types.is_integer(value_type) or pa.types.is_boolean(value_type)):
        raise DataError(f"{name}: column {column} holds {value_type}, integers are expected")
    values = cells.values
    offsets = cells.offsets.to_numpy()
    is_valid = cells.is_valid().to_numpy(zero_copy_only=False)
    has_nulls = values.null_count > 0

    def get_list(row: int) -> Int | None:
        numbers = values.slice(offsets[row], offsets[row + 1] - offsets[row])
        if not is_valid[row] or (has_nulls and numbers.null_count):
            return None
        return numbers.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)

    return get_list


def _sequences_of_row(cells: dict[str, Int | None]) -> list[tuple[Ids, Mask]] | str:
    """Split a row into sequences with their masks, or give the reason why that is impossible."""
    ids = cells["input_ids"]
    if ids is None:
        return "null_ids"
    for column, numbers in cells.items():
        if column != "seq_lengths" and (numbers is None or len(numbers) != len(ids)):
            return f"length_of_{column}"
    if len(ids) and not -1 < ids.min() <= ids.max() < 2**31:
        return "impossible_ids"
    labels = cells.get("labels")
    trained = np.ones(len(ids), np.bool_)
    if labels is not None:
        trained = labels != IGNORED
        if (labels[trained] != ids[trained]).any():
            return "labels_differ_from_ids"
    else:
        for mask in map(cells.get, MASKS):
            trained = trained if mask is None else trained & (mask != 0)
    starts = _sequence_starts(cells, len(ids))
    if starts is None:
        return "seq_lengths_do_not_add_up"
    attended = cells.get("attention_mask")
    sequences: list[tuple[Ids, Mask]] = []
    for begin, end in pairwise([*starts, len(ids)]):
        sequence_ids = ids[begin:end].astype(np.int32)
        mask = trained[begin:end]
        if attended is not None and not attended[begin:end].all():
            # a trained pad stays, so that it is seen
            kept = (attended[begin:end] != 0) | mask
            sequence_ids = sequence_ids[kept]
            mask = mask[kept]
        if len(sequence_ids):
            sequences.append((sequence_ids, mask))
    return sequences


def _sequence_starts(cells: dict[str, Int | None], length: int) -> list[int] | None:
    """Positions at which a row's sequences begin; None if `seq_lengths` do not add up."""
    if "seq_lengths" in cells:
        lengths = cells["seq_lengths"]
        if lengths is None or (lengths < 0).any() or lengths.sum() != length:
            return None
        return (np.cumsum(lengths) - lengths)[lengths > 0].tolist()
    positions = cells.get("position_ids")
    if positions is not None and length:
        starts = np.flatnonzero(positions == 0)
        # padding positions may count on from 0 or stay 0; a pack's first token starts a sequence
        return np.union1d([0], starts).tolist()
    return [0] if length else []
