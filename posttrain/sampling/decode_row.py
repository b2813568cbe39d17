"""One completion while it is being decoded: its ids so far, what is forced, when it ends.

    row = Row(request, limit=64)
    row.take(17, -0.3)      # the id sampled for it; a forced one may take its place
    row.done                # behind a stop id, or at its limit

Plain Python: a batch's tensors know nothing of stop ids and budgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from posttrain.sampling.engine import EngineOutput, EngineRequest


@dataclass(slots=True)
class Row:
    """A request and what came of it so far. `limit` bounds its new ids."""

    request: EngineRequest
    limit: int
    ids: list[int] = field(default_factory=list[int])
    logps: list[float] = field(default_factory=list[float])
    done: bool = False
    stopped: bool = False
    forced: tuple[int, int] | None = None
    # ids still to be put in, last one first
    _pending: list[int] = field(default_factory=list[int])
    # where the reasoning that is counted began; None: nothing is counted (yet, or any more)
    _counted_from: int | None = None
    _waits_for_open: bool = False

    def __post_init__(self) -> None:
        budget = self.request.budget
        if budget is not None and budget.open_id is None:
            self._counted_from = 0
        self._waits_for_open = budget is not None and budget.open_id is not None
        self.done = self.limit <= 0

    def take(self, token: int, logp: float) -> int:
        """Append the sampled id, or the forced one that is due instead; returns what it was."""
        if self._pending:
            token, logp = self._pending.pop(), 0.0
            self._append(token, logp)
            return token
        self._append(token, logp)
        if token in self.request.stop_ids:
            self.done = self.stopped = True
        elif self.request.budget is not None:
            self._count(token)
        return token

    def _append(self, token: int, logp: float) -> None:
        self.ids.append(token)
        self.logps.append(logp)
        self.done = len(self.ids) >= self.limit

    def _count(self, token: int) -> None:
        budget = self.request.budget
        assert budget is not None
        if self._waits_for_open:
            if token == budget.open_id:
                self._waits_for_open, self._counted_from = False, len(self.ids)
            return
        if self._counted_from is None:
            return
        if token == budget.close_id:
            self._counted_from = None
        elif len(self.ids) - self._counted_from == budget.tokens:
            closing = list(budget.closing(self.ids[self._counted_from :]))
            start = len(self.ids)
            self.forced = (start, min(start + len(closing), self.limit))
            self._pending, self._counted_from = closing[::-1], None

    def output(self) -> EngineOutput:
        """The finished completion."""
        assert self.done
        start, end = self.forced or (0, 0)
        return EngineOutput(
            ids=tuple(self.ids),
            finish="stop" if self.stopped else "length",
            logps=tuple(self.logps) if self.request.parameters.logps else None,
            forced=self.forced if end > start else None,
        )
