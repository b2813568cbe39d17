"""Memory of a training step's activations, and of a rollout's cache.

A forward and backward pass runs over tensors without data (PyTorch's FakeTensorMode) and counts the
bytes that are alive at its worst moment. It takes seconds, also at 30 B parameters.
"""

from __future__ import annotations

import copy
import inspect
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

# ids of a tile of logits in TRL's head
HEAD_TILE = 32768


@dataclass(frozen=True, slots=True)
class StepShape:
    """Shape and settings of a pass over the largest micro-batch.

    Attributes:
        labels: Number of labels whose log-probability is computed.
        masked: True if attention is given a mask.
        dtype: Type of the weights.
        autocast: Type that operations compute in, if it is not that of the weights.
        cpu_head: True if this project's head scores the labels, False if TRL's does.
        kernels: True if Mamba layers run as fused kernels.
        accumulated: True if gradients of an earlier micro-batch exist before the pass.
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
    """Bytes at the worst moment of a step.

    Attributes:
        activations: Bytes of activations.
        gathered: Bytes of weights and gradients that are gathered or copied (see `shards`).
        gradients: Bytes of gradients that the process keeps.
    """

    activations: int
    gathered: int
    gradients: int

    @property
    def total(self) -> int:
        return self.activations + self.gathered + self.gradients


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """Shape of a rollout batch: completions sampled together, and the columns of each."""

    rows: int
    columns: int


class _GroupedProducts(TorchDispatchMode):
    """Makes the products of experts without data, which PyTorch 2.13 can in bfloat16 only."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten._grouped_mm.default:
            return func(*args, **(kwargs or {}))
        left, right, group_ends = args[:3]
        if right.ndim == 3:
            # forward: rows grouped by expert × a matrix of each expert
            shape = (left.shape[0], right.shape[-1])
        else:
            # backward: a gradient of each expert's matrix
            shape = (len(group_ends), left.shape[0], right.shape[1])
        return left.new_empty(shape)


class _Allocations(_GroupedProducts):
    """Counts the bytes of living tensors, those of the model left out, and keeps the worst moment.

    Attributes:
        now: Bytes alive at this moment.
        worst: Bytes at the worst moment so far.
    """

    def __init__(self, model: torch.nn.Module, shards: Shards) -> None:
        super().__init__()
        self.now = 0
        self.shards = shards
        self.worst = StepMemory(0, 0, 0)
        # bytes by storage; 0 for the model's, so that a view of a weight is no new memory
        model_tensors = [*model.parameters(), *model.buffers()]
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in model_tensors}
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
                    weakref.finalize(storage, self._free, key)
        self.note()
        return out

    def note(self, momentary: int = 0) -> None:
        """Keep this moment if none was worse; `momentary`: further bytes at this moment alone."""
        gathered = self.shards.gathered + momentary
        moment = StepMemory(self.now, gathered, self.shards.gradients)
        if moment.total > self.worst.total:
            self.worst = moment

    def add_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Drop a parameter's gradient, and have the shards count it instead."""
        parameter.grad = None
        self.note(self.shards.add_gradient(parameter))

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


class _FusedScan(torch.autograd.Function):
    """Stand-in for the fused kernel of a Mamba layer, which keeps input and output for backward."""

    @staticmethod
    def forward(ctx: Any, projected: torch.Tensor, width: int) -> torch.Tensor:
        out = projected.new_empty(*projected.shape[:-1], width)
        ctx.save_for_backward(projected, out)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        projected, _ = ctx.saved_tensors
        # two tensors, since the kernel's convolution runs again
        return torch.empty_like(projected).add_(torch.empty_like(projected)), None


def _forward_fused(self: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Forward pass of a Mamba layer with the stand-in of its kernel."""
    return self.out_proj(_FusedScan.apply(self.in_proj(hidden_states), self.out_proj.in_features))


class _FusedHead(torch.autograd.Function):
    """Stand-in for TRL's head on a GPU, whose kernels work on one tile of logits in place."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _make_tile(hidden, weight)
        # TRL's head keeps two numbers a label
        saved = [hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2)]
        ctx.save_for_backward(hidden, weight, *saved)
        return torch.empty_like(saved[0])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        tensors = ctx.saved_tensors[:2]
        hidden, weight = tensors
        # not made like the weight, which would gather it earlier than TRL does
        sums = [
            hidden.new_empty(tensor.shape, dtype=torch.float32) if needs_grad else None
            for tensor, needs_grad in zip(tensors, ctx.needs_input_grad, strict=True)
        ]
        tile = _make_tile(hidden, weight)
        # TRL's loop drops the weights of a tile only when it has those of the next
        next_weights = weight[HEAD_TILE : 2 * HEAD_TILE].to(tile[0].dtype)
        pairs = zip(sums, tensors, strict=True)
        gradients = tuple(
            gradient if gradient is None else gradient.to(tensor.dtype)
            for gradient, tensor in pairs
        )
        # alive until here, as in TRL's loop
        del tile, next_weights
        return gradients


def _make_tile(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Allocate a tile of logits, and the hidden states and weights that it is the product of."""
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else hidden.dtype
    rows = hidden[:TOKEN_CHUNK_SIZE].to(dtype)
    # logits before weights, as in TRL: weights are gathered when they are used
    logits = rows.new_empty(len(rows), HEAD_TILE)
    return logits, rows, weight[:HEAD_TILE].to(dtype)


def measure_step(
    config: Any, shape: StepShape, adapter: AdapterConfig | None, launched: Launched
) -> StepMemory:
    """Memory of a forward and backward pass and the update, at the worst moment.

    Weights and optimiser, which exist at all times, are not counted.
    """
    base_model = _make_meta_model(config, shape.dtype)
    model = base_model
    if adapter is not None:
        model = get_peft_model(base_model, lora_config(adapter, base_model))
    model.train()
    if shape.checkpointing:
        base_model.gradient_checkpointing_enable(
            {"use_reentrant": False, "preserve_rng_state": False}
        )
    for module in base_model.modules():
        # the Mamba layers alone have it
        if shape.kernels and hasattr(module, "A_log"):
            module.forward = MethodType(_forward_fused, module)
    with without_zero3_init(), FakeTensorMode():
        _move_to_cpu(model)
        shards = make_shards(model, base_model, launched, accumulated=shape.accumulated)
        step = _Allocations(model, shards)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(step.add_gradient)
        autocast = torch.autocast("cpu", dtype=shape.autocast, enabled=shape.autocast is not None)
        with step, autocast:
            ids = torch.zeros(shape.rows, shape.columns, dtype=torch.long)
            inputs: dict[str, Any] = {"input_ids": ids}
            if "position_ids" in inspect.signature(base_model.base_model.forward).parameters:
                # OPT would count them from a mask of padding
                inputs["position_ids"] = torch.arange(shape.columns)[None]
            has_alibi = getattr(config.get_text_config(), "alibi", False)  # Falcon's
            by_positions = "position_ids" in inputs and not has_alibi
            mask = _make_mask(model, shape, by_positions=by_positions)
            hidden = base_model.base_model(**inputs, attention_mask=mask, use_cache=False)[0]
            head = base_model.get_output_embeddings()
            _score(hidden, head, shape, fused=launched.device != "cpu").sum().backward()
            del hidden
        step.note(shards.update())
    return step.worst


def _make_meta_model(config: Any, dtype: torch.dtype) -> Any:
    """Make a model without data, on the meta device."""
    # transformers writes the attention into the config, which is that of the model in training
    config = copy.deepcopy(config)
    # ModelOpt has experts run in a loop over those with rows, which tensors without data have not
    config._experts_implementation = None
    attention = "eager" if config._attn_implementation == "eager" else "sdpa"
    with without_zero3_init(), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def _move_to_cpu(model: torch.nn.Module) -> None:
    """Replace the tensors of a model on meta by tensors on the CPU.

    A FakeTensorMode around the call leaves these without data too.
    """
    # a tensor that is used twice, as a tied head is, stays one tensor
    copies: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in copies:
                    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
                    if isinstance(tensor, torch.nn.Parameter):
                        copy = torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
                    copies[id(tensor)] = copy
                tensors[name] = copies[id(tensor)]  # pyright: ignore[reportArgumentType]  # same kind


def _make_mask(model: torch.nn.Module, shape: StepShape, *, by_positions: bool) -> Any:
    """Make the attention mask in its final form.

    A model that reads no positions (BLOOM) takes distances from a plain mask, and gets that.

    From a plain mask without data transformers would make a square one in any case, also for
    attention that needs none.
    """
    rows = shape.rows if shape.masked else 1
    columns = shape.columns if shape.masked else 1
    square = torch.ones(rows, 1, columns, columns, dtype=torch.bool)
    if not recurrent_layers(model):
        return square if by_positions else torch.ones(shape.rows, shape.columns)
    padding = torch.ones(rows, columns) if shape.masked else None
    config: Any = model.config
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if layer_types == {"linear_attention"}:  # Mamba alone has no mapping of masks
        return padding
    masks = dict.fromkeys(layer_types | {"full_attention"}, square)
    return masks | {"linear_attention": padding, "conv": padding}


def _score(hidden: torch.Tensor, head: Any, shape: StepShape, *, fused: bool) -> torch.Tensor:
    """Log-probability of each label, by the head that the run would use.

    Args:
        hidden: states before the head, `[rows, columns, width]`.
        fused: True where TRL's head would run as kernels of a GPU.
    """
    label_states = hidden.flatten(0, 1)[: shape.labels].clone()
    targets = torch.zeros(len(label_states), dtype=torch.long)
    if shape.cpu_head:
        return score_rows(label_states, targets, head)[0]
    if fused:
        return _FusedHead.apply(label_states, head.weight)
    # no more than the head's ids: on a CPU the unwritten end of a tile takes no memory
    tile = min(HEAD_TILE, head.weight.shape[0])
    outputs = ("log_probs", "entropy", "is_top1")
    arguments = (label_states, head.weight, head.bias, targets, 1.0, tile, None, 1.0, outputs)
    return ChunkedLogProbFunction.apply(*arguments)[0]


def rollout_bytes(config: Any, shape: RolloutShape, dtype: torch.dtype) -> int:
    """Bytes of the cache of keys, values and states when completions have their full length."""
    model = _make_meta_model(config, dtype).eval()

    def cache_bytes(columns: int) -> int:
        output = model(input_ids=torch.zeros(1, columns, dtype=torch.long), use_cache=True)
        total = 0
        for layer in output.past_key_values.layers:
            for tensor in tree_leaves(list(vars(layer).values())):
                if isinstance(tensor, torch.Tensor):
                    total += tensor.nbytes
        return total

    with FakeTensorMode(), torch.no_grad(), _GroupedProducts():
        _move_to_cpu(model)
        # from two lengths, since states of recurrent layers do not grow with it
        bytes_at_64 = cache_bytes(64)
        bytes_at_128 = cache_bytes(128)
    bytes_per_column = (bytes_at_128 - bytes_at_64) / 64
    return int(shape.rows * (bytes_at_64 + bytes_per_column * (shape.columns - 64)))
