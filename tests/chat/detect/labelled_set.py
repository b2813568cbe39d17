"""A labelled set made of real data: texts that hold a call, and texts that do not.

cases = list(positives(shared)) + list(negatives(shared))
cases[0] → Case("tau_bench_airline/3", "hermes_json", call=True, prompt=…, reasoning=None, answer=…)

Nothing of the data is kept here: it is read where it lies, each time.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from posttrain.chat import ChatTemplate
from posttrain.errors import RenderError
from tests.chat.detect.labelled_forms import FORMS, HELD_OUT, REQUESTS


@dataclass(frozen=True)
class Case:
    """A text with its label; `hard` marks negatives that look like calls."""

    id: str
    form: str
    call: bool
    answer: str
    prompt: str = ""
    reasoning: str | None = None
    tools: str | None = None
    ours: bool = True  # whether the notation was rendered by FORMS
    hard: bool = False


@lru_cache(maxsize=32)
def rows(shared: Path, name: str) -> list[dict[str, Any]]:
    lines = (shared / "data" / f"{name}.jsonl").read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


@dataclass(frozen=True)
class Turn:
    """Calls of one real assistant turn and the user message before it."""

    id: str
    prompt: str
    names: list[str]
    arguments: list[dict[str, Any]]
    tools: str | None


def _openai_turns(source: str, record: int, messages: list[Any], tools: Any) -> Iterator[Turn]:
    prompt = ""
    for k, message in enumerate(messages):
        if message["role"] == "user":
            prompt = message["content"] or ""
        calls = message.get("tool_calls") or []
        if calls:
            functions = [call["function"] for call in calls]
            yield Turn(
                f"{source}/{record}/{k}",
                prompt,
                [f["name"] for f in functions],
                [json.loads(f["arguments"]) for f in functions],
                json.dumps(tools) if tools else None,
            )


@lru_cache(maxsize=2)
def turns(shared: Path) -> dict[str, list[Turn]]:
    """Real calls by source."""
    found: dict[str, list[Turn]] = {}
    for name in ("tau_bench_airline", "sgd_openai_tools"):
        found[name] = [
            turn
            for k, row in enumerate(rows(shared, name))
            for turn in _openai_turns(name, k, row["messages"], row.get("tools"))
        ]
    found["toolset_tools"] = [
        turn
        for k, row in enumerate(rows(shared, "toolset_tools"))
        for turn in _openai_turns("toolset_tools", k, row["conversations"], None)
    ]
    found["bfcl_nonlive"] = [t for row in rows(shared, "bfcl_nonlive") for t in _bfcl(row)]
    glaive = rows(shared, "lf_glaive_toolcall_en")
    found["lf_glaive"] = [t for k, row in enumerate(glaive) for t in _glaive(k, row)]
    found["nemo_gym"] = [t for row in rows(shared, "nemo_gym_example_tasks") for t in _gym(row)]
    return found


def _bfcl(row: dict[str, Any]) -> Iterator[Turn]:
    names: list[str] = []
    arguments: list[dict[str, Any]] = []
    for call in row.get("ground_truth") or []:
        for name, values in call.items():
            names.append(name)
            arguments.append({k: v[0] for k, v in values.items() if v and v[0] != ""})
    if names:
        prompt = row["question"][0][-1]["content"]
        yield Turn(row["id"], prompt, names, arguments, None)


def _glaive(k: int, row: dict[str, Any]) -> Iterator[Turn]:
    prompt = ""
    for j, turn in enumerate(row["conversations"]):
        if turn["from"] == "human":
            prompt = turn["value"]
        if turn["from"] == "function_call":
            call = json.loads(turn["value"])
            for one in call if isinstance(call, list) else [call]:
                yield Turn(f"glaive/{k}/{j}", prompt, [one["name"]], [one["arguments"]],
                           row["tools"] or None)  # fmt: skip


def _gym(row: dict[str, Any]) -> Iterator[Turn]:
    params = row["task"].get("responses_create_params") or {}
    items = params.get("input")
    expected = row["task"].get("expected_action") or {}
    calls = [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []
    prompt = next(
        (c["content"] for c in calls if c.get("role") == "user" and isinstance(c["content"], str)),
        "",
    )
    for k, item in enumerate([*calls, expected, *expected.get("calls", [])]):
        if item.get("type") == "function_call":
            yield Turn(f"gym/{row['env']}/{k}", prompt, [item["name"]],
                       [json.loads(item["arguments"])], None)  # fmt: skip


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
    folder = _template_folder()
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


def _template_folder() -> Path:
    folder = _package("trl")
    assert folder is not None
    return folder / "chat_templates"


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


def _kto(row: dict[str, Any]) -> tuple[str, str]:
    return row["messages"][-2]["content"], row["messages"][-1]["content"]


def negatives(shared: Path) -> Iterator[Case]:
    """Real chat, reasoning and code without a call."""
    yield from chat(shared)
    yield from traces(shared)
    yield from hard(shared)


def chat(shared: Path) -> Iterator[Case]:
    def case(name: str, k: object, prompt: str, answer: str) -> Case:
        return Case(f"{name}/{k}", name, False, answer, prompt)

    for name in ("lf_alpaca_en", "lf_alpaca_zh"):
        for k, row in enumerate(rows(shared, name)):
            yield case(name, k, row["instruction"] + "\n" + row["input"], row["output"])
    for k, row in enumerate(rows(shared, "lf_dpo_en")):
        for side in ("chosen", "rejected"):
            yield case(
                "lf_dpo_en", f"{k}/{side}", row["conversations"][-1]["value"], row[side]["value"]
            )
    for k, row in enumerate(rows(shared, "lf_kto_en")):
        yield case("lf_kto_en", k, *_kto(row))
    for k, row in enumerate(rows(shared, "gsm8k_train")[:1500]):
        yield case("gsm8k", k, row["question"], row["answer"])
    for k, row in enumerate(rows(shared, "open_instruct_human_eval_pairs")):
        for completion in row["completions"]:
            yield case(
                "open_instruct",
                f"{k}/{completion['model']}",
                row["prompt"],
                completion["completion"],
            )
    for k, row in enumerate(rows(shared, "pandalm_human")):
        for side in ("response1", "response2"):
            yield case(
                "pandalm", f"{k}/{side}", row["instruction"] + "\n" + row["input"], str(row[side])
            )
    for k, row in enumerate(rows(shared, "mt_bench")):
        for j, answer in enumerate((row.get("gpt4_reference") or [{"turns": []}])[0]["turns"]):
            yield case("mt_bench", f"{k}/{j}", row["turns"][j], answer)


def traces(shared: Path) -> Iterator[Case]:
    for name in ("reasoning_ma_content", "reasoning_ma_inline"):
        for k, row in enumerate(rows(shared, name)):
            user, reply = row["messages"][0], row["messages"][-1]
            trace, answer = reply.get("reasoning_content"), reply["content"] or ""
            if trace is None and "</think>" in answer:
                trace, _, answer = answer.partition("</think>")
            yield Case(f"{name}/{k}", name, False, answer, user["content"], reasoning=trace)
    for k, row in enumerate(rows(shared, "deepseek_math_v2_proofs")):
        text = json.dumps(row["model_prediction"], ensure_ascii=False).replace("\\n", "\n")
        yield Case(f"proofs/{k}", "proofs", False, text, row["question"])
    for k, row in enumerate(rows(shared, "reasoning_gym_graded")):
        for j, completion in enumerate(row["completions"][:1]):
            yield Case(f"reasoning_gym/{k}/{j}", "reasoning_gym", False,
                       completion["full_model_response"] or "", row["question"])  # fmt: skip


def hard(shared: Path) -> Iterator[Case]:
    """What looks like calls: JSON, XML, code, declarations, talk about tools."""
    yield from _hard(shared)
    yield from sources()


def _hard(shared: Path) -> Iterator[Case]:
    def case(name: str, k: object, prompt: str, answer: str) -> Case:
        return Case(f"hard/{name}/{k}", name, False, answer, prompt, hard=True)

    for k, row in enumerate(rows(shared, "humaneval")):
        yield case("code", k, row["prompt"], row["canonical_solution"])
        yield case(
            "code_fenced",
            k,
            "Complete this.",
            f"```python\n{row['prompt']}{row['canonical_solution']}\n```",
        )
    for k, row in enumerate(rows(shared, "lf_glaive_toolcall_en")):
        prompt = ""
        for j, turn in enumerate(row["conversations"]):
            if turn["from"] == "human":
                prompt = turn["value"]
            if turn["from"] == "gpt":  # talk beside tools, refusals, code
                yield case("glaive_talk", f"{k}/{j}", prompt, turn["value"])
            if turn["from"] == "observation" and k % 2:  # JSON as an answer
                yield case("tool_result", f"{k}/{j}", "What did it return?", turn["value"])
        if row["tools"] and k % 3 == 0:  # schemas quoted
            yield case(
                "schemas", k, "Which tools do you have?", f"I have these tools:\n\n{row['tools']}"
            )
    for name in ("tau_bench_airline", "sgd_openai_tools"):
        for k, row in enumerate(rows(shared, name)[::5]):
            prompt = ""
            for j, message in enumerate(row["messages"]):
                if message["role"] == "user":
                    prompt = message["content"]
                text = message.get("content")
                if message["role"] == "assistant" and text:
                    yield case(f"{name}_talk", f"{k}/{j}", prompt, text)
                if message["role"] == "tool" and text and j % 3 == 0:
                    yield case("tool_result", f"{name}/{k}/{j}", prompt, text)
    for k, row in enumerate(rows(shared, "bfcl_nonlive")[::10]):
        yield case(
            "schemas", f"bfcl/{k}", "List your functions.", json.dumps(row["function"], indent=2)
        )
        yield case(
            "schemas",
            f"bfcl1/{k}",
            "Describe the function.",
            f"```json\n{json.dumps(row['function'][0])}\n```",
        )
    for k, row in enumerate(rows(shared, "toolset_tools")):
        for j, message in enumerate(row["conversations"]):
            if (
                message["role"] == "assistant"
                and message.get("content")
                and not message.get("tool_calls")
            ):
                yield case("toolset_talk", f"{k}/{j}", "", message["content"])
            if message["role"] == "system" and k % 20 == 0:
                yield case("system_prompt", f"{k}", "Write a system prompt.", message["content"])
    for k, row in enumerate(rows(shared, "nemo_gym_example_tasks")):
        items = row["task"].get("responses_create_params", {}).get("input") or []
        for item in items if isinstance(items, list) else []:
            if isinstance(item, dict) and isinstance(item.get("content"), str):
                yield case("task_text", f"{k}", "", item["content"])
        tools = row["task"].get("responses_create_params", {}).get("tools")
        if tools:
            yield case("schemas", f"gym/{k}", "", json.dumps(tools))
    yield from _template_documents()


def _template_documents() -> Iterator[Case]:
    """System blocks that declare tools, and the sources of chat templates."""
    folder = _template_folder()
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "c"}},
                           "required": ["city"]}}}  # fmt: skip
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text("utf-8")
        yield Case(f"hard/jinja/{path.stem}", "jinja", False, f"```jinja\n{source}\n```",
                   "Write the chat template of this model.", hard=True)  # fmt: skip
        yield Case(f"hard/jinja_raw/{path.stem}", "jinja_raw", False, source,
                   "Show me the source of this model's chat template.", hard=True)  # fmt: skip
        template = ChatTemplate(
            source, name=path.stem, variables={"bos_token": "", "eos_token": "</s>"}
        )
        try:
            system = template.text([{"role": "user", "content": "Hi"}], tools=[tool])
        except RenderError:
            continue
        yield Case(f"hard/declares/{path.stem}", "declares", False, system,
                   "What does the system prompt say about the tools?", hard=True)  # fmt: skip
    yield Case("hard/readme", "readme", False, (folder / "README.md").read_text("utf-8"),
               "Explain how it works.", hard=True)  # fmt: skip


PACKAGES = ("trl", "inspect_ai", "huggingface_hub")
_SPEAKS = re.compile(r"tool_call|python_tag|TOOL_CALLS|function_call|<function|\"arguments\"")


def sources() -> Iterator[Case]:
    """Code that parses, renders and documents tool calls: whole functions of installed packages."""
    for package in PACKAGES:
        folder = _package(package)
        for path in sorted(folder.rglob("*.py")) if folder else []:
            text = path.read_text("utf-8")
            if not _SPEAKS.search(text):
                continue
            lines = text.split("\n")
            for node in ast.parse(text).body:
                piece = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign) and _SPEAKS.search(
                    piece
                ):
                    name = f"{package}/{path.name}/{node.lineno}"
                    yield Case(
                        f"hard/source/{name}",
                        "source",
                        False,
                        piece,
                        "Show me the code.",
                        hard=True,
                    )
                    yield Case(f"hard/source_fenced/{name}", "source_fenced", False,
                               f"Here it is:\n\n```python\n{piece}\n```\n", "Show me the code.", hard=True)  # fmt: skip
                    docs = ast.get_docstring(node) if not isinstance(node, ast.Assign) else None
                    if docs and _SPEAKS.search(docs):
                        yield Case(f"hard/docs/{name}", "docs", False, docs, "", hard=True)


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
