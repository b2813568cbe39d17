"""Inspect's model provider over a `Sampler`: our rendering, our parsing, our token ids.

    model = inspect_model(sampler, "sft")
    inspect_ai.eval(task, model=model)          # a task written for inspect
    generation = await ask(model, request, messages)   # our own prompts, exactly as they are

Inspect's own provider for transformers renders another prompt than training did (tools and calls in
other shapes) and breaks on the second turn. Here a turn that follows tool results continues from
the token ids that were sampled. Failures and time-outs are the sampler's, which bounds them:
nothing is tried again here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    modelapi,
)
from inspect_ai.solver._task_state import sample_state
from inspect_ai.tool import ToolChoice, ToolInfo

from posttrain.errors import PosttrainError
from posttrain.evaluation.inspect_messages import from_inspect, to_inspect, tools_text
from posttrain.rollouts import Step
from posttrain.sampling.sampler import Generation, Parameters, Request, Sampler, seed_of

UNBOUNDED = 1_000_000  # our own limits and gatherers decide how many wait at a time
_REMEMBERED = 100_000  # turns whose ids can be continued from
_QUIET_TURNS = 25  # turns of the event loop in which no request came
Ask = Callable[[Request], Awaitable[Generation]]


@dataclass(slots=True)
class _Exact:
    """A request on its way through inspect, and what came of it."""

    request: Request
    ask: Ask
    generation: Generation | None = None


_EXACT: ContextVar[_Exact | None] = ContextVar("exact request", default=None)


def inspect_model(sampler: Sampler, name: str, *, thinking: bool = True) -> Model:
    """A model for `inspect_ai.eval`.

    Args:
        name: what the log calls it.
        thinking: whether tasks written for inspect are asked with reasoning on.
    """
    config = GenerateConfig(max_retries=0, max_connections=UNBOUNDED, adaptive_connections=False)
    # not through get_model, which would keep the sampler itself as an argument for the log
    api = cast(Any, SamplerAPI)(name, sampler=sampler, thinking=thinking)
    return Model(api, config)


async def ask(model: Model, request: Request, messages: list[ChatMessage], ask: Ask) -> Generation:
    """What `ask` gives for the request, asked through inspect, which counts and logs it.

    Args:
        messages: the request's, as the log shows them; the model never sees these.
    """
    exact = _Exact(request, ask)
    token = _EXACT.set(exact)
    try:
        output = await model.generate(messages, config=_config_of(request))
    finally:
        _EXACT.reset(token)
    assert exact.generation is not None
    if output.choices:
        messages.append(output.message)
    return exact.generation


@modelapi(name="posttrain")
class SamplerAPI(ModelAPI):
    """The provider. Built by `inspect_model`."""

    def __init__(self, model_name: str, *, sampler: Sampler, thinking: bool = True) -> None:
        super().__init__(model_name)
        self._sampler, self._thinking = sampler, thinking
        self._turns: OrderedDict[str, Generation] = OrderedDict()
        self._pending: list[tuple[Request, asyncio.Future[Generation]]] = []
        self._collector: asyncio.Task[None] | None = None

    def max_connections(self) -> int:
        """Requests must be able to wait for one another."""
        return UNBOUNDED

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """One turn. Raises PosttrainError where the backend gave up on a task of inspect's own."""
        exact = _EXACT.get()
        if exact is not None:
            exact.generation = await exact.ask(exact.request)
            return self._output(exact.generation)
        if tool_choice not in ("auto", "none"):
            raise PosttrainError(f"tool_choice {tool_choice!r}: this backend cannot force a call")
        request = self._request(input, [] if tool_choice == "none" else tools, config)
        generation = await self._together(request)
        if generation.step is None:
            raise PosttrainError(f"the backend gave up: {generation.error}")
        output = self._output(generation)
        assert output.message.id is not None
        self._turns[output.message.id] = generation
        if len(self._turns) > _REMEMBERED:
            self._turns.popitem(last=False)
        return output

    def _request(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], config: GenerateConfig
    ) -> Request:
        """A conversation of inspect's as a request."""
        state = sample_state()
        sample = ("", 1) if state is None else (state.sample_id, state.epoch)
        return Request(
            messages=tuple(from_inspect(message) for message in messages),
            tools=tools_text(tools),
            thinking=self._thinking,
            parameters=_parameters_of(config),
            seed=seed_of(config.seed or 0, *sample, len(messages)),
            reasoning_budget=config.reasoning_tokens if self._thinking else None,
            continues=self._continued(messages),
        )

    def _continued(self, messages: Sequence[ChatMessage]) -> Generation | None:
        """The turn that these messages go on from, if only tool results came since."""
        results = 0
        while results < len(messages) and isinstance(messages[-1 - results], ChatMessageTool):
            results += 1
        before = messages[-1 - results] if results < len(messages) else None
        if not results or not isinstance(before, ChatMessageAssistant) or before.id is None:
            return None
        return self._turns.get(before.id)

    async def _together(self, request: Request) -> Generation:
        """Ask with whatever else is asked before the event loop comes to rest."""
        if not self._sampler.batched:
            return (await self._sampler.sample([request]))[0]
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._pending.append((request, future))
        if self._collector is None:
            self._collector = asyncio.ensure_future(self._collect())
        return await future

    async def _collect(self) -> None:
        seen = 0
        while seen != len(self._pending):
            seen = len(self._pending)
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)
        batch, self._pending, self._collector = self._pending, [], None
        try:
            found = await self._sampler.sample([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001  each of those who asked gets it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), generation in zip(batch, found, strict=True):
            if not future.done():
                future.set_result(generation)

    def _output(self, generation: Generation) -> ModelOutput:
        step = generation.step
        if step is None:
            return ModelOutput(model=self.model_name, error=generation.error)
        message = to_inspect(step.parsed.message())
        assert isinstance(message, ChatMessageAssistant)
        message.model = self.model_name
        written = step.reasoning_tokens + step.answer_tokens if step.ids is None else len(step.ids)
        return ModelOutput(
            model=self.model_name,
            choices=[ChatCompletionChoice(message=message, stop_reason=_stop_reason(step))],
            usage=ModelUsage(
                input_tokens=step.prompt_tokens,
                output_tokens=written,
                total_tokens=step.prompt_tokens + written,
                reasoning_tokens=step.reasoning_tokens,
            ),
            metadata={
                "text": step.text,
                "ids": step.ids,
                "forced": step.forced,
                "prompt_ids": generation.prompt_ids,
            },
        )


def _stop_reason(step: Step) -> StopReason:
    if step.finish == "length":
        return "max_tokens"
    return "tool_calls" if step.parsed.tool_calls else "stop"


def _config_of(request: Request) -> GenerateConfig:
    parameters = request.parameters
    return GenerateConfig(
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        top_k=parameters.top_k,
        max_tokens=parameters.max_tokens,
        seed=request.seed,
        reasoning_tokens=request.reasoning_budget,
    )


def _parameters_of(config: GenerateConfig) -> Parameters:
    given: dict[str, Any] = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "max_tokens": config.max_tokens,
    }
    return Parameters(**{name: value for name, value in given.items() if value is not None})
