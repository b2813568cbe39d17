"""What training under DeepSpeed and FSDP2 needs, and the trainer of transformers does not do.

A resume checkpoint holds each process's own part. The finished model is gathered once, by all
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
    """Save no gathered model in the block: DeepSpeed and FSDP write every process's part."""
    trainer.save_model = lambda *_, **__: None
    try:
        yield
    finally:
        del trainer.save_model


@contextlib.contextmanager
def gathered_state(accelerator: Any) -> Iterator[None]:
    """Have FSDP give the whole model in the block, whatever its checkpoints hold."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        yield
        return
    kept = plugin.state_dict_type
    plugin.set_state_dict_type("FULL_STATE_DICT")
    try:
        yield
    finally:
        plugin.set_state_dict_type(kept)


def whole_state(trainer: Any) -> dict[str, torch.Tensor]:
    """The weights of a sharded model on the CPU, as its optimiser holds them.

    Runs on every process; those that do not save may get an empty dict.

    Under DeepSpeed and mixed precision the model's own weights are the optimiser's float32 ones,
    rounded: at a learning rate of 3e-6 most of what was learnt is in the digits that rounding
    takes. A weight under two names is written once, under its first.
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

    Its float32 weights are made of the model's, which it has rounded by then: what an earlier stage
    learnt in small steps would be lost between two stages. Runs on every process.

    Args:
        load: the model in float32; called by the first process alone.
    """
    from deepspeed import comm  # only where a launcher asked for it
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
        # of ZeRO-3 by hand: DeepSpeed (0.19) cuts a whole tensor only if it divides evenly
        local = safe_get_local_fp32_param(parameter)
        start = local.numel() * comm.get_rank()
        part = torch.zeros_like(local)
        numbers = weights.flatten()[start : start + local.numel()]
        part.view(-1)[: numbers.numel()] = numbers
        safe_set_local_fp32_param(parameter, part)


def _deepspeed_state(model: nn.Module, *, keep: bool) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, one parameter at a time, so that one fits beside all."""
    from deepspeed import zero  # only where a launcher asked for it
    from deepspeed.utils import safe_get_full_fp32_param

    state: dict[str, torch.Tensor] = {}
    adapted = isinstance(model, PeftModel)
    for name, parameter in model.named_parameters():
        if adapted and not parameter.requires_grad:
            continue  # an adapter is saved without its base
        # None for a frozen parameter, of which the optimiser holds nothing
        weights = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
        with zero.GatheredParameters([parameter], enabled=weights is None):
            if keep:
                state[name] = (parameter if weights is None else weights).detach().cpu().clone()
    if keep:
        persistent = model.state_dict().keys()
        buffers = model.named_buffers()
        state |= {name: buffer.cpu() for name, buffer in buffers if name in persistent}
    return state


def shard_buffers_apart(accelerator: Any) -> None:
    """Give every process the first one's persistent buffers when FSDP2 prepares a model.

    accelerate 1.15 takes whatever a state dict holds for sharded parameters ("'Tensor' object has
    no attribute 'device_mesh'"), but leaves buffers that are not persistent as they are: such as
    the expert bias of NemotronH are not while it prepares.
    """
    prepare: Callable[..., Any] = accelerator.prepare

    def prepare_apart(*parts: Any, **kwargs: Any) -> Any:
        hidden = [
            (module, name)
            for model in parts
            if isinstance(model, nn.Module)
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]
        for module, name in hidden:
            values = module.get_buffer(name).to(accelerator.device)
            torch.distributed.broadcast(values, src=0)
            module.register_buffer(name, values)
            module._non_persistent_buffers_set.add(name)
        prepared = prepare(*parts, **kwargs)
        for module, name in hidden:
            module._non_persistent_buffers_set.discard(name)
        return prepared

    accelerator.prepare = prepare_apart


def gather_head(model: Any) -> None:
    """Have ZeRO-3 gather an output head of its own while the whole model is at work: TRL 1.16's
    fused loss reads its weight outside of its forward pass, and one that is not tied is split again
    by the time autograd hands its gradient over."""
    from deepspeed import zero  # only where a launcher asked for it

    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        zero.register_external_parameter(model, head.weight)


def expect_gradient_scale(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """Have `backward` raise TrainingError where the gradient at the loss itself has another scale:
    Adam hides, for example, a second division by the accumulation steps."""

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
