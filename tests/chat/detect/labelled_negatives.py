"""Texts without a call: real chat, reasoning and code, and what looks like calls."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posttrain.chat import ChatTemplate
from posttrain.errors import RenderError
from tests.chat.detect.labelled_set import Case, package, rows, template_folder


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
    folder = template_folder()
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
    for name_of in PACKAGES:
        folder = package(name_of)
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
                    name = f"{name_of}/{path.name}/{node.lineno}"
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
