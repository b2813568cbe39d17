"""The policy in training as an engine that rollouts are sampled from: in this process, or a server.

    LiveEngine(model, batch_size=256, autocast=nullcontext)

    server = ServedPolicy(recipe.sampling.server)
    await server.load("policy-00003", Path("runs/x/resume/policy/policy-00003"), instead_of=…)
    await server.generate([EngineRequest(ids=(1, 9, 4), …)])

The server holds the policy's base and is given the adapter before each step. An adapter is small
enough to go by way of the disk, which trainer and server share. Every step has an adapter name of
its own: under one that is used again, vLLM may answer from the prefix cache of the weights before.
What the server computes otherwise than the trainer is importance sampling's to correct. Tested
against a server of tiny models that loads adapters so; never against vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import aiohttp
from transformers import PreTrainedModel

from posttrain.config.grpo import PolicyServer
from posttrain.errors import ConfigError
from posttrain.sampling.engines.completions import CompletionsEngine
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.engines.http import Client, ClientSettings, key_headers
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids

LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"
_SHOWN = 300  # characters of a server's answer in a message


class Unscoring:
    """An engine that is never asked for the log-probabilities of given completions."""

    async def score(
        self, prompts: Sequence[Ids], completions: Sequence[Ids]
    ) -> list[tuple[float, ...]]:
        """Not needed: the trainer scores.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a policy in training is scored by its trainer")


class LiveEngine(Unscoring):
    """The policy while it is trained, as an engine: in this thread, under the trainer's autocast.

    Args:
        model: the policy without wrappers, so that processes decode without waiting for each other.
        autocast: the context in which the trainer runs the model.
    """

    batched = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        batch_size: int,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self._autocast = autocast

    @property
    def identity(self) -> Mapping[str, Any]:
        """A policy in training has no fixed weights."""
        return {"backend": "live", "dtype": str(self.model.dtype).removeprefix("torch.")}

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """As `Engine.generate`. The model is in eval mode meanwhile.

        Raises:
            DataError: the model's logits are not finite.
        """
        training = self.model.training
        self.model.eval()
        try:
            with self._autocast():
                return decode(self.model, requests, batch_size=self.batch_size, progress=progress)
        finally:
            self.model.train(training)


class ServedPolicy(Unscoring):
    """An `Engine`; used from one event loop."""

    batched = False

    def __init__(self, server: PolicyServer) -> None:
        self._server = server
        settings = ClientSettings(
            concurrency=server.concurrency,
            timeout=server.timeout,
            retries=server.retries,
            api_key_env=server.api_key_env,
        )
        self._client = Client(server.url, settings)
        self._engine: CompletionsEngine | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """A policy in training has no fixed weights."""
        return {"backend": "served"}

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.close()

    def name_of(self, step: int) -> str:
        """Under which a step's adapter is loaded."""
        return f"{self._server.model}-{step:05d}"

    async def load(self, name: str, folder: Path, *, instead_of: str | None) -> None:
        """Have the server load an adapter, and drop the one before.

        Raises:
            ConfigError: it does not; the message has its answer.
        """
        headers = key_headers(self._server.api_key_env)
        timeout = aiohttp.ClientTimeout(total=self._server.timeout)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            # there from a run that was killed, perhaps with other weights
            await self._post(session, UNLOAD, {"lora_name": name})
            body = {"lora_name": name, "lora_path": str(folder.resolve())}
            refused = await self._post(session, LOAD, body)
            if refused is not None:
                raise ConfigError(
                    f"{self._server.url}{LOAD}: {refused}. vLLM takes adapters when started with "
                    "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and must see the "
                    f"same {folder.parent}"
                )
            if instead_of is not None:
                await self._post(session, UNLOAD, {"lora_name": instead_of})

    async def _post(
        self, session: aiohttp.ClientSession, path: str, body: Mapping[str, str]
    ) -> str | None:
        """None, or why not."""
        try:
            async with session.post(self._server.url + path, json=body) as answer:
                if answer.status == 200:
                    return None
                return f"status {answer.status}: {(await answer.text(errors='replace'))[:_SHOWN]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"

    def use(self, name: str) -> None:
        """Ask for this adapter from now on."""
        self._engine = CompletionsEngine(self._client, model=name, identity=self.identity)

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """As `Engine.generate`."""
        assert self._engine is not None, "no adapter has been loaded"
        return await self._engine.generate(requests, progress=progress)
