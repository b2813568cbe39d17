"""Inspect's model provider over a `Sampler`: our rendering, our parsing, our token ids.

`inspect eval TASK --model posttrain/runs/tiny/sft -M kind=vllm -M thinking=false`: every `-M`
argument but `thinking` is a field of the recipes' `backend:` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any, cast

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.solver._task_state import sample_state
from inspect_ai.tool import ToolCall as InspectCall
from inspect_ai.tool import ToolChoice, ToolInfo
from pydantic import TypeAdapter, ValidationError

from posttrain.config.backend import BackendConfig, Server
from posttrain.errors import ConfigError, DataError, PosttrainError
from posttrain.jsontext import load_json
from posttrain.records import Message, ToolCall, json_text
from posttrain.rollouts import Parameters, Step
from posttrain.sampling.sampler import Generation, Request, Sampler, seed_of

UNBOUNDED = 1_000_000  # all that wait are decoded in one batch
_QUIET_TURNS = 25  # turns of the event loop in which no request came


def inspect_model(sampler: Sampler, name: str, *, thinking: bool = True) -> Model:
    """A model for `inspect_ai.eval` over a sampler that is open; `name` is its name in the log."""
    config = GenerateConfig(max_retries=0, max_connections=UNBOUNDED, adaptive_connections=False)
    # not through get_model, which would keep the sampler itself as an argument for the log
    api = cast(Any, SamplerAPI)(name, sampler=sampler, thinking=thinking)
    return Model(api, config)


@modelapi(name="posttrain")
class SamplerAPI(ModelAPI):
    """The provider; a turn that follows tool results continues from the token ids that were
    sampled. Failures and time-outs are the sampler's: nothing is tried again here.

    Args:
        model_name: the checkpoint's directory.
        sampler: an open one, instead of a backend.
        kind: of the backend; `base_url` and `backend` have its other fields.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        sampler: Sampler | None = None,
        thinking: bool = True,
        kind: str = "transformers",
        **backend: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        fields = {"kind": kind, **({"url": base_url} if base_url else {}), **backend}
        try:
            self._backend: BackendConfig = TypeAdapter(BackendConfig).validate_python(fields)
        except ValidationError as error:
            raise ConfigError(f"posttrain/{model_name}: {error}") from error
        self._sampler, self._thinking = sampler, thinking
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._turns: dict[str, Generation] = {}
        # of a sampler that was given, every turn becomes a record
        self._keeps_all = sampler is not None
        self._pending: list[tuple[Request, asyncio.Future[Generation]]] = []
        self._collector: asyncio.Task[None] | None = None

    def max_connections(self) -> int:
        # requests to a model in this process must be able to wait for one another
        return self._backend.total_concurrency if isinstance(self._backend, Server) else UNBOUNDED

    def generation_of(self, message_id: str) -> Generation | None:
        """What an assistant message came from; None where that is not kept."""
        return self._turns.get(message_id)

    async def aclose(self) -> None:
        """Give back a server's connections."""
        await self._stack.aclose()

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """One turn. Raises PosttrainError where the backend gave up."""
        if tool_choice not in ("auto", "none"):
            raise PosttrainError(f"tool_choice {tool_choice!r}: this backend cannot force a call")
        request = self._request(input, [] if tool_choice == "none" else tools, config)
        generation = await self._sample(request)
        if generation.step is None:
            raise PosttrainError(f"the backend gave up: {generation.error}")
        output = to_output(generation.step, self.model_name, prompt_ids=generation.prompt_ids)
        assert output.message.id is not None
        if not self._keeps_all:
            self._turns.pop(self._continued(input), None)
        if self._keeps_all or generation.step.parsed.tool_calls:  # others are never continued
            self._turns[output.message.id] = generation
        return output

    def _request(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], config: GenerateConfig
    ) -> Request:
        state = sample_state()
        sample = ("", 1) if state is None else (state.sample_id, state.epoch)
        names = ("temperature", "top_p", "top_k", "max_tokens")
        given: dict[str, Any] = {name: getattr(config, name) for name in names}
        return Request(
            messages=tuple(from_inspect(message) for message in messages),
            tools=tools_text(tools),
            thinking=self._thinking,
            parameters=Parameters(**{k: value for k, value in given.items() if value is not None}),
            seed=seed_of(config.seed or 0, *sample, len(messages)),
            reasoning_budget=config.reasoning_tokens if self._thinking else None,
            continues=self._turns.get(self._continued(messages)),
        )

    def _continued(self, messages: Sequence[ChatMessage]) -> str:
        """The id of the turn that these go on from, if only tool results came since; else ""."""
        before = next((m for m in reversed(messages) if not isinstance(m, ChatMessageTool)), None)
        if not isinstance(before, ChatMessageAssistant) or before is messages[-1]:
            return ""
        return before.id or ""

    async def _sample(self, request: Request) -> Generation:
        """One generation; in process, in one batch with all that comes before the loop rests."""
        sampler = await self._opened()
        if not sampler.batched:
            return (await sampler.sample([request]))[0]
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._pending.append((request, future))
        if self._collector is None:
            self._collector = asyncio.ensure_future(self._collect(sampler))
        return await future

    async def _opened(self) -> Sampler:
        """The sampler; its checkpoint is loaded at the first request."""
        async with self._opening:
            if self._sampler is None:
                # only here: the registry's import of this module must not load torch
                from posttrain.sampling.open import opened_sampler

                self._sampler = await self._stack.enter_async_context(
                    opened_sampler(self._backend, checkpoint=self.model_name)
                )
        return self._sampler

    async def _collect(self, sampler: Sampler) -> None:
        seen = 0
        while seen != len(self._pending):
            seen = len(self._pending)
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)
        batch, self._pending, self._collector = self._pending, [], None
        try:
            generations = await sampler.sample([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001  every request of the batch gets it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), generation in zip(batch, generations, strict=True):
            if not future.done():
                future.set_result(generation)


# -- our messages ↔ inspect's, without loss where both have a word for it --------------------------


def to_inspect(message: Message) -> ChatMessage:
    if message.role == "system":
        return ChatMessageSystem(content=message.content)
    if message.role == "user":
        return ChatMessageUser(content=message.content)
    if message.role == "tool":
        return ChatMessageTool(
            content=message.content, tool_call_id=message.tool_call_id, function=message.name
        )
    content: str | list[Any] = message.content
    if message.reasoning is not None:
        content = [ContentReasoning(reasoning=message.reasoning), ContentText(text=message.content)]
    calls = [_to_inspect_call(i, call) for i, call in enumerate(message.tool_calls)]
    return ChatMessageAssistant(content=content, tool_calls=calls or None)


def from_inspect(message: ChatMessage) -> Message:
    """One message as we have it; DataError for content that is not text, such as an image."""
    parts = message.content
    if isinstance(parts, str):
        parts = [ContentText(text=parts)]
    if other := {part.type for part in parts} - {"text", "reasoning"}:
        raise DataError(f"a message holds {', '.join(sorted(other))}: only text can be rendered")
    text = "".join(part.text for part in parts if isinstance(part, ContentText))
    if isinstance(message, ChatMessageAssistant):
        traces = [part.reasoning for part in parts if isinstance(part, ContentReasoning)]
        reasoning = "".join(traces) if traces else None
        calls = tuple(
            ToolCall(call.function, json_text(call.arguments), call.id)
            for call in message.tool_calls or ()
        )
        return Message("assistant", text, reasoning=reasoning, tool_calls=calls)
    if isinstance(message, ChatMessageTool):
        # what went wrong is the result that the model reads, as in our own loop
        shown = text if message.error is None else f"error: {message.error.message}"
        return Message("tool", shown, tool_call_id=message.tool_call_id, name=message.function)
    return Message(message.role, text)


def tools_text(tools: Sequence[ToolInfo]) -> str | None:
    """Inspect's tools as JSON text in OpenAI's shape; None where there are none."""
    functions = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": json.loads(tool.parameters.model_dump_json(exclude_none=True)),
        }
        for tool in tools
    ]
    return json_text([{"type": "function", "function": f} for f in functions]) if tools else None


def to_output(step: Step, model: str, *, prompt_ids: Sequence[int] | None = None) -> ModelOutput:
    """One turn of a model, with its text and token ids as metadata."""
    message = to_inspect(step.parsed.message())
    assert isinstance(message, ChatMessageAssistant)
    message.model = model
    stop_reason = "tool_calls" if step.parsed.tool_calls else "stop"
    stop_reason = "max_tokens" if step.finish == "length" else stop_reason
    written = step.reasoning_tokens + step.answer_tokens if step.ids is None else len(step.ids)
    return ModelOutput(
        model=model,
        choices=[ChatCompletionChoice(message=message, stop_reason=stop_reason)],
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
            "prompt_ids": prompt_ids,
        },
    )


def _to_inspect_call(position: int, call: ToolCall) -> InspectCall:
    given, problem = None, "arguments are an object"
    try:
        given = load_json(call.arguments)
    except ValueError as error:
        problem = str(error)
    name = call.id or f"call{position:05}"
    if isinstance(given, dict):
        return InspectCall(id=name, function=call.name, arguments=given)
    why = f"{problem}: {call.arguments[:200]}"
    return InspectCall(id=name, function=call.name, arguments={}, parse_error=why)
