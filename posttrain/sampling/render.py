"""Sampler around any engine: messages → token ids → messages.

The way a template ends turns, frames reasoning and goes on after tools is found in the text that it
writes around a few words. Every template that ends turns with a special token works; others are
refused.
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
        template: chat template that the model was trained with.
        stop_ids: further ids at which the model stops, such as those of its generation config.

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
        self.engine = engine
        self.template = template
        self.encoder = encoder
        self.batched = engine.batched
        self._frames = framing_tokens(template)
        self._turns = TurnFormat(template, encoder, stop_ids)
        self._reader = StepReader(self._turns)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Identity of the engine, the template and the tokenizer."""
        return {
            **self.engine.identity,
            "template": self.template.digest,
            "template_variables": dict(self.template.variables),
            "tokenizer": self.encoder.digest,
            "stop_ids": list(self._turns.stop_ids),
        }

    def unframed(self, text: str) -> str:
        """Break framing tokens in a text (`FramingSampler.unframed`)."""
        return self._frames.sub(lambda token: f"{token[0][0]}\\{token[0][1:]}", text)

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Answer all requests, in order (`Sampler.sample`), with the errors of `sample_each`."""
        generations: dict[int, Generation] = {}
        await self.sample_each(requests, on_done=generations.__setitem__, progress=progress)
        return [generations[k] for k in range(len(requests))]

    async def sample_each(
        self, requests: Sequence[Request], *, on_done: OnGeneration, progress: Progress = None
    ) -> None:
        """Answer requests one by one (`IncrementalSampler.sample_each`).

        With an engine that does not stream all answers come at the end. A conversation that the
        template refuses, or that holds a token which frames messages, is not sent to the engine:
        its generation has an `error`. In a tool's result such a token is broken.

        Raises:
            ConfigError: the template or the tokenizer does not allow for a reasoning budget.
        """
        keys: list[tuple[Any, ...]] = []
        for request in requests:
            is_new = request.continues is None
            keys.append((request.messages, request.tools, request.thinking, is_new))
        # equal conversations are rendered and tokenised once
        request_of = dict(zip(keys, requests, strict=True))
        text_of = {key: self._render_new_text(request) for key, request in request_of.items()}
        texts = list({text for text in text_of.values() if isinstance(text, str)})
        ids_of = dict(zip(texts, self.encoder.encode(texts), strict=True)) if texts else {}
        # requests for the engine, each with the position of its request here and its new text
        accepted: list[tuple[int, str, EngineRequest]] = []
        for position, (key, request) in enumerate(zip(keys, requests, strict=True)):
            text = text_of[key]
            if isinstance(text, str):
                prompt_ids = (*_ids_so_far(request), *ids_of[text])
                engine_request = self._engine_request(request, prompt_ids, text)
                accepted.append((position, text, engine_request))
            else:
                on_done(position, Generation(None, error=str(text)))

        def hand_over(number: int, output: EngineOutput) -> None:
            position, text, engine_request = accepted[number]
            request = requests[position]
            on_done(position, self._generation(request, text, engine_request.ids, output))

        engine_requests = [engine_request for *_, engine_request in accepted]
        if isinstance(self.engine, IncrementalEngine):
            await self.engine.generate_each(engine_requests, on_done=hand_over, progress=progress)
            return
        outputs = await self.engine.generate(engine_requests, progress=progress)
        for number, output in enumerate(outputs):
            hand_over(number, output)

    def _render_new_text(self, request: Request) -> str | RenderError:
        """Render the prompt, or the text behind the step that the request continues.

        Returns:
            The text; the error where the conversation cannot be rendered.
        """
        messages = [self._without_framing(m) if m.role == "tool" else m for m in request.messages]
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
                # sampled ids stay as they are; only the messages behind them are rendered
                first_new = max(k for k, m in enumerate(messages) if m.role == "assistant") + 1
                refuse_framing(messages[first_new:], None, self._frames, first=first_new)
                text = self._turns.between(messages, tools=request.tools, thinking=request.thinking)
            text.encode()
        except RenderError as error:
            return error
        except UnicodeEncodeError as error:
            return RenderError(f"the conversation is no Unicode text: {error}")
        return text

    def _without_framing(self, result: Message) -> Message:
        """Break framing tokens in a result, and in its name and id, which the model wrote."""
        name = result.name and self.unframed(result.name)
        call_id = result.tool_call_id and self.unframed(result.tool_call_id)
        content = self.unframed(result.content)
        return replace(result, content=content, name=name, tool_call_id=call_id)

    def _engine_request(self, request: Request, ids: tuple[int, ...], text: str) -> EngineRequest:
        """Convert a request to one of the engine, whose prompt `ids` end with those of `text`."""
        budget = None
        opened = opens_reasoning(text)
        if request.reasoning_budget is not None and (opened or request.thinking):
            budget = self._budget(request.reasoning_budget, opened)
        return EngineRequest(
            ids,
            request.parameters,
            request.seed,
            self._turns.stop_ids,
            budget,
            request.conversation,
        )

    def _budget(self, tokens: int, opened: bool) -> Budget:
        """Limit on the reasoning of one completion; `opened` if the prompt has opened it."""
        turns = self._turns
        encoder = self.encoder
        closing = turns.closing
        close_id = turns.close_id
        if closing is None or close_id is None or (turns.open_id is None and not opened):
            raise ConfigError(
                f"reasoning_budget: template {self.template.name} with this tokenizer has no "
                f"reasoning that is closed by one token {CLOSE}; leave the budget out"
            )
        if tokens < 1:
            raise ConfigError(f"reasoning_budget is at least 1 token, not {tokens}")

        def encode_closing(reasoning: Ids) -> Ids:
            # the tag begins a line, without an empty line before, as behind a trace cut in training
            text = closing
            if encoder.decode(reasoning).endswith("\n"):
                text = closing.removeprefix("\n")
            return encoder.encode([text])[0]

        return Budget(tokens, close_id, encode_closing, None if opened else turns.open_id)

    def _generation(
        self, request: Request, prompt: str, prompt_ids: tuple[int, ...], output: EngineOutput
    ) -> Generation:
        """Convert the engine's output for a prompt, which ends with the text `prompt`."""
        if output.error is not None:
            return Generation(None, prompt_ids, error=output.error)
        opened = opens_reasoning(prompt)
        step = self._reader.step(request, output, opened=opened, prompt_tokens=len(prompt_ids))
        return Generation(step, prompt_ids)


def opens_reasoning(prompt: str) -> bool:
    """Check whether a prompt ends inside reasoning."""
    return prompt.rstrip().endswith(OPEN)


def _ids_so_far(request: Request) -> tuple[int, ...]:
    """Ids of the prompt and the completion that the request continues; () for a new one."""
    previous = request.continues
    if previous is None:
        return ()
    step = previous.step
    assert previous.prompt_ids is not None, "a step of this sampler has its prompt's ids"
    assert step is not None and step.ids is not None and step.finish == "stop"  # noqa: PT018
    return (*previous.prompt_ids, *step.ids)


class StepReader:
    """Reader of token ids that a model wrote: text, reasoning, answer, calls and counts."""

    def __init__(self, turns: TurnFormat) -> None:
        self._turns = turns
        self.stop_ids = turns.stop_ids
        self.closing = turns.closing
        self.decode = turns.encoder.decode

    def step(
        self, request: Request, output: EngineOutput, *, opened: bool, prompt_tokens: int
    ) -> Step:
        """Read the step of an output; `opened` if the prompt ended inside reasoning."""
        turns = self._turns
        text = turns.encoder.decode(output.ids)
        # a template that leaves opening to the model may be answered without reasoning
        reasons = opened or (request.thinking and (OPEN in text or CLOSE in text))
        reasoning_tokens, answer_tokens = self._counts(output, text, reasons, opened)
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
            reasoning_tokens=reasoning_tokens,
            answer_tokens=answer_tokens,
            prompt_tokens=prompt_tokens,
            ids=output.ids,
            logps=output.logps,
            forced=output.forced,
        )

    def _counts(
        self, output: EngineOutput, text: str, reasons: bool, opened: bool
    ) -> tuple[int, int]:
        """Count the tokens of reasoning and answer; tags, stop token and forced ids are neither.

        Args:
            output: ids that the model wrote.
            text: text of these ids.
            reasons: True if the text begins with reasoning.
            opened: True if the prompt ended inside reasoning.
        """
        turns = self._turns
        ids = output.ids
        written = len(ids) - (bool(ids) and ids[-1] in turns.stop_ids)
        if not reasons:
            return 0, written
        open_id = None if opened else turns.open_id
        if turns.close_id is None or (open_id is None and not opened):
            # tags of several tokens cannot be found among ids: the parts are tokenised again
            if OPEN not in text and CLOSE not in text:
                return written, 0
            trace, _, answer = text.partition(CLOSE)
            trace_ids, answer_ids = turns.encoder.encode([trace.removeprefix(OPEN), answer])
            ends = bool(answer_ids) and answer_ids[-1] in turns.stop_ids
            return len(trace_ids), len(answer_ids) - ends
        start = ids.index(open_id) + 1 if open_id in ids else 0
        if output.forced is not None:
            return output.forced[0] - start, max(0, written - output.forced[1])
        if turns.close_id not in ids:
            return max(0, written - start), 0
        close = ids.index(turns.close_id)
        return max(0, close - start), written - close - 1


# -- how a template ends turns, frames reasoning and writes results --------------------------------

_QUESTION = "q0"
_TRACE = "r0"
_ANSWER = "a0"
_RESULT = "result0"


class TurnFormat:
    """Format of a template's turns: ends, reasoning and results, established on a few words.

    Attributes:
        stop_ids: Ids that end generation.
        stop_texts: Texts of these ids.
        open_id, close_id: Ids of the think tags, None where they are not single tokens.
        closing: Text that the template writes between a trace and an answer; None where it writes
            no traces.
        writes_results: False for a template that silently leaves tool results out.
    """

    def __init__(self, template: ChatTemplate, encoder: Encoder, stop_ids: Sequence[int]) -> None:
        end_tokens = turn_ends(template)
        # id → text, the template's end of turn first
        text_of_stop = {encoder.encode([end])[0][0]: end for end in end_tokens[:1]}
        text_of_stop |= {stop_id: encoder.decode([stop_id]) for stop_id in stop_ids}
        if not text_of_stop:
            raise ConfigError(
                f"{template.name}: behind an assistant's words it writes no special token of this "
                "tokenizer, and the model names no token to stop at: a sample would have no end"
            )
        self.template = template
        self.encoder = encoder
        self.stop_ids = tuple(text_of_stop)
        self.stop_texts = tuple(text_of_stop.values())
        open_ids, close_ids = encoder.encode([OPEN, CLOSE])
        self.open_id = open_ids[0] if len(open_ids) == 1 else None
        self.close_id = close_ids[0] if len(close_ids) == 1 else None
        self.closing = _closing(template)
        self.writes_results = _writes_results(template)

    def between(self, messages: Sequence[Message], *, tools: str | None, thinking: bool) -> str:
        """Render the text between the last assistant's end token and the next answer.

        Raises:
            RenderError: the template does not show where that turn ends.
        """
        last_answer = max(k for k, m in enumerate(messages) if m.role == "assistant")
        new_messages = messages[last_answer + 1 :]
        assert new_messages, "no message follows the last step"
        if not self.writes_results and any(m.role == "tool" for m in new_messages):
            raise RenderError(f"{self.template.name} does not write tool results")
        layout = self.template.layout(
            [message_to_template(message) for message in messages],
            tools=tools_to_template(tools),
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        starts = layout.starts or (None,) * len(messages)
        answer_start = starts[last_answer]
        answer_end = starts[last_answer + 1]
        if answer_start is None or answer_end is None:
            raise RenderError(
                f"{self.template.name}: its messages cannot be told apart, so nothing can be put "
                "behind a turn whose token ids must stay as they are"
            )
        # behind the last stop token of the answer's turn
        stop_ends: list[int] = []
        for text in self.stop_texts:
            stop_start = layout.text.rfind(text, answer_start, answer_end)
            if stop_start >= 0:
                stop_ends.append(stop_start + len(text))
        if not stop_ends:
            raise RenderError(f"{self.template.name}: a turn that goes on has no end token")
        return layout.text[max(stop_ends) :]


def _closing(template: ChatTemplate) -> str | None:
    """Find the text that the template writes between a trace and an answer; None without one."""
    messages = (Message("user", _QUESTION), Message("assistant", _ANSWER, reasoning=_TRACE))
    try:
        text = template.text([message_to_template(m) for m in messages], enable_thinking=True)
    except RenderError:
        return None
    closing, answered, _ = text.partition(_TRACE)[2].partition(_ANSWER)
    return closing if answered and CLOSE in closing else None


def _writes_results(template: ChatTemplate) -> bool:
    """Check that tool results are written: no conversation renders without its result."""
    call = ToolCall("look_up", "{}", id="call00000")
    messages = (
        Message("user", _QUESTION),
        Message("assistant", tool_calls=(call,)),
        Message("tool", _RESULT, tool_call_id=call.id, name=call.name),
    )
    try:
        return _RESULT in template.text([message_to_template(m) for m in messages])
    except RenderError:
        # such conversations are refused one by one, each with its reason
        return True
