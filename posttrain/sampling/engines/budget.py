"""A reasoning budget in two calls, for engines that cannot put tokens in while they generate.

    head = closed(request, call(*head_of(request)))      up to the budget, then the closing
    joined(head.output, call(*tail_of(request, head.output)))      the answer, if it goes on

Without a budget the first call is all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.errors import ConfigError
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids

Call = tuple[Ids, int, Sequence[int]]  # prompt ids, new tokens at most, stop ids


@dataclass(frozen=True, slots=True)
class FirstCall:
    """What the first call gave, its reasoning closed where the budget ended it."""

    output: EngineOutput
    goes_on: bool


def head_of(request: EngineRequest) -> Call:
    """The first call.

    Raises:
        ConfigError: the model opens its own reasoning, so that its start is not known beforehand.
    """
    budget, limit = request.budget, request.parameters.max_tokens
    if budget is None:
        return request.ids, limit, request.stop_ids
    if budget.open_id is not None:
        raise ConfigError(
            "this template lets the model open its own reasoning; a budget then needs "
            "backend.kind transformers"
        )
    return request.ids, min(limit, budget.tokens), (*request.stop_ids, budget.close_id)


def closed(request: EngineRequest, head: EngineOutput) -> FirstCall:
    """The first call's output with the closing behind it, where the budget ended it."""
    budget, limit = request.budget, request.parameters.max_tokens
    if budget is None or head.error or (head.ids and head.ids[-1] in request.stop_ids):
        return FirstCall(head, goes_on=False)
    if head.finish == "stop":  # the model closed its reasoning itself
        return FirstCall(
            EngineOutput(head.ids, "length", head.logps), goes_on=len(head.ids) < limit
        )
    closing = tuple(budget.closing(head.ids))[: limit - len(head.ids)]
    ids = (*head.ids, *closing)
    logps = None if head.logps is None else (*head.logps, *(0.0,) * len(closing))
    forced = (len(head.ids), len(ids)) if closing else None
    return FirstCall(EngineOutput(ids, "length", logps, forced), goes_on=len(ids) < limit)


def tail_of(request: EngineRequest, head: EngineOutput) -> Call:
    """The second call: the answer."""
    limit = request.parameters.max_tokens - len(head.ids)
    return (*request.ids, *head.ids), limit, request.stop_ids


def joined(head: EngineOutput, tail: EngineOutput) -> EngineOutput:
    """Both calls as one output."""
    logps = None if head.logps is None or tail.logps is None else (*head.logps, *tail.logps)
    return EngineOutput((*head.ids, *tail.ids), tail.finish, logps, head.forced, tail.error)
