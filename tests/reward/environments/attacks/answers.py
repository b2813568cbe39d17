"""Final answers to math and multiple choice: other notations, hedges, several answers at once."""

from __future__ import annotations

import json
import random

from posttrain.rollouts import Prompt, metadata_of
from reward.environments.base import says
from reward.graders.choice import options_of
from tests.reward.environments.attacks.base import Attack, Attacks


def math(prompt: Prompt, rng: random.Random) -> Attacks:
    """Of whole numbers."""
    gold = (prompt.gold or "").replace(",", "")
    n = int(float(gold))
    wrong = str(n + rng.choice((1, -1, 2, 10)))
    for form, text in {
        "box": f"\\boxed{{{n}}}",
        "display": f"\\[\\boxed{{{n}}}\\]",
        "bold": f"**\\boxed{{{n}}}**",
        "decimal": f"\\boxed{{{n}.0}}",
        "text": f"\\boxed{{\\text{{{n}}}}}",
        "spaces": f"\\boxed{{ {n} }}",
        "assignment": f"\\boxed{{x = {n}}}",
        "dollars": f"\\boxed{{\\${n}}}",
        "inner dollars": f"\\boxed{{${n}$}}",
        "thousands": f"\\boxed{{{n:,}}}",
        "full stop": f"\\boxed{{{n}.}}",
        "after another box": f"First I thought \\boxed{{{wrong}}}, which is wrong. \\boxed{{{n}}}",
        "long working": f"{'Step: 1 + 1 = 2. ' * 500}\nSo \\boxed{{{n}}}.",
        "pleasantry": f"The answer is \\boxed{{{n}}}. I hope this helps! Ask me about 5 more.",
        "fbox": f"\\fbox{{{n}}}",
        "mathrm": f"\\boxed{{\\mathrm{{{n}}}}}",
        "leading zero": f"\\boxed{{{n}.00}}",
        "unit": f"\\boxed{{{n} \\text{{ units}}}}",
    }.items():
        yield Attack(form, True, says(text))
    not_right = {
        "arrow": f"\\boxed{{{wrong} \\to {n}}}",
        "percent": f"\\boxed{{{n + 1}\\%}}",
        "approximately": f"\\boxed{{\\approx {wrong}}}",
        "mod": f"\\boxed{{{n + 1} \\bmod {abs(n) + 2}}} or so",
        "reciprocal": f"\\boxed{{1/{abs(n) + 2}}}",
        "binary": f"\\boxed{{{abs(n) + 2:b}_2}}",
        "sum with a gap": f"\\boxed{{{n} + 1}}",
        "list in brackets": f"\\boxed{{({n}, {wrong})}}",
        "strikethrough": f"\\boxed{{\\cancel{{{n}}} {wrong}}}",
        "either": f"\\boxed{{\\text{{either }} {n} \\text{{ or }} {wrong}}}",
        "unless": f"\\boxed{{{n} \\text{{ unless it is }} {wrong}}}",
        "slash": f"\\boxed{{{n} / {wrong}}}" if n != 0 else "\\boxed{}",
    }
    right = {
        "equation chain": f"\\boxed{{{n - 1} + 1 = {n}}}",
        "underline": f"\\boxed{{\\mathbf{{{n}}}}}",
        "large": f"\\boxed{{\\displaystyle {n}}}",
        "two alike": f"\\boxed{{{n}}} Thus \\boxed{{{n}}}.",
    }
    for form, text in (not_right | right).items():
        yield Attack(f"later: {form}", form in right, says(text))
    for form, text in {
        "other number": f"\\boxed{{{wrong}}}",
        "sign": f"\\boxed{{{-n or 7}}}",
        "ten times": f"\\boxed{{{n * 10 or 3}}}",
        "no box": f"The answer is {n}.",
        "dollars without box": f"$${n}$$",
        "open box": f"\\boxed{{{n}",
        "or": f"\\boxed{{{n} \\text{{ or }} {wrong}}}",
        "or in plain": f"\\boxed{{{wrong} or {n}}}",
        "comma": f"\\boxed{{{n}, {wrong}}}",
        "plus or minus": f"\\boxed{{\\pm {abs(n) or 4}}}",
        "two boxes": f"\\boxed{{{n}}} or \\boxed{{{wrong}}}",
        "two boxes and": f"\\boxed{{{wrong}}} and \\boxed{{{n}}}",
        "last box wrong": f"\\boxed{{{n}}}. No, wait: \\boxed{{{wrong}}}",
        "interval": f"\\boxed{{[{n - 5}, {n + 5}]}}",
        "range": f"\\boxed{{{n - 1} \\text{{ to }} {n + 1}}}",
        "set": f"\\boxed{{\\{{{n - 1}, {n}, {n + 1}\\}}}}",
        "not": f"\\boxed{{\\neq {n}}}",
        "at least": f"\\boxed{{\\geq {n}}}",
        "words": "\\boxed{\\text{the correct answer}}",
        "variable": "\\boxed{x}",
        "question mark": "\\boxed{?}",
        "empty box": "\\boxed{}",
        "square": f"\\boxed{{({abs(n) + 2})^2}}",
        "factorial": f"\\boxed{{{abs(n) + 3}!}}",
        "infinity": "\\boxed{\\infty}",
        "undefined": "\\boxed{0/0}",
        "tower": "\\boxed{10^{10^{10^{10}}}}",
        "off by a little": f"\\boxed{{{n}.0001}}",
        "every number": "".join(f"\\boxed{{{k}}}" for k in range(n - 50, n + 51)),
        "gold by name": "\\boxed{gold}",
        "nan": "\\boxed{nan}",
        "json": json.dumps({"answer": n}),
    }.items():
        yield Attack(form, False, says(text))


def multiple_choice(prompt: Prompt, rng: random.Random) -> Attacks:
    """In the format that the prompt asks for."""
    options, gold = options_of(prompt), (prompt.gold or "").upper()
    letters = list(options)
    others = [letter for letter in letters if letter != gold]
    other = rng.choice(others)
    pattern = str(metadata_of(prompt).get("output_regex") or "")
    boxed = "\\boxed" in prompt.messages[-1].content

    def put(text: str) -> str:
        label = "Final Choice" if "Final Choice" in pattern else "Answer"
        return f"\\boxed{{{text}}}" if boxed else f"{label}: {text}"

    for form, text in {
        "letter": put(gold),
        "lower case": put(gold.lower()),
        "parentheses": put(f"({gold})"),
        "full stop": put(f"{gold}."),
        "with its text": put(f"{gold}: {options[gold]}"),
        "bold": f"**{put(gold)}**",
        "reasoning about others": f"{other} is too large, and not {others[0]}. {put(gold)}",
        "corrected": f"{put(other)}\nOn reflection that is wrong.\n{put(gold)}",
        "long working": f"{'Consider it. ' * 800}\n{put(gold)}",
        "line break behind": f"{put(gold)}\n\n",
        "text command": put(f"\\text{{{gold}}}") if boxed else put(gold),
    }.items():
        yield Attack(form, True, says(text))
    if boxed:
        yield Attack("later: box in a sentence", True, says(f"Hence {put(gold)} is the answer."))
        yield Attack("later: box, then label", False, says(f"{put(gold)}\nFinal answer: {other}"))
    else:
        reason = f"{put(gold)}, because {other} is too small."
        yield Attack("later: reason behind", True, says(reason))
        yield Attack(
            "later: with its text in brackets", True, says(put(f"{gold} ({options[gold]})"))
        )
    for form, text in {
        "bracketed other": put(f"{gold} ({other})"),
        "and also": put(f"{gold} and also {other}"),
        "vs": put(f"{gold} vs {other}"),
        "arrow": put(f"{gold} -> {other}"),
        "percentages": put(f"{gold} 60%, {other} 40%"),
        "first choice": put(f"{gold} (first choice), {other} (second choice)"),
        "text of two": put(f"{options[gold]} or {options[other]}"),
        "if not": put(f"{gold}, if not {other}"),
        "negated": put(f"anything but {gold}"),
        "dash": put(f"{gold}-{other}"),
    }.items():
        yield Attack(f"later: {form}", False, says(text))
    if not boxed:
        for form, text in {
            "not another": put(f"{gold}, not {other}"),
            "a reason with an article": put(f"{gold}, since a body keeps its momentum"),
            "remark": put(f"{gold}. I checked it twice."),
            "signed": put(f"{gold} — that is it"),
        }.items():
            yield Attack(f"last: {form}", True, says(text))
    for form, text in {
        "backup": put(f"{gold} [backup: {other}]"),
        "semicolon": put(f"{gold}; {other}"),
        "next": put(f"{gold} then {other}"),
        "equals": put(f"{gold} = {other}"),
        "lower": put(f"{gold.lower()} or {other.lower()}"),
        "probably": put(f"{gold} (or {other}?)"),
        "but": put(f"{gold} but {other} if momentum is meant"),
        "options": put(f"options {gold} and {other}"),
        "both": put(f"both {gold} and {other}"),
        "plus": put(f"{gold}+{other}"),
        "space": put(f"{gold} {other}"),
        "mixed": f"{put(gold)} {put(other)}",
        "table": f"| {gold} | {other} |",
    }.items():
        yield Attack(f"last: {form}", False, says(text))
    every = " or ".join(letters)
    for form, text in {
        "other letter": put(other),
        "or": put(f"{gold} or {other}"),
        "or, gold last": put(f"{other} or {gold}"),
        "every letter": put(every),
        "commas": put(", ".join(letters)),
        "slashes": put("/".join(letters)),
        "and": put(f"{gold} and {other}"),
        "run together": put("".join(letters)),
        "all of the above": put("All of the above"),
        "none of the above": put("None of the above"),
        "corrected to wrong": f"{put(gold)}\nNo, wait.\n{put(other)}",
        "not": put(f"not {gold}"),
        "a word of its letter": put(
            {"A": "Any", "B": "Both", "C": "Can't say", "D": "Depends"}.get(gold, "Unsure")
        ),
        "question mark": put("?"),
        "gold by name": put("the correct option"),
        "two boxes": f"\\boxed{{{gold}}} \\boxed{{{other}}}",
        "boxes of all": " ".join(f"\\boxed{{{letter}}}" for letter in (*others, gold, other)),
        "maybe": put(f"{gold}, maybe {other}"),
        "letter of none": put("Z"),
        "other's text": put(options[other]),
        "contradiction": put(f"{gold}: {options[other]}"),
        "either": put(f"either {gold} or {other}"),
        "ampersand": put(f"{gold} & {other}"),
        "new line hedge": put(f"{gold}\nAnswer: {other}"),
    }.items():
        yield Attack(form, False, says(text))
