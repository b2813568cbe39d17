"""Tool calls written out in many notations, each with its syntactic variants.

FORMS["hermes"](["get_weather"], [{"city": "Paris"}], random.Random(0))
    → '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "Paris"}}\\n</tool_call>'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Arguments = dict[str, Any]
Writer = Callable[[list[str], list[Arguments], Random], str]
One = Callable[[str, Arguments, Random], str]


def js(value: Any, rng: Random) -> str:
    styles: list[dict[str, Any]] = [{"separators": (",", ":")}, {"indent": 2}, {}]
    return json.dumps(value, ensure_ascii=False, **rng.choice(styles))


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def each(one: One, before: str = "", after: str = "", between: str = "\n") -> Writer:
    """Every call by itself, all of them between two markers."""

    def write(names: list[str], arguments: list[Arguments], rng: Random) -> str:
        calls = [one(n, a, rng) for n, a in zip(names, arguments, strict=True)]
        return before + between.join(calls) + after

    return write


def listed(before: str, after: str, name: str = "name", key: str = "arguments") -> Writer:
    """All calls as one JSON list between two markers."""

    def write(names: list[str], arguments: list[Arguments], rng: Random) -> str:
        calls = [{name: n, key: a} for n, a in zip(names, arguments, strict=True)]
        return before + rng.choice(["", " ", "\n"]) + js(calls, rng) + after

    return write


def xml(call: str, parameter: str, end: str) -> One:
    """`call` holds {name}, `parameter` {key} and {value}."""

    def write(name: str, arguments: Arguments, rng: Random) -> str:
        inner = "".join(parameter.format(key=k, value=text(v)) for k, v in arguments.items())
        whole = call.format(name=name) + inner + end
        return whole.replace("\n", "") if rng.random() < 0.3 else whole

    return write


def obj(name: str, key: str, *, dumped: bool = False, **fields: str) -> One:
    return lambda n, a, rng: js({**fields, name: n, key: json.dumps(a) if dumped else a}, rng)


def around(before: str, one: One, after: str) -> One:
    return lambda n, a, rng: before + one(n, a, rng) + after


def python(name: str, arguments: Arguments, rng: Random) -> str:
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def prefixed(before: str, between: str = "", after: str = "") -> One:
    return lambda n, a, rng: f"{before}{n}{between}{json.dumps(a)}{after}"


def gemma(name: str, arguments: Arguments, rng: Random) -> str:
    quoted = ",".join(
        f'{k}:<|"|>{v}<|"|>' if isinstance(v, str) else f"{k}:{json.dumps(v)}"
        for k, v in arguments.items()
    )
    return f"call:{name}{{{quoted}}}"


D, BEGIN, END = "｜DSML｜", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
HERMES = obj("name", "arguments")
INVOKE = xml(
    '<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>"
)
DSML = xml(f'<{D}invoke name="{{name}}">\n', f'<{D}parameter name="{{key}}">{{value}}</{D}parameter>\n',
           f"</{D}invoke>")  # fmt: skip
FUNCTION = xml("<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>\n")
GLM = xml(
    "<tool_call>{name}\n",
    "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    "</tool_call>",
)
PARAM = xml('<function name="{name}">\n', '<param name="{key}">{value}</param>\n', "</function>")
FORMS: dict[str, Writer] = {
    "nemotron": each(around("<tool_call>\n", FUNCTION, "</tool_call>")),
    "hermes": each(around("<tool_call>\n", HERMES, "\n</tool_call>")),
    "llama_json": each(obj("name", "parameters"), between="; "),
    "mistral": listed("[TOOL_CALLS]", ""),
    "mistral_args": each(prefixed("[TOOL_CALLS]", "[ARGS]"), between=""),
    "openai": each(around('{"tool_calls": [{"id": "1", "type": "function", "function": ',
                          obj("name", "arguments", dumped=True), "}]}")),
    "functions_dot": each(prefixed("functions.", "(", ")")),
    "functions_dot_python": each(around("functions.", python, "")),
    "harmony": each(prefixed("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>")),
    "harmony_recipient": each(prefixed(" to=functions.", "<|channel|>commentary json<|message|>")),
    "harmony_stripped": each(prefixed("assistantcommentary to=functions.", " json")),
    "invoke": each(INVOKE, "<function_calls>\n", "\n</function_calls>"),
    "minimax": each(INVOKE, "<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    "deepseek": each(prefixed(f"{BEGIN}function<｜tool▁sep｜>", "\n```json\n", f"\n```{END}"),
                     "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v3_1": each(prefixed(BEGIN, "<｜tool▁sep｜>", END), "<｜tool▁calls▁begin｜>"),
    "dsml": each(DSML, f"<{D}function_calls>\n", f"\n</{D}function_calls>"),
    "glm": each(GLM),
    "cohere": listed("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters"),
    "command_r": listed("Action: ```json\n", "\n```", "tool_name", "parameters"),
    "tool_code": each(around("```tool_code\n", python, "\n```")),
    "tool_code_tag": each(around("<tool_code>\nprint(default_api.", python, ")\n</tool_code>")),
    "pythonic": each(python, "[", "]", ", "),
    "pythonic_marked": each(python, "<|python_start|>[", "]<|python_end|>", ", "),
    "lfm": each(python, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "phi": listed("<|tool_call|>", "<|/tool_call|>"),
    "kimi": each(prefixed("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
                 "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", ""),
    "gemma": each(around("<|tool_call>", gemma, "<tool_call|>")),
    "gemma_stripped": each(gemma),
    "react": each(prefixed("Thought: I look.\nAction: ", "\nAction Input: ")),
    "langchain": each(around("```json\n", obj("action", "action_input"), "\n```")),
    "function_tag": each(prefixed("<function=", ">", "</function>")),
    "python_tag": each(around("<|python_tag|>", obj("name", "parameters", type="function"), "")),
    "fenced_json": each(around("```json\n", HERMES, "\n```")),
    "glaive": each(around("<functioncall> ", obj("name", "arguments", dumped=True), "")),
    "anthropic": each(obj("name", "input", type="tool_use", id="toolu_01")),
    "multi_tool": each(around('{"tool_uses": [', obj("recipient_name", "parameters"), "]}")),
    "param_xml": each(PARAM),
    "tool_args": each(obj("tool", "args")),
    "qwen_agent": each(prefixed("✿FUNCTION✿: ", "\n✿ARGS✿: ", "\n✿RESULT✿")),
    "internlm": each(around("<|action_start|><|plugin|>\n", obj("name", "parameters"), "<|action_end|>")),
    "call_in_tag": each(around("<tool_call>\n", python, "\n</tool_call>")),
    "apertus": each(lambda n, a, rng: js({n: a}, rng), "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    "toolcall_list": listed("<TOOLCALL>", "</TOOLCALL>"),
    "longcat": listed("<longcat_tool_call>", "</longcat_tool_call>"),
    "tool_request": listed("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),
    "jamba": listed("<tool_calls>", "</tool_calls>", key="parameters"),
    "functionary": each(prefixed(">>>", "\n")),
    "gorilla": each(around("<<function>>", python, "")),
}  # fmt: skip
REQUESTS: dict[str, str] = {
    "python_tag": "<|python_tag|>import math\nprint(math.factorial(20))",
    "python_tag_brave": '<|python_tag|>brave_search.call(query="{query}")',
    "execute": "<execute>\nprint(sum(range(10)))\n</execute>",
    "tool_code": "```tool_code\nimport math\nprint(math.pi * 2)\n```",
    "search_tag": "<search>{query}</search>",
    "search_o1": "<|begin_search_query|>{query}<|end_search_query|>",
    "harmony_browser": '<|channel|>analysis to=browser.search code<|message|>{{"query": "{query}"}}',
    "harmony_python": "<|channel|>analysis to=python code<|message|>print(3 * 7)",
    "web_search_call": 'web_search("{query}")',
    "search_query": '{{"search_query": [{{"q": "{query}"}}]}}',
    "react_search": "Thought: I should search.\nAction: Search[{query}]",
}  # fmt: skip
