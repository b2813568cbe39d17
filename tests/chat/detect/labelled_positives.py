"""Texts that hold a call: real calls in every notation, and calls in text that others wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from posttrain.chat import ChatTemplate
from posttrain.errors import RenderError
from tests.chat.detect.labelled_forms import FORMS, HELD_OUT, REQUESTS
from tests.chat.detect.labelled_set import Case, Turn, rows, template_folder, turns

PREFIXES = ("", "", "", "I'll look that up for you.\n\n", "Sure, let me check.\n", "Let me call the tool now: ",
            "One moment. ", "First, I need the details.\n\n", "<|im_start|>assistant\n")  # fmt: skip
LINE_FORMS = frozenset({"react", "cohere", "langchain", "fenced_json", "tool_code", "pythonic",
                        "functions_dot", "qwen_agent", "xml_bare"})  # fmt: skip


def positives(shared: Path) -> Iterator[Case]:
    """Calls of every source in every form, in text of ours and in text of others."""
    yield from rendered(shared, FORMS, share=6)
    yield from rendered(shared, HELD_OUT, share=12)
    yield from half_open(shared)
    yield from requests(shared)
    yield from third_party(shared)
    yield from by_templates(shared)


def rendered(shared: Path, forms: dict[str, Any], share: int) -> Iterator[Case]:
    for source, found in turns(shared).items():
        step = max(1, len(found) // 120)
        for k, turn in enumerate(found[::step]):
            for j, (form, write) in enumerate(forms.items()):
                if (k + j) % share:
                    continue
                rng = Random(f"{turn.id}/{form}")
                text = write(turn.names, turn.arguments, rng)
                prefix = rng.choice(PREFIXES)
                if form in LINE_FORMS and prefix and not prefix.endswith("\n"):
                    prefix += "\n"
                text = prefix + text + rng.choice(["", "", "\n", "<|im_end|>"])
                where = rng.random() < 0.2
                yield Case(f"{source}/{turn.id}/{form}", form, True,
                           answer="The answer is 4." if where else text, prompt=turn.prompt,
                           reasoning=f"Let me think.\n{text}\nNow I know." if where else None)  # fmt: skip


def half_open(shared: Path) -> Iterator[Case]:
    """Calls that were cut off, or whose JSON is broken: the attempt counts."""
    found = turns(shared)["bfcl_nonlive"]
    for k, turn in enumerate(found[::10]):
        for form in ("nemotron_xml", "hermes_json", "mistral", "deepseek", "function_tag"):
            rng = Random(f"{k}/{form}")
            text = FORMS[form](turn.names[:1], turn.arguments[:1], rng)
            cut = rng.randrange(
                max(12, text.find(turn.names[0]) + len(turn.names[0]) + 2), len(text) + 1
            )
            yield Case(f"cut/{k}/{form}", f"half_{form}", True, text[:cut], prompt=turn.prompt)
        broken = FORMS["hermes_json"](turn.names[:1], turn.arguments[:1], Random(1))
        yield Case(f"broken/{k}", "malformed_json", True, broken.replace("}", "", 1), turn.prompt)
        single = f"<tool_call>\n{ {'name': turn.names[0], 'arguments': turn.arguments[0]} }\n</tool_call>"
        yield Case(f"single/{k}", "malformed_quotes", True, single, turn.prompt)


def requests(shared: Path) -> Iterator[Case]:
    questions = [row["question"] for row in rows(shared, "mmlu_dev_val")[:40]]
    for k, question in enumerate(questions):
        query = re.sub(r"[\n\"'\\<>{}\[\]]", " ", question)[:120].strip()
        for form, text in REQUESTS.items():
            yield Case(f"request/{k}/{form}", f"request_{form}", True,
                       text.format(query=query), prompt=question)  # fmt: skip


def third_party(shared: Path) -> Iterator[Case]:
    """Text that other people wrote."""
    for k, row in enumerate(rows(shared, "toolset_preference")):
        prompt = row["prompt"][-1]["content"]
        for side in ("chosen", "rejected"):
            if re.search(r"^tool_call: ", row[side], re.M):
                yield Case(f"toolset_preference/{k}/{side}", "toolset_lines", True, row[side],
                           prompt, ours=False)  # fmt: skip
    for k, row in enumerate(rows(shared, "lf_glaive_toolcall_en")):
        prompt = ""
        for j, turn in enumerate(row["conversations"]):
            if turn["from"] == "human":
                prompt = turn["value"]
            if turn["from"] == "function_call":
                yield Case(f"glaive/{k}/{j}", "glaive_json", True, turn["value"], prompt,
                           ours=False)  # fmt: skip
    for k, row in enumerate(rows(shared, "workbench_tasks")):
        calls = re.sub(r"\.func\(", "(", row["answer"])
        if calls != "[]":
            inner = [c[1:-1] if c[:1] in "'\"" else c for c in [calls[1:-1]]]
            if "', '" in inner[0] or "', \"" in inner[0]:
                continue
            yield Case(
                f"workbench/{k}", "workbench", True, f"[{inner[0]}]", row["query"], ours=False
            )


def by_templates(shared: Path) -> Iterator[Case]:
    """Calls as the chat templates of real models write them (those that TRL ships)."""
    folder = template_folder()
    found = turns(shared)["bfcl_nonlive"][::61]
    for path in sorted(folder.glob("*.jinja")):
        template = ChatTemplate(
            path.read_text("utf-8"),
            name=path.stem,
            variables={"bos_token": "", "eos_token": "</s>"},
        )
        for turn in found:
            text = _generated(template, turn)
            if text is not None and turn.names[0] in text:
                yield Case(f"template/{path.stem}/{turn.id}", f"template_{path.stem}", True, text,
                           turn.prompt, ours=False)  # fmt: skip


def _generated(template: ChatTemplate, turn: Turn) -> str | None:
    """What the assistant writes, None where the template writes no call of this shape."""
    name, arguments = turn.names[0], turn.arguments[0]
    tool = {"type": "function", "function": {"name": name, "description": "d",
            "parameters": {"type": "object", "properties": {k: {"type": "string"} for k in arguments}}}}  # fmt: skip
    call = {
        "type": "function",
        "id": "abcdef123",
        "function": {"name": name, "arguments": arguments},
    }
    user = {"role": "user", "content": turn.prompt}
    for arguments_as in (arguments, json.dumps(arguments)):
        call["function"]["arguments"] = arguments_as  # type: ignore[index]  # a literal dict
        try:
            before = template.text([user], tools=[tool], add_generation_prompt=True)
            after = template.text(
                [user, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=[tool]
            )
        except RenderError:
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
            min(len(before), len(after)),
        )
        cut = (
            after.rfind("<", 0, same) if after[:same].rfind("<") > after[:same].rfind(">") else same
        )
        return after[cut:].split("</think>")[-1]
    return None
