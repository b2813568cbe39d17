"""Greedy completions of many prompts, with or without a budget of reasoning tokens.

    complete(model, [[5, 9, 2]], stopping, max_new_tokens=64)
    → [Generation(ids=(17, 4, 2), finished=True, forced_at=None)]

Prompts and completions are token ids: nothing is rendered or decoded here. A minimal generator for
the tiny accuracy check; sampling, several completions a prompt and servers are not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel

Ids = Sequence[int]
# a batch lasts as long as its longest row: after so many tokens, and at each doubling, the rows
# that still go on are put into batches of their own
FIRST_BURST = 48


@dataclass(frozen=True, slots=True)
class Stopping:
    """`stop_ids` end a turn; `pad_id` fills batches; neither may be the other."""

    stop_ids: tuple[int, ...]
    pad_id: int

    def __post_init__(self) -> None:
        assert self.stop_ids, "without a stop token every completion runs to its limit"
        assert self.pad_id not in self.stop_ids, "a pad that stops would be cut off as the end"


@dataclass(frozen=True, slots=True)
class Generation:
    """One completion. `ids` include the stop token, and what was forced in.

    `finished`: a stop token ended it, not the limit. `forced_at`: its reasoning was closed for it
    after so many tokens of its own.
    """

    ids: tuple[int, ...]
    finished: bool
    forced_at: int | None = None


def complete(
    model: PreTrainedModel,
    prompts: Sequence[Ids],
    stopping: Stopping,
    *,
    max_new_tokens: int,
    batch_size: int = 128,
) -> list[Generation]:
    """The greedy completion of every prompt, in the order given.

    Args:
        model: any causal language model; it is left in eval mode.
        prompts: token ids, each at least one.
        stopping: what ends a completion.
        max_new_tokens: a completion that is longer is cut there and is not `finished`.
        batch_size: prompts generated together; prompts of like length share a batch.
    """
    model.eval()
    written: list[tuple[int, ...]] = [()] * len(prompts)
    going, done, burst = list(range(len(prompts))), 0, FIRST_BURST
    while going and done < max_new_tokens:
        burst = min(burst, max_new_tokens - done)
        going.sort(key=lambda i: len(prompts[i]))
        for start in range(0, len(going), batch_size):
            chosen = going[start : start + batch_size]
            batch = [(*prompts[i], *written[i]) for i in chosen]
            for i, ids in zip(chosen, _generate(model, batch, stopping, burst), strict=True):
                written[i] += ids
        going = [i for i in going if written[i][-1] not in stopping.stop_ids]
        done, burst = done + burst, 2 * burst
    return [Generation(ids, bool(ids) and ids[-1] in stopping.stop_ids) for ids in written]


def complete_with_budget(
    model: PreTrainedModel,
    prompts: Sequence[Ids],
    stopping: Stopping,
    *,
    budget: int,
    close_id: int,
    forced_close: Callable[[Ids], Ids],
    max_new_tokens: int,
    batch_size: int = 128,
) -> list[Generation]:
    """As `complete`, but reasoning that is still open after `budget` tokens is closed.

    Args:
        model, prompts, stopping, batch_size: as for `complete`; prompts end inside reasoning.
        budget: tokens of reasoning a completion may have.
        close_id: the token `</think>`; a completion that holds it within the budget goes on alone.
        forced_close: the reasoning so far → ids put in after exactly `budget` tokens otherwise,
            such as those of "\\n</think>\\n".
        max_new_tokens: of the answer, after the reasoning.
    """
    both = Stopping((*stopping.stop_ids, close_id), stopping.pad_id)
    heads = complete(model, prompts, both, max_new_tokens=budget, batch_size=batch_size)
    for i, head in enumerate(heads):
        if not head.finished:
            closed = (*head.ids, *forced_close(head.ids))
            heads[i] = Generation(closed, False, forced_at=len(head.ids))
    going = [i for i, head in enumerate(heads) if head.ids[-1] not in stopping.stop_ids]
    tails = complete(
        model,
        [(*prompts[i], *heads[i].ids) for i in going],
        stopping,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
    for i, tail in zip(going, tails, strict=True):
        ids = (*heads[i].ids, *tail.ids)
        heads[i] = Generation(ids, tail.finished, heads[i].forced_at)
    return heads


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, prompts: Sequence[Ids], stopping: Stopping, max_new_tokens: int
) -> list[tuple[int, ...]]:
    """One batch, padded on the left so that every row continues at the same column."""
    width = max(len(prompt) for prompt in prompts)
    rows = [[stopping.pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    # by length and not by value: a prompt may hold the pad token
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    output = cast(Any, model).generate(  # its type is lost in transformers' decorators
        input_ids=torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(stopping.stop_ids),
            pad_token_id=stopping.pad_id,
        ),
    )
    assert isinstance(output, torch.Tensor)
    return [_until_stop(row, stopping.stop_ids) for row in output[:, width:].tolist()]


def _until_stop(ids: list[int], stop_ids: tuple[int, ...]) -> tuple[int, ...]:
    end = next((k for k, token in enumerate(ids) if token in stop_ids), len(ids) - 1)
    return tuple(ids[: end + 1])
