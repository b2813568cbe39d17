"""Each trap that preflight knows, set on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from posttrain.errors import ConfigError, DataError
from posttrain.tokens.tokenizer import special_tokens
from posttrain.training import plan
from posttrain.training.sft.data import check_packs, first_tokens, load_split
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import MakeRecipe
from tests.training.tiny import END, PAD, attention_model, make_tokenizer


def checked(rows: list[dict[str, Any]], *, embedding: int = 64, positions: int = 64) -> None:
    special = special_tokens(make_tokenizer())
    filler = {"input_ids": [PAD] * 2, "labels": [-100] * 2, "seq_lengths": [2]}
    packs = Dataset.from_list([*rows, filler])
    check_packs(packs, special, embeddings=embedding, positions=positions)


def pack(ids: list[int], labels: list[int]) -> dict[str, Any]:
    return {"input_ids": ids, "labels": labels, "seq_lengths": [len(ids)]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (pack([5, 70, END], [-100, 70, END]), "ids 2…70 in the shards, .* rows 0…63"),
        (pack([5] * 80 + [END], [-100] * 80 + [END]), "81 tokens, the model has positions for 64"),
        (pack([5, 6, END], [-100] * 3), "1 of 1 sequences have nothing trained"),
        (pack([5, PAD, END], [-100, PAD, END]), "pad token .* is trained"),
        (pack([5, 6, END], [-100, 6, -100]), "is trained in 0.0% of the sequences"),
    ],
)
def test_data_the_model_cannot_learn_from(row: dict[str, Any], message: str):
    checked([pack([5, 6, END], [-100, 6, END])])
    with pytest.raises(DataError, match=message):
        checked([row])


def test_a_pad_that_ends_turns_is_replaced_and_said(make_data, recipe: MakeRecipe, capsys):
    made = recipe(data=str(make_data(packs=4, pad="<|im_end|>")))
    stage = SftStage(made)
    # of its special tokens none is free: one opens turns, one ends them
    with pytest.raises(ConfigError, match=r"<\|im_end\|>', and this tokenizer .* set pad_token to"):
        stage.prepare()
    prepared = SftStage(made.model_copy(update={"pad_token": "<|pad|>"})).prepare()
    assert prepared.special.pad_id == PAD
    assert (
        "pad",
        "<|pad|> (id 0): the tokenizer's <|im_end|> ends turns",
    ) in prepared.preflight.lines


def test_the_end_token_closes_a_turn():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "w3"  # noqa: S105 - a token
    special = special_tokens(tokenizer)
    assert (special.end_token, special.stop_ids) == ("<|im_end|>", (END, 3))
    with pytest.raises(ConfigError, match="end_token 'nope' is not in"):
        special_tokens(tokenizer, end_token="nope")  # noqa: S106 - a token


def test_an_embedding_smaller_than_the_id_space_is_refused(recipe: MakeRecipe, tmp_path: Path):
    """The tokenizer has 61 entries and ids up to 63: its length would be too small a bound."""
    assert len(make_tokenizer()) < 64
    attention_model(vocab=62).save_pretrained(tmp_path / "small")
    made = recipe(model={"path": str(tmp_path / "small")})
    with pytest.raises(ConfigError, match="ids up to 63, the model's embedding has 62 rows"):
        SftStage(made).prepare()


def test_a_checkpoint_with_another_tokenizer_is_refused(recipe: MakeRecipe, tmp_path: Path):
    path = tmp_path / "other"
    attention_model().save_pretrained(path)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(path)
    text = (path / "tokenizer.json").read_text()
    swapped = text.replace('"w5": 5', '"w5": 6', 1).replace('"w6": 6', '"w6": 5', 1)
    assert swapped != text
    (path / "tokenizer.json").write_text(swapped)
    made = recipe(model={"path": str(path)})
    with pytest.raises(ConfigError, match="'w5' is 6 in the model and 5 in the data"):
        SftStage(made).prepare()


def test_an_adapter_is_no_base_for_another(recipe: MakeRecipe, tmp_path: Path):
    """transformers would load base and adapter, all frozen, and say nothing."""
    attention_model().save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    for adapter in (None, {"preset": "attention"}):
        made = recipe(model={"path": str(tmp_path / "adapter")}, adapter=adapter)
        with pytest.raises(ConfigError, match=r"is a LoRA adapter, not a model.*merge"):
            SftStage(made).prepare()


def test_attention_that_is_not_here_is_named(recipe: MakeRecipe, policy: Path):
    made = recipe(model={"path": str(policy), "attention": "flsh"})
    with pytest.raises(ConfigError, match="attention"):
        SftStage(made).prepare()


def test_a_kept_epoch_that_max_steps_never_reaches_is_refused(recipe: MakeRecipe):
    made = recipe(keep_epochs=[3], trainer={"num_train_epochs": None, "max_steps": 2})
    with pytest.raises(ConfigError, match=r"epoch 3, which ends at step \d+; .*max_steps is 2"):
        SftStage(made).prepare()


def test_preflight_says_what_it_measured(recipe: MakeRecipe):
    made = recipe()
    lines = dict(SftStage(made).prepare().preflight.lines)
    assert "trained in 100.0%" in lines["end token"]
    assert lines["document_masking"].startswith("varlen: a micro-batch is one row, varlen kernels")
    assert "packed vs alone" in lines["probe"]
    assert lines["stops"] == f"generation stops at [{END}], pads with {PAD}"


MPT = {"model_type": "mpt", "d_model": 32, "n_heads": 2, "n_layers": 2}  # reads no positions


def test_auto_takes_a_row_a_sequence_where_the_attention_cannot_be_packed(recipe: MakeRecipe):
    prepared = SftStage(recipe(model={"config": MPT})).prepare()
    lines = [text for name, text in prepared.preflight.lines if name == "document_masking"]
    [line] = lines
    assert line.startswith("unpacked: one sequence per row, since document_masking block_diagonal")
    assert "leaks on this model: logits of a sequence in its pack differ by" in line
    assert prepared.preflight.stats["document_masking"] == "unpacked"
    assert prepared.preflight.stats["packed_vs_alone"] < 1e-5
    batch = prepared.trainer.data_collator([prepared.trainer.train_dataset[0]])
    assert len(batch["input_ids"]) == len(prepared.trainer.train_dataset[0]["seq_lengths"])
    with pytest.raises(ConfigError, match="block_diagonal leaks on this model"):
        SftStage(recipe(model={"config": MPT}, document_masking="block_diagonal")).prepare()


def test_shards_without_a_column_are_named(make_data):
    root = make_data(packs=4)
    shard = root / "packed" / "train-00000.arrow"
    import pyarrow as pa

    table = pa.ipc.open_stream(shard).read_all().drop_columns(["labels"])
    with pa.OSFile(str(shard), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="no column 'labels'"):
        load_split(root, "train", pad_id=PAD)


def test_a_dry_run_times_a_slice_with_the_checkpointing_of_the_run(
    recipe: MakeRecipe, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch
):
    """Slices grow to the bound in seconds; the rest is scaled, and said to be."""
    passes: list[tuple[bool, int]] = []

    def pass_of_ten_seconds(trainer: Any, batch: Any, loss: Any) -> float:
        with trainer.recomputing_activations():
            recomputing = trainer.model.is_activation_checkpointing
        passes.append((recomputing, batch["input_ids"].numel()))
        assert not trainer.model.is_activation_checkpointing
        loss(batch).backward()
        return 10.0

    monkeypatch.setattr(plan, "_time_pass", pass_of_ten_seconds)
    monkeypatch.setattr(plan, "FIRST_SLICE", 8)
    trainer = {"per_device_train_batch_size": 4, "gradient_checkpointing": True}
    SftStage(recipe({**trainer, "max_steps": 900})).run(dry_run=True)
    text = capsys.readouterr().out
    assert passes == [(True, 8), (True, 8)]
    whole = int(text.split("micro-batch of ")[1].split(" ")[0])
    assert f"{10 * whole / 8:.2f} s a micro-batch of {whole} positions, scaled up from 8" in text
    assert "hours on a CPU. Shrink trainer.max_steps" in text
    assert not (tmp_path / "out").exists()


def test_a_slice_is_scaled_by_what_each_position_adds():
    assert plan.scale_up([(128, 2.0)], 256) == 4.0
    # one second whatever the length, and a second for each hundred positions
    assert plan.scale_up([(100, 2.0), (200, 3.0)], 1000) == 11.0
    # a disturbed first slice
    assert plan.scale_up([(100, 5.0), (200, 3.0)], 300) == 3.0 + 100 * 3.0 / 200 / 2


def test_packs_are_cut_to_their_first_tokens():
    pack = {"input_ids": [1, 2, 3, 4, 5], "labels": [1, 2, 3, 4, 5], "seq_lengths": [2, 3]}
    cut = first_tokens([pack, pack], 8)
    assert [one["seq_lengths"] for one in cut] == [[2, 3], [2, 1]]
    assert cut[1]["input_ids"] == cut[1]["labels"] == [1, 2, 3]
    assert first_tokens([pack, pack], 4) == [
        {"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4], "seq_lengths": [2, 2]}
    ]


def test_a_small_disk_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="GiB are free"):
        plan.check_disk(1 << 60, tmp_path / "out")
