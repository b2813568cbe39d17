"""The policy in training as an engine that rollouts are sampled from, by `rollouts.engine`.

    in_process      decodes in this process
    lora_server     a vLLM server that loads each step's adapter from a shared disk
    vllm_server     a vLLM server that is sent all weights by TRL's `VLLMGeneration`
    vllm_colocate   vLLM inside each training process, sent all weights likewise

`lora_server` is run on a real vLLM by `make test-real`, the last two against stand-ins of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.distributed.fsdp import FSDPModule
from transformers.core_model_loading import revert_weight_conversion
from trl.generation.vllm_generation import VLLMGeneration
from trl.import_utils import is_vllm_available
from trl.models.utils import add_hooks, remove_hooks

from posttrain.config.grpo import ColocatedVllm, LoraServer, WeightServer
from posttrain.errors import ConfigError
from posttrain.sampling.engines.http import Client, Replica, RequestFailed
from posttrain.sampling.engines.transformers import decode_in_thread, score_in_thread
from posttrain.sampling.engines.vllm import CompletionsEngine, VllmEngine
from posttrain.sampling.sampler import (
    Engine,
    EngineOutput,
    EngineRequest,
    OnOutput,
    Progress,
    ScoreOutput,
    ScoreRequest,
)
from posttrain.training.launch import read_launch

if TYPE_CHECKING:
    from posttrain.training.rl.trainer import GroupTrainer

LOAD = "/load_lora_adapter"
UNLOAD = "/unload_lora_adapter"
# log-probabilities at the sampling temperature, not at 1
PROCESSED = "processed_logprobs"
NamedTensors = Generator[tuple[str, torch.Tensor], None, None]


class LiveEngine(ABC):
    """An `Engine` whose weights are those of the policy in training; used from one event loop.

    Attributes:
        engine: Engine that samples; set once `current` has been entered.
        beside: True if it can sample while the policy trains, from the weights of the last
            `current` block.
        client: Client of the servers, to be closed; None without servers.
    """

    batched = False
    beside = False
    engine: Engine
    client: Client | None = None

    def __init__(self, trainer: GroupTrainer) -> None:
        self.trainer = trainer

    @property
    def identity(self) -> Mapping[str, Any]:
        """Name of the engine alone, since a policy in training has no fixed weights."""
        return {"backend": self.trainer.recipe.rollouts.engine}

    @abstractmethod
    def current(self, step: int) -> AbstractContextManager[None]:
        """Sample from the weights before step `step` inside the block. Every process must enter it.

        Args:
            step: number of the batch of rollouts, from 0.

        Raises:
            ConfigError: the weights do not reach a server; the message quotes the server.
        """

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        """Generate as `Engine.generate` does."""
        return await self.engine.generate(requests, progress=progress)

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()


class InProcess(LiveEngine):
    """Decodes in a thread beside the event loop, under the trainer's autocast."""

    batched = True

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        # without wrappers, so that processes decode without waiting for each other
        self.model = trainer.base_model

    def current(self, step: int) -> AbstractContextManager[None]:
        return whole_weights(self.trainer)

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        return await self.generate_each(requests, progress=progress)

    async def generate_each(
        self,
        requests: Sequence[EngineRequest],
        *,
        on_done: OnOutput | None = None,
        progress: Progress = None,
    ) -> list[EngineOutput]:
        """Generate as `IncrementalEngine.generate_each`; the model is in eval mode meanwhile."""
        rollouts: Any = self.trainer.recipe.rollouts
        was_training = self.model.training
        self.model.eval()
        try:
            return await decode_in_thread(
                self.model,
                requests,
                batch_size=rollouts.batch_size,
                around=self.trainer.compute_loss_context_manager,
                progress=progress,
                on_done=on_done,
            )
        finally:
            self.model.train(was_training)


class LivePolicy:
    """The policy in training as a `Scorer`, whatever engine samples from it.

    It scores with the weights in the trainer and must be used inside `whole_weights`.
    """

    batched = True

    def __init__(self, trainer: GroupTrainer) -> None:
        self.trainer = trainer
        # one request at a time: a second one would find the model already in eval mode and leave
        # it so
        self._lock = asyncio.Lock()

    @property
    def identity(self) -> Mapping[str, Any]:
        """Name of the backend alone, since a policy in training has no fixed weights."""
        return {"backend": "policy"}

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Log-probabilities of given ids; the model is in eval mode meanwhile."""
        model = self.trainer.base_model
        async with self._lock:
            was_training = model.training
            model.eval()
            try:
                return await score_in_thread(
                    model, requests, around=self.trainer.compute_loss_context_manager
                )
            finally:
                model.train(was_training)


@contextlib.contextmanager
def whole_weights(trainer: GroupTrainer) -> Iterator[None]:
    """Hold all weights on the device of every process inside the block.

    They are rounded where the policy simulates a quantised one. No forward pass inside waits for
    another process. Entering the block is a collective.
    """
    root: Any = trainer.model_wrapped
    if read_launch(trainer.accelerator).sharding == "zero3":
        import deepspeed

        offload = root.optimizer.parameter_offload
        with deepspeed.zero.GatheredParameters(list(root.parameters())):
            remove_hooks(root)
            # TRL leaves this one, which compares the processes at the block's first two calls of
            # the model: where one process calls it only once, another would wait for ever
            start_of_forward = offload.module._forward_pre_hooks[offload.fwd_pre_hook.id]
            offload.fwd_pre_hook.remove()
            try:
                yield
            finally:
                offload.fwd_pre_hook = offload.module.register_forward_pre_hook(start_of_forward)
                add_hooks(root)
    elif isinstance(trainer.model_wrapped, FSDPModule):
        # an adapter's base is called without its wrapper, and the first module to run would take
        # itself for the root
        root._get_fsdp_state()._lazy_init()
        shards = [module for module in root.modules() if isinstance(module, FSDPModule)]
        root.set_reshard_after_forward(False)
        for shard in shards:
            shard.unshard()
        try:
            yield
        finally:
            for shard in shards:
                shard.reshard()
            # the final norm and head, which accelerate keeps, are from now on gathered again too
            root.set_reshard_after_forward(
                trainer.accelerator.state.fsdp_plugin.reshard_after_forward
            )
    else:
        with trainer.sampled_weights():
            yield


class LoraServed(LiveEngine):
    """A vLLM server that is given the adapter before each step.

    An adapter is small enough to go by way of the disk. Every step has an adapter name of its own:
    under a name used twice, vLLM may answer from the prefix cache of the earlier weights.

    Attributes:
        unload_seconds: limit of unloading an adapter, with all retries: a server that hangs must
            not hold up a step, or the end of a run.
    """

    beside = True
    unload_seconds = 10.0

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        server = trainer.recipe.rollouts
        assert isinstance(server, LoraServer)
        self._server = server
        self._client = Client(server, on_return=self._load_again, check_model=True)
        self.client = self._client
        # name and folder of the current step's adapter
        self._loaded: tuple[str, Path] | None = None

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        """Save the adapter of this step and load it on every replica, under a name of its own."""
        trainer = self.trainer
        name = f"{self._server.model}-{step:05d}"
        previous_name = f"{self._server.model}-{step - 1:05d}"
        policy_folder = Path(trainer.args.output_dir) / "policy"
        folder = policy_folder / name
        # set before the adapter is sent, so that a replica that returns meanwhile is given this one
        self._loaded = (name, folder)
        if trainer.is_world_process_zero():
            trainer.accelerator.unwrap_model(trainer.model).save_pretrained(str(folder))
            replaced_name = previous_name if step else None
            trainer.rollouts.runner.run(self._load(name, folder, replaced_name))
            shutil.rmtree(policy_folder / previous_name, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        self.engine = CompletionsEngine(self._client, model=name, identity=self.identity)
        yield

    async def _load(self, name: str, folder: Path, replaced_name: str | None) -> None:
        """Have every replica load an adapter, then unload the adapter that it replaces."""
        # a server drops connections that idle while the policy trains
        await self._client.drop_connections()
        # a run that was killed may have left the name behind, perhaps with other weights
        await self._unload(name)
        try:
            await self._client.send(LOAD, _load_request(name, folder))
        except (RequestFailed, ConfigError) as error:
            raise ConfigError(
                f"rollouts.url {self._server.addresses}{LOAD}: {error}. vLLM takes adapters when "
                "started with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and must "
                f"see the same {folder.parent}"
            ) from error
        if replaced_name is not None:
            await self._unload(replaced_name)

    async def _load_again(self, replica: Replica) -> None:
        """Load the current step's adapter on a replica that lacks it.

        It was restarted, or away when the others were given the adapter.
        """
        sent: tuple[str, Path] | None = None
        # again if the next step has begun while the adapter was being sent
        while sent != self._loaded:
            sent = self._loaded
            assert sent is not None, "nothing is unloaded while the policy trains"
            # no waiting for a server that is away: the client waits for this call
            await self._client.send(LOAD, _load_request(*sent), wait=False, to=replica)

    async def close(self) -> None:
        """Unload the run's last adapter from the server, and close the client."""
        if self._loaded is not None and self.trainer.is_world_process_zero():
            await self._unload(self._loaded[0])
        await super().close()

    async def _unload(self, name: str) -> None:
        # a server that is gone has no adapters either
        with contextlib.suppress(RequestFailed, ConfigError, TimeoutError):
            async with asyncio.timeout(self.unload_seconds):
                await self._client.send(UNLOAD, {"lora_name": name}, wait=False)


def _load_request(name: str, folder: Path) -> dict[str, Any]:
    """Body of vLLM's request to load an adapter."""
    # in place, since the adapter may be loaded already: by a first try, or by another process
    return {"lora_name": name, "lora_path": str(folder.resolve()), "load_inplace": True}


# ---- vLLM, which is sent all weights ----


class WeightSync(VLLMGeneration):
    """`VLLMGeneration` that sends the tensors of a checkpoint on disk, which vLLM can load.

    TRL's own sends experts under their names in memory, which vLLM does not know, and no persistent
    buffers (the correction bias of a router, which training moves). It merges an adapter into the
    trained weights and takes it out again, which leaves roundings behind.
    """

    def _iter_named_params(self) -> NamedTensors:
        """Tensors to send, under the names of a checkpoint on disk."""
        model: Any = self.model
        base_model: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        for name, tensor in self._parameters_and_buffers(model, base_model):
            yield from revert_weight_conversion(base_model, {name: tensor}).items()

    def _parameters_and_buffers(self, model: Any, base_model: Any) -> NamedTensors:
        """Weights with the adapter added, then persistent buffers, under names without wrappers."""
        adapted_layers = dict(_layers_by_weight(model)) if isinstance(model, PeftModel) else {}
        with _without_merging(model) if adapted_layers else contextlib.nullcontext():
            for name, tensor in super()._iter_named_params():
                layer = adapted_layers.get(name)
                if layer is not None:
                    for adapter in layer.active_adapters:
                        delta = _gathered(layer.get_delta_weight(adapter))
                        tensor = (tensor + delta).to(tensor.dtype)
                yield name, tensor.detach()
        buffers = dict(base_model.named_buffers())
        # a state dict has the persistent buffers alone
        for name in base_model.state_dict():
            if name in buffers:
                yield name.replace(".base_layer", ""), buffers[name]


def _layers_by_weight(model: PeftModel) -> Iterator[tuple[str, Any]]:
    """Layers of the adapter, with the name of the weight that each is added to."""
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and hasattr(module, "get_delta_weight"):
            path = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield f"{path}.{getattr(module, 'parameter_name', 'weight')}", module


@contextlib.contextmanager
def _without_merging(model: Any) -> Iterator[None]:
    """Keep TRL from merging the adapter into the weights that it reads inside the block."""
    model.merge_adapter = model.unmerge_adapter = lambda: None
    try:
        yield
    finally:
        del model.merge_adapter, model.unmerge_adapter


def _gathered(tensor: Any) -> torch.Tensor:
    """Gather a tensor that is sharded over processes."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class _VllmPolicy(LiveEngine):
    """Base of the engines that are sent all weights before each step, by all processes."""

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        self._syncs: dict[str, WeightSync] = {}  # by address of the server; "" where colocated
        engine = trainer.recipe.rollouts.engine
        if not is_vllm_available():
            raise ConfigError(
                f"rollouts.engine {engine} needs vLLM in the training "
                "processes, which it is also sent the weights with: pip install 'posttrain[vllm]'"
            )

    def _send_weights(self, mode: str, *, url: str = "", **options: Any) -> WeightSync:
        """Send vLLM the current weights. The first call also connects to it, or starts it.

        Args:
            mode: `server` or `colocate`, as TRL names them.
            url: address of the server, "" where colocated.
            options: further arguments of `VLLMGeneration`.
        """
        trainer: Any = self.trainer
        try:
            sync = self._syncs.get(url)
            if sync is None:
                sync = WeightSync(
                    trainer.model,
                    trainer.accelerator,
                    trainer.processing_class,
                    mode=mode,
                    **options,
                )
                self._syncs[url] = sync
                if mode == "server" and trainer.is_world_process_zero():
                    _check_logprobs(sync, trainer.recipe.sampling.temperature)
            sync.sync_weights()
        except AttributeError as error:
            # vLLM's layers for a CPU have lost the `weight_loader` that new weights need
            if "weight_loader" not in str(error):
                raise
            raise ConfigError(
                f"rollouts.engine vllm_{mode}: this vLLM takes no new weights ({error}), as one "
                "built for a CPU: use engine: in_process, or lora_server with an adapter"
            ) from error
        except (ConnectionError, NotImplementedError, RuntimeError) as error:
            raise ConfigError(f"rollouts.engine vllm_{mode}: {error}") from error
        # only the main process waits in `sync_weights` until the server holds the weights
        trainer.accelerator.wait_for_everyone()
        return sync


def _check_logprobs(sync: Any, temperature: float) -> None:
    """Refuse a server that gives log-probabilities at another temperature than it samples at."""
    config = sync.vllm_client.get_server_info()["model_config"]
    if temperature != 1 and config["logprobs_mode"] != PROCESSED:
        raise ConfigError(
            f"sampling.temperature is {temperature:g}, and the server at {sync.server_base_url} "
            "gives log-probabilities as they are at 1, which importance sampling would take for "
            f"a difference: start it with --logprobs-mode {PROCESSED}"
        )


class VllmServed(_VllmPolicy):
    """A vLLM server, or replicas that are each sent the weights; every process sends them requests.

    A replica that does not take the weights ends the run.
    """

    beside = True

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        server = trainer.recipe.rollouts
        assert isinstance(server, WeightServer)
        self._server = server
        self.client = Client(server, on_return=self._refuse)
        self.engine = CompletionsEngine(self.client, model=server.model, identity=self.identity)

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        """Send the weights to every replica."""
        server = self._server
        for number, url in enumerate(server.urls):
            self._send_weights(
                "server",
                url=url,
                server_base_url=url.removesuffix("/v1"),
                server_timeout=server.timeout,
                group_port=server.group_port + number,
            )
        yield

    async def _refuse(self, replica: Replica) -> None:
        """Leave out a server that was away: after a restart it has its checkpoint's weights."""
        raise RequestFailed("it may have been started again without the weights of this step")


class VllmColocated(_VllmPolicy):
    """vLLM in every training process, for this process's rollouts; asleep while it trains."""

    batched = True

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        """Load the weights into this process's vLLM, which is awake inside the block."""
        config = self.trainer.recipe.rollouts
        assert isinstance(config, ColocatedVllm)
        sync: Any = self._send_weights(
            "colocate",
            gpu_memory_utilization=config.gpu_memory,
            max_model_length=config.max_length,
            enable_sleep_mode=config.sleep,
        )
        self.engine = VllmEngine(sync.llm, identity=self.identity)
        if config.sleep:
            # `sync_weights` has woken the memory of the weights alone
            sync.llm.wake_up(tags=["kv_cache"])
        yield
        if config.sleep:
            sync.llm.sleep(level=2)


# by `rollouts.engine`
ENGINES: dict[str, Callable[[GroupTrainer], LiveEngine]] = {
    "in_process": InProcess,
    "lora_server": LoraServed,
    "vllm_server": VllmServed,
    "vllm_colocate": VllmColocated,
}
