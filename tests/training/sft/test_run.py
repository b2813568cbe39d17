"""One process, end to end: `prepare` and `train_sft` on tiny data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError, DataError, TrainingError
from posttrain.runs import read_artifact
from posttrain.training.document_masking import sequences
from posttrain.training.finish import RESUME
from posttrain.training.sft.data import load_split
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import MakeRecipe
from tests.training.tiny import END, PAD, log_rows, losses


def finish(recipe: SftConfig) -> Path:
    out = SftStage(recipe).run(dry_run=False)
    assert out is not None
    return out


def test_a_run_ends_in_a_checkpoint_that_learns_and_stops(recipe: MakeRecipe, data: Path):
    made = recipe(
        keep_epochs=[1],
        trainer={"num_train_epochs": 12, "learning_rate": 1e-2, "eval_strategy": "epoch"},
    )
    out = finish(made)
    manifest = read_artifact(out, kind="checkpoint")
    assert manifest.parents[0].digest == read_artifact(data).digest
    assert manifest.counts.rows_in == manifest.counts.kept == 40
    ran = {"world_size": 1, "sharding": "none", "device": "cpu", "precision": "fp32"}
    assert {name: manifest.stats[name] for name in ran} == ran
    assert losses(out)[-1] < 0.5 * losses(out)[0]
    assert not (out / RESUME).exists()
    assert not list(out.glob("**/training_args.bin"))
    for folder in (out, out / "checkpoint-epoch-1"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert model.generation_config.eos_token_id == END
        assert model.generation_config.pad_token_id == PAD != END
        assert tokenizer.pad_token_id == PAD
    listed = {entry.path for entry in manifest.files}
    assert {"model.safetensors", "log.jsonl", "generation_config.json"} <= listed
    assert "README.md" not in listed  # it may be edited
    card = ModelCard((out / "README.md").read_text())
    assert manifest.parents[0].digest in card.text
    assert card.data.license == "unknown"  # of the data it is known, of the base not
    assert str(out.parent) not in card.text
    assert card.data.tags == ["sft"]


def test_the_precision_that_runs_is_the_trainers(recipe: MakeRecipe):
    assert SftStage(recipe(trainer={"bf16": True})).prepare().launched.precision == "bf16"


def _no_room(*_: Any, **__: Any) -> None:
    raise SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    "write",
    [
        lambda *_, **__: torch.save({"a": torch.zeros(1 << 20)}, "/dev/full"),
        lambda *_, **__: Path("/dev/full").write_bytes(bytes(1 << 16)),
        _no_room,
    ],
    ids=["torch", "python", "safetensors"],
)
def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    recipe: MakeRecipe, write: Any, monkeypatch: pytest.MonkeyPatch
):
    made = recipe(trainer={"num_train_epochs": 1})
    with monkeypatch.context() as patch:
        patch.setattr("posttrain.training.trainer.write_model", write)
        with pytest.raises(DataError, match=f"{made.out}: the disk is full") as full:
            finish(made)
    assert "\n" not in str(full.value)
    finish(made)


def test_the_saved_model_stops_on_its_end_token(recipe: MakeRecipe):
    out = finish(recipe(trainer={"num_train_epochs": 40, "learning_rate": 1e-2}))
    model = AutoModelForCausalLM.from_pretrained(out)
    # from the data: prompt of length n // 3, then START, the answer, END
    row = load_split(Path(recipe().data), "train", pad_id=PAD)[0]
    stopped = 0
    for ids, labels in sequences(row):
        prompt = next(i for i, label in enumerate(labels) if label != -100)
        made = model.generate(torch.tensor([ids[:prompt]]), max_new_tokens=60, do_sample=False)
        stopped += made[0, -1].item() == END
    assert stopped == len(row["seq_lengths"])


def test_the_logged_losses_are_per_trained_token_of_the_whole_batch(recipe: MakeRecipe):
    """A naive reference: every sequence alone, summed, divided by all trained tokens."""
    made = recipe(trainer={"num_train_epochs": 1, "max_grad_norm": 0.0, "learning_rate": 0.0})
    out = finish(made)
    model = AutoModelForCausalLM.from_pretrained(made.model.path).eval()
    prepared = SftStage(made).prepare()
    order = list(prepared.trainer._get_train_sampler())
    data = prepared.trainer.train_dataset
    for step, logged in enumerate(losses(out)):
        total = count = 0
        for row in order[8 * step : 8 * step + 8]:
            for ids, labels in sequences(data[row]):
                logits = model(torch.tensor([ids])).logits[0, :-1]
                target = torch.tensor(labels[1:])
                total += float(F.cross_entropy(logits, target, reduction="sum").detach())
                count += int((target != -100).sum())
        assert logged == pytest.approx(total / count, abs=2e-5)


def test_evaluation_loss_is_per_trained_token_by_group_and_over_all(recipe: MakeRecipe):
    out = finish(recipe(trainer={"eval_strategy": "epoch", "num_train_epochs": 1}))
    model = AutoModelForCausalLM.from_pretrained(out)
    split = load_split(Path(recipe().data), "eval", pad_id=PAD)
    sums: dict[str, list[float]] = {}
    for row in range(len(split) - 1):
        for ids, labels in sequences(split[row]):
            logits = model(torch.tensor([ids])).logits[0, :-1]
            target = torch.tensor(labels[1:])
            group = sums.setdefault(split[row]["group"], [0.0, 0])
            group[0] += float(F.cross_entropy(logits, target, reduction="sum").detach())
            group[1] += int((target != -100).sum())
    held_out = read_artifact(out).stats["eval_loss"]
    for group, (total, count) in sums.items():
        assert held_out[group] == pytest.approx(total / count, abs=1e-4)
    both = [sum(column) for column in zip(*sums.values(), strict=True)]
    assert held_out["all"] == pytest.approx(both[0] / both[1], abs=1e-4)


def test_an_incomplete_last_batch_is_neither_dropped_nor_doubled(recipe: MakeRecipe):
    out = finish(recipe(trainer={"per_device_train_batch_size": 16, "num_train_epochs": 1}))
    rows = [row for row in log_rows(out) if "loss" in row]
    manifest = read_artifact(out)
    assert manifest.stats["steps"] == 3
    assert manifest.stats["tokens"] == rows[-1]["tokens"]
    data = read_artifact(recipe().data)
    assert data.counts.kept == 40
    split = load_split(Path(recipe().data), "train", pad_id=PAD)
    assert rows[-1]["tokens"] == sum(len(split[i]["input_ids"]) for i in range(40))


def test_another_config_in_the_same_directory_is_refused(recipe: MakeRecipe):
    finish(recipe())
    with pytest.raises(ConfigError, match=r"another config.*trainer.learning_rate"):
        SftStage(recipe(trainer={"learning_rate": 5e-3})).open()


def test_rebuilt_data_is_another_config(recipe: MakeRecipe, make_data, tmp_path):
    SftStage(recipe()).open()
    other = make_data(packs=8)
    with pytest.raises(ConfigError, match="data_digest"):
        SftStage(recipe(data=str(other))).open()


def test_a_finished_directory_is_complete_and_tampering_is_seen(recipe: MakeRecipe):
    out = finish(recipe())
    assert SftStage(recipe()).open().complete
    (out / "config.json").write_text("{}")
    with pytest.raises(DataError, match="has changed"):
        _ = SftStage(recipe()).open().complete


def test_the_hybrid_trains_unpacked_with_expert_balance(recipe: MakeRecipe, hybrid_path: Path):
    made = recipe(
        model={"path": str(hybrid_path)},
        balance={"coefficient": 1e-2},
        trainer={"num_train_epochs": 4, "learning_rate": 5e-3},
    )
    out = finish(made)
    rows = [row for row in log_rows(out) if "loss" in row]
    assert read_artifact(out).stats["document_masking"] == "unpacked"
    assert rows[-1]["loss"] < rows[0]["loss"]
    # one MoE layer: the mean over sequences of a term whose minimum is about 1
    assert 0.9 < rows[0]["balance"] < 4
    assert rows[0]["max_violation"] > 0


def test_lora_reaches_the_experts_and_merges_into_plain_weights(
    recipe: MakeRecipe, hybrid_path: Path
):
    made = recipe(
        model={"path": str(hybrid_path)},
        adapter={"preset": "nemotron_h", "rank": 4},
        trainer={"num_train_epochs": 1},
    )
    out = finish(made)
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    before = AutoModelForCausalLM.from_pretrained(hybrid_path).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("experts.up_proj" in name for name in changed)
    assert any("experts.down_proj" in name for name in changed)
    assert any("in_proj" in name for name in changed)
    assert not any("gate.weight" in name or "embed" in name for name in changed)
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == END


def test_evaluation_without_held_out_packs_is_refused(recipe: MakeRecipe, make_data):
    bare = make_data(packs=4, held_out=0)
    with pytest.raises(ConfigError, match="no held-out packs"):
        SftStage(recipe(data=str(bare), trainer={"eval_strategy": "epoch"})).prepare()


def test_a_run_that_trained_no_token_fails(recipe: MakeRecipe):
    made = recipe()
    stage, prepared = SftStage(made).open(), SftStage(made).prepare()
    prepared.trainer.train = lambda: None
    with pytest.raises(TrainingError, match="no token was trained in 0 steps"):
        SftStage(made).train(prepared, stage)
    assert {path.name for path in Path(made.out).iterdir()} == {"stage.json", RESUME}


def test_neither_layouts_nor_gradient_checkpointing_change_the_losses(
    recipe: MakeRecipe, tmp_path: Path
):
    runs: dict[str, list[float]] = {}
    for layout in ("unpacked", "varlen", "block_diagonal"):
        out = finish(recipe(document_masking=layout, out=str(tmp_path / layout)))
        runs[layout] = losses(out)
        assert runs[layout] == pytest.approx(runs["unpacked"], abs=1e-5)
    out = finish(recipe(out=str(tmp_path / "gc"), trainer={"gradient_checkpointing": True}))
    assert losses(out) == pytest.approx(runs["block_diagonal"], abs=1e-6)
