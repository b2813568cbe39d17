"""A sampler that says what it is told to, prompts for it, and a grader: no model, no rendering."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from posttrain.chat import parse_completion
from posttrain.records import Message, Score
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.sampling.sampler import Generation, Request

CALCULATOR = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "calculate",
                "description": "Arithmetic.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string"}},
                    "required": ["expression"],
                },
            },
        }
    ]
)
CALL = (
    "<tool_call>\n<function=calculate>\n<parameter=expression>\n7*8\n</parameter>\n"
    "</function>\n</tool_call>"
)
Answer = Callable[[Request], str]


class ScriptedSampler:
    """`answer` writes a whole turn; its characters are its token ids."""

    def __init__(self, answer: Answer, *, batched: bool = True) -> None:
        self._answer, self._batched = answer, batched
        self.batches: list[list[Request]] = []
        self.identity = {"backend": "scripted"}

    @property
    def batched(self) -> bool:
        return self._batched

    async def sample(self, requests: Sequence[Request], *, progress=None) -> list[Generation]:
        self.batches.append(list(requests))
        await asyncio.sleep(0)
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Generation:
        text = self._answer(request)
        if text == "FAIL":
            return Generation(None, error="the server went away")
        prompt_ids = tuple(map(ord, "".join(m.content for m in request.messages)))
        if request.continues is not None:
            before = request.continues
            assert before.prompt_ids is not None
            assert before.step is not None
            assert before.step.ids is not None
            results = request.messages[-1].content
            prompt_ids = (*before.prompt_ids, *before.step.ids, *map(ord, results))
        parsed = parse_completion(text, thinking=request.thinking, tools=request.tools)
        step = Step(
            text=text,
            parsed=parsed,
            finish="stop" if parsed.finished else "length",
            reasoning_tokens=len(parsed.reasoning or ""),
            answer_tokens=len(parsed.answer),
            prompt_tokens=len(prompt_ids),
            ids=tuple(map(ord, text)),
        )
        return Generation(step, prompt_ids)

    async def score(self, prompts, completions):
        raise NotImplementedError


class Calculator:
    """An environment with one tool, which knows one product."""

    async def call(self, name, arguments):
        return "56" if arguments.get("expression") == "7*8" else "error: no"

    def snapshot(self):
        return "{}"

    async def close(self):
        pass


def prompt(number: int, *, thinking=True, tools=False, source="maths", gold="56", grader="exact"):
    setting = "with_tools" if tools else "no_tools"
    mode = "on" if thinking else "off"
    return Prompt(
        id=f"{source}-{number}/{setting}/{mode}",
        task=f"{source}-{number}",
        setting=setting,
        messages=(Message("user", f"question {number}: 7*8?"),),
        tools=CALCULATOR if tools else None,
        environment="calculator" if tools else None,
        thinking=thinking,
        gold=gold,
        grader=grader,
        source=source,
    )


def turn(answer: str, *, thinking=True, reasoning="because") -> str:
    return (f"{reasoning}\n</think>\n" if thinking else "") + f"{answer}<|im_end|>\n"


def exact(name: str, attempts: Sequence[tuple[Prompt, Completion]]) -> list[Score]:
    assert name == "exact", name
    return [
        Score(float(c.answer == p.gold), c.answer, f"{c.answer!r} against {p.gold!r}")
        for p, c in attempts
    ]
