"""Values of whole completions, values of single tokens and unscored rollouts, side by side in one
group: advantages, loss, log and files, against slow readings."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.config.grpo import GrpoLossConfig
from posttrain.group_rewards import Credit, Group, GroupRewards
from posttrain.rollouts import Completion
from posttrain.training.rl.batch import ScoredGroup, collate, row_of, with_advantages
from posttrain.training.rl.metrics import batch_metrics, group_stats
from tests.training.rl.policy import Scripted, make_prompts, make_recipe, start
from tests.training.rl.test_batch import PROMPT, completion, step
from tests.training.tiny import rollout_groups


def scored_group(
    *credits: Credit, completions: tuple[Completion, ...] = (), **loss: Any
) -> ScoredGroup:
    """Completions of three tokens each, if no others are given."""
    group = Group(
        PROMPT, completions or tuple(completion(k, step((10, 11, 12))) for k in range(len(credits)))
    )
    return with_advantages([0], [group], [GroupRewards(credits)], GrpoLossConfig(**loss))[0]


def test_tokens_values_are_advantages_and_stand_in_nobodys_baseline():
    mixed = scored_group(2.0, (0.5, -4.0, 0.0), None, 0.0, 1.5)
    alone = scored_group(2.0, None, None, 0.0, 1.5)
    assert mixed.advantages[1] == (0.5, -4.0, 0.0)
    assert mixed.advantages[2] is None
    for index in (0, 3, 4):
        assert mixed.advantages[index] == alone.advantages[index] != 0.0


def test_tokens_values_are_clipped_one_by_one():
    clipped = scored_group((0.5, -4.0, 3.0), (9.0, -9.0, 1.0), advantage_clip=2.0)
    assert clipped.advantages == ((0.5, -2.0, 2.0), (2.0, -2.0, 1.0))


def test_a_group_of_tokens_values_teaches_something_unless_all_are_zero():
    assert scored_group((0.0, 0.0, 0.1), None).informative
    assert not scored_group((0.0, 0.0, 0.0), None).informative


def test_values_fall_on_the_tokens_that_the_policy_wrote():
    """A tool's result of three tokens stands between the steps; two tokens were put in."""
    first = step((10, 11), results_ids=(20, 21, 22))
    second = step((12, 13, 14, 15), forced=(1, 3))
    scored = scored_group((1.0, 2.0, 3.0, 4.0), completions=(completion(0, first, second),))
    batch = collate([row_of(scored, 0)], pad_id=0)
    assert batch["advantages"].tolist() == [[0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 4]]
    with pytest.raises(
        ValueError, match=r"rollout 0: the reward has values for 9 tokens.* wrote 4"
    ):
        scored_group((1.0,) * 9, completions=(completion(0, first, second),))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2e6])
def test_a_token_without_a_usable_value_is_refused(bad: float):
    with pytest.raises(ValueError, match="rollout 1 is no number"):
        GroupRewards((1.0, (0.5, bad)))


def test_figures_count_a_rollout_by_the_sum_of_its_tokens():
    stats = group_stats(scored_group(2.0, (0.5, -4.0, 0.0), None, (1.0, 1.0, 1.0)), overlong="mask")
    row = batch_metrics([stats])
    assert stats["trained"] == [3, 3, 0, 3]
    assert row["reward"] == pytest.approx(statistics.fmean([2.0, -3.5, 3.0]))
    assert row["unscored"] == 0.25
    assert (row["token_reward"], row["token_rewarded"]) == (pytest.approx(-0.5 / 6), 0.5)
    plain = batch_metrics([group_stats(scored_group(2.0, 1.0), overlong="mask")])
    assert not {"token_reward", "token_rewarded"} & {*plain}


@dataclass
class Toy(Scripted):
    """The first rollout of a prompt has values for its tokens, the second none at all, the others
    one value each. Keeps what it gave."""

    groups: list[tuple[Group, GroupRewards]] = field(default_factory=list)

    def _rewards(self, group: Group) -> GroupRewards:
        credits: list[Credit] = []
        for rollout in group.completions:
            ids, wrote = rollout.sampled()
            values = tuple(token % 5 - 1.5 for token, own in zip(ids, wrote, strict=True) if own)
            credits.append(
                values if rollout.index == 0 else None if rollout.index == 1 else sum(values)
            )
        rewards = GroupRewards(tuple(credits))
        self.groups.append((group, rewards))
        return rewards


def slow_loss(model: Any, groups: list[tuple[Group, GroupRewards]]) -> torch.Tensor:
    """−Σ A_t · ratio_t over the tokens of all scored rollouts, by the number of them; the sampler
    is the policy, so that every importance weight is 1."""
    total, tokens = torch.zeros(()), 0
    for group, rewards in groups:
        for rollout, credit in zip(group.completions, rewards.rewards, strict=True):
            if credit is None:
                continue
            ids, wrote = rollout.sampled()
            prompt = rollout.prompt_ids or ()
            scores = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
            at = [k for k, own in enumerate(wrote) if own]
            logps = torch.stack([scores[len(prompt) + k - 1, ids[k]] for k in at])
            if isinstance(credit, tuple):
                advantage = torch.tensor(credit)
            else:
                others = [
                    other
                    for other, one in zip(rewards.rewards, group.completions, strict=True)
                    if isinstance(other, float) and one is not rollout
                ]
                # one other: nothing to divide by
                assert len(others) == 1
                advantage = torch.full((len(at),), credit - others[0])
            total = total - (advantage * (logps - logps.detach()).exp()).sum()
            tokens += len(at)
    return total / tokens


def test_the_loss_and_its_gradient_are_those_of_a_slow_reading(policy: Path, tmp_path: Path):
    """A step of plain SGD of learning rate 1 moves each weight by its gradient."""
    trainer = {"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0}
    trainer |= {"weight_decay": 0.0, "per_device_train_batch_size": 4}
    reward = Toy()
    recipe = make_recipe(policy, tmp_path / "out", trainer)
    trained = start(recipe, make_prompts(6), reward).trainer
    trained.train()
    model = AutoModelForCausalLM.from_pretrained(policy).eval()
    loss = slow_loss(model, reward.groups)
    loss.backward()
    assert trained.state.log_history[0]["loss"] == pytest.approx(loss.item(), abs=1e-5)
    largest = 0.0
    for (name, before), after in zip(
        model.named_parameters(), trained.model.parameters(), strict=True
    ):
        assert before.grad is not None, name
        torch.testing.assert_close(before.detach() - after.detach(), before.grad, atol=2e-6, rtol=0)
        largest = max(largest, before.grad.abs().max().item())
    assert largest > 0.05

    for group, (_, rewards) in zip(rollout_groups(Path(recipe.out)), reward.groups, strict=True):
        values, unscored, *others = group["rollouts"]
        assert tuple(values["token_rewards"]) == rewards.rewards[0]
        assert values["reward"] == pytest.approx(sum(values["token_rewards"]))
        assert values["advantage"] == pytest.approx(statistics.fmean(values["token_rewards"]))
        assert (unscored["reward"], unscored["advantage"]) == (None, None)
        assert not any("token_rewards" in rollout for rollout in (unscored, *others))
        assert not unscored["in_loss"]
        assert values["in_loss"]
