"""The policy in training as an engine that rollouts are sampled from, by `rollouts.engine`:
`in_process` decodes here, `lora_server` is a vLLM server that loads each step's adapter from a
shared disk, `vllm_server` and `vllm_colocate` hold all weights, which TRL's `VLLMGeneration` sends.
`lora_server` is run on a real vLLM by `make test-real`, the other two against stand-ins of it."""

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

LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"
PROCESSED = "processed_logprobs"
Named = Generator[tuple[str, torch.Tensor], None, None]


class LiveEngine(ABC):
    """An `Engine` whose weights are those of the policy in training; used from one event loop.
    `engine` is what samples, once `current` has been entered. `beside`: it can sample while the
    policy trains, from the weights of the block that was left."""

    batched = False
    beside = False
    engine: Engine
    client: Client | None = None

    def __init__(self, trainer: GroupTrainer) -> None:
        self.trainer = trainer

    @property
    def identity(self) -> Mapping[str, Any]:
        """A policy in training has no fixed weights."""
        return {"backend": self.trainer.recipe.rollouts.engine}

    @abstractmethod
    def current(self, step: int) -> AbstractContextManager[None]:
        """The block in which samples come from the weights as they are before step `step`, counted
        in batches of rollouts from 0. Every process must enter it.

        Raises:
            ConfigError: the weights do not reach a server; the message has its answer.
        """

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        """As `Engine.generate`."""
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
        """As `IncrementalEngine.generate_each`; the model is in eval mode meanwhile."""
        rollouts: Any = self.trainer.recipe.rollouts
        training = self.model.training
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
            self.model.train(training)


class LivePolicy:
    """The policy in training as a `Scorer`, whatever engine samples from it. Its scores are those
    of the weights in the trainer, inside of `whole_weights`."""

    batched = True

    def __init__(self, trainer: GroupTrainer) -> None:
        self.trainer = trainer
        self._gate = asyncio.Lock()

    @property
    def identity(self) -> Mapping[str, Any]:
        """A policy in training has no fixed weights."""
        return {"backend": "policy"}

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Log-probabilities of given ids; the model is in eval mode meanwhile."""
        model = self.trainer.base_model
        async with self._gate:
            training = model.training
            model.eval()
            try:
                return await score_in_thread(
                    model, requests, around=self.trainer.compute_loss_context_manager
                )
            finally:
                model.train(training)


@contextlib.contextmanager
def whole_weights(trainer: GroupTrainer) -> Iterator[None]:
    """The block in which every process has all weights on its device, and no forward pass waits
    for another process. Entering it is a collective; nothing to do without sharded weights."""
    root: Any = trainer.model_wrapped
    if read_launch(trainer.accelerator).sharding == "zero3":
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(root.parameters())):
            remove_hooks(root)
            try:
                yield
            finally:
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
        yield


class LoraServed(LiveEngine):
    """A vLLM server that is given the adapter before each step.

    An adapter is small enough to go by way of the disk. Every step has an adapter name of its own:
    under one that is used again, vLLM may answer from the prefix cache of the weights before.
    """

    beside = True

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        server = trainer.recipe.rollouts
        assert isinstance(server, LoraServer)
        self._server = server
        self._client = Client(server, on_return=self._load_again)
        self.client = self._client
        self._loaded: tuple[str, Path] | None = None

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        trainer = self.trainer
        name, before = f"{self._server.model}-{step:05d}", f"{self._server.model}-{step - 1:05d}"
        folder = Path(trainer.args.output_dir) / "policy"
        # first, so that a replica that comes back meanwhile is given this one
        self._loaded = (name, folder / name)
        if trainer.is_world_process_zero():
            trainer.accelerator.unwrap_model(trainer.model).save_pretrained(str(folder / name))
            trainer.rollouts.runner.run(self._load(name, folder / name, before if step else None))
            shutil.rmtree(folder / before, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        self.engine = CompletionsEngine(self._client, model=name, identity=self.identity)
        yield

    async def _load(self, name: str, folder: Path, instead_of: str | None) -> None:
        """Have every replica load an adapter, and drop the one before."""
        # a server drops connections that idle while the policy trains
        await self._client.drop_connections()
        # the name may be there from a run that was killed, perhaps with other weights
        await self._unload(name)
        try:
            await self._client.send(LOAD, _adapter(name, folder))
        except (RequestFailed, ConfigError) as error:
            raise ConfigError(
                f"{self._server.addresses}{LOAD}: {error}. vLLM takes adapters when started with "
                "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and must see the same "
                f"{folder.parent}"
            ) from error
        if instead_of is not None:
            await self._unload(instead_of)

    async def _load_again(self, replica: Replica) -> None:
        """Give a replica that was started again the adapter of this step, which it has lost, and
        one that missed it the adapter that it has never had."""
        loaded: tuple[str, Path] | None = None
        while loaded != self._loaded:
            loaded = self._loaded
            assert loaded is not None, "nothing is unloaded while the policy trains"
            # not waited for: all wait for this
            await self._client.send(LOAD, _adapter(*loaded), wait=False, to=replica)

    async def close(self) -> None:
        """As the parent; the server keeps no adapter of a run that has ended."""
        if self._loaded is not None and self.trainer.is_world_process_zero():
            await self._unload(self._loaded[0])
        await super().close()

    async def _unload(self, name: str) -> None:
        with contextlib.suppress(RequestFailed, ConfigError):
            # a server that is gone has no adapters either
            await self._client.send(UNLOAD, {"lora_name": name}, wait=False)


def _adapter(name: str, folder: Path) -> dict[str, Any]:
    # in place: a second try, or another process that was sooner, is no mistake
    return {"lora_name": name, "lora_path": str(folder.resolve()), "load_inplace": True}


# ---- vLLM, which is sent all weights ----


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
        self._syncs: dict[str, WeightSync] = {}  # by the address of a server
        engine = trainer.recipe.rollouts.engine
        if not is_vllm_available():
            raise ConfigError(
                f"rollouts.engine {engine} needs vLLM in the training "
                "processes, which it is also sent the weights with: pip install 'posttrain[vllm]'"
            )

    def _send_weights(self, mode: str, *, url: str = "", **options: Any) -> WeightSync:
        """Have vLLM hold the weights as they are now; finds or starts it the first time."""
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
            # what vLLM makes of its layers for a CPU has no `weight_loader` any more
            if "weight_loader" not in str(error):
                raise
            raise ConfigError(
                f"rollouts.engine vllm_{mode}: this vLLM takes no new weights ({error}), as one "
                "built for a CPU: use engine: in_process, or lora_server with an adapter"
            ) from error
        except (ConnectionError, NotImplementedError, RuntimeError) as error:
            raise ConfigError(f"rollouts.engine vllm_{mode}: {error}") from error
        # the main process returns when the server has taken them
        trainer.accelerator.wait_for_everyone()
        return sync


def _check_logprobs(sync: Any, temperature: float) -> None:
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
        """Leave out a server that was away: started again, it has the weights of its checkpoint."""
        raise RequestFailed("it may have been started again without the weights of this step")


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


# by `rollouts.engine`
ENGINES: dict[str, Callable[[GroupTrainer], LiveEngine]] = {
    "in_process": InProcess,
    "lora_server": LoraServed,
    "vllm_server": VllmServed,
    "vllm_colocate": VllmColocated,
}
