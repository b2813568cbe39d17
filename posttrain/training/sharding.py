"""Additions to the trainer of transformers for training under DeepSpeed and FSDP2.

A resume checkpoint holds the part of each process. The finished model is gathered once, by all
processes, and written by the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from peft import PeftModel
from torch import nn

from posttrain.errors import TrainingError
from posttrain.models.load import full_shape, without_zero3_init


@contextlib.contextmanager
def checkpoint_of_parts(trainer: Any) -> Iterator[None]:
    """Save no gathered model inside the block: DeepSpeed and FSDP save the part of each process."""
    trainer.save_model = lambda *_, **__: None
    try:
        yield
    finally:
        del trainer.save_model


@contextlib.contextmanager
def gathered_state(accelerator: Any) -> Iterator[None]:
    """Have FSDP gather the full model inside the block, where its checkpoints may hold shards."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        yield
        return
    checkpoint_type = plugin.state_dict_type
    plugin.set_state_dict_type("FULL_STATE_DICT")
    try:
        yield
    finally:
        plugin.set_state_dict_type(checkpoint_type)


def whole_state(trainer: Any) -> dict[str, torch.Tensor]:
    """Gather the weights of a sharded model on the CPU, as its optimiser holds them.

    Runs on every process; those that do not save may get an empty dict.

    Under DeepSpeed and mixed precision the weights in the model are the optimiser's float32 ones,
    rounded: at a learning rate of 3e-6 rounding removes most of what was learnt. A weight that has
    two names is written once, under its first.
    """
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    if trainer.is_deepspeed_enabled:
        return _deepspeed_state(model, keep=trainer.args.should_save)
    with gathered_state(accelerator):
        state = accelerator.get_state_dict(trainer.model)
    tied_names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tied_names -= {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in state.items() if name not in tied_names}


def restore_masters(trainer: Any, load: Callable[[], nn.Module]) -> None:
    """Give DeepSpeed's optimiser the float32 weights of the checkpoint that training starts from.

    DeepSpeed copies them from the model, which it has rounded by then: what an earlier stage learnt
    in small steps would be lost. Runs on every process.

    Args:
        load: loads the model in float32; called on the main process only.
    """
    from deepspeed import comm  # installed only where a launcher needs it
    from deepspeed.utils import (
        safe_get_local_fp32_param,
        safe_set_full_fp32_param,
        safe_set_local_fp32_param,
    )

    source: dict[str, torch.Tensor] = {}
    if trainer.is_world_process_zero():
        with without_zero3_init():
            source = dict(load().named_parameters())
    device = trainer.accelerator.device
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        if not parameter.requires_grad:
            continue
        weights = torch.empty(full_shape(parameter), dtype=torch.float32, device=device)
        if source:
            weights.copy_(source.pop(name).detach())
        comm.broadcast(weights, src=0)
        if not hasattr(parameter, "ds_id"):
            safe_set_full_fp32_param(parameter, weights)
            continue
        # the part of this process under ZeRO-3, cut here because DeepSpeed (0.19) cuts a tensor
        # only if it divides evenly; the last part is padded
        local = safe_get_local_fp32_param(parameter)
        start = local.numel() * comm.get_rank()
        values = weights.flatten()[start : start + local.numel()]
        padded_values = torch.zeros_like(local)
        padded_values.view(-1)[: values.numel()] = values
        safe_set_local_fp32_param(parameter, padded_values)


def _deepspeed_state(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Gather parameters and persistent buffers.

    One parameter at a time: no device has room for the gathered model.
    """
    from deepspeed import zero  # installed only where a launcher needs it
    from deepspeed.utils import safe_get_full_fp32_param

    state: dict[str, torch.Tensor] = {}
    adapted = isinstance(model, PeftModel)
    for name, parameter in model.named_parameters():
        if adapted and not parameter.requires_grad:
            # an adapter is saved without its base
            continue
        # the optimiser holds nothing of a frozen parameter
        master = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
        with zero.GatheredParameters([parameter], enabled=master is None):
            if keep:
                weights = parameter if master is None else master
                state[name] = weights.detach().cpu().clone()
    if keep:
        persistent = model.state_dict().keys()
        for name, buffer in model.named_buffers():
            if name in persistent:
                state[name] = buffer.cpu()
    return state


def shard_buffers_apart(accelerator: Any) -> None:
    """Give every process the first one's persistent buffers when FSDP2 prepares a model.

    accelerate 1.15 takes everything in a state dict for a sharded parameter ("'Tensor' object has
    no attribute 'device_mesh'"), but leaves buffers alone that are not persistent. Persistent ones,
    such as the expert bias of NemotronH, are therefore not persistent while it prepares.
    """
    prepare: Callable[..., Any] = accelerator.prepare

    def prepare_apart(*parts: Any, **kwargs: Any) -> Any:
        """Call accelerate's `prepare` with no persistent buffer in sight."""
        buffers: list[tuple[nn.Module, str]] = []
        for model in parts:
            if isinstance(model, nn.Module):
                buffers += _persistent_buffers(model)
        for module, name in buffers:
            values = module.get_buffer(name).to(accelerator.device)
            torch.distributed.broadcast(values, src=0)
            module.register_buffer(name, values)
            module._non_persistent_buffers_set.add(name)
        prepared = prepare(*parts, **kwargs)
        for module, name in buffers:
            module._non_persistent_buffers_set.discard(name)
        return prepared

    accelerator.prepare = prepare_apart


def _persistent_buffers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Module and name of each persistent buffer of a model."""
    buffers: list[tuple[nn.Module, str]] = []
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer is not None and name not in module._non_persistent_buffers_set:
                buffers.append((module, name))
    return buffers


def gather_head(model: Any) -> None:
    """Have ZeRO-3 gather an untied output head while the whole model runs.

    TRL 1.16's fused loss reads the weight outside of the head's forward pass, and without this an
    untied weight is partitioned again by the time autograd delivers its gradient.
    """
    from deepspeed import zero  # installed only where a launcher needs it

    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        zero.register_external_parameter(model, head.weight)


def expect_gradient_scale(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the loss with a check of the factor that the trainer multiplies it by.

    `backward` raises TrainingError where the factor is not `scale`: Adam would hide, for example, a
    second division by the accumulation steps.
    """

    def check(gradient: torch.Tensor) -> None:
        if abs(float(gradient) - scale) > 1e-3 * scale:
            raise TrainingError(
                f"the trainer scales the gradient of the loss by {float(gradient):g}, it should "
                f"be {scale:g}: the installed transformers or TRL divides by the accumulation "
                "steps otherwise than this project expects"
            )

    if loss.requires_grad:
        loss.register_hook(check)
    return loss
