"""One process, end to end: `prepare` and `train_dpo` on small pairs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config.dpo import DpoConfig
from posttrain.errors import ConfigError
from posttrain.runs import read_artifact
from posttrain.training.dpo import trainer as dpo_trainer
from posttrain.training.dpo.trainer import PairTrainer
from posttrain.training.output import REFERENCE, RESUME
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.dpo.recipe import finish, make_recipe, start
from tests.training.dpo.test_loss import log_prob
from tests.training.tiny import END, PAD, log_rows

Make = Callable[..., DpoConfig]


@pytest.fixture(scope="session")
def pair_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pairs in three categories, a third of them with tool results inside."""
    return write_pairs(tmp_path_factory.mktemp("pairs") / "dpo_data", make_pairs(40))


@pytest.fixture
def dpo(pair_data: Path, policy: Path, tmp_path: Path) -> Make:
    """`dpo(trainer={…}, loss={…}, name="a")`: a recipe on those pairs and the tiny Llama."""

    def make(
        trainer: dict[str, Any] | None = None, name: str = "out", model: Path | None = None,
        **keys: Any,
    ) -> DpoConfig:  # fmt: skip
        return make_recipe(pair_data, model or policy, tmp_path / name, trainer, **keys)

    return make


def test_a_run_ends_in_a_checkpoint_that_prefers_the_chosen(dpo: Make, pair_data: Path):
    out = finish(dpo(trainer={"max_steps": 20, "learning_rate": 5e-3}, max_epochs=4))
    manifest = read_artifact(out, kind="checkpoint")
    assert manifest.parents[0].digest == read_artifact(pair_data).digest
    assert manifest.counts.rows_in == manifest.counts.kept == 40
    rows = log_rows(out, of="preference_loss")
    assert rows[0]["preference_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert rows[-1]["preference_loss"] < 0.5
    assert rows[-1]["accuracy"] > 0.9
    assert rows[-1]["epoch"] == 4.0
    assert manifest.stats["method"] == "dpo"
    assert manifest.stats["pairs_by_category"]["no_tools"] == 14
    assert not (out / RESUME).exists()
    assert not any(entry.path.startswith(REFERENCE) for entry in manifest.files)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.generation_config.eos_token_id == END
    assert tokenizer.pad_token_id == PAD
    assert manifest.parents[0].digest in (out / "README.md").read_text()


@pytest.mark.parametrize(("form", "layout"), [("sum", "shared_prompt"), ("mean", "unpacked")])
def test_the_logged_figures_are_those_of_a_naive_implementation(
    dpo: Make, tmp_path: Path, form: str, layout: str
):
    """Two steps at learning rate 0 after weights were moved away from the reference's."""
    recipe = dpo(
        loss={"sft_form": form}, layout=layout, trainer={"learning_rate": 0.0, "max_steps": 2}
    )
    reference = AutoModelForCausalLM.from_pretrained(str(recipe.model.path)).eval()
    prepared = start(recipe)
    trainer = prepared.trainer
    moved = nudged(trainer)
    with pytest.raises(ConfigError, match="not ln 2"):
        trainer.train()
    first = trainer.first
    assert first is not None
    pairs = make_pairs(40)
    step = list(trainer._get_train_sampler())[:8]
    margins, sums, tokens, changes = [], [], 0, []
    for row in step:
        pair = pairs[row]
        values = [
            [float(log_prob(m, pair.prompt_ids, s).detach()) for s in (pair.chosen, pair.rejected)]
            for m in (moved, reference)
        ]
        (chosen, rejected), (ref_chosen, ref_rejected) = values
        margins.append(0.05 * ((chosen - ref_chosen) - (rejected - ref_rejected)))
        sums.append(-chosen)
        changes.append(chosen - ref_chosen)
        tokens += sum(pair.chosen.mask)
    expected = {
        "preference_loss": float(-F.logsigmoid(torch.tensor(margins)).mean()),
        "sft_sum": sum(sums) / 8,
        "sft_mean": sum(sums) / tokens,
        "margin": sum(margins) / 8,
        "chosen_change": sum(changes) / 8,
        "chosen_change_per_token": sum(changes) / tokens,
    }
    for name, value in expected.items():
        assert first[name] == pytest.approx(value, abs=2e-5), name
    total = expected["preference_loss"] + 0.2 * expected[f"sft_{form}"]
    assert trainer.micro_losses == pytest.approx([total], abs=2e-5)


def nudged(trainer: Any) -> torch.nn.Module:
    """Move the policy away once the reference is known; record the micro-batches' losses."""
    find, step = trainer.load_reference, PairTrainer.compute_loss
    trainer.micro_losses = []

    def load_then_move(model: Any) -> Any:
        found = find(model)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        return found

    def compute_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = step(trainer, *args, **kwargs)
        trainer.micro_losses.append(float(loss.detach()))
        return loss

    trainer.load_reference = load_then_move
    trainer.compute_loss = compute_loss
    return trainer.model


def test_the_hybrid_runs_unpacked(dpo: Make, hybrid: Path):
    hybrid = finish(dpo(model=hybrid, trainer={"max_steps": 1}))
    assert read_artifact(hybrid).stats["layout"] == "unpacked"
    assert log_rows(hybrid, of="preference_loss")[0]["preference_loss"] == pytest.approx(
        math.log(2), abs=1e-4
    )


def test_lora_and_full_agree_on_the_first_step_and_share_a_reference(dpo: Make, tmp_path: Path):
    cache = str(tmp_path / "cache")
    full = finish(dpo(name="full", reference_cache=cache))
    before = {p: p.stat().st_mtime_ns for p in Path(cache).rglob("*.safetensors")}
    assert len(before) == 1
    lora = finish(
        dpo(name="lora", reference_cache=cache, adapter={"preset": "attention_mlp", "rank": 4})
    )
    assert {p: p.stat().st_mtime_ns for p in Path(cache).rglob("*.safetensors")} == before
    a, b = log_rows(full, of="preference_loss")[0], log_rows(lora, of="preference_loss")[0]
    for row in (a, b):
        assert row["preference_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    # the same numbers when the reference is the base under an adapter that is switched off
    own = finish(dpo(name="own", adapter={"preset": "attention_mlp", "rank": 4}))
    assert log_rows(own, of="preference_loss") == log_rows(lora, of="preference_loss")
    assert (lora / "adapter" / "adapter_model.safetensors").is_file()
    assert not (lora / REFERENCE).exists()


def test_dropout_of_the_policys_config_is_off(dpo: Make, policy: Path, tmp_path: Path):
    model = tmp_path / "dropping"
    AutoModelForCausalLM.from_pretrained(policy, attention_dropout=0.3).save_pretrained(model)
    assert json.loads((model / "config.json").read_text())["attention_dropout"] == 0.3
    rows = log_rows(finish(dpo(model=model, trainer={"max_steps": 1})), of="preference_loss")
    assert rows[0]["preference_loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_a_fall_of_the_chosen_is_said(dpo: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dpo_trainer, "CHOSEN_FLOOR", -1e-4)
    trainer = {"max_steps": 10, "learning_rate": 5e-3}
    fallen = finish(dpo(loss={"sft_weight": 0.0}, trainer=trainer, max_epochs=2))
    rows = log_rows(fallen, of="preference_loss")
    low = [row["chosen_change_per_token"] for row in rows if row["chosen_change_per_token"] < -1e-4]
    assert len(low) == sum(row.get("chosen_below_floor", 0) for row in rows) > 0
    stats = read_artifact(fallen).stats
    assert stats["chosen_fell"]
    assert stats["lowest_chosen_change_per_token"] == min(low)
    assert stats["epochs"] == stats["pairs_drawn"] / sum(stats["pairs_by_category"].values())
    assert "fell" in (fallen / "README.md").read_text()
