"""Model provider for inspect over a `Sampler`, which renders, parses and keeps token ids as we do.

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

UNBOUNDED = 1_000_000  # connections: inspect must not hold back requests that share a batch
_QUIET_TURNS = 25  # turns of the event loop without a new request, after which a batch is decoded


def inspect_model(sampler: Sampler, name: str, *, thinking: bool = True) -> Model:
    """Make a model for `inspect_ai.eval` over an open sampler; `name` is its name in the log."""
    config = GenerateConfig(max_retries=0, max_connections=UNBOUNDED, adaptive_connections=False)
    # not through get_model, which would keep the sampler itself as an argument for the log
    api = cast(Any, SamplerAPI)(name, sampler=sampler, thinking=thinking)
    return Model(api, config)


@modelapi(name="posttrain")
class SamplerAPI(ModelAPI):
    """Inspect's provider `posttrain`.

    A turn that follows tool results continues from the token ids that were sampled. Failures and
    time-outs are handled by the sampler: nothing is tried again here.

    Args:
        model_name: directory of the checkpoint.
        base_url: field `url` of the backend, if it is a server.
        sampler: open sampler to use instead of a backend.
        thinking: reasoning mode of the chat template.
        kind: kind of the backend.
        backend: other fields of the backend.

    Raises:
        ConfigError: the fields are not those of a backend.
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
        fields: dict[str, Any] = {"kind": kind}
        if base_url:
            fields["url"] = base_url
        fields |= backend
        try:
            self._backend: BackendConfig = TypeAdapter(BackendConfig).validate_python(fields)
        except ValidationError as error:
            raise ConfigError(f"posttrain/{model_name}: {error}") from error
        self._sampler = sampler
        self._thinking = thinking
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._turns: dict[str, Generation] = {}  # by the id of their message
        # over a sampler that was passed, `run_task` makes a record of every turn
        self._keeps_all_turns = sampler is not None
        self._pending: list[tuple[Request, asyncio.Future[Generation]]] = []
        self._collector: asyncio.Task[None] | None = None

    def max_connections(self) -> int:
        """Requests that inspect lets run at the same time."""
        # requests to a model in this process must be able to wait for one another
        return self._backend.total_concurrency if isinstance(self._backend, Server) else UNBOUNDED

    def generation_of(self, message_id: str) -> Generation | None:
        """Generation that an assistant message came from; None where it is not kept."""
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
        """Generate one turn.

        Raises:
            PosttrainError: the backend gave up, or `tool_choice` would force a call.
        """
        if tool_choice not in ("auto", "none"):
            raise PosttrainError(f"tool_choice {tool_choice!r}: this backend cannot force a call")
        request = self._request(input, [] if tool_choice == "none" else tools, config)
        generation = await self._sample(request)
        if generation.step is None:
            raise PosttrainError(f"the backend gave up: {generation.error}")
        output = to_output(generation.step, self.model_name, prompt_ids=generation.prompt_ids)
        assert output.message.id is not None
        if not self._keeps_all_turns:
            # continued once; a chat of many turns must not fill the memory
            self._turns.pop(_continued_id(input), None)
        # a turn without tool calls is never continued
        if self._keeps_all_turns or generation.step.parsed.tool_calls:
            self._turns[output.message.id] = generation
        return output

    def _request(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], config: GenerateConfig
    ) -> Request:
        state = sample_state()
        sample = ("", 1) if state is None else (state.sample_id, state.epoch)
        parameters: dict[str, Any] = {}
        for name in ("temperature", "top_p", "top_k", "max_tokens"):
            value = getattr(config, name)
            if value is not None:
                parameters[name] = value
        return Request(
            messages=tuple(from_inspect(message) for message in messages),
            tools=tools_text(tools),
            thinking=self._thinking,
            parameters=Parameters(**parameters),
            # every turn of every sample has a seed of its own, the same when it is run again
            seed=seed_of(config.seed or 0, *sample, len(messages)),
            reasoning_budget=config.reasoning_tokens if self._thinking else None,
            continues=self._turns.get(_continued_id(messages)),
        )

    async def _sample(self, request: Request) -> Generation:
        """Sample one generation; a model in this process decodes waiting requests in one batch."""
        sampler = await self._open_sampler()
        if not sampler.batched:
            return (await sampler.sample([request]))[0]
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._pending.append((request, future))
        if self._collector is None:
            self._collector = asyncio.ensure_future(self._sample_pending(sampler))
        return await future

    async def _open_sampler(self) -> Sampler:
        """Open the sampler at the first request, which loads its checkpoint."""
        async with self._opening:
            if self._sampler is None:
                # only here: the registry's import of this module must not load torch
                from posttrain.sampling.open import opened_sampler

                self._sampler = await self._stack.enter_async_context(
                    opened_sampler(self._backend, checkpoint=self.model_name)
                )
        return self._sampler

    async def _sample_pending(self, sampler: Sampler) -> None:
        """Wait until no more requests come, then sample all that are pending in one batch."""
        pending_before = 0
        while pending_before != len(self._pending):
            pending_before = len(self._pending)
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)
        batch = self._pending
        self._pending = []
        # requests that come during the sampling start a collector of their own
        self._collector = None
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


def _continued_id(messages: Sequence[ChatMessage]) -> str:
    """Id of the assistant message that only tool results follow; "" where there is none."""
    without_results = (m for m in reversed(messages) if not isinstance(m, ChatMessageTool))
    previous = next(without_results, None)
    if not isinstance(previous, ChatMessageAssistant) or previous is messages[-1]:
        return ""
    return previous.id or ""


# -- our messages ↔ inspect's, without loss where both have a word for it --------------------------


def to_inspect(message: Message) -> ChatMessage:
    """Convert a message to inspect's."""
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
    """Convert a message of inspect's to ours.

    Raises:
        DataError: the message holds content that is not text, such as an image.
    """
    parts = message.content
    if isinstance(parts, str):
        parts = [ContentText(text=parts)]
    if unknown_types := {part.type for part in parts} - {"text", "reasoning"}:
        raise DataError(
            f"a message holds {', '.join(sorted(unknown_types))}: only text can be rendered"
        )
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
        # a failed call's error is the result that the model reads, as in our own loop
        result = text if message.error is None else f"error: {message.error.message}"
        return Message("tool", result, tool_call_id=message.tool_call_id, name=message.function)
    return Message(message.role, text)


def tools_text(tools: Sequence[ToolInfo]) -> str | None:
    """JSON text, in OpenAI's shape, of tools of inspect's; None where there are none."""
    if not tools:
        return None
    rows: list[dict[str, Any]] = []
    for tool in tools:
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": json.loads(tool.parameters.model_dump_json(exclude_none=True)),
        }
        rows.append({"type": "function", "function": function})
    return json_text(rows)


def to_output(step: Step, model: str, *, prompt_ids: Sequence[int] | None = None) -> ModelOutput:
    """Convert a step to a model output of inspect's, with its text and token ids as metadata."""
    message = to_inspect(step.parsed.message())
    assert isinstance(message, ChatMessageAssistant)
    message.model = model
    stop_reason = "tool_calls" if step.parsed.tool_calls else "stop"
    if step.finish == "length":
        stop_reason = "max_tokens"
    # a server may return counts without ids
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
    """Convert a tool call; arguments that are not a JSON object become its parse error."""
    arguments: Any = None
    problem = "arguments are an object"
    try:
        arguments = load_json(call.arguments)
    except ValueError as error:
        problem = str(error)
    call_id = call.id or f"call{position:05}"
    if isinstance(arguments, dict):
        return InspectCall(id=call_id, function=call.name, arguments=arguments)
    parse_error = f"{problem}: {call.arguments[:200]}"
    return InspectCall(id=call_id, function=call.name, arguments={}, parse_error=parse_error)
