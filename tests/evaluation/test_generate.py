"""The batched generator writes what one prompt alone would, and budgets cut exactly where asked."""

from __future__ import annotations

import pytest
import torch

from posttrain.evaluation.generate import Stopping, complete, complete_with_budget
from posttrain.models.from_config import build_model

STOP, PAD, CLOSE, NEWLINE = 2, 0, 5, 6
STOPPING = Stopping((STOP,), PAD)
ATTENTION = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # spread-out weights: greedy choices of nearly equal logits would test rounding, not padding
    "initializer_range": 0.5,
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_model(ATTENTION).eval()


@pytest.fixture(scope="module")
def prompts():
    rng = torch.Generator().manual_seed(1)
    lengths = [3, 17, 5, 1, 29, 9, 9, 12]
    # ids from 0 on: a prompt may hold the pad token itself
    return [torch.randint(0, 64, (n,), generator=rng).tolist() for n in lengths]


def greedy(model, prompt: list[int], stops: set[int], limit: int) -> tuple[int, ...]:
    """No cache, no padding, no batch: one forward pass a token."""
    ids = list(prompt)
    while len(ids) - len(prompt) < limit:
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in stops:
            break
    return tuple(ids[len(prompt) :])


def test_a_batch_equals_each_prompt_alone(model, prompts):
    limit = 24
    alone = [greedy(model, prompt, {STOP}, limit) for prompt in prompts]
    assert len(set(alone)) > 4, "the prompts must not all lead to one loop"
    for batch_size in (1, 3, 8):
        done = complete(model, prompts, STOPPING, max_new_tokens=limit, batch_size=batch_size)
        assert [generation.ids for generation in done] == alone


def test_a_stop_token_ends_and_is_kept_and_a_limit_is_not_an_end(model, prompts):
    free = complete(model, prompts, STOPPING, max_new_tokens=12)
    stop = free[0].ids[4]
    first = free[0].ids.index(stop)
    done = complete(model, prompts, Stopping((stop, STOP), PAD), max_new_tokens=12)
    assert done[0].ids == free[0].ids[: first + 1]
    assert done[0].finished
    unfinished = [g for g in done if not g.finished]
    assert unfinished
    assert all(len(g.ids) == 12 for g in unfinished)


def test_no_prompts_no_completions(model):
    assert complete(model, [], STOPPING, max_new_tokens=4) == []


@pytest.mark.parametrize("budget", [1, 7, 16])
def test_the_budget_is_cut_at_exactly_n_tokens(model, prompts, budget):
    forced_close = (NEWLINE, CLOSE, NEWLINE)
    done = complete_with_budget(
        model,
        prompts,
        STOPPING,
        budget=budget,
        close_id=CLOSE,
        forced_close=lambda ids: forced_close if ids[-1] % 2 else forced_close[1:],
        max_new_tokens=8,
        batch_size=3,
    )
    assert any(g.forced_at is not None for g in done)
    for prompt, generation in zip(prompts, done, strict=True):
        head = greedy(model, prompt, {STOP, CLOSE}, budget)
        assert generation.ids[: len(head)] == head
        if head[-1] in (STOP, CLOSE):
            assert generation.forced_at is None
        else:
            assert generation.forced_at == budget == len(head)
            close = forced_close if head[-1] % 2 else forced_close[1:]
            assert generation.ids[budget : budget + len(close)] == close
            head = (*head, *close)
        if head[-1] != STOP:
            tail = greedy(model, [*prompt, *head], {STOP}, 8)
            assert generation.ids[len(head) :] == tail
            assert generation.finished == (tail[-1] == STOP)


def test_reasoning_closed_within_its_budget_is_left_alone(model, prompts):
    """With a token the model does write as the close, the budget changes nothing after it."""
    free = greedy(model, prompts[1], {STOP}, 20)
    close = free[3]
    at = free.index(close)
    (done,) = complete_with_budget(
        model,
        [prompts[1]],
        STOPPING,
        budget=at + 1,
        close_id=close,
        forced_close=lambda _: (NEWLINE, close),
        max_new_tokens=20 - at - 1,
    )
    assert done.ids == free
    assert done.forced_at is None


def test_a_pad_that_stops_is_refused():
    with pytest.raises(AssertionError, match="pad"):
        Stopping((1, 2), 2)
