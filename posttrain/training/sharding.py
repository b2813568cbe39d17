"""What training under DeepSpeed and FSDP2 needs, and the trainer of transformers does not do.

A resume checkpoint holds each process's own part. The finished model is gathered once, by all
processes, and written by the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from posttrain.errors import TrainingError


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
