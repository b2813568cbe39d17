"""Messages → token ids → messages: a sampler of any engine. How a template ends turns, frames
reasoning and goes on after tools is learnt from what it writes around a few words: any works that
ends turns with a special token; others are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.chat import ChatTemplate, parse_completion, render
from posttrain.chat.masks import refuse_framing
from posttrain.chat.parse import CLOSING
from posttrain.chat.profile import framing_tokens, turn_ends
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import ConfigError, RenderError
from posttrain.records import Message, ToolCall, message_to_template, tools_to_template
from posttrain.rollouts import Step
from posttrain.sampling.sampler import (
    Budget,
    Engine,
    EngineOutput,
    EngineRequest,
    Generation,
    Ids,
    IncrementalEngine,
    OnGeneration,
    Progress,
    Request,
)
from posttrain.tokens.tokenizer import Encoder


class RenderedSampler:
    """A `Sampler` around an engine.

    Args:
        template: the one the model was trained with.
        stop_ids: further ids at which it stops, such as those of its generation config.

    Raises:
        ConfigError: the template ends no turn with a special token.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        template: ChatTemplate,
        encoder: Encoder,
        stop_ids: Sequence[int] = (),
    ) -> None:
        self.engine, self.template, self.encoder = engine, template, encoder
        self.batched = engine.batched
        self._frames = framing_tokens(template)
        self._turns = TurnFormat(template, encoder, stop_ids)
        self._reader = StepReader(self._turns)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The engine's, with what renders its prompts and reads its texts."""
        return {
            **self.engine.identity,
            "template": self.template.digest,
            "template_variables": dict(self.template.variables),
            "tokenizer": self.encoder.digest,
            "stop_ids": list(self._turns.stop_ids),
        }

    def unframed(self, text: str) -> str:
        """As `FramingSampler.unframed`."""
        return self._frames.sub(lambda token: f"{token[0][0]}\\{token[0][1:]}", text)

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """As `Sampler.sample`, with the errors of `sample_each`."""
        ended: dict[int, Generation] = {}
        await self.sample_each(requests, on_done=ended.__setitem__, progress=progress)
        return [ended[k] for k in range(len(requests))]

    async def sample_each(
        self, requests: Sequence[Request], *, on_done: OnGeneration, progress: Progress = None
    ) -> None:
        """As `IncrementalSampler.sample_each`; with an engine that does not stream, all at the end.

        A conversation that the template refuses, or that holds a token which frames messages, is
        not sent to the engine: its generation has an `error`. In a tool's result it is broken. A
        reasoning budget that the template or tokenizer does not allow for is a ConfigError.
        """
        keys = [(r.messages, r.tools, r.thinking, r.continues is None) for r in requests]
        # equal conversations are rendered and tokenised once
        one_of = dict(zip(keys, requests, strict=True))
        texts = {key: self._text(request) for key, request in one_of.items()}
        distinct = list({text for text in texts.values() if isinstance(text, str)})
        ids = dict(zip(distinct, self.encoder.encode(distinct), strict=True)) if distinct else {}
        sent: list[tuple[int, str, EngineRequest]] = []
        for k, (request, text) in enumerate(zip(requests, map(texts.get, keys), strict=True)):
            if isinstance(text, str):
                ids_now = (*_kept_ids(request), *ids[text])
                sent.append((k, text, self._engine_request(request, ids_now, text)))
            else:
                on_done(k, Generation(None, error=str(text)))

        def ended(number: int, output: EngineOutput) -> None:
            k, text, request = sent[number]
            on_done(k, self._generation(requests[k], text, request.ids, output))

        given = [request for *_, request in sent]
        if isinstance(self.engine, IncrementalEngine):
            await self.engine.generate_each(given, on_done=ended, progress=progress)
            return
        for number, output in enumerate(await self.engine.generate(given, progress=progress)):
            ended(number, output)

    def _text(self, request: Request) -> str | RenderError:
        """The prompt, or what is put behind the step that the request continues."""
        messages = [self._bounded(m) if m.role == "tool" else m for m in request.messages]
        try:
            if request.continues is None:
                refuse_framing(messages, request.tools, self._frames)
                text = render(
                    messages,
                    self.template,
                    tools=request.tools,
                    add_generation_prompt=True,
                    enable_thinking=request.thinking,
                )
            else:
                # what was sampled stays as it was sampled; what came of its calls is new
                new = max(k for k, m in enumerate(messages) if m.role == "assistant") + 1
                refuse_framing(messages[new:], None, self._frames, first=new)
                text = self._turns.between(messages, tools=request.tools, thinking=request.thinking)
            text.encode()
        except RenderError as error:
            return error
        except UnicodeEncodeError as error:
            return RenderError(f"the conversation is no Unicode text: {error}")
        return text

    def _bounded(self, result: Message) -> Message:
        """A result that cannot end its message; its name and id are words of the model."""
        name, call = (text and self.unframed(text) for text in (result.name, result.tool_call_id))
        return replace(result, content=self.unframed(result.content), name=name, tool_call_id=call)

    def _engine_request(self, request: Request, ids: tuple[int, ...], text: str) -> EngineRequest:
        budget, opened = None, opens_reasoning(text)
        if request.reasoning_budget is not None and (opened or request.thinking):
            budget = self._budget(request.reasoning_budget, opened)
        return EngineRequest(ids, request.parameters, request.seed, self._turns.stop_ids, budget)

    def _budget(self, tokens: int, opened: bool) -> Budget:
        turns, encoder = self._turns, self.encoder
        closing, close_id = turns.closing, turns.close_id
        if closing is None or close_id is None or (turns.open_id is None and not opened):
            raise ConfigError(
                f"reasoning_budget: template {self.template.name} with this tokenizer has no "
                f"reasoning that is closed by one token {CLOSE}; leave the budget out"
            )
        if tokens < 1:
            raise ConfigError(f"reasoning_budget is at least 1 token, not {tokens}")

        def closed(reasoning: Ids) -> Ids:
            # as a trace cut in training is rendered: on a line of its own, without a blank before
            ends_line = encoder.decode(reasoning).endswith("\n")
            return encoder.encode([closing.removeprefix("\n") if ends_line else closing])[0]

        return Budget(tokens, close_id, closed, None if opened else turns.open_id)

    def _generation(
        self, request: Request, prompt: str, prompt_ids: tuple[int, ...], output: EngineOutput
    ) -> Generation:
        if output.error is not None:
            return Generation(None, prompt_ids, error=output.error)
        opened = opens_reasoning(prompt)
        step = self._reader.step(request, output, opened=opened, prompt_tokens=len(prompt_ids))
        return Generation(step, prompt_ids)


def opens_reasoning(prompt: str) -> bool:
    """Whether the prompt ends inside reasoning."""
    return prompt.rstrip().endswith(OPEN)


def _kept_ids(request: Request) -> tuple[int, ...]:
    """The ids of the completion so far."""
    if (before := request.continues) is None:
        return ()
    step = before.step
    assert before.prompt_ids is not None, "a step of this sampler has its prompt's ids"
    assert step is not None and step.ids is not None and step.finish == "stop"  # noqa: PT018
    return (*before.prompt_ids, *step.ids)


class StepReader:
    """What a model wrote, as token ids → a step: text, reasoning, answer, calls and counts."""

    def __init__(self, turns: TurnFormat) -> None:
        self._turns = turns
        self.stop_ids, self.closing = turns.stop_ids, turns.closing
        self.decode = turns.encoder.decode

    def step(
        self, request: Request, output: EngineOutput, *, opened: bool, prompt_tokens: int
    ) -> Step:
        """The step of an output; `opened`: the prompt ended inside reasoning."""
        turns = self._turns
        text = turns.encoder.decode(output.ids)
        # a template that leaves opening to the model may be answered without reasoning
        reasons = opened or (request.thinking and (OPEN in text or CLOSE in text))
        reasoning, answer = self._counts(output, text, reasons, opened)
        return Step(
            text=text,
            parsed=parse_completion(
                text,
                thinking=reasons,
                tools=request.tools,
                end_tokens=turns.stop_texts,
                closing=turns.closing or CLOSING,
            ),
            finish=output.finish,
            reasoning_tokens=reasoning,
            answer_tokens=answer,
            prompt_tokens=prompt_tokens,
            ids=output.ids,
            logps=output.logps,
            forced=output.forced,
        )

    def _counts(
        self, output: EngineOutput, text: str, reasons: bool, opened: bool
    ) -> tuple[int, int]:
        """Tokens of the reasoning and of the answer; tags, stop token and forced ids are neither.
        `reasons`: it begins with reasoning, which the prompt may have `opened`."""
        turns, ids = self._turns, output.ids
        written = len(ids) - (bool(ids) and ids[-1] in turns.stop_ids)
        if not reasons:
            return 0, written
        open_id = None if opened else turns.open_id
        if turns.close_id is None or (open_id is None and not opened):
            # tags of several tokens cannot be found among ids: the parts are tokenised again
            if OPEN not in text and CLOSE not in text:
                return written, 0
            trace, _, answer = text.partition(CLOSE)
            reasoning, rest = turns.encoder.encode([trace.removeprefix(OPEN), answer])
            return len(reasoning), len(rest) - (bool(rest) and rest[-1] in turns.stop_ids)
        start = ids.index(open_id) + 1 if open_id in ids else 0
        if output.forced is not None:
            return output.forced[0] - start, max(0, written - output.forced[1])
        if turns.close_id not in ids:
            return max(0, written - start), 0
        closed = ids.index(turns.close_id)
        return max(0, closed - start), written - closed - 1


# -- what sampling must know of a template and its tokenizer ---------------------------------------

_QUESTION, _TRACE, _ANSWER, _RESULT = "q0", "r0", "a0", "result0"


class TurnFormat:
    """How a template ends turns and treats reasoning and tool results, tried on a few words.

    Attributes:
        stop_ids: tokens that end generation; `stop_texts` are their texts.
        open_id, close_id: the think tags, None where they are not single tokens.
        closing: what the template writes between a trace and an answer; None where it writes none.
        writes_results: False for a template that leaves tool results out without a word.
    """

    def __init__(self, template: ChatTemplate, encoder: Encoder, stop_ids: Sequence[int]) -> None:
        ends = turn_ends(template)
        stops = {encoder.encode([end])[0][0]: end for end in ends[:1]}
        stops |= {i: encoder.decode([i]) for i in stop_ids}
        if not stops:
            raise ConfigError(
                f"{template.name}: behind an assistant's words it writes no special token of this "
                "tokenizer, and the model names no token to stop at: a sample would have no end"
            )
        self.template, self.encoder = template, encoder
        self.stop_ids, self.stop_texts = tuple(stops), tuple(stops.values())
        tags = encoder.encode([OPEN, CLOSE])
        self.open_id, self.close_id = (ids[0] if len(ids) == 1 else None for ids in tags)
        self.closing, self.writes_results = _closing(template), _writes_results(template)

    def between(self, messages: Sequence[Message], *, tools: str | None, thinking: bool) -> str:
        """The text from behind the last assistant's end token to where the next one begins.
        Raises RenderError where there is none."""
        last = max(k for k, m in enumerate(messages) if m.role == "assistant")
        since = messages[last + 1 :]
        assert since, "nothing has come since"
        if not self.writes_results and any(m.role == "tool" for m in since):
            raise RenderError(f"{self.template.name} does not write tool results")
        layout = self.template.layout(
            [message_to_template(message) for message in messages],
            tools=tools_to_template(tools),
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        starts = layout.starts or (None,) * len(messages)
        first, following = starts[last], starts[last + 1]
        if first is None or following is None:
            raise RenderError(
                f"{self.template.name}: its messages cannot be told apart, so nothing can be put "
                "behind a turn whose token ids must stay as they are"
            )
        ends = [
            layout.text.rindex(text, first, following) + len(text)
            for text in self.stop_texts
            if text in layout.text[first:following]
        ]
        if not ends:
            raise RenderError(f"{self.template.name}: a turn that goes on has no end token")
        return layout.text[max(ends) :]


def _closing(template: ChatTemplate) -> str | None:
    messages = (Message("user", _QUESTION), Message("assistant", _ANSWER, reasoning=_TRACE))
    try:
        text = template.text([message_to_template(m) for m in messages], enable_thinking=True)
    except RenderError:
        return None
    closing, answered, _ = text.partition(_TRACE)[2].partition(_ANSWER)
    return closing if answered and CLOSE in closing else None


def _writes_results(template: ChatTemplate) -> bool:
    """False only where a conversation with a result renders, and the result is not in it."""
    call = ToolCall("look_up", "{}", id="call00000")
    messages = (
        Message("user", _QUESTION),
        Message("assistant", tool_calls=(call,)),
        Message("tool", _RESULT, tool_call_id=call.id, name=call.name),
    )
    try:
        return _RESULT in template.text([message_to_template(m) for m in messages])
    except RenderError:
        return True  # such conversations are refused one by one, each with its reason
