"""Maths with carries: add, subtract, multiply by 2…5; difficulty is the number of digits.

    "What is 345 + 278?"  →  345+278 / 5+8=13 / 4+7+1=12 / 3+2+1=6  →  623

Worked from the right, one place a line, so that each step is a fact about single digits and the
answer is read off the lines. Where a calculator is declared it does the same; where only other
tools are, they are of no use and the digits are worked as without tools.
"""

from __future__ import annotations

from data_builders.tiny_world.drafts import (
    IDLE_TOOLS,
    Draft,
    ItemDraw,
    Transcript,
    answered,
    worded,
)

WORDINGS = {
    "add": ("What is {a} + {b}?", "Add {a} and {b}.", "{a} + {b} = ?", "Find {a} plus {b}."),
    "subtract": (
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "{a} - {b} = ?",
        "Find {a} minus {b}.",
    ),
    "multiply": (
        "What is {a} * {b}?",
        "Multiply {a} by {b}.",
        "{a} * {b} = ?",
        "Find {a} times {b}.",
    ),
}
# of the items with tools: so that tools are declared does not tell that one is called
CALCULATOR_SHARE = 0.45
OTHER_TOOLS = tuple(name for name in IDLE_TOOLS if name != "calculate")
SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


def _digits(number: int, width: int) -> list[int]:
    return [number // 10**place % 10 for place in range(width)]


def add_steps(a: int, b: int) -> list[str]:
    """Column addition, ones first."""
    width, carry, steps = max(len(str(a)), len(str(b))), 0, []
    for left, right in zip(_digits(a, width), _digits(b, width), strict=True):
        total = left + right + carry
        steps.append(f"{left}+{right}{f'+{carry}' if carry else ''}={total}")
        carry = total // 10
    return steps


def subtract_steps(a: int, b: int) -> list[str]:
    """Column subtraction of b ≤ a, ones first; a borrowed ten shows in the upper number."""
    width, borrow, steps = len(str(a)), 0, []
    for left, right in zip(_digits(a, width), _digits(b, width), strict=True):
        upper = left + 10 if left - borrow < right else left
        steps.append(f"{upper}{f'-{borrow}' if borrow else ''}-{right}={upper - borrow - right}")
        borrow = int(upper != left)
    return steps


def multiply_steps(a: int, b: int) -> list[str]:
    """Multiplication of a by one digit, ones first."""
    carry, steps = 0, []
    for left in _digits(a, len(str(a))):
        total = left * b + carry
        steps.append(f"{left}*{b}={left * b}{f'+{carry}={total}' if carry else ''}")
        carry = total // 10
    return steps


STEPS = {"add": add_steps, "subtract": subtract_steps, "multiply": multiply_steps}


def _operands(draw: ItemDraw, task: str) -> tuple[int, int]:
    low, high = 10 ** (draw.difficulty - 1), 10**draw.difficulty - 1
    a, b = draw.rng.randint(low, high), draw.rng.randint(low, high)
    if task == "multiply":
        return a, draw.rng.randint(2, 5)
    return (max(a, b), min(a, b)) if task == "subtract" else (a, b)


def _declared(draw: ItemDraw) -> tuple[str, ...]:
    """Two tools, the calculator among them or not; () where none is to be declared."""
    if not draw.with_tools:
        return ()
    if draw.rng.random() >= CALCULATOR_SHARE:
        return tuple(draw.rng.sample(OTHER_TOOLS, 2))
    names = ["calculate", draw.rng.choice(OTHER_TOOLS)]
    draw.rng.shuffle(names)
    return tuple(names)


def make(draw: ItemDraw) -> Draft:
    """One sum; a calculator, where declared, is called instead of working in columns."""
    task = draw.rng.choice(("add", "add", "subtract", "multiply"))
    a, b = _operands(draw, task)
    result = {"add": a + b, "subtract": a - b, "multiply": a * b}[task]
    question = worded(draw, WORDINGS[task], a=a, b=b)
    expression = f"{a}{SIGNS[task]}{b}"
    tools = _declared(draw)
    script = Transcript(draw, None, tools=tools)
    if "calculate" in tools:
        arguments = {"expression": expression}
        script.call("calculate", arguments, expression, opening="calculate.", result=expression)
        script.answer(str(result))
    else:
        steps = [expression, *STEPS[task](a, b)]
        script.messages += answered(draw, steps, str(result), opening="from the right.")
    return script.draft(
        key=f"{task} {min(a, b)} {max(a, b)}",
        task=task,
        question=question,
        gold=str(result),
        grading="number",
    )
