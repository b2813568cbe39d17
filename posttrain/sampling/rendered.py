"""A sampler of any engine: messages are rendered here, and completions taken apart here.

    sampler = RenderedSampler(engine, template=template, encoder=encoder_of(tokenizer))
    await sampler.sample([Request(messages, None, True, parameters, seed=7)])

A continued completion keeps its sampled ids: only what came since is rendered and tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.chat import ChatTemplate, parse_completion, render
from posttrain.chat.framing import refuse_framing
from posttrain.chat.profile import framing_tokens
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import ConfigError, RenderError
from posttrain.models.encoding import Encoder
from posttrain.rollouts import Step
from posttrain.sampling.count_parts import count_parts
from posttrain.sampling.engine import Budget, Engine, EngineOutput, EngineRequest, Ids
from posttrain.sampling.protocol import Generation, Request
from posttrain.sampling.turn_format import turn_format


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as the engine gets it. `opened`: its prompt ends inside reasoning."""

    request: Request
    engine: EngineRequest
    opened: bool


class RenderedSampler:
    """A `Sampler` that asks an engine.

    A prompt or a tool's result that holds a token which frames messages is not asked: its
    generation has an error.

    Args:
        engine: continues token ids.
        template: the one the model was trained with.
        encoder: its tokenizer.
        stop_ids: where the model stops beside the template's end of turn, such as the ids of its
            generation config.

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
        self._frames = framing_tokens(template)
        also = [(i, encoder.decode([i])) for i in stop_ids]
        self._turns = turn_format(template, encoder.encode, also_stops=also)

    @property
    def batched(self) -> bool:
        """As the engine's."""
        return self.engine.batched

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

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """As `Sampler.sample`; a conversation that the template refuses has an `error`.

        Raises:
            ConfigError: a reasoning budget, and the template or tokenizer allows for none.
        """
        asked = self._asked(requests)
        outputs = iter(
            await self.engine.generate(
                [one.engine for one in asked if isinstance(one, _Asked)], progress=progress
            )
        )
        return [
            Generation(None, error=str(one))
            if isinstance(one, RenderError)
            else self._generation(one, next(outputs))
            for one in asked
        ]

    async def score(
        self, prompts: Sequence[Ids], completions: Sequence[Ids]
    ) -> list[tuple[float, ...]]:
        """As `Sampler.score`."""
        return await self.engine.score(prompts, completions)

    def _asked(self, requests: Sequence[Request]) -> list[_Asked | RenderError]:
        """Render and tokenise; equal conversations once."""
        keys = [(r.messages, r.tools, r.thinking, r.continues is None) for r in requests]
        texts = {
            key: self._text(request)
            for key, request in dict(zip(keys, requests, strict=True)).items()
        }
        distinct = list({text for text in texts.values() if isinstance(text, str)})
        ids = dict(zip(distinct, self.encoder.encode(distinct), strict=True)) if distinct else {}
        found: list[_Asked | RenderError] = []
        for request, key in zip(requests, keys, strict=True):
            text = texts[key]
            if isinstance(text, RenderError):
                found.append(text)
                continue
            opened = text.rstrip().endswith(OPEN)
            found.append(self._engine_request(request, (*_kept(request), *ids[text]), opened))
        return found

    def _text(self, request: Request) -> str | RenderError:
        """The prompt, or what is put behind the step that the request continues."""
        try:
            if request.continues is None:
                refuse_framing(request.messages, request.tools, self._frames)
                text = render(
                    request.messages,
                    self.template,
                    tools=request.tools,
                    add_generation_prompt=True,
                    enable_thinking=request.thinking,
                )
            else:
                # what was sampled stays as it was sampled; what came of its calls is new
                said = max(k for k, m in enumerate(request.messages) if m.role == "assistant") + 1
                refuse_framing(request.messages[said:], None, self._frames, first=said)
                text = self._turns.between(
                    request.messages, tools=request.tools, thinking=request.thinking
                )
            text.encode()
        except RenderError as error:
            return error
        except UnicodeEncodeError as error:
            return RenderError(f"the conversation is no Unicode text: {error}")
        return text

    def _engine_request(self, request: Request, ids: tuple[int, ...], opened: bool) -> _Asked:
        budget = None
        if request.reasoning_budget is not None and (opened or request.thinking):
            budget = self._budget(request.reasoning_budget, opened)
        engine = EngineRequest(
            ids=ids,
            parameters=request.parameters,
            seed=request.seed,
            stop_ids=self._turns.stop_ids,
            budget=budget,
        )
        return _Asked(request, engine, opened)

    def _budget(self, tokens: int, opened: bool) -> Budget:
        turns, decode, encode = self._turns, self.encoder.decode, self.encoder.encode
        closing, close_id = turns.closing, turns.close_id
        if closing is None or close_id is None or (turns.open_id is None and not opened):
            raise ConfigError(
                f"reasoning_budget: template {self.template.name} with this tokenizer has no "
                f"reasoning that is closed by one token {CLOSE}; leave the budget out"
            )
        if tokens < 1:
            raise ConfigError(f"reasoning_budget is at least 1 token, found {tokens}")

        def closed(reasoning: Ids) -> Ids:
            # as a trace cut in training is rendered: on a line of its own, without a blank before
            ends_line = decode(reasoning).endswith("\n")
            return encode([closing.removeprefix("\n") if ends_line else closing])[0]

        return Budget(tokens, close_id, closed, None if opened else turns.open_id)

    def _generation(self, asked: _Asked, output: EngineOutput) -> Generation:
        prompt_ids = asked.engine.ids
        if output.error is not None:
            return Generation(None, prompt_ids, error=output.error)
        text = self.encoder.decode(output.ids)
        # a template that leaves opening to the model may be answered without reasoning
        reasons = asked.opened or (asked.request.thinking and (OPEN in text or CLOSE in text))
        reasoning, answer = self._counts(output, text, reasons, asked.opened)
        step = Step(
            text=text,
            parsed=parse_completion(
                text,
                thinking=reasons,
                tools=asked.request.tools,
                end_tokens=self._turns.stop_texts,
            ),
            finish=output.finish,
            reasoning_tokens=reasoning,
            answer_tokens=answer,
            prompt_tokens=len(prompt_ids),
            ids=output.ids,
            logps=output.logps,
            forced=output.forced,
        )
        return Generation(step, prompt_ids)

    def _counts(
        self, output: EngineOutput, text: str, reasons: bool, opened: bool
    ) -> tuple[int, int]:
        turns = self._turns
        if turns.close_id is not None and (opened or turns.open_id is not None):
            return count_parts(
                output.ids,
                reasons=reasons,
                close_id=turns.close_id,
                stop_ids=turns.stop_ids,
                open_id=None if opened else turns.open_id,
                forced=output.forced,
            )
        # tags of several tokens cannot be found among ids: the parts are tokenised again
        written = len(output.ids) - (output.finish == "stop")
        if not reasons:
            return 0, written
        trace, _, answer = text.partition(CLOSE)
        ended = len(self.encoder.encode([trace.removeprefix(OPEN)])[0])
        rest = self.encoder.encode([answer])[0]
        stopped = bool(rest) and rest[-1] in turns.stop_ids
        return ended, len(rest) - stopped


def _kept(request: Request) -> tuple[int, ...]:
    """The ids of the completion so far."""
    before = request.continues
    if before is None:
        return ()
    assert before.prompt_ids is not None, "a step of this sampler has its prompt's ids"
    assert before.step is not None
    assert before.step.ids is not None
    assert before.step.finish == "stop", "a step that ran to its limit cannot go on"
    return (*before.prompt_ids, *before.step.ids)
