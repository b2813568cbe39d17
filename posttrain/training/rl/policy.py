"""The policy in training as an engine that rollouts are sampled from, by `rollouts.engine`:
`in_process` decodes here, `lora_server` is a vLLM server that loads each step's adapter from a
shared disk; the engines that are sent all weights are in `rl/vllm.py`.
"""

from __future__ import annotations

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from torch.distributed.fsdp import FSDPModule
from trl.models.utils import add_hooks, remove_hooks

from posttrain.config.grpo import LoraServer
from posttrain.errors import ConfigError
from posttrain.sampling.engines.http import Client, key_headers
from posttrain.sampling.engines.transformers import decode_in_thread
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import Engine, EngineOutput, EngineRequest, OnOutput, Progress
from posttrain.training.launch import read_launch

if TYPE_CHECKING:
    from posttrain.training.rl.trainer import GroupTrainer

LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"
_SHOWN = 300  # characters of a server's answer in a message


class LiveEngine(ABC):
    """An `Engine` whose weights are those of the policy in training; used from one event loop.
    `engine` is what samples, once `current` has been entered."""

    batched = False
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
    Tested against a server of tiny models that loads adapters so; never against vLLM.
    """

    def __init__(self, trainer: GroupTrainer) -> None:
        super().__init__(trainer)
        server = trainer.recipe.rollouts
        assert isinstance(server, LoraServer)
        self._server, self.client = server, Client(server)

    @contextlib.contextmanager
    def current(self, step: int) -> Iterator[None]:
        trainer, client = self.trainer, self.client
        assert client is not None
        name, before = f"{self._server.model}-{step:05d}", f"{self._server.model}-{step - 1:05d}"
        folder = Path(trainer.args.output_dir) / "policy"
        if trainer.is_world_process_zero():
            trainer.accelerator.unwrap_model(trainer.model).save_pretrained(str(folder / name))
            trainer.rollouts.runner.run(self._load(name, folder / name, before if step else None))
            shutil.rmtree(folder / before, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        self.engine = CompletionsEngine(client, model=name, identity=self.identity)
        yield

    async def _load(self, name: str, folder: Path, instead_of: str | None) -> None:
        """Have the server load an adapter, and drop the one before."""
        headers = key_headers(self._server.api_key_env)
        timeout = aiohttp.ClientTimeout(total=self._server.timeout)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:

            async def post(path: str, **body: str) -> str | None:
                """None, or why not."""
                try:
                    async with session.post(self._server.url + path, json=body) as answer:
                        text = (await answer.text(errors="replace"))[:_SHOWN]
                        return None if answer.status == 200 else f"status {answer.status}: {text}"
                except (aiohttp.ClientError, TimeoutError) as error:
                    return f"{type(error).__name__}: {error}"

            # there from a run that was killed, perhaps with other weights
            await post(UNLOAD, lora_name=name)
            refused = await post(LOAD, lora_name=name, lora_path=str(folder.resolve()))
            if refused is not None:
                raise ConfigError(
                    f"{self._server.url}{LOAD}: {refused}. vLLM takes adapters when started with "
                    "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and must see the "
                    f"same {folder.parent}"
                )
            if instead_of is not None:
                await post(UNLOAD, lora_name=instead_of)
