"""One process, end to end: `prepare` and `train_sft` on tiny data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
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
from posttrain.training.output import RESUME
from posttrain.training.sft.data import load_split, split_size
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import MakeRecipe, sft_recipe
from tests.training.tiny import END, PAD, log_rows, losses


def finish(recipe: SftConfig) -> Path:
    out = SftStage(recipe).run(dry_run=False)
    assert out is not None
    return out


@pytest.fixture(scope="module")
def learned(data: Path, policy: Path, tmp_path_factory) -> SftConfig:
    """A finished run of 24 epochs."""
    trainer = {"num_train_epochs": 24, "learning_rate": 1e-2, "logging_steps": 8}
    out = tmp_path_factory.mktemp("learned") / "out"
    recipe = sft_recipe(data, policy, out, trainer, keep_epochs=[1])
    finish(recipe)
    return recipe


def test_a_run_ends_in_a_checkpoint_that_learns_and_stops(learned: SftConfig, data: Path):
    out = Path(learned.out)
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
    size = split_size(data, "train")
    sources = [line for line in card.text.splitlines() if line.startswith(("| s0 |", "| s1 |"))]
    trained = [int(line.split("|")[4].replace(",", "")) for line in sources]
    assert sum(trained) == size.trained
    for line, count in zip(sources, trained, strict=True):
        assert line.endswith(f"| {count / size.trained:.1%} |")
    # the saved model stops on its end token; in the data a prompt has a third of the tokens
    model = AutoModelForCausalLM.from_pretrained(out)
    for ids, labels in sequences(load_split(data, "train", pad_id=PAD)[0]):
        prompt = next(i for i, label in enumerate(labels) if label != -100)
        made = model.generate(torch.tensor([ids[:prompt]]), max_new_tokens=60, do_sample=False)
        assert made[0, -1].item() == END


def test_the_precision_that_runs_is_the_trainers(recipe: MakeRecipe):
    assert SftStage(recipe(trainer={"bf16": True})).prepare().launched.precision == "bf16"


def _no_room(*_: Any, **__: Any) -> None:
    raise SafetensorError("I/O error: No space left on device (os error 28)")


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
):
    made = recipe(trainer={"num_train_epochs": 1})
    for write in (
        lambda *_, **__: torch.save({"a": torch.zeros(1 << 20)}, "/dev/full"),
        lambda *_, **__: Path("/dev/full").write_bytes(bytes(1 << 16)),
        _no_room,
    ):
        with monkeypatch.context() as patch:
            patch.setattr("posttrain.training.trainer.write_model", write)
            with pytest.raises(DataError, match=f"{made.out}: the disk is full") as full:
                finish(made)
        assert "\n" not in str(full.value)
    finish(made)


def naive_loss(model: Any, packs: Iterable[dict[str, Any]]) -> tuple[float, int]:
    """Every sequence alone: the sum of its losses, and its trained tokens."""
    total = count = 0
    for pack in packs:
        for ids, labels in sequences(pack):
            logits = model(torch.tensor([ids])).logits[0, :-1]
            target = torch.tensor(labels[1:])
            total += float(F.cross_entropy(logits, target, reduction="sum").detach())
            count += int((target != -100).sum())
    return total, count


def test_losses_are_per_trained_token_of_the_whole_batch_and_of_the_held_out(recipe: MakeRecipe):
    """Against a naive implementation; the last batch, of 8 packs, is neither dropped nor doubled."""
    keys = {"learning_rate": 0.0, "per_device_train_batch_size": 16, "num_train_epochs": 1}
    made = recipe(trainer={**keys, "eval_strategy": "epoch"})
    out = finish(made)
    model = AutoModelForCausalLM.from_pretrained(made.model.path).eval()
    trainer = SftStage(made).prepare().trainer
    order, packs = list(trainer._get_train_sampler()), trainer.train_dataset
    assert len(losses(out)) == read_artifact(out).stats["steps"] == 3
    for step, logged in enumerate(losses(out)):
        total, count = naive_loss(model, (packs[row] for row in order[16 * step :][:16]))
        assert logged == pytest.approx(total / count, abs=2e-5)
    tokens = sum(len(packs[row]["input_ids"]) for row in range(40))
    assert read_artifact(out).stats["tokens"] == tokens
    assert log_rows(out, of="loss")[-1]["tokens"] == tokens
    held_out = load_split(Path(made.data), "eval", pad_id=PAD)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in range(len(held_out) - 1):
        groups.setdefault(held_out[row]["group"], []).append(held_out[row])
    sums = {group: naive_loss(model, rows) for group, rows in groups.items()}
    sums["all"] = tuple(sum(column) for column in zip(*sums.values(), strict=True))
    found = read_artifact(out).stats["eval_loss"]
    assert found == pytest.approx({k: total / n for k, (total, n) in sums.items()}, abs=1e-4)


def test_another_config_or_rebuilt_data_in_the_same_directory_is_refused(
    recipe: MakeRecipe, make_data
):
    SftStage(recipe()).open()
    with pytest.raises(ConfigError, match=r"another config.*trainer.learning_rate"):
        SftStage(recipe(trainer={"learning_rate": 5e-3})).open()
    with pytest.raises(ConfigError, match="data_digest"):
        SftStage(recipe(data=str(make_data(packs=8)))).open()


def test_a_finished_directory_is_complete_and_tampering_is_seen(learned: SftConfig, tmp_path: Path):
    copy = learned.model_copy(update={"out": str(tmp_path / "copy")})
    shutil.copytree(learned.out, copy.out)
    assert SftStage(copy).open().complete
    (Path(copy.out) / "config.json").write_text("{}")
    with pytest.raises(DataError, match="has changed"):
        _ = SftStage(copy).open().complete


def test_lora_reaches_the_experts_and_merges_into_plain_weights(recipe: MakeRecipe, hybrid: Path):
    made = recipe(
        model={"path": str(hybrid)},
        adapter={"preset": "nemotron_h", "rank": 4},
        trainer={"num_train_epochs": 1},
    )
    out = finish(made)
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    before = AutoModelForCausalLM.from_pretrained(hybrid).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("experts.up_proj" in name for name in changed)
    assert any("experts.down_proj" in name for name in changed)
    assert any("in_proj" in name for name in changed)
    assert not any("gate.weight" in name or "embed" in name for name in changed)
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == END


@pytest.mark.parametrize(
    ("trainer", "off"),
    [({"eval_strategy": "epoch"}, 'eval_strategy="no"'), ({"eval_on_start": True}, "start=false")],
)
def test_evaluation_without_held_out_packs_is_refused(
    recipe: MakeRecipe, make_data, trainer: dict[str, Any], off: str
):
    bare = make_data(packs=4, held_out=0)
    with pytest.raises(ConfigError, match=f"no held-out packs: .*{off}$"):
        SftStage(recipe(data=str(bare), trainer=trainer)).prepare()


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
    def losses_of(name: str, layout: str = "auto", **trainer: Any) -> list[float]:
        keys = {"num_train_epochs": 1, **trainer}
        out = str(tmp_path / name)
        return losses(finish(recipe(document_masking=layout, out=out, trainer=keys)))

    whole = losses_of("auto")
    for layout in ("unpacked", "block_diagonal"):
        assert losses_of(layout, layout) == pytest.approx(whole, abs=1e-5)
    assert losses_of("gc", gradient_checkpointing=True) == pytest.approx(whole, abs=1e-6)
