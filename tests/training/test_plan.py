"""What every method plans: the numbers of its lines, the disk, and the shapes that are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.training import activations, plan
from posttrain.training.activations import RolloutShape
from posttrain.training.dpo.data import shorter_pairs
from posttrain.training.dpo.stage import DpoStage
from posttrain.training.rl import plan as rl_plan
from posttrain.training.rl.stage import GroupStage
from posttrain.training.sft.data import load_split
from posttrain.training.sft.stage import SftStage
from posttrain.training.stage import TrainingStage
from tests.training.conftest import MakeRecipe
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.dpo.recipe import make_recipe as dpo_recipe
from tests.training.rl.policy import Scripted, make_prompts
from tests.training.rl.policy import make_recipe as rl_recipe
from tests.training.tiny import PAD

WEIGHTS = 4 * 22_688
CHECKPOINT = WEIGHTS + 8 * 22_688  # with two moments


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is measured, for real, by its name; and no clock."""
    found: dict[str, Any] = {}
    for name in ("measure_step", "rollout_bytes"):
        whole = getattr(activations, name)

        def spy(config: Any, shape: Any, *rest: Any, name: str = name, whole: Any = whole) -> Any:
            found[name] = shape
            return whole(config, shape, *rest)

        monkeypatch.setattr(plan, name, spy)
    monkeypatch.setattr(plan, "_time_pass", lambda *_: 2.0)
    timed = rl_plan.TimedRollouts(0.5, "from a few rollouts")
    monkeypatch.setattr(rl_plan, "time_rollouts", lambda _: timed)
    return found


def planned(stage: TrainingStage[Any, Any]) -> tuple[Any, dict[str, str], int]:
    """Memory, lines by name, and bytes on disk."""
    prepared = stage.prepare()
    size = plan.model_size(prepared.trainer.model)
    lines, disk = stage.plan(prepared, size, measure=True)
    assert prepared.memory.step.activations > 0
    assert prepared.memory.optimizer == 8 * 22_688
    return prepared.memory, dict(lines), disk


def test_sft_plans_its_packs_and_epochs(recipe: MakeRecipe, data: Path, measured: dict[str, Any]):
    keys = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "save_total_limit": 3}
    trainer = {**keys, "gradient_accumulation_steps": 2, "bf16": True}
    stage = SftStage(recipe(trainer, document_masking="unpacked", keep_epochs=[1]))
    _, lines, disk = planned(stage)
    assert lines["train"].startswith("40 packs, 140 sequences, 1,871 tokens, 1,151 trained (62%)")
    assert lines["held out"].startswith("6 packs, 20 sequences, 281 tokens")
    assert lines["batch"].startswith("8 packs = 4 × 2 accumulated × 1 process(es), about 374 tok")
    assert lines["steps"] == "5 an epoch, 10 in all"
    assert lines["time"].startswith("about 40 s: 2.00 s a micro-batch")
    assert disk == 4 * CHECKPOINT + 2 * WEIGHTS
    packs: Any = load_split(data, "train", pad_id=PAD)
    worst = sorted(packs["seq_lengths"][:-1], key=lambda row: -len(row) * max(row))[:4]
    shape = measured["measure_step"]
    assert (shape.rows, shape.columns) == (sum(map(len, worst)), max(map(max, worst)))
    assert (shape.accumulated, str(shape.autocast)) == (True, "torch.bfloat16")


def test_dpo_plans_its_longest_pairs(policy: Path, tmp_path: Path, measured: dict[str, Any]):
    pairs, trainer = make_pairs(24), {"max_steps": 4, "per_device_train_batch_size": 4}
    data, out = write_pairs(tmp_path / "pairs", pairs), tmp_path / "out"
    keys = {"layout": "unpacked", "max_epochs": 2}
    _, lines, disk = planned(DpoStage(dpo_recipe(data, policy, out, trainer, **keys)))
    assert lines["steps"] == "4 × 8 = 32 pairs drawn, 1.33 epochs"
    assert "24: 8 no_tools, 8 with_tools, 8 hallucination_penalty; 783 tokens" in lines["pairs"]
    assert lines["batch"].startswith("8 pairs = 4 × 2 accumulated")
    assert "24 pairs to compute" in lines["reference"]
    # four steps of two micro-batches, and a forward pass over 24 pairs
    assert lines["time"].startswith("about 20 s: 2.00 s")
    assert disk == 2 * CHECKPOINT + WEIGHTS + 24 * len(pairs)
    longest = max(
        len(pair.prompt_ids) + len(side.ids)
        for pair in pairs
        for side in (pair.chosen, pair.rejected)
    )
    shape = measured["measure_step"]
    assert (shape.rows, shape.columns, shape.accumulated) == (8, longest, True)


def test_group_training_plans_rollouts_and_a_reference(
    policy: Path, tmp_path: Path, measured: dict[str, Any]
):
    recipe = rl_recipe(
        policy, tmp_path / "out", {"gradient_checkpointing": True}, loss={"kl": 0.1},
        rollouts={"engine": "in_process", "batch_size": 10},
    )  # fmt: skip
    stage = GroupStage(recipe, prompts=make_prompts(18), reward=Scripted())
    needed, lines, disk = planned(stage)
    assert lines["batch"].startswith("6 prompts × 4 = 24 rollouts on 1 process(es), 1 update of 8")
    assert lines["steps"].startswith("3: 18 prompts drawn, 1.00 epochs, 72 rollouts of at most 8 t")
    assert lines["time"].startswith("about 36 s: 12.0 s a step")
    assert disk == 2 * CHECKPOINT + WEIGHTS + 72 * 8 * rl_plan.TOKEN_BYTES
    # the longest prompt has 6 words and 2 marks
    shape = measured["measure_step"]
    assert (shape.rows, shape.columns, shape.labels) == (8, 16, 64)
    assert (shape.accumulated, shape.checkpointing) == (True, True)
    assert measured["rollout_bytes"] == RolloutShape(rows=10, columns=16)
    # 2 layers × keys and values × 2 heads × 8 numbers of 4 bytes
    assert needed.rollouts == 10 * 16 * 2 * 2 * 2 * 8 * 4
    assert needed.weights == 2 * WEIGHTS


def test_a_dry_run_of_group_training_samples_a_slice_and_says_what_it_scaled(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rl_plan, "FIRST_ROLLOUT", 2)
    recipe = rl_recipe(policy, tmp_path / "out", {"gradient_checkpointing": True})
    trainer = GroupStage(recipe, prompts=make_prompts(18), reward=Scripted()).prepare().trainer
    whole = rl_plan.time_rollouts(trainer)
    assert whole.seconds > 0
    assert "cut at" not in whole.text  # 8 tokens are reached well within the bound
    monkeypatch.setattr(rl_plan, "MEASURING_SECONDS", 0.0)
    cut = rl_plan.time_rollouts(trainer)
    assert cut.text.endswith("they were cut at 2 tokens and scaled up to 8, the most")
    assert all(weight.grad is None for weight in trainer.model.parameters())


@pytest.mark.parametrize("layout", ["unpacked", "shared_prompt"])
def test_pairs_are_cut_in_proportion_and_can_still_be_trained_on(
    policy: Path, tmp_path: Path, layout: str
):
    pairs = make_pairs(8, longest=60)
    data = write_pairs(tmp_path / "pairs", pairs)
    recipe = dpo_recipe(data, policy, tmp_path / "out", {"max_steps": 1}, layout=layout)
    trainer = DpoStage(recipe).prepare().trainer
    rows = [trainer.pairs.data[row] for row in range(8)]
    tokens = int(trainer.pairs.total_lengths.sum())
    assert shorter_pairs(rows, tokens) == rows
    half = shorter_pairs(rows, tokens // 2)
    kept = sum(2 * len(row["prompt_ids"]) for row in half)
    kept += sum(len(row[f"{side}_ids"]) for row in half for side in ("chosen", "rejected"))
    assert 0.5 <= kept / tokens < 0.6
    batch = trainer.data_collator(shorter_pairs(rows, 1))
    seconds = plan._time_pass(
        trainer, batch, lambda each: trainer.score(trainer.model, each).chosen.sum()
    )
    assert seconds > 0
