"""The loss and its gradient against the formula, on a real model, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from posttrain.config.dpo import LossConfig
from posttrain.records import CATEGORIES, Pair, Side, pair_to_row
from posttrain.training.cpu_head import use_cpu_head
from posttrain.training.dpo.data import make_pair_collator
from posttrain.training.dpo.loss import (
    PairMetrics,
    ScoredPairs,
    pair_terms,
    score_pairs,
    sft_outweighs,
    total_loss,
)
from tests.training.dpo.pairs import make_pairs
from tests.training.tiny import PAD

LAYOUTS = ("shared_prompt", "unpacked")


@pytest.fixture
def model(policy: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(policy).double()
    add_fused_lm_head(model)
    use_cpu_head(model)
    return model


def rows_of(pairs: Sequence[Pair]) -> list[dict]:
    return [{**pair_to_row(pair), "row": n} for n, pair in enumerate(pairs)]


def score(model: PreTrainedModel, pairs: Sequence[Pair], layout: str) -> ScoredPairs:
    batch = make_pair_collator(layout, PAD)(rows_of(pairs))
    labels, segment = batch.pop("labels"), batch.pop("segment")
    batch.pop("row")
    out = model(**batch, labels=labels, use_cache=False, fused_lm_head=True)
    return score_pairs(out.log_probs, labels, segment, pairs=len(pairs))


def log_prob(model: PreTrainedModel, prompt: Sequence[int], side: Side) -> torch.Tensor:
    """Naively: the plain model on one sequence, token by token."""
    ids = torch.tensor([[*prompt, *side.ids]])
    scores = model(input_ids=ids).logits[0].log_softmax(-1)
    total = torch.zeros((), dtype=scores.dtype)
    for n, (token, sampled) in enumerate(zip(side.ids, side.mask, strict=True)):
        if sampled:
            total = total + scores[len(prompt) + n - 1, token]
    return total


def gradient(model: PreTrainedModel, value: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    value.backward()
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(parts).clone()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probabilities_are_those_of_each_completion_alone(model, layout):
    """Also of a prompt of one token and of completions of one token."""
    one = Side(ids=(7,), mask=(True,), text="")
    shortest = {"prompt_ids": (5,), "chosen": one, "rejected": replace(one, ids=(9,))}
    pairs = [*make_pairs(9), replace(make_pairs(1)[0], **shortest)]
    scored = score(model, pairs, layout)
    for n, pair in enumerate(pairs):
        for found, side in ((scored.chosen, pair.chosen), (scored.rejected, pair.rejected)):
            expected = log_prob(model, pair.prompt_ids, side)
            assert float(found[n].detach()) == pytest.approx(float(expected.detach()), abs=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_gradient_is_the_papers(model, layout):
    """At π = π_ref: −β/2 · mean(∇log π_chosen − ∇log π_rejected); the loss is ln 2."""
    pairs = make_pairs(6)
    loss = LossConfig(sft_weight=0.0)
    scored = score(model, pairs, layout)
    reference = (scored.chosen.detach(), scored.rejected.detach())
    value = total_loss(pair_terms(scored, reference=reference, loss=loss), loss, mean_scale=1.0)
    assert float(value.detach()) == pytest.approx(math.log(2), abs=1e-12)
    ours = gradient(model, value)
    naive = torch.stack(
        [
            log_prob(model, pair.prompt_ids, pair.chosen)
            - log_prob(model, pair.prompt_ids, pair.rejected)
            for pair in pairs
        ]
    ).mean()
    expected = -loss.beta / 2 * gradient(model, naive)
    assert float(expected.norm()) > 1e-3
    assert torch.allclose(ours, expected, atol=1e-5 * float(expected.norm()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pair_of_equals_has_no_preference_gradient(model, layout):
    pairs = [replace(pair, rejected=pair.chosen) for pair in make_pairs(4)]
    loss = LossConfig(sft_weight=0.0)
    scored = score(model, pairs, layout)
    reference = (scored.chosen.detach() - 3.0, scored.rejected.detach() + 2.0)
    terms = pair_terms(scored, reference=reference, loss=loss)
    found = gradient(model, total_loss(terms, loss, mean_scale=1.0))
    assert float(found.abs().max()) < 1e-9


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_sampled_tokens_are_targets_of_the_gradient(model, layout):
    """Swap which token an unsampled target is, in the last place where it is no context either."""
    pair = make_pairs(1)[0]

    def with_tail(token: int, *, trained: bool) -> Pair:
        chosen = pair.chosen
        side = replace(chosen, ids=(*chosen.ids, token), mask=(*chosen.mask, trained))
        return replace(pair, chosen=side)

    loss = LossConfig(sft_form="mean")
    seen = {}
    for token in (11, 23):
        for trained in (False, True):
            scored = score(model, [with_tail(token, trained=trained)], layout)
            terms = pair_terms(
                scored, reference=(scored.chosen.detach(), scored.rejected.detach()), loss=loss
            )
            # input 23 instead of 11 at the end changes what the last position sees of itself only
            seen[token, trained] = gradient(model, total_loss(terms, loss, mean_scale=0.1))
    assert torch.allclose(seen[11, False], seen[23, False], atol=1e-9)
    assert not torch.allclose(seen[11, True], seen[23, True], atol=1e-4)


def test_the_two_forms_of_the_sft_term():
    scored = ScoredPairs(
        chosen=torch.tensor([-6.0, -2.0]).double(),
        rejected=torch.tensor([-1.0, -1.0]).double(),
    )
    reference = (scored.chosen, scored.rejected)
    values = {}
    for form in ("sum", "mean"):
        loss = LossConfig(sft_form=form)
        terms = pair_terms(scored, reference=reference, loss=loss)
        values[form] = float(total_loss(terms, loss, mean_scale=1 / 4)) - math.log(2)
    assert values["sum"] == pytest.approx(0.2 * (6 + 2) / 2)
    assert values["mean"] == pytest.approx(0.2 * (6 + 2) / 4)


def test_an_sft_term_that_outweighs_the_preference_is_told_the_ways_out():
    def warning(**loss) -> str | None:  # 4,000 tokens: 0.2 × 2080 / ln 2 = 600
        return sft_outweighs(LossConfig(**loss), {"sum": 2080.0, "mean": 0.52})

    text = str(warning())
    for part in ("600 times", "sft_form=mean makes it 0.15 times", "sft_weight=0.0003"):
        assert part in text
    assert warning(sft_form="mean") is warning(sft_weight=0.0) is None
    assert "sft_form" not in str(warning(sft_form="mean", sft_weight=200.0))


def test_the_log_has_means_over_pairs_and_over_the_tokens_of_each_side():
    """Two pairs right, one tied, one wrong; the sides have different numbers of tokens."""
    scored = ScoredPairs(
        chosen=torch.tensor([-6.0, -2.0, -3.0, -5.0]).double(),
        rejected=torch.tensor([-4.0, -8.0, -3.0, -1.0]).double(),
    )
    reference = (scored.chosen - 1.0, scored.rejected + torch.tensor([1.0, 3.0, -1.0, -2.0]))
    loss = LossConfig(sft_form="sum")
    metrics = PairMetrics()
    counts = (torch.tensor([1, 2, 3, 2]), torch.tensor([4, 4, 5, 3]))
    category = torch.tensor([0, 0, 1, 1])
    for micro_batch in (slice(0, 2), slice(2, 4)):
        part = replace(
            scored, chosen=scored.chosen[micro_batch], rejected=scored.rejected[micro_batch]
        )
        terms = pair_terms(
            part, reference=(reference[0][micro_batch], reference[1][micro_batch]), loss=loss
        )
        sides = (counts[0][micro_batch], counts[1][micro_batch])
        metrics.add(terms, counts=sides, category=category[micro_batch])
    one_process = SimpleNamespace(reduce=lambda values, _: values)
    means = metrics.means(one_process)
    # the chosen rise by 1 each, the rejected change by -1, -3, 1 and 2
    margins = [loss.beta * change for change in (2.0, 4.0, 0.0, -1.0)]
    assert means["margin"] == pytest.approx(sum(margins) / 4)
    assert means["accuracy"] == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    softplus = [math.log1p(math.exp(-margin)) for margin in margins]
    assert means["preference_loss"] == pytest.approx(sum(softplus) / 4)
    assert (means["sft_sum"], means["sft_mean"]) == pytest.approx((16 / 4, 16 / 8))
    assert (means["chosen_logp"], means["rejected_logp"]) == pytest.approx((-4.0, -4.0))
    assert (means["chosen_change"], means["rejected_change"]) == pytest.approx((1.0, -1 / 4))
    assert means["chosen_change_per_token"] == pytest.approx(4 / 8)
    assert means["rejected_change_per_token"] == pytest.approx(-1 / 16)
    first, second, *absent = CATEGORIES
    assert means[f"{first}/accuracy"] == 1.0
    assert means[f"{second}/accuracy"] == pytest.approx(0.25)
    assert means[f"{second}/rejected_change"] == pytest.approx(1.5)
    assert not [name for name in means if name.startswith((*absent, "kl"))]
    metrics.reset()
    metrics.add(terms, counts=sides, category=category[2:])
    assert metrics.means(one_process)["accuracy"] == pytest.approx(0.25)
