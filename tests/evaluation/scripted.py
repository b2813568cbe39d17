"""A sampler that says what it is told to, prompts for it, and a grader: no model, no rendering."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posttrain.chat.detect import CallDetection, FoundCall
from posttrain.evaluation.run import Record
from posttrain.records import Message, Score
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.sampling.sampler import Request
from tests.sampling.scripted import Scripted, call, tool

CALCULATOR = tool("calculate", required=["expression"], expression="string")
CALL = call("calculate", expression="7*8")
Answer = Callable[[Request], str]


class ScriptedSampler(Scripted):
    """`answer` writes a whole turn."""

    def __init__(self, answer: Answer, *, batched: bool = True) -> None:
        super().__init__(lambda request, _: answer(request), batched=batched)


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


def record(
    number: int, value: float | None, *steps: Step, called=False, index=0, name="sft"
) -> Record:
    """A graded completion of `prompt(number)`, with an undeclared call or without one."""
    call = FoundCall("hermes_json", "answer", 0, 4, "call", "f", "undeclared")
    completion = Completion(prompt(number).id, index, steps, "stop")
    verdict = CallDetection((call,) if called else ())
    return Record(name, prompt(number), completion, Score(value, None, ""), verdict)


def turn(answer: str, *, thinking=True, reasoning="because") -> str:
    return (f"{reasoning}\n</think>\n" if thinking else "") + f"{answer}<|im_end|>\n"


def exact(name: str, attempts: Sequence[tuple[Prompt, Completion]]) -> list[Score]:
    assert name == "exact", name
    return [
        Score(float(c.answer == p.gold), c.answer, f"{c.answer!r} against {p.gold!r}")
        for p, c in attempts
    ]
