"""A labelled set from real data, read where it lies each time; nothing of it is kept here.

positives(shared) → Case("bfcl/simple_3/hermes", "hermes", call=True, answer=…, prompt=…), …
negatives(shared) → Case("lf_alpaca_en/0", "lf_alpaca_en", call=False, answer=…, prompt=…), …
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from posttrain.chat import ChatTemplate
from posttrain.errors import RenderError
from tests.chat.detect.forms import FORMS, REQUESTS

PREFIXES = ("", "", "I'll look that up for you.\n\n", "Let me call the tool now: ", "One moment. ",
            "<|im_start|>assistant\n", "Checking.")  # fmt: skip
LINE_FORMS = {"react", "command_r", "langchain", "fenced_json", "tool_code", "pythonic", "gemma_stripped",
              "functions_dot", "functions_dot_python", "qwen_agent", "param_xml", "functionary"}  # fmt: skip
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}}}}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A text with its label; `ours` says that its notation was rendered by FORMS."""

    id: str
    form: str
    call: bool
    answer: str
    prompt: str = ""
    reasoning: str | None = None
    ours: bool = False


@dataclass(frozen=True)
class Turn:
    """Calls of one real assistant turn, the user message before it and the declared tools."""

    id: str
    prompt: str
    names: list[str]
    arguments: list[dict[str, Any]]
    tools: str | None = None


def rows(shared: Path, name: str) -> list[dict[str, Any]]:
    lines = (shared / "data" / f"{name}.jsonl").read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def turns(shared: Path) -> Iterator[Turn]:
    """Real calls."""
    for name in ("tau_bench_airline", "sgd_openai_tools", "toolset_tools"):
        for k, row in enumerate(rows(shared, name)):
            prompt, tools = "", json.dumps(row["tools"]) if row.get("tools") else None
            for message in row.get("messages") or row["conversations"]:
                prompt = (message["content"] or "") if message["role"] == "user" else prompt
                calls = [call["function"] for call in message.get("tool_calls") or []]
                if calls:
                    arguments = [json.loads(call["arguments"]) for call in calls]
                    yield Turn(f"{name}/{k}", prompt, [c["name"] for c in calls], arguments, tools)
    for row in rows(shared, "bfcl_nonlive"):
        calls = [pair for call in row.get("ground_truth") or [] for pair in call.items()]
        values = [{k: v[0] for k, v in a.items() if v and v[0] != ""} for _, a in calls]
        names, prompt = [name for name, _ in calls], row["question"][0][-1]["content"]
        if calls:
            yield Turn(f"bfcl/{row['id']}", prompt, names, values)


def positives(shared: Path) -> Iterator[Case]:
    """Calls of every source in every form, cut off, as built-in requests, in text of others."""
    found = list(turns(shared))
    for k, turn in enumerate(found[::8]):
        for j, (form, write) in enumerate(FORMS.items()):
            if (k + j) % 7 == 0:
                rng = Random(f"{turn.id}/{form}")
                prefix = rng.choice(PREFIXES)
                if form in LINE_FORMS and prefix and not prefix.endswith("\n"):
                    prefix += "\n"
                text = prefix + write(turn.names, turn.arguments, rng)
                text += rng.choice(["", "\n", "<|im_end|>"])
                where = {"answer": text} if rng.random() < 0.8 else {
                    "answer": "The answer is 4.", "reasoning": f"Let me think.\n{text}\nNow I know."}  # fmt: skip
                yield Case(f"{turn.id}/{form}", form, True, prompt=turn.prompt, ours=True, **where)
    for k, turn in enumerate(found[-1200::12]):  # cut off or broken: the attempt counts
        for form in ("nemotron", "hermes", "mistral", "deepseek", "function_tag"):
            rng = Random(f"{k}/{form}")
            text = FORMS[form](turn.names[:1], turn.arguments[:1], rng)
            after_name = text.find(turn.names[0]) + len(turn.names[0]) + 2
            cut = text[: rng.randrange(max(12, after_name), max(13, after_name, len(text)) + 1)]
            yield Case(f"cut/{k}/{form}", f"cut_{form}", True, cut, turn.prompt, ours=True)
        broken = FORMS["hermes"](turn.names[:1], turn.arguments[:1], Random(1)).replace("}", "", 1)
        yield Case(f"broken/{k}", "malformed_json", True, broken, turn.prompt, ours=True)
    for k, row in enumerate(rows(shared, "mmlu_dev_val")[:40]):
        query = re.sub(r"[\n\"'\\<>{}\[\]]", " ", row["question"])[:120].strip()
        for form, text in REQUESTS.items():
            case = f"request/{k}/{form}", f"request_{form}", True, text.format(query=query)
            yield Case(*case, row["question"], ours=True)
    for k, row in enumerate(rows(shared, "toolset_preference")):
        for side in ("chosen", "rejected"):
            if re.search(r"^tool_call: ", row[side], re.M):
                prompt = row["prompt"][-1]["content"]
                yield Case(f"toolset/{k}/{side}", "toolset_lines", True, row[side], prompt)
    for k, row in enumerate(rows(shared, "lf_glaive_toolcall_en")):
        for prompt, turn in _glaive(row, "function_call"):
            yield Case(f"glaive/{k}", "glaive_json", True, turn, prompt)
    for path in sorted(package("trl", "chat_templates").glob("*.jinja")):
        variables = {"bos_token": "", "eos_token": "</s>"}
        template = ChatTemplate(path.read_text("utf-8"), name=path.stem, variables=variables)
        for turn in found[-1200::170]:
            text = _generated(template, turn)
            if text is not None and turn.names[0] in text:
                case = f"{path.stem}/{turn.id}", f"template_{path.stem}", True, text
                yield Case(*case, turn.prompt)


def _glaive(row: dict[str, Any], role: str) -> Iterator[tuple[str, str]]:
    prompt = ""
    for turn in row["conversations"]:
        prompt = turn["value"] if turn["from"] == "human" else prompt
        if turn["from"] == role:
            yield prompt, turn["value"]


def _generated(template: ChatTemplate, turn: Turn) -> str | None:
    """What a model's own template writes for a call, None where it writes none of this shape."""
    name, arguments = turn.names[0], turn.arguments[0]
    tool = {"type": "function", "function": {"name": name, "description": "d", "parameters": {
        "type": "object", "properties": {k: {"type": "string"} for k in arguments}}}}  # fmt: skip
    user = {"role": "user", "content": turn.prompt}
    for written in (arguments, json.dumps(arguments)):
        function = {"name": name, "arguments": written}
        call = {"type": "function", "id": "abcdef123", "function": function}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before = template.text([user], tools=[tool], add_generation_prompt=True)
            after = template.text([user, reply], tools=[tool])
        except RenderError:
            continue
        pairs = enumerate(zip(before, after, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(before), len(after)))
        opened = after.rfind("<", 0, same)
        return after[opened if opened > after.rfind(">", 0, same) else same :].split("</think>")[-1]
    return None


def negatives(shared: Path, *, one_in: int = 1) -> Iterator[Case]:
    """Real chat, reasoning, code, schemas, tool results and talk about tools, without a call.

    Args:
        one_in: take one row or file in so many.
    """
    for name, pairs in _PAIRS.items():
        for k, row in enumerate(rows(shared, name)[::one_in]):
            for prompt, answer in pairs(row):
                yield Case(f"{name}/{k}", name, False, answer or "", prompt)
    for name in ("reasoning_ma_content", "reasoning_ma_inline"):
        for k, row in enumerate(rows(shared, name)[::one_in]):
            user, reply = row["messages"][0], row["messages"][-1]
            trace, answer = reply.get("reasoning_content"), reply["content"] or ""
            if trace is None and "</think>" in answer:
                trace, _, answer = answer.partition("</think>")
            yield Case(f"{name}/{k}", name, False, answer, user["content"], reasoning=trace)
    for name in ("tau_bench_airline", "sgd_openai_tools"):
        for k, row in enumerate(rows(shared, name)[:: 5 * one_in]):
            for message in row["messages"]:
                role, content = message["role"], message.get("content")
                if role in ("assistant", "tool") and content:
                    yield Case(f"{name}/{k}", f"{name}_{role}", False, content)
    yield from _documents(one_in)


_FENCED = "```{}\n{}\n```"
_PAIRS: dict[str, Any] = {
    "lf_alpaca_en": lambda r: [(r["instruction"] + "\n" + r["input"], r["output"])],
    "lf_alpaca_zh": lambda r: [(r["instruction"] + "\n" + r["input"], r["output"])],
    "lf_dpo_en": lambda r: [(r["conversations"][-1]["value"], r[s]["value"]) for s in ("chosen", "rejected")],
    "lf_kto_en": lambda r: [(r["messages"][-2]["content"], r["messages"][-1]["content"])],
    "gsm8k_train": lambda r: [(r["question"], r["answer"])],
    "open_instruct_human_eval_pairs": lambda r: [(r["prompt"], c["completion"]) for c in r["completions"]],
    "pandalm_human": lambda r: [(r["instruction"], str(r[s])) for s in ("response1", "response2")],
    "mt_bench": lambda r: zip(r["turns"], (r.get("gpt4_reference") or [{"turns": []}])[0]["turns"], strict=False),
    "deepseek_math_v2_proofs": lambda r: [(r["question"], str(r["model_prediction"]).replace("\\n", "\n"))],
    "reasoning_gym_graded": lambda r: [(r["question"], c["full_model_response"]) for c in r["completions"][:1]],
    "humaneval": lambda r: [(r["prompt"], r["canonical_solution"]), ("Complete this.", _FENCED.format(
        "python", r["prompt"] + r["canonical_solution"]))],
    "lf_glaive_toolcall_en": lambda r: [*_glaive(r, "gpt"), *_glaive(r, "observation"),
        *([("Which tools do you have?", f"I have these tools:\n\n{r['tools']}")] if r["tools"] else [])],
    "bfcl_nonlive": lambda r: [("List your functions.", json.dumps(r["function"], indent=2)),
                               ("Describe it.", _FENCED.format("json", json.dumps(r["function"][0])))],
    "toolset_tools": lambda r: [("", m["content"]) for m in r["conversations"]
                                if m["role"] == "assistant" and not m.get("tool_calls")],
}  # fmt: skip


def package(name: str, folder: str = "") -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / folder


def _documents(one_in: int) -> Iterator[Case]:
    """Chat templates, what they declare, and code of others that parses and renders calls."""
    shows, says = (
        "Show me the source of this model's chat template.",
        "What does the system prompt say?",
    )
    for path in sorted(package("trl", "chat_templates").glob("*.jinja"))[::one_in]:
        source = path.read_text("utf-8")
        for text in (source, _FENCED.format("jinja", source)):
            yield Case(f"jinja/{path.stem}", "jinja", False, text, shows)
        variables = {"bos_token": "", "eos_token": "</s>"}
        template = ChatTemplate(source, name=path.stem, variables=variables)
        with suppress(RenderError):
            system = template.text([{"role": "user", "content": "Hi"}], tools=[WEATHER])
            yield Case(f"declares/{path.stem}", "declares", False, system, says)
    speaks = re.compile(r"tool_call|python_tag|TOOL_CALLS|function_call|<function|\"arguments\"")
    code = [p for name in ("trl", "huggingface_hub") for p in sorted(package(name).rglob("*.py"))]
    for path in code[::one_in]:
        source = path.read_text("utf-8")
        for node in ast.parse(source).body if speaks.search(source) else []:
            piece = ast.get_source_segment(source, node) or ""
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and speaks.search(piece):
                for text in (piece, f"Here it is:\n\n{_FENCED.format('python', piece)}\n"):
                    case = f"source/{path.name}/{node.name}", "source", False, text
                    yield Case(*case, "Show me the code.")
