"""vLLM's offline engine as an `Engine`: token ids in, token ids out, all requests in one call.

open_vllm(VllmBackend(kind="vllm"), checkpoint=Path("runs/nano/sft"))

vLLM schedules a call's requests itself. Needs the extra `vllm` and a GPU; written against vLLM's
documented interface and not run here.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from posttrain.config.backend import VllmBackend
from posttrain.errors import ConfigError
from posttrain.sampling.engines.budget import Call, budget_calls
from posttrain.sampling.sampler import EngineOutput, EngineRequest


def open_vllm(config: VllmBackend, *, checkpoint: Path, weights: str) -> VllmEngine:
    """Load a checkpoint into vLLM.

    Raises:
        ConfigError: vLLM is not installed.
    """
    try:
        vllm: Any = importlib.import_module("vllm")  # an extra
    except ImportError as error:
        raise ConfigError(
            "backend.kind vllm needs the extra: pip install 'posttrain[vllm]'"
        ) from error
    llm = vllm.LLM(
        model=str(checkpoint),
        dtype=config.dtype,
        tensor_parallel_size=config.tensor_parallel,
        gpu_memory_utilization=config.gpu_memory,
        max_model_len=config.max_length,
        # log-probabilities under the distribution that was sampled from, as our records say
        logprobs_mode="processed_logprobs",
        trust_remote_code=False,
        skip_tokenizer_init=True,
    )
    identity = {"backend": "vllm", "weights": weights, "dtype": config.dtype}
    return VllmEngine(llm, identity=identity)


class VllmEngine:
    """An `Engine` around `vllm.LLM`."""

    batched = True

    def __init__(self, llm: Any, *, identity: Mapping[str, Any]) -> None:
        self._llm = llm
        self.identity: Mapping[str, Any] = identity

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """One output a request; reasoning budgets take a second call for those that hit them."""
        return await asyncio.to_thread(self._generate, requests, progress)

    def _generate(
        self, requests: Sequence[EngineRequest], progress: Callable[[int], None] | None
    ) -> list[EngineOutput]:
        flows = [budget_calls(request) for request in requests]
        outputs: dict[int, EngineOutput] = {}
        calls = {k: next(flow) for k, flow in enumerate(flows)}
        while calls:
            answers = self._call([requests[k] for k in calls], list(calls.values()))
            pending, calls = list(calls), {}
            for k, answer in zip(pending, answers, strict=True):
                try:
                    calls[k] = flows[k].send(answer)
                except StopIteration as done:
                    outputs[k] = done.value
        if progress is not None:
            progress(sum(len(output.ids) for output in outputs.values()))
        return [outputs[k] for k in range(len(requests))]

    def _call(self, requests: Sequence[EngineRequest], calls: Sequence[Call]) -> list[EngineOutput]:
        vllm: Any = importlib.import_module("vllm")
        parameters = [
            vllm.SamplingParams(
                temperature=request.parameters.temperature,
                top_p=request.parameters.top_p,
                top_k=request.parameters.top_k,
                max_tokens=limit,
                seed=request.seed,
                stop_token_ids=list(stop_ids),
                logprobs=0 if request.parameters.logps else None,
                detokenize=False,
            )
            for request, (_, limit, stop_ids) in zip(requests, calls, strict=True)
        ]
        prompts = [{"prompt_token_ids": list(ids)} for ids, _, _ in calls]
        answers = self._llm.generate(prompts, parameters, use_tqdm=False)
        return [
            _output(answer.outputs[0], logps=request.parameters.logps)
            for answer, request in zip(answers, requests, strict=True)
        ]


def _output(answer: Any, *, logps: bool) -> EngineOutput:
    ids = tuple(answer.token_ids)
    finish: Literal["stop", "length"] = "length" if answer.finish_reason == "length" else "stop"
    values = (
        tuple(row[token].logprob for token, row in zip(ids, answer.logprobs, strict=True))
        if logps
        else None
    )
    return EngineOutput(ids, finish, values)
