"""One process, end to end: `prepare` and training of a tiny policy with scripted rewards."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.config.grpo import GroupTraining
from posttrain.errors import ConfigError, JudgeError, TrainingError
from posttrain.models.load import find_routers
from posttrain.rollouts import Completion
from posttrain.runs import read_artifact
from posttrain.training.rl import metrics
from posttrain.training.rl.batch import trained_rows
from tests.training.rl.policy import (
    FailsAtTheSecond,
    Scripted,
    finish,
    make_prompts,
    make_recipe,
    short,
    start,
    words_of,
)
from tests.training.tiny import END, log_rows, rollout_groups

Make = Callable[..., GroupTraining]
PROMPTS = make_prompts(24)


@pytest.fixture
def grpo(policy: Path, tmp_path: Path) -> Make:
    """`grpo(trainer={…}, loss={…}, name="a")`: 6 prompts × 4 rollouts, 3 steps."""

    def make(
        trainer: dict[str, Any] | None = None, name: str = "out", model: Path | None = None,
        **keys: Any,
    ) -> GroupTraining:  # fmt: skip
        return make_recipe(model or policy, tmp_path / name, trainer, **keys)

    return make


def rollouts_of(out: Path, step: int) -> list[dict[str, Any]]:
    return [one for g in rollout_groups(out) if g["step"] == step for one in g["rollouts"]]


def test_a_run_raises_its_reward_and_ends_in_a_checkpoint(grpo: Make):
    reward = Scripted(words_of)
    out = finish(
        grpo(trainer={"max_steps": 16, "learning_rate": 1e-2}, max_epochs=4), PROMPTS, reward
    )
    rows = log_rows(out, of="loss")
    values = [row["reward"] for row in rows]
    assert statistics.fmean(values[-5:]) > statistics.fmean(values[:5]) + 0.08
    assert rows[-1]["epoch"] == 4.0
    manifest = read_artifact(out, kind="checkpoint")
    assert manifest.stats["rollouts"] == manifest.stats["counts"]["judge_calls"] == 16 * 24
    assert manifest.stats["last"]["reward"] == pytest.approx(statistics.fmean(values[-5:]))
    assert manifest.counts.kept == 24
    assert [e.rows for e in manifest.files if e.path.startswith("rollouts/")] == [6] * 16
    assert not (out / "resume").exists()
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.generation_config.eos_token_id == END
    assert "| reward |" in (out / "README.md").read_text()
    # whole groups, each with another seed
    assert all(len(ids) == 6 for ids, _ in reward.requests)
    assert len({seed for _, seed in reward.requests}) == 16


def picky(completion: Completion) -> float | None:
    """Some are unscored, whatever they say."""
    return None if completion.index == 1 else words_of(completion)


def naive_loss(policy: Path, rows: Sequence[Any], tokens: int) -> float:
    """−Σ A · w over the tokens, one sequence at a time; with the ratio at 1."""
    model = AutoModelForCausalLM.from_pretrained(policy).eval()
    total = 0.0
    for row in rows:
        with torch.no_grad():
            scores = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        for k, sampled in enumerate(row.sampled):
            logp = float(scores[row.start + k - 1, row.ids[row.start + k]])
            weight = torch.tensor(logp - row.logps[k]).exp()
            total -= row.advantages[k] * float(weight) * sampled
    return total / tokens


@pytest.mark.parametrize("overlong", ["mask", "train"])
def test_the_first_loss_is_that_of_a_naive_reading(grpo: Make, policy: Path, overlong: str):
    sampling = {"max_tokens": 40}
    recipe = grpo(trainer={"max_steps": 1}, loss={"overlong": overlong}, sampling=sampling)
    prepared = start(recipe, PROMPTS, Scripted(picky))
    prepared.trainer.train()
    rows = trained_rows(prepared.trainer._current.groups, overlong=recipe.loss.overlong)
    written = rollouts_of(Path(recipe.out), 1)
    for one in written:
        if one["index"] == 1:
            assert (one["in_loss"], one["advantage"]) == (False, None)
        elif one["finish"] == "length":
            assert one["in_loss"] == (overlong == "train")
        # truncated or not, a scored rollout is in its group's baseline
        assert (one["advantage"] is None) == (one["index"] == 1)
    assert any(one["finish"] == "length" for one in written if one["index"] != 1)
    tokens = sum(one["tokens"] for one in written if one["in_loss"])
    row = prepared.trainer.state.log_history[0]
    assert row["loss_tokens"] == tokens == sum(row.tokens for row in rows)
    assert row["loss"] == pytest.approx(naive_loss(policy, rows, tokens), abs=1e-5)
    assert row["unscored"] == 0.25


def test_the_sampler_and_the_trainer_agree_at_another_temperature(grpo: Make):
    out = finish(grpo(sampling={"max_tokens": 8, "temperature": 0.7}), PROMPTS, Scripted())
    for row in log_rows(out, of="loss"):
        figures = [row[name] for name in ("importance", "strayed", "logp_difference")]
        assert figures == pytest.approx([1, 1, 0], abs=1e-4)
    ratios = [one["importance"] for one in rollouts_of(out, 1)]
    assert all(ratio["kept"] and ratio["masked"] == 0 for ratio in ratios)


def test_several_updates_a_batch_move_away_from_what_sampled_and_are_clipped(grpo: Make):
    recipe = grpo(
        trainer={"max_steps": 6, "learning_rate": 0.05, "per_device_train_batch_size": 4},
        loss={"num_iterations": 2, "overlong": "train"},
    )
    reward = Scripted(words_of)
    out = finish(recipe, PROMPTS, reward)
    rows = log_rows(out, of="loss")
    assert len(reward.requests) == 3
    names = [f"step-{step:05d}.jsonl" for step in (1, 3, 5)]
    assert sorted(path.name for path in (out / "rollouts").iterdir()) == names
    assert [row["clipped"] > 0 for row in rows] == [False, True] * 3
    assert ["reward" in row for row in rows] == [False, True] * 3
    # what sampled is what is corrected for, not the updates since
    assert [row["importance"] for row in rows] == pytest.approx([1] * 6, abs=1e-4)


def test_the_kl_term_holds_against_the_initial_policy(grpo: Make):
    free, held = (
        log_rows(
            finish(
                grpo(name=f"kl-{kl}", trainer={"max_steps": 6}, max_epochs=2,
                     loss={"kl": kl, "overlong": "train"}),
                PROMPTS, Scripted(words_of),
            ), of="loss")
        for kl in (1e-9, 1.0)
    )  # fmt: skip
    assert free[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert free[-1]["kl"] > 2 * held[-1]["kl"] > 0


def test_an_adapter_is_trained_against_its_own_base(grpo: Make):
    keys: dict[str, Any] = {"adapter": {"rank": 4}, "loss": {"kl": 0.01, "overlong": "train"}}
    out = finish(grpo(trainer={"learning_rate": 0.02}, **keys), PROMPTS, Scripted(words_of))
    rows = log_rows(out, of="loss")
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["kl"] > 1e-5
    assert rows[-1]["importance"] == pytest.approx(1, abs=1e-4)
    assert (out / "adapter" / "adapter_config.json").is_file()


@pytest.mark.parametrize("freeze", [True, False])
def test_routers_stay_and_their_biases_move(grpo: Make, hybrid: Path, freeze: bool):
    recipe = grpo(model=hybrid, moe={"freeze_router": freeze, "bias_update_rate": 0.01})
    out = finish(recipe, PROMPTS, Scripted(words_of))
    before, after = (
        find_routers(AutoModelForCausalLM.from_pretrained(path)) for path in (hybrid, out)
    )
    assert before
    for name, router in before.items():
        same = torch.equal(router.get_parameter("weight"), after[name].get_parameter("weight"))
        assert same == freeze
        moved = after[name].get_buffer("e_score_correction_bias")
        # by the rate, up or down, at each of three steps
        assert moved.abs().max() > 0
        assert all(round(float(value) / 0.01, 4) in (-3, -2, -1, 0, 1, 2, 3) for value in moved)
        assert not router.get_buffer("e_score_correction_bias").any()
    assert all(row["max_violation"] > 0 for row in log_rows(out, of="loss"))


def test_an_adapter_cannot_keep_moved_biases(grpo: Make, hybrid: Path):
    recipe = grpo(model=hybrid, adapter={"rank": 4, "preset": "attention"})
    with pytest.raises(ConfigError, match=r"set moe\.bias_update_rate=0"):
        finish(recipe, PROMPTS, Scripted(words_of))


# ---- runs that stop ----

UNGUARDED: dict[str, Any] = {"unscored": {}, "zero_variance": {}, "truncated": {}, "length": {}}


def unscored(_: Completion) -> float | None:
    """No verdict on anything."""
    return None


@pytest.mark.parametrize(("name", "score"), [("unscored", unscored), ("truncated", short)])
def test_a_run_in_which_nothing_is_trained_fails(grpo: Make, name: str, score: Any):
    """Also when it is taken up from a checkpoint that had trained nothing either."""
    # at the temperature 1 a random policy ends now and then
    sampling = {"max_tokens": 2, "temperature": 0.02 if name == "truncated" else 1.0}
    recipe = grpo(
        trainer={"save_steps": 1}, sampling=sampling, loss={"overlong": "mask"}, guard=UNGUARDED
    )
    out, reward, found = Path(recipe.out), Scripted(score), []
    for batches in (3, 4):
        with pytest.raises(TrainingError, match=rf"trained in 3 steps.*100% .* were {name}: "):
            finish(recipe, PROMPTS, reward)
        assert len(reward.requests) == batches
        assert not (out / "manifest.json").exists()
        assert not list(out.glob("*.safetensors"))
        found.append(log_rows(out, of="loss"))
    assert found[0] == found[1]
    assert [(row["loss_tokens"], row[name]) for row in found[0]] == [(0.0, 1.0)] * 3
    assert ("reward" in found[0][0]) == (name == "truncated")


def test_a_reward_that_fails_ends_the_run_and_tokens_trained_before_count(grpo: Make):
    recipe = grpo(trainer={"save_steps": 1}, guard=UNGUARDED)
    with pytest.raises(JudgeError, match="the end"):
        finish(recipe, PROMPTS, FailsAtTheSecond())
    rows = log_rows(finish(recipe, PROMPTS, Scripted(unscored)), of="loss")
    assert [row["loss_tokens"] > 0 for row in rows] == [True, False, False]


def test_the_guard_stops_and_the_run_goes_on_under_other_limits(
    grpo: Make, monkeypatch: pytest.MonkeyPatch
):
    """The limits are not part of what names the run."""
    monkeypatch.setattr(metrics, "WINDOW", 2)
    recipe = grpo(trainer={"save_steps": 1}, guard={"truncated": {"stop": 0.5}})
    reward = Scripted()
    with pytest.raises(TrainingError, match=r"truncated is .* raise sampling\.max_tokens"):
        finish(recipe, PROMPTS, reward)
    assert len(rollouts_of(Path(recipe.out), 2)) == 24
    out = finish(grpo(trainer={"save_steps": 1}, guard=UNGUARDED), PROMPTS, reward)
    assert [row["step"] for row in log_rows(out, of="loss")] == [1, 2, 3]


def test_a_loss_that_is_no_number_ends_the_run(grpo: Make):
    trainer = start(grpo(), PROMPTS, Scripted(short)).trainer
    score = trainer.score
    trainer.score = lambda *args: (score(*args)[0] * torch.nan, *score(*args)[1:])
    with pytest.raises(
        TrainingError, match="step 1: the policy's log-probabilities are not finite"
    ):
        trainer.train()
