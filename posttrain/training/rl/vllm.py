"""Rollouts by vLLM that holds all weights of the policy: a server, or in the training processes.

TRL's `VLLMGeneration` finds or starts vLLM and sends it the weights before every step. Prompts then
go to vLLM directly: each request has its own seed, stop tokens and reasoning budget, and
completions with tools come back for more. Tested against a stand-in for the server and for its NCCL
transfer; not run on vLLM itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers.core_model_loading import revert_weight_conversion
from trl.generation.vllm_generation import VLLMGeneration
from trl.import_utils import is_vllm_available

from posttrain.config.grpo import ColocatedVllm, WeightServer
from posttrain.errors import ConfigError
from posttrain.sampling.engines.http import Client
from posttrain.sampling.engines.vllm import CompletionsEngine, VllmEngine
from posttrain.training.rl.policy import LiveEngine

if TYPE_CHECKING:
    from posttrain.training.rl.trainer import GroupTrainer

Named = Generator[tuple[str, torch.Tensor], None, None]
_PROCESSED = "processed_logprobs"


class WeightSync(VLLMGeneration):
    """`VLLMGeneration` that sends what a checkpoint on disk holds, which is what vLLM can load.

    As TRL has it, mixtures of experts go out under their names in memory, persistent buffers (the
    correction bias of a router, which training moves) do not go at all, and an adapter is merged
    into the trained weights and taken out again, which leaves roundings behind.
    """

    def _iter_named_params(self) -> Named:
        model: Any = self.model
        plain: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        for name, tensor in self._parameters_and_buffers(model, plain):
            yield from revert_weight_conversion(plain, {name: tensor}).items()

    def _parameters_and_buffers(self, model: Any, plain: Any) -> Named:
        adapted = dict(_adapted(model)) if isinstance(model, PeftModel) else {}
        with _left_unmerged(model) if adapted else contextlib.nullcontext():
            for name, tensor in super()._iter_named_params():
                if (layer := adapted.get(name)) is not None:
                    for adapter in layer.active_adapters:
                        delta = _whole(layer.get_delta_weight(adapter))
                        tensor = (tensor + delta).to(tensor.dtype)
                yield name, tensor.detach()
        buffers = dict(plain.named_buffers())
        for name in plain.state_dict():
            if name in buffers:
                yield name.replace(".base_layer", ""), buffers[name]


def _adapted(model: PeftModel) -> Iterator[tuple[str, Any]]:
    """Each layer of the adapter under the name of the weight that it is added to."""
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and hasattr(module, "get_delta_weight"):
            path = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield f"{path}.{getattr(module, 'parameter_name', 'weight')}", module


@contextlib.contextmanager
def _left_unmerged(model: Any) -> Iterator[None]:
    """Have TRL walk over the weights without merging into them."""
    model.merge_adapter = model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter, model.unmerge_adapter


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class _VllmPolicy(LiveEngine):
    """What server and colocated engine share: weights are sent at each step, by all processes."""

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        self._sync: WeightSync | None = None
        if not is_vllm_available():
            raise ConfigError(
                f"rollouts.engine {trainer.recipe.rollouts.engine} needs vLLM in the training "
                "processes, which it is also sent the weights with: pip install 'posttrain[vllm]'"
            )

    def _send_weights(self, mode: str, **options: Any) -> WeightSync:
        """Have vLLM hold the weights as they are now; finds or starts it the first time."""
        trainer: Any = self.trainer
        try:
            if self._sync is None:
                self._sync = WeightSync(
                    trainer.model,
                    trainer.accelerator,
                    trainer.processing_class,
                    mode=mode,
                    **options,
                )
                if mode == "server" and trainer.is_world_process_zero():
                    _check_logprobs(self._sync, trainer.recipe.sampling.temperature)
            self._sync.sync_weights()
        except (ConnectionError, NotImplementedError, RuntimeError) as error:
            raise ConfigError(f"rollouts.engine vllm_{mode}: {error}") from error
        # the main process returns when the server has taken them
        trainer.accelerator.wait_for_everyone()
        return self._sync


def _check_logprobs(sync: Any, temperature: float) -> None:
    config = sync.vllm_client.get_server_info()["model_config"]
    if temperature != 1 and config["logprobs_mode"] != _PROCESSED:
        raise ConfigError(
            f"sampling.temperature is {temperature:g}, and the server at {sync.server_base_url} "
            "gives log-probabilities as they are at 1, which importance sampling would take for "
            f"a difference: start it with --logprobs-mode {_PROCESSED}"
        )


class VllmServed(_VllmPolicy):
    """A vLLM server, to which every process sends its requests."""

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        server = trainer.recipe.rollouts
        assert isinstance(server, WeightServer)
        self._server, self.client = server, Client(server)
        self.engine = CompletionsEngine(self.client, model=server.model, identity=self.identity)

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        server = self._server
        self._send_weights(
            "server",
            server_base_url=server.url.removesuffix("/v1"),
            server_timeout=server.timeout,
            group_port=server.group_port,
        )
        yield


class VllmColocated(_VllmPolicy):
    """vLLM in every training process, for this process's rollouts; asleep while it trains."""

    batched = True

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        config = self.trainer.recipe.rollouts
        assert isinstance(config, ColocatedVllm)
        sync: Any = self._send_weights(
            "colocate",
            gpu_memory_utilization=config.gpu_memory,
            max_model_length=config.max_length,
            enable_sleep_mode=config.sleep,
        )
        self.engine = VllmEngine(sync.llm, identity=self.identity)
        if config.sleep:  # the weights have been woken to be overwritten
            sync.llm.wake_up(tags=["kv_cache"])
        yield
        if config.sleep:
            sync.llm.sleep(level=2)
