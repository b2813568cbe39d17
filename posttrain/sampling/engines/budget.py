"""A reasoning budget in two calls, for engines that cannot put tokens in while they generate.

    calls = budget_calls(request)
    call = next(calls)                       up to the budget
    call = calls.send(output of the call)    the answer behind the closing, if it goes on
    StopIteration.value                      both calls as one output

Without a budget the first call is all.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from posttrain.errors import ConfigError
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids

Call = tuple[Ids, int, Sequence[int]]  # prompt ids, new tokens at most, stop ids
Calls = Generator[Call, EngineOutput, EngineOutput]


def budget_calls(request: EngineRequest) -> Calls:
    """The calls of a request, each answered by its output.

    Raises:
        ConfigError: the model opens its own reasoning, so that its start is not known beforehand.
    """
    budget, limit = request.budget, request.parameters.max_tokens
    if budget is None:
        return (yield request.ids, limit, request.stop_ids)
    if budget.open_id is not None:
        raise ConfigError(
            "this template lets the model open its own reasoning; a budget then needs "
            "backend.kind transformers"
        )
    stops = (*request.stop_ids, budget.close_id)
    head = yield request.ids, min(limit, budget.tokens), stops
    if head.error or (head.ids and head.ids[-1] in request.stop_ids):
        return head
    ids, logps, forced = head.ids, head.logps, None
    if head.finish != "stop":  # else the model closed its reasoning itself
        closing = tuple(budget.closing(ids))[: limit - len(ids)]
        forced = (len(ids), len(ids) + len(closing)) if closing else None
        logps = None if logps is None else (*logps, *(0.0,) * len(closing))
        ids = (*ids, *closing)
    if len(ids) >= limit:
        return EngineOutput(ids, "length", logps, forced)
    tail = yield (*request.ids, *ids), limit - len(ids), request.stop_ids
    logps = None if logps is None or tail.logps is None else (*logps, *tail.logps)
    return EngineOutput((*ids, *tail.ids), tail.finish, logps, forced, tail.error)
