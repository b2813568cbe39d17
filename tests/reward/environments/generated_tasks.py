"""Generated rows for the environments whose tasks otherwise come from data, the same for a seed.

    rows("code", seed=0, count=200) → [{"environment": "code", "question": …, "gold": …}, …]

For gold replay and the red team; docs/guides/environments.md. Other environments generate theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

from posttrain.records import json_text
from reward.environments import ENVIRONMENTS
from reward.environments.structured_output import FORMATS

Fields = Mapping[str, Any]


def rows(environment: str, *, seed: int, count: int) -> list[dict[str, Any]]:
    """`count` rows of an environment."""
    if environment not in MAKERS:
        return ENVIRONMENTS[environment]().rows(seed=seed, count=count)
    generated: list[dict[str, Any]] = []
    for number in range(count):
        rng = random.Random(f"{seed}/{environment}/{number}")
        row = {"environment": environment, "id": f"{environment}-{seed}-{number}"}
        generated.append(row | MAKERS[environment](rng))
    return generated


def _math(rng: random.Random) -> dict[str, Any]:
    value = rng.randint(2, 99)
    text = str(value)
    for _ in range(rng.randint(1, 4)):
        sign, other = rng.choice("+-*"), rng.randint(2, 30)
        text = f"({text}) {sign} {other}"
        value = {"+": value + other, "-": value - other, "*": value * other}[sign]
    question = f"What is {text}? Put your final answer in \\boxed{{}}."
    return {"question": question, "gold": str(value)}


# wording, unit, value of the two quantities
_FORMULAS: tuple[tuple[str, str, Callable[[int, int], float]], ...] = (
    ("A body of {a} kg moves at {b} m/s. What is its momentum?", "kg m/s", lambda a, b: a * b),
    ("A current of {a} A flows through {b} ohm. What is the voltage?", "V", lambda a, b: a * b),
    ("A force of {a} N acts along {b} m. What is the work?", "J", lambda a, b: a * b),
    ("A wave has {a} Hz and a wavelength of {b} m. What is its speed?", "m/s", lambda a, b: a * b),
    ("A body of {a} kg speeds up by {b} m/s². Which force acts on it?", "N", lambda a, b: a * b),
    ("What is the kinetic energy of {a} kg at {b} m/s?", "J", lambda a, b: a * b * b / 2),
    ("{a} mol are dissolved in {b} L. What is the concentration?", "mol/L", lambda a, b: a / b),
)
_ENDINGS = (
    ("Put the letter of your choice in \\boxed{}.", None),
    ('End with "Answer: X", where X is the option\'s letter.', None),
    ('Conclude with "Final Choice: X".', r"Final Choice:\s*([A-Za-z])\s*"),
)


def _multiple_choice(rng: random.Random) -> dict[str, Any]:
    wording, unit, formula = rng.choice(_FORMULAS)
    a, b = rng.randint(2, 40), rng.randint(2, 40)
    right = formula(a, b)
    values = dict.fromkeys(f"{v:g}" for v in (right, right * 10, right + a, right / 2, right + 1))
    texts = [f"{value} {unit}" for value in list(values)[:4]]
    gold = texts[0]
    rng.shuffle(texts)
    options = dict(zip("ABCD", texts, strict=False))
    ending, pattern = rng.choice(_ENDINGS)
    listed = "\n".join(f"{letter}: {text}" for letter, text in options.items())
    metadata: dict[str, Any] = {"options": options}
    return {
        "question": f"{wording.format(a=a, b=b)}\n{listed}\n\n{ending}",
        "gold": next(letter for letter, text in options.items() if text == gold),
        "metadata": metadata | ({"output_regex": pattern} if pattern else {}),
    }


# name → what it does with a list of integers, its body in terms of `xs` and `k`, the reference
_TASKS: dict[str, tuple[str, str, Callable[[list[int], int], Any]]] = {
    "total_of_multiples": (
        "the sum of those that are divisible by {k}",
        "sum(x for x in xs if x % {k} == 0)",
        lambda xs, k: sum(x for x in xs if x % k == 0),
    ),
    "count_above": (
        "how many are greater than {k}",
        "sum(1 for x in xs if x > {k})",
        lambda xs, k: sum(x > k for x in xs),
    ),
    "largest_gap": (
        "the largest gap between neighbours in sorted order, times {k}; 0 for fewer than two",
        "max([b - a for a, b in zip(sorted(xs), sorted(xs)[1:])], default=0) * {k}",
        lambda xs, k: max((b - a for a, b in pairwise(sorted(xs))), default=0) * k,
    ),
    "rotated": (
        "the list rotated to the left by {k} places",
        "xs[{k} % len(xs):] + xs[:{k} % len(xs)] if xs else []",
        lambda xs, k: xs[k % len(xs) :] + xs[: k % len(xs)] if xs else [],
    ),
    "distinct_remainders": (
        "the distinct remainders after division by {k}, in ascending order",
        "sorted({{x % {k} for x in xs}})",
        lambda xs, k: sorted({x % k for x in xs}),
    ),
    "running_totals": (
        "the running totals, each modulo {k}",
        "[sum(xs[:i + 1]) % {k} for i in range(len(xs))]",
        lambda xs, k: [sum(xs[: i + 1]) % k for i in range(len(xs))],
    ),
    "without_repeats": (
        "the list without any value that was seen among the {k} before it",
        "[x for i, x in enumerate(xs) if x not in xs[max(0, i - {k}):i]]",
        lambda xs, k: [x for i, x in enumerate(xs) if x not in xs[max(0, i - k) : i]],
    ),
}


def _code(rng: random.Random) -> dict[str, Any]:
    task, k = rng.choice(list(_TASKS)), rng.randint(2, 9)
    wording, body, reference = _TASKS[task]
    lists = [[], *([rng.randint(-9, 12) for _ in range(rng.randint(1, 9))] for _ in range(7))]
    body = body.format(k=k)
    fenced = "Answer with one ```python block."
    if rng.random() < 0.5:
        question = f"Write a function `{task}(xs)` that takes a list of integers and returns "
        gold = f"def {task}(xs):\n    return {body}"
        tests: list[dict[str, Any]] = [{"input": [xs], "output": reference(xs, k)} for xs in lists]
        metadata: dict[str, Any] = {"function": task, "tests": tests}
    else:
        question = "Read a line of integers, separated by spaces (it may be empty), and print "
        gold = f"xs = [int(x) for x in input().split()]\nresult = {body}\n"
        gold += "print(*result) if isinstance(result, list) else print(result)"
        tests = [
            {"input": f"{_line(xs)}\n", "output": f"{_line(reference(xs, k))}\n"} for xs in lists
        ]
        metadata = {"tests": tests}
    return {
        "question": f"{question}{wording.format(k=k)}. {fenced}",
        "gold": gold,
        "metadata": metadata,
    }


def _line(value: Any) -> str:
    return " ".join(map(str, cast(list[Any], value) if isinstance(value, list) else [value]))


_NAMES = ("Mara Holt", "Jun Park", "Ines Roy", "Tomas Beck", "Ana Sousa", "Paul Njoroge", "Li Na")
_TOWNS = ("Graz", "Porto", "Bergen", "Leeds", "Nairobi", "Sapporo", "Halifax")
_TRADES = ("baker", "pilot", "nurse", "welder", "teacher", "plumber")
_SKILLS = ("rowing", "chess", "pottery", "sailing", "baking", "hiking", "fencing")
_LIST = {"type": "array", "items": {"type": "string"}}
_SENTENCES = {
    "name": "{} wrote to us.",
    "age": "Age: {}.",
    "trade": "Works as a {}.",
    "town": "Lives in {}.",
    "street": "The street is {}.",
    "skills": "Good at {}.",
    "rating": "Rated {} of 5.",
    "member": "Member of the club: {}.",
}


def _structured_output(rng: random.Random) -> dict[str, Any]:
    value: dict[str, Any] = {"name": rng.choice(_NAMES), "age": rng.randint(18, 90)}
    schema: dict[str, Any] = {"name": {"type": "string"}, "age": {"type": "integer"}}
    options: list[tuple[str, Any, dict[str, Any]]] = [
        ("trade", rng.choice(_TRADES), {"type": "string", "enum": list(_TRADES)}),
        ("skills", rng.sample(_SKILLS, rng.randint(1, 3)), _LIST),
        ("rating", rng.randint(2, 9) / 2, {"type": "number", "minimum": 0, "maximum": 5}),
        ("member", rng.random() < 0.5, {"type": "boolean"}),
    ]  # fmt: skip
    for key, one, kind in rng.sample(options, rng.randint(1, 4)):
        value[key], schema[key] = one, kind
    fields = {f"/{key}": one for key, one in value.items()}
    if rng.random() < 0.5:
        address = {"town": rng.choice(_TOWNS), "street": f"{rng.choice(_TRADES).title()} Lane"}
        value["address"] = address
        schema["address"] = _object({key: {"type": "string"} for key in address})
        fields |= {f"/address/{key}": one for key, one in address.items()}
    told = value | value.get("address", {})
    sentences = [
        _SENTENCES[key].format(
            ", ".join(one) if isinstance(one, list) else {True: "yes", False: "no"}.get(one, one)
            if isinstance(one, bool) else one
        )
        for key, one in told.items() if key in _SENTENCES
    ]  # fmt: skip
    kind, whole = rng.choice(FORMATS), _object(schema)
    asked = {
        "json": f"Answer with JSON alone, by this schema: {json_text(whole)}",
        "yaml": f"Answer with YAML alone, by this schema: {json_text(whole)}",
        "tool_call": "Record it with the tool.",
    }[kind]
    metadata: dict[str, Any] = {"schema": whole, "format": kind, "fields": fields}
    row: dict[str, Any] = {
        "question": f"{' '.join(sentences)}\n\n{asked}",
        "gold": value,
        "metadata": metadata,
    }
    if kind == "tool_call":
        metadata |= {"tool": "record", "payload": "person"}
        parameters = _object({"person": whole})
        function = {"name": "record", "description": "Record a person.", "parameters": parameters}
        row["tools"] = [{"type": "function", "function": function}]
    return row


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_CITIES = ("Bonn", "Lima", "Oslo", "Quito", "Kyoto", "New York", "San Juan", "Accra", "Turin")
_PEOPLE = ("Ada Byron", "Lin Wei", "Omar Sy", "Rosa Diaz", "Ken Ito", "Eva Nagy")
_UNITS = ("celsius", "kelvin", "fahrenheit")
# tool → description, parameter → (schema, what a message calls it), wording of a full request
_TOOLS: dict[str, tuple[str, dict[str, tuple[dict[str, Any], str]], str]] = {
    "get_weather": (
        "The weather of a day.",
        {
            "city": ({"type": "string"}, "city"),
            "days_ahead": ({"type": "integer"}, "day"),
            "unit": ({"type": "string", "enum": list(_UNITS), "default": "celsius"}, "unit"),
        },
        "What is the weather in {city} in {days_ahead} days, in {unit}?",
    ),
    "book_table": (
        "Book a table.",
        {
            "name": ({"type": "string"}, "name"),
            "guests": ({"type": "integer"}, "guests"),
            "outdoors": ({"type": "boolean"}, "outdoors"),
        },
        "Book a table for {guests} for {name}; outdoors: {outdoors}.",
    ),
    "convert_money": (
        "Convert an amount.",
        {
            "amount": ({"type": "number"}, "amount"),
            "source": ({"type": "string"}, "currency"),
            "target": ({"type": "string"}, "currency"),
        },
        "How much is {amount} {source} in {target}?",
    ),
    "send_invoice": (
        "Send an invoice.",
        {
            "customer": ({"type": "string"}, "customer"),
            "items": ({"type": "array", "items": {"type": "string"}}, "items"),
            "total": ({"type": "number"}, "total"),
        },
        "Send {customer} an invoice over {total} for {items}.",
    ),
}
_CURRENCIES = ("EUR", "USD", "JPY", "PEN", "GHS", "NOK")
_GOODS = ("lamp", "desk", "chair", "shelf", "rug")


def _values(rng: random.Random, tool: str) -> dict[str, Any]:
    match tool:
        case "get_weather":
            return {
                "city": rng.choice(_CITIES),
                "days_ahead": rng.randint(1, 9),
                "unit": rng.choice(_UNITS),
            }
        case "book_table":
            return {
                "name": rng.choice(_PEOPLE),
                "guests": rng.randint(2, 12),
                "outdoors": rng.random() < 0.5,
            }
        case "convert_money":
            source, target = rng.sample(_CURRENCIES, 2)
            amount = rng.choice((rng.randint(5, 900), rng.randint(50, 9000) / 10))
            return {"amount": amount, "source": source, "target": target}
        case _:
            return {
                "customer": rng.choice(_PEOPLE),
                "items": rng.sample(_GOODS, rng.randint(1, 3)),
                "total": rng.randint(100, 9999) / 4,
            }


def _wording(tool: str, values: Fields) -> str:
    spelled = {
        name: ", ".join(value) if isinstance(value, list) else str(value).lower()
        if isinstance(value, bool) else value
        for name, value in values.items()
    }  # fmt: skip
    return _TOOLS[tool][2].format(**spelled)


def _schema(tool: str) -> dict[str, Any]:
    description, parameters, _ = _TOOLS[tool]
    properties = {name: schema for name, (schema, _) in parameters.items()}
    required = [name for name, schema in properties.items() if "default" not in schema]
    function = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": tool, "description": description, "parameters": function},
    }


def _tool_call(rng: random.Random) -> dict[str, Any]:
    tools = rng.sample(list(_TOOLS), 3)
    kind = rng.choice(("one", "two", "missing"))
    chosen = tools[: 2 if kind == "two" else 1]
    made = [(tool, _values(rng, tool)) for tool in chosen]
    question = " ".join(_wording(tool, values) for tool, values in made)
    gold: dict[str, Any] = {"calls": [{"name": t, "arguments": values} for t, values in made]}
    if kind == "missing":
        [(tool, values)] = made
        required: list[str] = _schema(tool)["function"]["parameters"]["required"]
        missing = rng.choice(required)
        word = _TOOLS[tool][1][missing][1]
        question = _wording(tool, values | {missing: "…"}) + " I will say what … is if you ask."
        others = {w for t in tools for _, w in _TOOLS[t][1].values()} - {word}
        gold = {
            "message": f"Which {word} do you mean?",
            "mentions": [[word], ["?"]],
            "avoids": sorted(others),
        }
    rng.shuffle(tools)
    return {
        "messages": [
            {"role": "system", "content": "Call tools, or ask for what is missing."},
            {"role": "user", "content": question},
        ],
        "tools": [_schema(tool) for tool in tools],
        "gold": gold,
    }


MAKERS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "math": _math,
    "multiple_choice": _multiple_choice,
    "code": _code,
    "structured_output": _structured_output,
    "tool_call": _tool_call,
}
