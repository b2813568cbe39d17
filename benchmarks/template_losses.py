"""What chat templates leave out of conversations, and whether `left_out` says so.

    python benchmarks/template_losses.py                  # the templates of the installed TRL
    python benchmarks/template_losses.py --random 40 --seed 1
    python benchmarks/template_losses.py --template own.jinja --details

Every part of a conversation (texts, traces, calls with their arguments, results, declared tools)
holds a word that occurs nowhere else. `transformers` renders each user turn through its last
message; a part whose word is missing there is lost. `left_out` knows nothing of these words.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from transformers.utils.chat_template_utils import render_jinja_template

from posttrain.chat import ChatTemplate, left_out, nemotron_3_nano_template
from posttrain.errors import RenderError
from posttrain.records import (
    Example,
    Message,
    ToolCall,
    json_text,
    make_example,
    message_to_template,
    tools_to_template,
)

VARIABLES: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 Jan 2026"}


@dataclass(frozen=True)
class Case:
    """A conversation; `words`: the word of each part, with the message it belongs to."""

    name: str
    example: Example
    words: Mapping[str, tuple[int | None, str]]


class _Words:
    """Words that occur nowhere else, each under the name of its part."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[int | None, str]] = {}

    def word(self, part: str, message: int | None) -> str:
        word = f"zq{len(self.of):03d}x"
        self.of[f"{part}@{message}" if message is not None else part] = (message, word)
        return word

    def text(self, part: str, message: int) -> str:
        """A word with what templates escape or trim around it."""
        word = self.word(part, message)
        return f' Look: "{word}" <b>&\n{{"é": [1, "\\n"]}}\n'


def cases(shapes: Mapping[str, str]) -> Iterator[Case]:
    """A conversation of each shape."""
    for name, plan in shapes.items():
        words = _Words()
        messages: list[Message] = []
        pending: list[tuple[str, str]] = []
        for k, part in enumerate(plan.split()):
            role, *features = part.split("+")
            if role in ("system", "user"):
                messages.append(Message(role, words.text(role, k)))
            elif role == "tool":
                call_id, called = pending.pop(0)
                text = words.text("result", k)
                messages.append(Message("tool", text, tool_call_id=call_id, name=called))
            else:
                calls = tuple(_call(words, k, n) for n in range(features.count("call")))
                pending += [(call.id or "", call.name) for call in calls]
                messages.append(
                    Message(
                        "assistant",
                        words.text("text", k) if "text" in features else "",
                        reasoning=words.text("reasoning", k) if "reasoning" in features else None,
                        tool_calls=calls,
                    )
                )
        tools = _tools(words) if name.startswith("tools") else None
        example = make_example(messages, tools=tools, source="x", dialect="openai")
        yield Case(name, example, words.of)


SHAPES = {
    "plain": "user assistant+text",
    "system": "system user assistant+text user assistant+text",
    "reasoning": "user assistant+reasoning+text",
    "reasoning, turns": "system user assistant+reasoning+text user assistant+reasoning+text",
    "reasoning, first turn": "user assistant+reasoning+text user assistant+text",
    "tools": "user assistant+text",
    "tools, system": "system user assistant+text",
    "tools, call": "user assistant+call tool assistant+text",
    "tools, call last": "user assistant+call",
    "tools, text beside a call": "user assistant+text+call tool assistant+text",
    "tools, text beside a last call": "system user assistant+text+call",
    "tools, parallel": "user assistant+call+call tool tool assistant+text",
    "tools, parallel, text": "system user assistant+text+call+call tool tool assistant+text",
    "tools, reasoning, call": "user assistant+reasoning+call tool assistant+reasoning+text",
    "tools, reasoning, call alone": "user assistant+reasoning+call tool assistant+text",
    "tools, reasoning, text, call": "user assistant+reasoning+text+call tool assistant+text",
    "tools, reasoning, parallel": "user assistant+reasoning+call+call tool tool assistant+text",
    "tools, steps": "user assistant+reasoning+call tool assistant+reasoning+call tool "
    "assistant+reasoning+text",
    "tools, turns": "system user assistant+call tool assistant+text user assistant+text+call tool "
    "assistant+text",
    "tools, turns, reasoning": "system user assistant+reasoning+call tool assistant+reasoning+text "
    "user assistant+reasoning+call tool assistant+reasoning+text",
    "call without tools": "user assistant+call tool assistant+text",
    "text beside a call without tools": "user assistant+text+call tool assistant+text",
}


def random_shapes(count: int, seed: int) -> dict[str, str]:
    """Shapes of one to three turns with any mixture of tools, texts, traces and parallel calls."""
    rng = random.Random(seed)
    shapes: dict[str, str] = {}
    for number in range(count):
        plan = ["system"] if rng.random() < 0.4 else []
        for _ in range(rng.randint(1, 3)):
            plan.append("user")
            for _ in range(rng.choice((0, 0, 1, 1, 2))):
                calls = rng.choice((1, 1, 2, 3))
                extra = [f for f in ("reasoning", "text") if rng.random() < 0.35]
                plan += ["+".join(["assistant", *extra, *["call"] * calls]), *["tool"] * calls]
            plan.append("assistant+text" + ("+reasoning" if rng.random() < 0.4 else ""))
        kind = "tools" if rng.random() < 0.7 else "plain"
        shapes[f"{kind} {number}: {' '.join(plan)}"] = " ".join(plan)
    return shapes


def _call(words: _Words, message: int, number: int) -> ToolCall:
    """Nine alphanumeric characters: the strictest form of call id that templates insist on."""
    name = words.word(f"call {number} name", message)
    arguments = {
        words.word(f"call {number} key", message): words.text(f"call {number} value", message),
        "deep": {"list": [1, words.word(f"call {number} nested", message), None, True]},
    }
    return ToolCall(name, json_text(arguments), id=f"call{message:02d}{number:03d}")


def _tools(words: _Words) -> str:
    def tool(number: int) -> dict[str, Any]:
        def word(part: str) -> str:
            return words.word(f"tool {number} {part}", None)

        inner = {word("inner parameter"): {"type": "string", "description": word("inner words")}}
        properties = {
            word("parameter"): {
                "type": "string",
                "description": word("parameter's description"),
                "enum": [word("choice"), "other"],
            },
            "options": {"type": "object", "description": "Options.", "properties": inner},
        }
        function = {
            "name": word("name"),
            "description": word("description"),
            "parameters": {"type": "object", "properties": properties, "required": ["options"]},
        }
        return {"type": "function", "function": function}

    return json_text([tool(0), tool(1)])


def lost_parts(source: str, case: Case) -> list[str] | None:
    """Parts whose word is missing from the end of their own user turn; None: not rendered.

    A conversation in which nobody reasons is trained as one text, and looked at as one.
    """
    messages = case.example.messages
    reasons = any(m.reasons for m in messages)
    users = [k for k, m in enumerate(messages) if m.role == "user"]
    stops = [*users[1:], len(messages)] if reasons else [len(messages)]
    texts: dict[int, str] = {}
    for stop in stops:
        rows = [message_to_template(m) for m in messages[:stop]]
        try:
            rendered, _ = render_jinja_template(
                conversations=[rows],
                tools=cast(Any, tools_to_template(case.example.tools)),  # it takes functions too
                chat_template=source,
                enable_thinking=reasons,
                **VARIABLES,
            )
        except Exception:  # noqa: BLE001 - a template refuses in whatever way it likes
            return None
        texts[stop] = rendered[0]
    lost: list[str] = []
    for part, (message, word) in case.words.items():
        # the first sequence that the message is in
        sequence_end = next(stop for stop in stops if stop > (message or 0))
        if word not in texts[sequence_end]:
            lost.append(part)
    return lost


def templates(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Names and sources of the templates in these files, or of those in the installed TRL."""
    if paths:
        yield from ((Path(path).stem, Path(path).read_text("utf-8")) for path in paths)
        return
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "chat_templates"
    for path in sorted(folder.glob("*.jinja")):
        yield path.stem, path.read_text("utf-8")


def _kind(part: str) -> str:
    """Name of a part without its numbers."""
    return " ".join(word for word in part.split("@")[0].split() if not word.isdigit())


def _finding(example: Example, template: ChatTemplate) -> str | None:
    """Part that our check says the template leaves out."""
    try:
        return left_out(example, template)
    except RenderError:  # no loss mask can be determined, so nothing can be built with it
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--template", action="append", default=[])
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--random", type=int, default=0, help="so many random shapes instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    special = nemotron_3_nano_template().special_tokens
    shapes = random_shapes(options.random, options.seed) if options.random else SHAPES
    totals: Counter[str] = Counter()
    for name, source in templates(options.template):
        template = ChatTemplate(source, name=name, variables=VARIABLES, special_tokens=special)
        kinds: Counter[str] = Counter()
        for case in cases(shapes):
            lost = lost_parts(source, case)
            if lost is None:
                totals["refused"] += 1
                continue
            finding = _finding(case.example, template)
            totals[f"{'lost' if lost else 'whole'} {'named' if finding else 'silent'}"] += 1
            kinds.update({_kind(part) for part in lost})
            if options.details and lost:
                print(f"  {name} | {case.name} | {', '.join(lost)} | {finding}")
            if finding and not lost:
                print(f"  FALSE ALARM {name} | {case.name} | {finding}")
            if lost and not finding:
                print(f"  MISSED {name} | {case.name} | {', '.join(lost)}")
        print(f"{name}: {', '.join(f'{kind} {n}' for kind, n in kinds.items()) or 'nothing lost'}")
    print(dict(totals))


if __name__ == "__main__":
    main()
