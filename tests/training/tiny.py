"""Writers of a tiny packed artifact and of tiny models, so that these tests need no builder.

A sequence is a prompt of random words and an answer that repeats its first word: learnable at once.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

from posttrain.report import html
from posttrain.runs import Counts, Run
from posttrain.training import plan
from posttrain.training.activations import StepMemory

ROOT = Path(__file__).resolve().parents[2]
PAD, START, END = 0, 1, 2
# the id space has a hole: 40 … 49 are not used
WORDS = {f"w{i}": i for i in [*range(3, 40), *range(50, 64)]}


def make_tokenizer(
    pad: str = "<|pad|>", words: Mapping[str, int] = WORDS
) -> PreTrainedTokenizerFast:
    """Splits at blanks; the first word stands for the unknown."""
    vocabulary = {"<|pad|>": PAD, "<|im_start|>": START, "<|im_end|>": END, **words}
    special = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": pad}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(words))))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special)


def make_sequence(rng: random.Random, length: int) -> tuple[list[int], list[int]]:
    """Prompt words, START, then a learnable answer (the prompt's first word repeated), END."""
    ids = [rng.choice(sorted(WORDS.values())) for _ in range(length)]
    prompt = max(2, length // 3)
    ids[prompt:] = [ids[0]] * (length - prompt)
    ids[prompt], ids[-1] = START, END
    labels = [-100] * (prompt + 1) + ids[prompt + 1 :]
    return ids, labels


def _packs(
    rng: random.Random, packs: int, capacity: int
) -> list[list[tuple[list[int], list[int]]]]:
    made = []
    for _ in range(packs):
        parts, left = [], capacity
        while left >= 6:
            length = min(rng.randint(6, max(6, capacity // 2)), left)
            parts.append(make_sequence(rng, length))
            left -= length
        made.append(parts)
    return made


def write_split(root: Path, split: str, packs: list, group: str | None, shards: int = 2) -> None:
    rows, index = [], []
    for number, parts in enumerate(packs):
        offset = 0
        row = {"input_ids": [], "labels": [], "seq_lengths": []}
        for position, (ids, labels) in enumerate(parts):
            row["input_ids"] += ids
            row["labels"] += labels
            row["seq_lengths"].append(len(ids))
            trained = sum(label != -100 for label in labels)
            index.append(
                {"pack": number, "offset": offset, "length": len(ids), "trained": trained}
                | {"record_id": f"{split}{number}.{position}", "turn": 0, "epoch": 0}
                | {"source": f"s{number % 2}", "license": "cc0-1.0", "dialect": "openai"}
                | {"reasoning": "on", "truncated_budget": None, "metadata": "{}"}
            )
            offset += len(ids)
        if group is not None:
            row["group"] = f"{group}{number % 2}/on"
        rows.append(row)
    fields = [(name, pa.list_(pa.int32())) for name in ("input_ids", "labels", "seq_lengths")]
    if group is not None:
        fields.append(("group", pa.string()))
    per_shard = -(-len(rows) // shards)
    for shard in range(shards):
        part = rows[shard * per_shard : (shard + 1) * per_shard]
        table = pa.Table.from_pylist(part, schema=pa.schema(fields))
        path = root / "packed" / f"{split}-{shard:05d}.arrow"
        path.parent.mkdir(exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    (root / "index").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(index), root / "index" / f"{split}-00000.parquet")


def write_artifact(
    root: Path, *, packs: int = 40, capacity: int = 48, held_out: int = 6, pad: str = "<|pad|>"
) -> Path:
    stage = Run.open(root, kind="sft_data", config={"packs": packs, "capacity": capacity})
    rng = random.Random(0)
    write_split(root, "train", _packs(rng, packs, capacity), None)
    if held_out:
        write_split(root, "eval", _packs(rng, held_out, capacity), "s", shards=1)
    make_tokenizer(pad).save_pretrained(str(root / "tokenizer"))
    files = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    stage.finish(
        counts=Counts(rows_in=packs, kept=packs),
        files={name: None for name in files if name != "stage.json"},
    )
    return root


def attention_model(vocab: int = 64) -> PreTrainedModel:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def hybrid_model(vocab: int = 64) -> PreTrainedModel:
    set_seed(0)
    config = NemotronHConfig(
        vocab_size=vocab, hidden_size=32, hybrid_override_pattern="ME*-", num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, mamba_num_heads=4,
        mamba_head_dim=16, ssm_state_size=16, n_groups=2, chunk_size=16, intermediate_size=64,
        moe_intermediate_size=32, moe_shared_expert_intermediate_size=32, n_routed_experts=8,
        num_experts_per_tok=2, n_group=1, topk_group=1, pad_token_id=PAD, bos_token_id=START,
        eos_token_id=END,
    )  # fmt: skip
    return NemotronHForCausalLM(config)


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def neither_measure_nor_draw(patch: pytest.MonkeyPatch) -> None:
    """To measure what a step needs takes longer than a tiny run, and to draw its charts as long."""
    patch.setattr(plan, "measure_step", lambda *_: StepMemory(0, 0, 0))
    patch.setattr(plan, "rollout_bytes", lambda *_: 0)
    patch.setitem(html._template().environment.filters, "svg", lambda _: "")


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def log_rows(out: Path, *, of: str = "") -> list[dict[str, Any]]:
    """The rows of a log; `of`: those that have this figure, such as `loss` and `rollouts`."""
    return [row for row in lines_of(out / "log.jsonl") if not of or of in row]


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in log_rows(out, of="loss")]


def rollout_groups(out: Path) -> list[dict[str, Any]]:
    """The groups of all steps, in their order."""
    return [group for file in sorted((out / "rollouts").glob("*")) for group in lines_of(file)]
