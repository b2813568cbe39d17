"""Frozen models whose weights are split over all processes, such as teachers, and their bytes.

PyTorch's FSDP 2 does it under FSDP 2 and ZeRO-3 alike: it needs a process group alone. Each layer
is gathered while it runs, which every process must take part in: all run the same forward passes of
the same models in the same order, also where one of them has nothing to score.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel


def split_weights(model: PreTrainedModel, device: torch.device) -> None:
    """Split a model's weights over all processes, layer by layer. Every process must call it.

    The output head stays whole in each, so that any number of positions can be compared.

    Args:
        model: the model without the wrapper of its adapters, whose weights are split too.
        device: where each process keeps its parts.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    head: Any = model.get_output_embeddings()
    head.to(device)
    # embeddings that are tied to the head stay whole with it
    whole_parameters = {*head.parameters()}
    layer_names = {*(model._no_split_modules or ())}
    base_model = model.base_model
    layers = [module for module in base_model.modules() if type(module).__name__ in layer_names]
    for module in (*layers, base_model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=whole_parameters)


def share_bytes(model: PreTrainedModel, weight_bytes: int, *, processes: int) -> int:
    """Bytes that each process will hold of a model that is whole now, once it is split."""
    head: Any = model.get_output_embeddings()
    head_bytes = sum(weight.nbytes for weight in head.parameters())
    return head_bytes + (weight_bytes - head_bytes) // processes


def most_passes(passes: int, device: torch.device) -> int:
    """Largest number of forward passes that any process needs. Every process must call it."""
    largest = torch.tensor(passes, device=device)
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return int(largest)


def tensor_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model's parameters and buffers in this process."""
    total = 0
    for tensor in (*model.parameters(), *model.buffers()):
        total += (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes
    return total


def gathered_bytes(model: torch.nn.Module) -> int:
    """Bytes that a pass of a split model gathers at most; 0 for a model that is not split."""
    units: list[int] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            split = [p for p in module.parameters() if isinstance(p, DTensor)]
            units.append(sum(parameter.nbytes for parameter in split))
    if not units:
        return 0
    # the first is the model, which holds the layers; the next layer is gathered while one runs
    whole, *layers = units
    return whole - sum(layers) + sum(sorted(layers)[-2:])
