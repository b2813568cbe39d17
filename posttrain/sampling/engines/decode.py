"""Continuous batching with one transformers model: prefill, decode, and refill the batch.

Rows that have ended leave the batch, and waiting prompts take their places. The next token of each
row is chosen by inverse transform sampling. A row has parameters and random numbers of its own: a
number depends on the row's seed and the position alone, so that a sample does not depend on the
rest of its batch, up to floating point.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, PreTrainedModel

from posttrain.errors import DataError
from posttrain.rollouts import Parameters
from posttrain.sampling.engines.cache import CacheRows, assemble, joinable, keep_rows, new_cache
from posttrain.sampling.sampler import Budget, EngineOutput, EngineRequest, OnOutput, Progress

# waiting prompts join when at most this share of a batch is still going
_REFILL_SHARE = 1 / 2
# ended rows leave when they are this share of a batch
_ENDED_SHARE = 1 / 16
# steps between two calls of `progress`
_REPORT_STEPS = 8
# prompt positions in one forward pass, padding included: bounds memory
PREFILL = 8192
# elements of a layer's widest activation in one pass on a CPU; a larger pass does not fit the CPU's
# caches, so that every step of a layer waits for memory
_CACHED_ACTIVATIONS = 1 << 21
Seeds = npt.NDArray[np.uint64]
# ids of the vocabulary whose probabilities are added up at once
_BLOCK = 256
# increment of SplitMix64: 2^64 / golden ratio, made odd
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    requests: Sequence[EngineRequest],
    *,
    batch_size: int,
    progress: Progress = None,
    on_done: OnOutput | None = None,
    on_step: Callable[[Sequence[DecodedRow]], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> list[EngineOutput]:
    """Continue every prompt to its end, or raise InterruptedError as soon as `stop` returns True.

    Equal requests in equal order give equal outputs.

    Args:
        model: model in eval mode.
        batch_size: number of rows decoded at the same time.
        progress: called every few steps with the number of new tokens.
        on_done: called with a request's number and output when it ends.
        on_step: called with the batch's rows after each step.
        stop: called at every step; True ends all requests.

    Returns:
        One output for each request, with an `error` where the prompt leaves no room in the model's
        context.

    Raises:
        InterruptedError: `stop` returned True.
        DataError: the model's logits are not finite.
    """
    rows = [DecodedRow(request, _token_limit(model, request)) for request in requests]
    # a prompt that leaves no room is done before it starts
    unfinished = [number for number, row in enumerate(rows) if not row.done]
    waiting = _admission_order(unfinished, requests)
    batch = DecodeBatch(model)
    tokens_reported = 0
    steps = 0
    number_of_unreported_row = {id(row): number for number, row in enumerate(rows)}

    def hand_over(candidates: Iterable[DecodedRow]) -> None:
        """Pass the outputs of ended rows to `on_done`, each once."""
        if on_done is None:
            return
        for row in candidates:
            if row.done and id(row) in number_of_unreported_row:
                number = number_of_unreported_row.pop(id(row))
                on_done(number, row.output())

    hand_over(rows)
    while waiting or batch.going:
        if stop():
            raise InterruptedError
        going = batch.going
        if waiting and going <= _REFILL_SHARE * batch_size and batch.may_join:
            room = batch_size - going
            batch.admit([rows[number] for number in waiting[:room]])
            waiting = waiting[room:]
        elif len(batch.rows) - going >= max(1, _ENDED_SHARE * len(batch.rows)):
            batch.drop_ended()
        batch.step()
        if on_step is not None:
            on_step(batch.rows)
        hand_over(batch.rows)
        steps += 1
        if progress and (steps % _REPORT_STEPS == 0 or not batch.going):
            progress(batch.written - tokens_reported)
            tokens_reported = batch.written
    return [row.output() for row in rows]


def _token_limit(model: PreTrainedModel, request: EngineRequest) -> int:
    """Most new tokens of a request: its limit, or the room in the context, maybe below 0."""
    assert request.ids, "a prompt has at least one token"
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limit = request.parameters.max_tokens
    return limit if context is None else min(limit, context - len(request.ids))


def prefill_positions(model: PreTrainedModel) -> int:
    """Limit of prompt positions in one forward pass, padding included."""
    if model.device.type != "cpu":
        return PREFILL
    config = model.config.get_text_config()
    widest = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return min(PREFILL, _CACHED_ACTIVATIONS // widest)


def _admission_order(indices: Sequence[int], requests: Sequence[EngineRequest]) -> list[int]:
    """Order requests by prompt length, equal prompts together.

    Prompts of like lengths need little padding, and equal ones share a prefill.
    """
    first_with_prompt: dict[tuple[int, ...], int] = {}
    for index in indices:
        first_with_prompt.setdefault(requests[index].ids, index)

    def position(index: int) -> tuple[int, int, int]:
        prompt = requests[index].ids
        return len(prompt), first_with_prompt[prompt], index

    return sorted(indices, key=position)


@dataclass(slots=True)
class DecodedRow:
    """Row of a batch: a request with the ids generated so far.

    Attributes:
        limit: Greatest number of new ids.
        done: True if no id will follow.
        stopped: True if a stop id ended the row.
        forced: [start, end) of the `ids` that closed the reasoning for the model.
    """

    request: EngineRequest
    limit: int
    ids: list[int] = field(default_factory=list[int])
    logps: list[float] = field(default_factory=list[float])
    done: bool = False
    stopped: bool = False
    forced: tuple[int, int] | None = None
    # forced ids that are still to come, the last one first
    _pending: list[int] = field(default_factory=list[int])
    # position at which the counted reasoning began; None before it
    _counted_from: int | None = None
    # None once the reasoning is closed
    _budget: Budget | None = None

    def __post_init__(self) -> None:
        self._budget = self.request.budget
        if self._budget is not None and self._budget.open_id is None:
            self._counted_from = 0
        self.done = self.limit <= 0

    def take(self, token: int, logp: float) -> int:
        """Append the sampled id, or the forced id that is due in its place, and return it."""
        is_forced = bool(self._pending)
        if is_forced:
            token = self._pending.pop()
            logp = 0.0
        self.ids.append(token)
        self.logps.append(logp)
        self.done = len(self.ids) >= self.limit
        if not is_forced and token in self.request.stop_ids:
            self.done = True
            self.stopped = True
        elif not is_forced and self._budget is not None:
            self._count_reasoning(token, self._budget)
        return token

    def _count_reasoning(self, token: int, budget: Budget) -> None:
        """Follow the reasoning by one sampled id; at the budget, plan the ids that close it."""
        position = len(self.ids)
        if self._counted_from is None:
            # the model has not opened its reasoning before this id
            self._counted_from = position if token == budget.open_id else None
        elif token == budget.close_id:
            self._budget = None
        elif position - self._counted_from == budget.tokens:
            closing = list(budget.closing(self.ids[self._counted_from :]))
            self.forced = (position, min(position + len(closing), self.limit))
            self._pending = closing[::-1]
            self._budget = None

    def output(self) -> EngineOutput:
        """Output of an ended row, with an error where its prompt left no room."""
        assert self.done
        if self.limit <= 0 < self.request.parameters.max_tokens:
            prompt = len(self.request.ids)
            error = f"a prompt of {prompt} tokens leaves no room in the model's context"
            return EngineOutput((), "length", error=error)
        start, end = self.forced or (0, 0)
        return EngineOutput(
            ids=tuple(self.ids),
            finish="stop" if self.stopped else "length",
            logps=tuple(self.logps) if self.request.parameters.logps else None,
            forced=self.forced if end > start else None,
        )


# part of the next batch: the cache of its rows, the logits of their next tokens, and the rows
_Piece = tuple[CacheRows, torch.Tensor, list["DecodedRow"]]


class DecodeBatch:
    """Batch of rows that are decoded together, aligned at their right end: a column is a step.

    Attributes:
        rows: Rows of the batch, ended ones included until they are dropped.
        written: Number of tokens written so far, in all rows that the batch has had.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.rows: list[DecodedRow] = []
        self.written = 0
        self._cache = new_cache(model)
        self._logits = torch.empty(0)
        self._width = 0
        # projects the last position alone, where the model can
        parameters = inspect.signature(model.forward).parameters
        self._head_options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._lay_out()

    @property
    def going(self) -> int:
        """Number of rows that have not ended."""
        return sum(not row.done for row in self.rows)

    @property
    def may_join(self) -> bool:
        """True if other rows can join those that have not ended."""
        return not self.going or joinable(self._cache)

    def drop_ended(self) -> None:
        """Drop the rows that have ended. At least one row must be going."""
        going_rows = [k for k, row in enumerate(self.rows) if not row.done]
        order = keep_rows(self._cache, going_rows, self.model.device)
        self.rows = [self.rows[k] for k in order]
        self._logits = self._logits[order]
        self._lay_out()

    def admit(self, new: Sequence[DecodedRow]) -> None:
        """Drop the ended rows, and add new ones behind the others after their prefill."""
        going_rows = [k for k, row in enumerate(self.rows) if not row.done]
        pieces: list[_Piece] = []
        if going_rows:
            pieces.append(self._take_rows(going_rows))
        for group in self._groups(new):
            pieces.append(self._prefill(group))
        parts, logits, rows = zip(*pieces, strict=True)
        self.rows = [*itertools.chain(*rows)]
        self._logits = torch.cat(logits)
        self._width = max(part.width for part in parts)
        self._cache = assemble(parts)
        self._lay_out()

    def _take_rows(self, indices: list[int]) -> _Piece:
        """Cut rows of this batch out, with their cache and logits, for the next batch."""
        # columns that are padding in all of these rows are left behind
        unused = min(self._pads[k] for k in indices) if joinable(self._cache) else 0
        index = torch.tensor(indices, device=self.model.device)
        part = CacheRows(self._cache, index, self._width - unused)
        return part, self._logits[index], [self.rows[k] for k in indices]

    def _groups(self, new: Sequence[DecodedRow]) -> Iterator[list[DecodedRow]]:
        """Split rows so that the distinct prompts of each group fit one forward pass.

        Where rows cannot join, all are in one group.
        """
        only_one_pass = not joinable(new_cache(self.model))
        max_positions = prefill_positions(self.model)
        group: list[DecodedRow] = []
        # distinct prompt → its length
        lengths: dict[tuple[int, ...], int] = {}
        for row in new:
            row_length = {row.request.ids: len(row.request.ids)}
            extended = lengths | row_length
            positions = len(extended) * max(extended.values())
            if group and positions > max_positions and not only_one_pass:
                yield group
                group = []
                extended = row_length
            group.append(row)
            lengths = extended
        if group:
            yield group

    def _prefill(self, group: list[DecodedRow]) -> _Piece:
        """Run the model over the prompts of new rows, each distinct prompt once."""
        prompts = list(dict.fromkeys(row.request.ids for row in group))
        width = max(len(ids) for ids in prompts)
        device = self.model.device
        # any id will do as padding: it is masked
        ids = torch.tensor([(0,) * (width - len(p)) + p for p in prompts], device=device)
        mask = _mask([width - len(p) for p in prompts], width, device)
        positions = torch.arange(width, device=device).expand(len(prompts), -1)
        if mask is not None:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = new_cache(self.model)
        logits = self._forward(ids, mask, positions, cache)
        row_of_prompt = {prompt: k for k, prompt in enumerate(prompts)}
        index = torch.tensor([row_of_prompt[row.request.ids] for row in group], device=device)
        return CacheRows(cache, index, width), logits[index], group

    def _lay_out(self) -> None:
        """Compute the masks and parameters that hold until rows join or leave."""
        device = self.model.device
        # masked columns on the left of each row; the mask has columns of ones for the steps to come
        self._pads = [self._width - len(row.request.ids) - len(row.ids) for row in self.rows]
        max_steps = max((row.limit - len(row.ids) for row in self.rows), default=0)
        self._mask = _mask(self._pads, self._width + max_steps, device)
        self._parameters = RowParameters.of([row.request.parameters for row in self.rows], device)
        self._seeds = np.array([row.request.seed for row in self.rows], dtype=np.uint64)

    def step(self) -> None:
        """Write one token in every row, and run the model for the next unless all have ended."""
        tokens = self._choose_tokens()
        if not self.going:
            return
        device = self.model.device
        self._width += 1
        self._logits = self._forward(
            torch.tensor(tokens, device=device)[:, None],
            None if self._mask is None else self._mask[:, : self._width],
            torch.tensor([self._width - 1 - pad for pad in self._pads], device=device)[:, None],
            self._cache,
        )

    def _choose_tokens(self) -> list[int]:
        """Choose the token of each row, append it to rows that have not ended, and count it.

        Raises:
            DataError: the model's logits are not finite.
        """
        positions = np.array([len(row.ids) for row in self.rows])
        chosen, logps = choose(self._logits, self._parameters, uniforms(self._seeds, positions))
        tokens: list[int] = chosen.tolist()
        nats: list[float] = [0.0] * len(tokens) if logps is None else logps.tolist()
        # `choose` marks a row whose logits are not finite with an id beyond the vocabulary
        if max(tokens) >= self._logits.shape[-1]:
            raise DataError("the model's logits are not finite: its weights or dtype are at fault")
        for k, row in enumerate(self.rows):
            if not row.done:
                tokens[k] = row.take(tokens[k], nats[k])
                self.written += 1
        return tokens

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: Any, cache: DynamicCache
    ) -> torch.Tensor:
        """Logits `[rows, vocabulary]` after the last column."""
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **self._head_options,
        )
        return out.logits[:, -1].float()


def _mask(pads: Sequence[int], width: int, device: torch.device) -> torch.Tensor | None:
    """Attention mask `[rows, width]`, False in the padding; None where no row is padded."""
    if not any(pads):
        return None
    columns = torch.arange(width, device=device)
    return columns >= torch.tensor(pads, device=device)[:, None]


# -- the next token of every row -------------------------------------------------------------------


def uniforms(seeds: Seeds, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Random number in [0, 1) for each seed and position, by SplitMix64's finaliser over both."""
    # the arithmetic is modulo 2^64
    with np.errstate(over="ignore"):
        steps = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mixed = _mix(_mix(seeds) + steps)
    # 52 bits: the product with a total can then not round up to the total
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(z: Seeds) -> Seeds:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class RowParameters:
    """Sampling parameters of a batch as tensors `[rows]`, None where no row needs them."""

    greedy: torch.Tensor
    any_greedy: bool
    all_greedy: bool
    temperature: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    logps: bool

    @classmethod
    def of(cls, rows: Sequence[Parameters], device: torch.device) -> RowParameters:
        """Collect the parameters of all rows; a greedy row ignores the others."""

        def tensor(name: str, unset: float) -> torch.Tensor | None:
            values = [getattr(p, name) if p.temperature else unset for p in rows]
            return torch.tensor(values, device=device) if set(values) != {unset} else None

        greedy = [p.temperature == 0 for p in rows]
        return cls(
            greedy=torch.tensor(greedy, device=device),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            temperature=tensor("temperature", 1.0),
            top_k=tensor("top_k", 0),
            top_p=tensor("top_p", 1.0),
            logps=any(p.logps for p in rows),
        )


def choose(
    logits: torch.Tensor, parameters: RowParameters, numbers: npt.NDArray[np.float64]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Next token of each row, and its log-probability if any row requests it.

    Args:
        logits: `[rows, vocabulary]`, float.
        numbers: random number in [0, 1) of each row.

    Returns:
        Token ids `[rows]`, and nats `[rows]` under the distribution sampled from, for greedy rows
        under the model's own. An id equal to the vocabulary size marks logits that are not finite.
    """
    if parameters.all_greedy:
        tokens = _mark_broken(logits, logits.argmax(-1))
        return tokens, log_probability(logits, tokens) if parameters.logps else None
    scaled = logits if parameters.temperature is None else logits / parameters.temperature[:, None]
    scaled = _filter_top_k_and_p(scaled, parameters)
    tokens = _inverse_transform(torch.softmax(scaled, -1), numbers)
    if parameters.any_greedy:
        tokens = torch.where(parameters.greedy, logits.argmax(-1), tokens)
    tokens = _mark_broken(logits, tokens)
    return tokens, log_probability(scaled, tokens) if parameters.logps else None


def _inverse_transform(
    probabilities: torch.Tensor, numbers: npt.NDArray[np.float64]
) -> torch.Tensor:
    """Id at which the running sum of each row of `[rows, vocabulary]` first exceeds its number."""
    # running sums over a large vocabulary cost as much as a layer of a small model: find the block
    # first, then the id in it
    vocabulary = probabilities.shape[-1]
    padding = -vocabulary % _BLOCK
    blocks = torch.nn.functional.pad(probabilities, (0, padding)).unflatten(-1, (-1, _BLOCK))
    block_ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    thresholds = torch.from_numpy(numbers).to(probabilities.device)[:, None] * block_ends[:, -1:]
    block = torch.searchsorted(block_ends, thresholds, right=True)
    # searchsorted puts NaN behind every sum
    block = block.clamp(max=blocks.shape[1] - 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    before = torch.where(block > 0, block_ends.gather(-1, (block - 1).clamp(min=0)), 0.0)
    ends = before + inside.cumsum(-1, dtype=torch.float64)
    # the two ways to sum may differ in the last bit: never go beyond the last possible token
    last_possible = _BLOCK - 1 - (inside.flip(-1) > 0).int().argmax(-1, keepdim=True)
    offset = torch.minimum(torch.searchsorted(ends, thresholds, right=True), last_possible)
    return (block * _BLOCK + offset)[:, 0]


def _mark_broken(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Replace the tokens of rows whose logits are NaN by the vocabulary size."""
    # a NaN anywhere in a model ends in all of a row's logits: looking at the first is enough
    return torch.where(logits[:, 0].isnan(), logits.shape[-1], tokens)


def log_probability(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Nats of one token in each row of logits `[…, vocabulary]`, without a copy of the logits."""
    safe = tokens.clamp(max=logits.shape[-1] - 1)
    return logits.gather(-1, safe[..., None])[..., 0] - logits.logsumexp(-1)


def _filter_top_k_and_p(scaled: torch.Tensor, parameters: RowParameters) -> torch.Tensor:
    """Set logits outside top-k, then outside top-p, to -inf, in the order of transformers."""
    if parameters.top_k is not None:
        largest = int(parameters.top_k.max())
        best = scaled.topk(min(largest, scaled.shape[-1])).values
        threshold = best.gather(-1, (parameters.top_k.clamp(1, best.shape[-1]) - 1)[:, None])
        scaled = scaled.masked_fill(
            (scaled < threshold) & (parameters.top_k > 0)[:, None], -torch.inf
        )
    if parameters.top_p is not None:
        ordered, order = scaled.sort(-1, descending=True)
        before = torch.softmax(ordered, -1).cumsum(-1, dtype=torch.float64).roll(1, -1)
        before[:, 0] = -1.0  # the likeliest token always stays
        top_p = parameters.top_p[:, None]
        excluded = torch.zeros_like(scaled, dtype=torch.bool)
        excluded.scatter_(-1, order, (before >= top_p) & (top_p < 1))
        scaled = scaled.masked_fill(excluded, -torch.inf)
    return scaled
