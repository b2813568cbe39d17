"""Right answers in many forms, for a bound on what verifiers refuse; written before their code
was read.

    for form, script in RIGHT["code"](prompt, rng): …

Every answer is built around the gold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from posttrain.records import Message
from posttrain.rollouts import Prompt, metadata_of
from reward.environments.base import Script, calls, says

Forms = Iterator[tuple[str, Script]]


def structured_output(prompt: Prompt, rng: random.Random) -> Forms:
    """The gold in other notations of the same format."""
    task, gold = metadata_of(prompt), json.loads(prompt.gold or "{}")
    mixed = dict(rng.sample(list(gold.items()), len(gold)))
    if task["format"] == "tool_call":
        call = (task["tool"], {task["payload"]: mixed})
        yield "call, keys in any order", calls(call)
        yield "call behind a question to oneself", calls(call, text="Who is it? Let me note that.")
        yield (
            "call, integer as float",
            calls((task["tool"], {task["payload"]: gold | {"age": float(gold["age"])}})),
        )
        yield "call behind reasoning", _reasoned(calls(call), "The age is given as a number.")
        spaced = {k: f"{v}  " if isinstance(v, str) and k == "name" else v for k, v in gold.items()}
        yield "call, white space behind a name", calls((task["tool"], {task["payload"]: spaced}))
        return
    if task["format"] == "json":
        text = json.dumps(mixed)
        pretty = json.dumps(mixed, indent="\t", ensure_ascii=False)
        yield "json, keys in any order", says(text)
        yield "json, tabs", says(pretty)
        yield "json, windows", says(json.dumps(gold, indent=2).replace("\n", "\r\n"))
        yield "json, spaced", says(json.dumps(gold, separators=(" , ", " : ")))
        yield "json, integer as float", says(json.dumps(gold | {"age": float(gold["age"])}))
        yield "json, capital fence", says(f"```JSON\n{pretty}\n```")
        yield "json, tilde fence", says(f"~~~json\n{text}\n~~~")
        yield "json, four backticks", says(f"````json\n{text}\n````")
        yield "json, indented fence", says(f"   ```json\n   {text}\n   ```")
        yield "json, fence with room", says(f"\n```json  \n\n{pretty}\n\n```\n")
        yield "json, escaped letters", says(text.replace("na", "n\\u0061"))
        yield "json, behind reasoning", _reasoned(says(text), "Name first.")
        return
    block = yaml.safe_dump(mixed, sort_keys=False, allow_unicode=True)
    yield "yaml, keys in any order", says(block)
    yield "yaml, windows", says(block.replace("\n", "\r\n"))
    yield "yaml, json", says(json.dumps(gold))
    yield "yaml, json on lines", says(json.dumps(gold, indent=2))
    yield "yaml, wide", says(yaml.safe_dump(gold, indent=6, sort_keys=False))
    yield "yaml, comment", says(f"# the record\n{block}")
    yield "yaml, end mark", says(f"---\n{block}...\n")
    yield "yaml, yml fence", says(f"```yml\n{block}```")
    yield "yaml, capital fence", says(f"```YAML\n{block}\n```")
    yield (
        "yaml, folded name",
        says(block.replace(f"name: {gold['name']}", f"name: >-\n  {gold['name']}")),
    )
    quoted = json.dumps(gold["name"])
    yield "yaml, quoted name", says(block.replace(f"name: {gold['name']}", f"name: {quoted}"))
    yield (
        "yaml, quoted keys",
        says(block.replace("name:", '"name":', 1).replace("age:", "'age':", 1)),
    )
    capital = block.replace(": true", ": True").replace(": false", ": FALSE")
    yield "yaml, capital booleans", says(capital)
    yield "yaml, behind reasoning", _reasoned(says(block), "A block is best.")


def tool_call(prompt: Prompt, rng: random.Random) -> Forms:
    """The same calls in other notations; questions for what is missing."""
    gold = json.loads(prompt.gold or "{}")
    if "message" in gold:
        [[word], _] = gold["mentions"]
        for k, text in enumerate(_QUESTIONS):
            yield f"asks {k}", says(text.format(word=word))
        yield "asks behind reasoning", _reasoned(says(f"Which {word}?"), f"The {word} is missing.")
        return
    made = [(call["name"], dict(call["arguments"])) for call in gold["calls"]]

    def with_values(change: Callable[[Any], Any]) -> Script:
        return calls(*((name, {k: change(v) for k, v in own.items()}) for name, own in made))

    yield (
        "arguments in any order",
        calls(*((name, dict(rng.sample(list(own.items()), len(own)))) for name, own in made)),
    )
    yield "calls in any order", calls(*rng.sample(made, len(made)), text="On it.")
    yield "behind reasoning", _reasoned(calls(*made), "I have all that I need.")
    yield "final stop", with_values(lambda v: f"{v}." if isinstance(v, str) else v)
    yield "wide", with_values(lambda v: v.replace(" ", "  ") if isinstance(v, str) else v)
    yield "line break at the end", with_values(lambda v: f"{v}\n" if isinstance(v, str) else v)
    yield (
        "whole number from a float",
        with_values(lambda v: int(v) if isinstance(v, float) and v == int(v) else v),
    )
    yield (
        "talk beside",
        calls(*made, text="Sure! One moment, please — I will look that up for you?"),
    )
    if any("unit" in own and own["unit"] == "celsius" for _, own in made):
        left = [(n, {k: v for k, v in own.items() if v != "celsius"}) for n, own in made]
        yield "default left out of all", calls(*left)


_QUESTIONS = (
    "Which {word} should I use?",
    "Happy to help! What {word} would you like?",
    "Before I go on, could you please give me the {word}?",
    "I'm missing one detail: the {word}. What is it?",
    "**{word}**: which one?",
    "Thanks. I still need one thing.\n\n- {word}?",
    "May I ask for the {word} first? Then I will take care of the rest.",
    "Sure — what’s the {word}?",
)


def _reasoned(script: Script, reasoning: str) -> Script:
    first = script[0]
    return (
        Message("assistant", first.content, reasoning=reasoning, tool_calls=first.tool_calls),
        *script[1:],
    )


def code(prompt: Prompt, rng: random.Random) -> Forms:
    """The gold's computation in programs of other shapes, and answers of other shapes."""
    gold, function = prompt.gold or "", metadata_of(prompt).get("function")
    if function:
        body = gold.split("return ", 1)[1]
        inner = f"    def run(self, xs):\n        return {body}"
        programs = {
            "lambda": f"{function} = lambda xs: {body}",
            "typed": f"from typing import Any\n\ndef {function}(xs: list[int]) -> Any:\n    "
            f'"""Compute it."""\n    return {body}',
            "helper": f"def _help(xs):\n    return {body}\n\ndef {function}(xs):\n    return _help(xs)",
            "method": f"class Solver:\n{inner}\n\n{function} = Solver().run",
            "default arguments": f"def {function}(xs=(), *, verbose=False):\n    xs = list(xs)\n"
            f"    if verbose:\n        print(xs)\n    return {body}",
            "prints beside": f"def {function}(xs):\n    print('called with', xs)\n    return {body}",
            "decorated": "import functools\n\ndef traced(f):\n    @functools.wraps(f)\n    def run(*a):\n"
            f"        return f(*a)\n    return run\n\n@traced\ndef {function}(xs):\n    return {body}",
            "tested below": f"{gold}\n\nif __name__ == '__main__':\n    print({function}([1, 2, 3]))",
            "called at once": f"{gold}\n\nassert {function}([]) is not None or True\nprint('ok')",
            "tuple": f"def {function}(xs):\n    result = {body}\n"
            "    return tuple(result) if isinstance(result, list) else result",
            "inner": f"def {function}(xs):\n    def go():\n        return {body}\n    return go()",
        }  # fmt: skip
    else:
        body = gold.split("result = ", 1)[1].split("\n", 1)[0]
        show = "' '.join(map(str, result)) if isinstance(result, list) else str(result)"
        programs = {
            "main": f"def main():\n    xs = list(map(int, input().split()))\n    result = {body}\n"
            f"    print({show})\n\nif __name__ == '__main__':\n    main()",
            "stdin": f"import sys\nxs = [int(x) for x in sys.stdin.read().split()]\nresult = {body}\n"
            f"sys.stdout.write({show})",
            "readline": f"import sys\nxs = [int(x) for x in sys.stdin.readline().split()]\nresult = {body}\n"
            f"sys.stdout.write({show} + '\\n')",
            "trailing space": gold.replace("print(*result)", "print(*result, end=' \\n')"),
            "exits": f"import sys\n{gold}\nsys.exit(0)",
            "lines of bytes": f"import sys\nxs = [int(x) for x in sys.stdin.buffer.readline().split()]\n"
            f"result = {body}\nprint({show})",
            "class": f"class Solver:\n    def run(self, xs):\n        return {body}\n\n"
            f"result = Solver().run([int(x) for x in input().split()])\nprint({show})",
            "to stderr beside": f"import sys\nprint('debug', file=sys.stderr)\n{gold}",
            "empty lines behind": f"{gold}\nprint()",
        }  # fmt: skip
    for form, program in programs.items():
        yield form, says(f"```python\n{program}\n```")
    for form, text in {
        "python3 fence": f"```python3\n{gold}\n```",
        "fence with a title": f'```python title="a.py"\n{gold}\n```',
        "fence in braces": f"```{{.python}}\n{gold}\n```",
        "four backticks": f"````python\n{gold}\n````",
        "tildes": f"~~~python\n{gold}\n~~~",
        "room after the name": f"```python   \n\n\n{gold}\n\n```   \n",
        "sample output behind": f"```python\n{gold}\n```\n\nFor `1 2 3` it prints:\n\n```\n5\n```",
        "sample as text behind": f"```python\n{gold}\n```\nOutput:\n```text\n5\n```",
        "shell behind": f"```python\n{gold}\n```\nRun it:\n```bash\npython3 a.py\n```",
        "in a list": f"1. The program:\n\n   ```python\n   {gold.replace(chr(10), chr(10) + '   ')}\n   ```",
        "heading and talk": f"## Solution\n\nUse `sum` with care.\n\n```python\n{gold}\n```\n\n**Note:** O(n).",
        "backticks inside": f"```python\ntext = '```'\n{gold}\n```",
        "sample input before": f"Input:\n```\n1 2 3\n```\nProgram:\n```python\n{gold}\n```",
    }.items():
        yield form, says(text)


RIGHT: dict[str, Callable[[Prompt, random.Random], Forms]] = {
    "structured_output": structured_output,
    "tool_call": tool_call,
    "code": code,
}
