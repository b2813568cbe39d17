"""Structured outputs and tool calls that are nearly right, and right ones in unusual shapes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import yaml

from posttrain.rollouts import Prompt, metadata_of
from reward.environments.base import Script, calls, says
from reward.environments.structured_output import filler
from reward.environments.tool_call import declared
from tests.reward.environments.attacks.base import Attack, Attacks


def structured_output(prompt: Prompt, rng: random.Random) -> Attacks:
    """Text formats and calls; `put` writes a value in the requested one."""
    task, gold = metadata_of(prompt), json.loads(prompt.gold or "{}")
    kind = task["format"]

    def put(value: Any) -> Script:
        if kind == "tool_call":
            return calls((task["tool"], {task["payload"]: value}))
        if kind == "json":
            return says(json.dumps(value))
        return says(yaml.safe_dump(value, sort_keys=False))

    for name, value in gold.items():
        if isinstance(value, str):
            for form, text in {
                "marked": f"{value}!", "negated": f"not {value}", "empty": "", "cut": value[:-1],
                "asked": f"{value}?", "both": f"{value}/{value}s",
            }.items():  # fmt: skip
                yield Attack(f"later: {form}", False, put(gold | {name: text}))
        elif isinstance(value, list):
            yield Attack("later: shorter list", False, put(gold | {name: value[1:]}))
            yield Attack("later: doubled list", False, put(gold | {name: value * 2}))
    yield Attack("later: nested", False, put({"person": gold}))
    yield Attack("later: spaced name", True, put(gold | {"name": f" {gold['name']} "}))
    backwards = dict(reversed(gold.items()))
    yield Attack("keys backwards", True, put(backwards))
    yield Attack("shouted name", True, put(gold | {"name": gold["name"].upper()}))
    if kind == "tool_call":
        script = put(gold)

        yield Attack(
            "text beside", True, calls((task["tool"], {task["payload"]: gold}), text="I record it.")
        )
        yield Attack("two calls", False, (script + put(gold))[:1] + script)
        twice = [(task["tool"], {task["payload"]: gold})] * 2
        yield Attack("called twice", False, calls(*twice))
        yield Attack("other tool", False, calls(("save", {task["payload"]: gold})))
        yield Attack("no wrapper", False, calls((task["tool"], gold)))
        yield Attack("as text", False, says(json.dumps({task["payload"]: gold})))
        text = json.dumps({"name": task["tool"], "arguments": {task["payload"]: gold}})
        yield Attack("call as text", False, says(f"<tool_call>{text}</tool_call>"))
        yield Attack("payload as text", False, calls((task["tool"], {task["payload"]: text})))
    else:
        written = put(gold)[0].content
        yield Attack("fenced", True, says(f"```{kind}\n{written}\n```"))
        yield Attack("bare fence", True, says(f"```\n{written}\n```"))
        yield Attack("white space", True, says(f"\n\n{written}\n\n"))
        if kind == "json":
            yield Attack("indented", True, says(json.dumps(gold, indent=4)))
            yield Attack("compact", True, says(json.dumps(gold, separators=(",", ":"))))
            escaped = "".join(f"\\u{ord(c):04x}" for c in gold["name"])
            yield Attack("escapes", True, says(json.dumps(gold).replace(gold["name"], escaped)))
            name = json.dumps(gold["name"])
            twice = json.dumps(gold)[:-1] + f', "name": {name}}}'
            yield Attack("repeated key", False, says(twice))
            yield Attack("trailing comma", False, says(json.dumps(gold)[:-1] + ",}"))
            yield Attack("single quotes", False, says(str(gold)))
            yield Attack("comment", False, says("// valid\n" + written))
            yield Attack("not a number", False, says(json.dumps(gold | {"age": float("nan")})))
            yield Attack("yaml instead", False, says(yaml.safe_dump(gold)))
        else:
            yield Attack("document mark", True, says(f"---\n{written}"))
            yield Attack("flow", True, says(yaml.safe_dump(gold, default_flow_style=True)))
            bomb = "a: &a [x,x]\n" + "".join(f"{c}: &{c} [*a,*a]\n" for c in "bcdefgh")
            yield Attack("aliases", False, says(bomb))
            yield Attack("python tag", False, says("name: !!python/object/apply:os.getcwd []"))
            yield Attack("two documents", False, says(f"{written}\n---\n{written}"))
        yield Attack("prose before", False, says(f"Here it is: {written}"))
        yield Attack("prose behind", False, says(f"{written}\nI hope this helps: really."))
        yield Attack("twice", False, says(f"{written}\n{written}"))
        yield Attack("cut off", False, says(written[: len(written) // 2]))
        yield Attack("call instead", False, calls(("record", gold)))
    yield Attack("filler", False, put(filler(task["schema"])))
    for name in gold:
        yield Attack("missing field", False, put({k: v for k, v in gold.items() if k != name}))
        yield Attack("null field", False, put(gold | {name: None}))
        other = _another(gold[name], task["schema"]["properties"][name])
        yield Attack("other value", False, put(gold | {name: other}))
    yield Attack("extra field", False, put(gold | {"verified": True}))
    yield Attack("in a list", False, put([gold]))
    yield Attack("empty object", False, put({}))
    yield Attack("null", False, put(None))
    yield Attack("the schema", False, put(task["schema"]))
    yield Attack("number as text", False, put(gold | {"age": str(gold["age"])}))
    yield Attack("hedged value", False, put(gold | {"name": f"{gold['name']} or Ana Sousa"}))
    yield Attack("age off by one", False, put(gold | {"age": gold["age"] + 1}))
    yield Attack("deep", False, says("[" * 5000 + "]" * 5000))


def _another(value: Any, schema: Mapping[str, Any]) -> Any:
    """Another value that fits the schema."""
    if "enum" in schema:
        return next(one for one in schema["enum"] if one != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value - 1 if value >= 1 else value + 1
    if isinstance(value, list):
        return [*value, "juggling"]
    if isinstance(value, dict):
        return value | {"town": "Nowhere"}
    return f"{value} Junior"


def tool_call(prompt: Prompt, rng: random.Random) -> Attacks:
    """Calls that are nearly right, and messages."""
    gold = json.loads(prompt.gold or "{}")
    tools = declared(prompt)
    some = next(iter(tools))
    if "message" in gold:
        [[word], _] = gold["mentions"]
        yield Attack("asks", True, says(f"Sure. Could you tell me the {word}?"))
        yield Attack("asks in capitals", True, says(f"WHICH {word.upper()}?"))
        yield Attack("asks at length", True, says(f"I can do that. What is the {word}, please?"))
        for form, text in {
            "ok": "OK.",
            "done": "Done! Everything is booked.",
            "anything else": "Can I help you with anything else?",
            "asks for all": f"What are the {' and '.join(gold['avoids'])} and {word}?",
            "asks for another": f"What is the {gold['avoids'][0]}?",
            "statement": f"I used the default {word}.",
            "made up": f"The {word} is Bonn, so it is done.",
        }.items():
            yield Attack(f"message: {form}", False, says(text))
        yield Attack("a call", False, calls((some, {})))
        yield Attack("asks and calls", False, calls((some, {}), text=f"Which {word}?"))
        return
    made = [(call["name"], dict(call["arguments"])) for call in gold["calls"]]
    for k, (called, given) in enumerate(made):
        for key, value in given.items():
            for form, changed in {
                "negative": -value if type(value) in (int, float) else f"not {value}",
                "a little more": value + 1e-3 if type(value) in (int, float) else f"{value}s",
                "empty": [] if isinstance(value, list) else "",
                "object": {"value": value},
            }.items():
                others = [*made[:k], (called, given | {key: changed}), *made[k + 1 :]]
                yield Attack(f"later: {form}", False, calls(*others))
        yield Attack("later: name in capitals", False, calls((called.upper(), given), *made[1:]))
    (name, arguments), rest = made[0], made[1:]
    yield Attack("keys backwards", True, calls((name, dict(reversed(arguments.items()))), *rest))
    yield Attack("calls backwards", True, calls(*reversed(made)))
    yield Attack("text beside", True, calls(*made, text="Let me look that up."))
    floats = {k: float(v) if type(v) is int else v for k, v in arguments.items()}
    yield Attack("float for integer", True, calls((name, floats), *rest))
    lower = {k: v.lower() if isinstance(v, str) else v for k, v in arguments.items()}
    yield Attack("lower case", lower == arguments, calls((name, lower), *rest))
    spaced = {k: f" {v} " if isinstance(v, str) else v for k, v in arguments.items()}
    yield Attack("spaces", True, calls((name, spaced), *rest))
    if arguments.get("unit") == "celsius":
        left = {k: v for k, v in arguments.items() if k != "unit"}
        yield Attack("default left out", True, calls((name, left), *rest))
    yield Attack("no call", False, says("I have done it."))
    yield Attack("call as text", False, says(json.dumps({"name": name, "arguments": arguments})))
    yield Attack("nothing given", False, calls((name, {}), *rest))
    yield Attack("once more", False, calls(*made, made[0]))
    yield Attack("undeclared", False, calls(("answer", arguments), *rest))
    for other in [tool for tool in tools if tool != name][:1]:
        yield Attack("other tool", False, calls((other, arguments), *rest))
        yield Attack("other tool too", False, calls(*made, (other, {})))
    yield Attack("wrapped", False, calls((name, {"arguments": arguments}), *rest))
    if rest:
        yield Attack("one of two", False, calls(made[0]))
        yield Attack("the same twice", False, calls(made[0], made[0]))
    for key, value in arguments.items():
        left = {k: v for k, v in arguments.items() if k != key}
        if value != "celsius":
            yield Attack("left out", False, calls((name, left), *rest))
        yield Attack("null", False, calls((name, arguments | {key: None}), *rest))
        wrong = _another(value, {})
        yield Attack("other value", False, calls((name, arguments | {key: wrong}), *rest))
        yield Attack("in a list", False, calls((name, arguments | {key: [value]}), *rest))
        if not isinstance(value, str):
            text = arguments | {key: json.dumps(value)}
            yield Attack("as text", False, calls((name, text), *rest))
        else:
            hedge = arguments | {key: f"{value} or Lima"}
            yield Attack("hedged", False, calls((name, hedge), *rest))
    yield Attack("extra argument", False, calls((name, arguments | {"force": True}), *rest))
    yield Attack("many calls", False, calls(*made * 20))
