"""Activations of a training step, and the cache of a rollout: a forward and backward pass runs over
tensors without data (PyTorch's FakeTensorMode) and counts the bytes that are alive at its worst
moment. It takes seconds, also at 30 B parameters.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from peft import get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE, ChunkedLogProbFunction

from posttrain.config.sft import AdapterConfig
from posttrain.models.adapters import lora_config
from posttrain.models.load import recurrent_layers, without_zero3_init
from posttrain.training.cpu_head import score_rows
from posttrain.training.launch import Launched
from posttrain.training.shards import Shards, make_shards

HEAD_TILE = 32768  # of TRL's head, in ids


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a pass over the largest micro-batch looks like.

    Attributes:
        labels: that have a log-probability computed.
        masked: attention is given a mask.
        dtype: that weights are computed in; `autocast`: to that type, from weights in float32.
        cpu_head: this project's head scores the labels; otherwise TRL's.
        kernels: Mamba layers run as fused kernels.
        accumulated: gradients of an earlier micro-batch are there.
    """

    rows: int
    columns: int
    labels: int
    masked: bool
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    checkpointing: bool = False
    cpu_head: bool = True
    kernels: bool = False
    accumulated: bool = False


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes at the worst moment of a step: activations, weights and gradients that are gathered or
    copied (see `shards`), and gradients that the process keeps."""

    activations: int
    gathered: int
    gradients: int

    @property
    def total(self) -> int:
        return self.activations + self.gathered + self.gradients


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """Completions that are sampled at a time in this process, and the columns of each."""

    rows: int
    columns: int


class _GroupedProducts(TorchDispatchMode):
    """Products of experts: without data PyTorch 2.13 knows them in bfloat16 only."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten._grouped_mm.default:
            return func(*args, **(kwargs or {}))
        a, b, ends = args[:3]
        shape = (a.shape[0], b.shape[-1]) if b.ndim == 3 else (len(ends), a.shape[0], b.shape[1])
        return a.new_empty(shape)


class _Allocations(_GroupedProducts):
    """Bytes of tensors that are alive besides those of a model, and the worst moment of all."""

    def __init__(self, model: torch.nn.Module, shards: Shards) -> None:
        super().__init__()
        self.now, self.shards = 0, shards
        self.worst = StepMemory(0, 0, 0)
        # a view of a weight is no new memory
        known = [*model.parameters(), *model.buffers()]
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self._weights = {p.untyped_storage()._cdata: p for p in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves(args):
            if isinstance(tensor, torch.Tensor):
                weight = self._weights.get(tensor.untyped_storage()._cdata)
                if weight is not None:
                    self.shards.use(weight)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self._sizes:
                    self._sizes[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._freed, key)
        self.note()
        return out

    def note(self, besides: int = 0) -> None:
        """Remember this moment if none was worse."""
        gathered = self.shards.gathered + besides
        moment = StepMemory(self.now, gathered, self.shards.gradients)
        if moment.total > self.worst.total:
            self.worst = moment

    def add_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Hand a gradient over to the shards."""
        parameter.grad = None
        self.note(self.shards.add_gradient(parameter))

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


class _FusedScan(torch.autograd.Function):
    """Stands for the fused kernel of a Mamba layer: its input and output are kept for backward."""

    @staticmethod
    def forward(ctx: Any, projected: torch.Tensor, width: int) -> torch.Tensor:
        out = projected.new_empty(*projected.shape[:-1], width)
        ctx.save_for_backward(projected, out)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        projected, _ = ctx.saved_tensors
        # its convolution runs again
        return torch.empty_like(projected).add_(torch.empty_like(projected)), None


def _scan(self: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return self.out_proj(_FusedScan.apply(self.in_proj(hidden_states), self.out_proj.in_features))


class _FusedHead(torch.autograd.Function):
    """Stands for TRL's head on a GPU, whose kernels work on one tile of logits in place."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _tile(hidden, weight)
        kept = [hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2)]
        ctx.save_for_backward(hidden, weight, *kept)
        return torch.empty_like(kept[0])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        tensors = ctx.saved_tensors[:2]
        hidden, weight = tensors
        # not made like the weight, which would gather it earlier than TRL does
        sums = [
            hidden.new_empty(tensor.shape, dtype=torch.float32) if needed else None
            for tensor, needed in zip(tensors, ctx.needs_input_grad, strict=True)
        ]
        tile = _tile(hidden, weight)
        # TRL's loop drops the columns of a tile when it has those of the next
        following = weight[HEAD_TILE : 2 * HEAD_TILE].to(tile[0].dtype)
        pairs = zip(sums, tensors, strict=True)
        gradients = tuple(total if total is None else total.to(t.dtype) for total, t in pairs)
        del tile, following
        return gradients


def _tile(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tile of logits, and the hidden states and the weights that it is the product of."""
    cast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if cast else hidden.dtype
    rows = hidden[:TOKEN_CHUNK_SIZE].to(dtype)
    # first, as in TRL: weights are gathered when they are used
    logits = rows.new_empty(len(rows), HEAD_TILE)
    return logits, rows, weight[:HEAD_TILE].to(dtype)


def measure_step(
    config: Any, shape: StepShape, adapter: AdapterConfig | None, launched: Launched
) -> StepMemory:
    """The most that a forward and backward pass and the update hold beside what is always there."""
    plain = _without_data(config, shape.dtype)
    model = plain if adapter is None else get_peft_model(plain, lora_config(adapter, plain))
    model.train()
    if shape.checkpointing:
        plain.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    for module in plain.modules():
        if shape.kernels and hasattr(module, "A_log"):
            module.forward = MethodType(_scan, module)
    with without_zero3_init(), FakeTensorMode():
        _pretend(model)
        shards = make_shards(model, plain, launched, accumulated=shape.accumulated)
        step = _Allocations(model, shards)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(step.add_gradient)
        casts = torch.autocast("cpu", dtype=shape.autocast, enabled=shape.autocast is not None)
        with step, casts:
            ids = torch.zeros(shape.rows, shape.columns, dtype=torch.long)
            mask = _mask(model, shape)
            hidden = plain.base_model(input_ids=ids, attention_mask=mask, use_cache=False)[0]
            head = plain.get_output_embeddings()
            _score(hidden, head, shape, fused=launched.device != "cpu").sum().backward()
            del hidden
        step.note(shards.update())
    return step.worst


def _without_data(config: Any, dtype: torch.dtype) -> Any:
    """A model on the meta device."""
    attention = "eager" if config._attn_implementation == "eager" else "sdpa"
    with without_zero3_init(), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def _pretend(model: torch.nn.Module) -> None:
    """Have every tensor of a model on meta lie on the CPU, as far as a FakeTensorMode is told."""
    copies: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is None:
                    continue
                if id(old) not in copies:
                    new = torch.empty(old.shape, dtype=old.dtype)
                    trained = isinstance(old, torch.nn.Parameter)
                    copies[id(old)] = (
                        torch.nn.Parameter(new, requires_grad=old.requires_grad) if trained else new
                    )
                tensors[name] = copies[id(old)]  # pyright: ignore[reportArgumentType]  # of its kind


def _mask(model: torch.nn.Module, shape: StepShape) -> Any:
    """Given as it is used: without data transformers makes a square mask in any case."""
    rows, columns = (shape.rows, shape.columns) if shape.masked else (1, 1)
    square = torch.ones(rows, 1, columns, columns, dtype=torch.bool)
    if not recurrent_layers(model):
        return square
    padding = torch.ones(rows, columns) if shape.masked else None
    return {"full_attention": square, "linear_attention": padding}


def _score(hidden: torch.Tensor, head: Any, shape: StepShape, *, fused: bool) -> torch.Tensor:
    kept = hidden.flatten(0, 1)[: shape.labels].clone()
    targets = torch.zeros(len(kept), dtype=torch.long)
    if shape.cpu_head:
        return score_rows(kept, targets, head)[0]
    if fused:
        return _FusedHead.apply(kept, head.weight)
    # memory of a CPU that nothing is written to does not count
    tile = min(HEAD_TILE, head.weight.shape[0])
    outputs = ("log_probs", "entropy", "is_top1")
    given = (kept, head.weight, head.bias, targets, 1.0, tile, None, 1.0, outputs)
    return ChunkedLogProbFunction.apply(*given)[0]


def rollout_bytes(config: Any, shape: RolloutShape, dtype: torch.dtype) -> int:
    """Cache of keys, values and states of completions at their longest."""

    def cached(columns: int) -> int:
        cache = model(input_ids=torch.zeros(1, columns, dtype=torch.long), use_cache=True)
        tensors = [t for layer in cache.past_key_values.layers for t in vars(layer).values()]
        return sum(t.nbytes for t in tree_leaves(tensors) if isinstance(t, torch.Tensor))

    model = _without_data(config, dtype).eval()
    with FakeTensorMode(), torch.no_grad(), _GroupedProducts():
        _pretend(model)
        short, longer = cached(64), cached(128)
    token = (longer - short) / 64
    return int(shape.rows * (short + token * (shape.columns - 64)))
