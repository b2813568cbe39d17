"""Tool calls written out in every notation, each with its syntactic variants.

FORMS["hermes_json"](["get_weather"], [{"city": "Paris"}], random.Random(0))
    → '<tool_call>\\n{"name": "get_weather", "arguments": {"city": "Paris"}}\\n</tool_call>'
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Names, Arguments = list[str], list[dict[str, Any]]
Writer = Callable[[Names, Arguments, Random], str]


def _js(value: Any, rng: Random) -> str:
    style = rng.randrange(4)
    if style == 0:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if style == 1:
        return json.dumps(value, ensure_ascii=False, indent=rng.choice([2, 4]))
    return json.dumps(value, ensure_ascii=style == 2)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _each(one: Callable[[str, dict[str, Any], Random], str], between: str = "\n") -> Writer:
    def write(names: Names, arguments: Arguments, rng: Random) -> str:
        return between.join(one(n, a, rng) for n, a in zip(names, arguments, strict=True))

    return write


def _nemotron(name: str, arguments: dict[str, Any], rng: Random) -> str:
    gap = rng.choice(["\n", "\n", "\n", ""])
    body = "".join(
        f"<parameter={k}>{gap}{_text(v)}{gap}</parameter>{gap}" for k, v in arguments.items()
    )
    return f"<tool_call>{gap}<function={name}>{gap}{body}</function>{gap}</tool_call>"


def _hermes(name: str, arguments: dict[str, Any], rng: Random) -> str:
    gap = rng.choice(["\n", "\n", "", " "])
    call = {"name": name, "arguments": arguments}
    if rng.random() < 0.2:
        call = {"arguments": arguments, "name": name}
    return f"<tool_call>{gap}{_js(call, rng)}{gap}</tool_call>"


def _python(value: Any) -> str:
    return repr(value)


def _kwargs(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{k}={_python(v)}" for k, v in arguments.items())


def _llama_json(name: str, arguments: dict[str, Any], rng: Random) -> str:
    return _js({"name": name, rng.choice(["parameters", "arguments"]): arguments}, rng)


def _mistral(names: Names, arguments: Arguments, rng: Random) -> str:
    if rng.random() < 0.5:
        calls = [{"name": n, "arguments": a} for n, a in zip(names, arguments, strict=True)]
        return f"[TOOL_CALLS]{rng.choice(['', ' '])}{_js(calls, rng)}"
    middle = rng.choice(["", "[ARGS]", "[CALL_ID]ab12cd34e[ARGS]"])
    return "".join(
        f"[TOOL_CALLS]{n}{middle}{json.dumps(a)}" for n, a in zip(names, arguments, strict=True)
    )


def _openai_dump(names: Names, arguments: Arguments, rng: Random) -> str:
    calls = [
        {"id": f"call_{k}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for k, (n, a) in enumerate(zip(names, arguments, strict=True))
    ]
    if len(calls) == 1 and rng.random() < 0.4:
        return _js({"function_call": calls[0]["function"]}, rng)
    if rng.random() < 0.3:
        return _js({"role": "assistant", "content": None, "tool_calls": calls}, rng)
    return _js({"tool_calls": calls}, rng)


def _functions_dot(name: str, arguments: dict[str, Any], rng: Random) -> str:
    inner = _kwargs(arguments) if rng.random() < 0.4 else json.dumps(arguments)
    return f"functions.{name}({inner})"


def _harmony(name: str, arguments: dict[str, Any], rng: Random) -> str:
    end = rng.choice(["<|call|>", ""])
    if rng.random() < 0.5:
        return (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            f"{json.dumps(arguments)}{end}"
        )
    return f" to=functions.{name}<|channel|>commentary json<|message|>{json.dumps(arguments)}{end}"


def _invoke(prefix: str) -> Writer:
    def write(names: Names, arguments: Arguments, rng: Random) -> str:
        gap = rng.choice(["\n", "\n", ""])
        body = gap.join(
            f'<{prefix}invoke name="{n}">{gap}'
            + "".join(f'<{prefix}parameter name="{k}">{_text(v)}</{prefix}parameter>{gap}'
                      for k, v in a.items())
            + f"</{prefix}invoke>"
            for n, a in zip(names, arguments, strict=True)
        )  # fmt: skip
        return f"<{prefix}function_calls>{gap}{body}{gap}</{prefix}function_calls>"

    return write


def _minimax(names: Names, arguments: Arguments, rng: Random) -> str:
    text = _invoke("")(names, arguments, rng)
    return text.replace("function_calls>", "minimax:tool_call>")


def _deepseek(names: Names, arguments: Arguments, rng: Random) -> str:
    if rng.random() < 0.5:
        one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
    else:
        one = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    calls = "\n".join(one.format(n, json.dumps(a)) for n, a in zip(names, arguments, strict=True))
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def _dsml(names: Names, arguments: Arguments, rng: Random) -> str:
    d = "｜DSML｜"
    body = "\n".join(
        f'<{d}invoke name="{n}">\n'
        + "".join(f'<{d}parameter name="{k}" string="true">{_text(v)}</{d}parameter>\n'
                  for k, v in a.items())
        + f"</{d}invoke>"
        for n, a in zip(names, arguments, strict=True)
    )  # fmt: skip
    return f"<{d}function_calls>\n{body}\n</{d}function_calls>"


def _glm(name: str, arguments: dict[str, Any], rng: Random) -> str:
    gap = rng.choice(["\n", "\n", ""])
    body = "".join(
        f"<arg_key>{k}</arg_key>{gap}<arg_value>{_text(v)}</arg_value>{gap}"
        for k, v in arguments.items()
    )
    return f"<tool_call>{name}{gap}{body}</tool_call>"


def _cohere(names: Names, arguments: Arguments, rng: Random) -> str:
    calls = [{"tool_name": n, "parameters": a} for n, a in zip(names, arguments, strict=True)]
    if rng.random() < 0.5:
        return f"Action: ```json\n{json.dumps(calls, indent=4)}\n```"
    calls = [{"tool_call_id": str(k), **c} for k, c in enumerate(calls)]
    return f"<|START_ACTION|>{json.dumps(calls, indent=4)}<|END_ACTION|>"


def _tool_code(name: str, arguments: dict[str, Any], rng: Random) -> str:
    call = f"{rng.choice(['', 'default_api.'])}{name}({_kwargs(arguments)})"
    call = f"print({call})" if rng.random() < 0.5 else call
    if rng.random() < 0.4:
        return f"<tool_code>\n{call}\n</tool_code>"
    return f"```tool_code\n{call}\n```"


def _pythonic(names: Names, arguments: Arguments, rng: Random) -> str:
    calls = rng.choice([", ", ",\n "]).join(
        f"{n}({_kwargs(a)})" for n, a in zip(names, arguments, strict=True)
    )
    return f"[{calls}]"


def _lfm(names: Names, arguments: Arguments, rng: Random) -> str:
    return f"<|tool_call_start|>{_pythonic(names, arguments, rng)}<|tool_call_end|>"


def _token_list(opened: str, closed: str, key: str = "arguments") -> Writer:
    def write(names: Names, arguments: Arguments, rng: Random) -> str:
        calls = [{"name": n, key: a} for n, a in zip(names, arguments, strict=True)]
        return f"{opened}{rng.choice(['', ' ', chr(10)])}{_js(calls, rng)}{closed}"

    return write


def _kimi(names: Names, arguments: Arguments, rng: Random) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{n}:{k}<|tool_call_argument_begin|>{json.dumps(a)}"
        "<|tool_call_end|>"
        for k, (n, a) in enumerate(zip(names, arguments, strict=True))
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def _gemma(name: str, arguments: dict[str, Any], rng: Random) -> str:
    quote = rng.choice(['<|"|>', "<escape>"])
    body = ",".join(
        f"{k}:{quote}{v}{quote}" if isinstance(v, str) else f"{k}:{json.dumps(v)}"
        for k, v in arguments.items()
    )
    if quote == "<escape>":
        return f"<start_function_call>call:{name}{{{body}}}<end_function_call>"
    return f"<|tool_call>call:{name}{{{body}}}<tool_call|>"


def _react(name: str, arguments: dict[str, Any], rng: Random) -> str:
    thought = rng.choice(["", "Thought: I need to look this up.\n"])
    return f"{thought}Action: {name}\nAction Input: {json.dumps(arguments)}"


def _langchain(name: str, arguments: dict[str, Any], rng: Random) -> str:
    call = json.dumps({"action": name, "action_input": arguments}, indent=2)
    return rng.choice(["Action:\n```json\n{}\n```", "```json\n{}\n```", "{}"]).format(call)


def _function_tag(name: str, arguments: dict[str, Any], rng: Random) -> str:
    return f"<function={name}>{json.dumps(arguments)}</function>"


def _python_tag(name: str, arguments: dict[str, Any], rng: Random) -> str:
    if rng.random() < 0.4:
        return f"<|python_tag|>{name}.call({_kwargs(arguments)})"
    call = {"type": "function", "name": name, "parameters": arguments}
    return f"<|python_tag|>{json.dumps(call)}"


def _fenced_json(name: str, arguments: dict[str, Any], rng: Random) -> str:
    info = rng.choice(["json", "", "json"])
    return f"```{info}\n{_js({'name': name, 'arguments': arguments}, rng)}\n```"


def _glaive(name: str, arguments: dict[str, Any], rng: Random) -> str:
    return f"<functioncall> {json.dumps({'name': name, 'arguments': json.dumps(arguments)})}"


def _anthropic_json(name: str, arguments: dict[str, Any], rng: Random) -> str:
    return _js({"type": "tool_use", "id": "toolu_01", "name": name, "input": arguments}, rng)


def _multi_tool(names: Names, arguments: Arguments, rng: Random) -> str:
    uses = [
        {"recipient_name": f"functions.{n}", "parameters": a}
        for n, a in zip(names, arguments, strict=True)
    ]
    return _js({"tool_uses": uses}, rng)


def _xml_bare(name: str, arguments: dict[str, Any], rng: Random) -> str:
    inner = "".join(f'<param name="{k}">{_text(v)}</param>\n' for k, v in arguments.items())
    return f'<function name="{name}">\n{inner}</function>'


def _tool_key(name: str, arguments: dict[str, Any], rng: Random) -> str:
    keys = rng.choice([("tool", "args"), ("tool_name", "tool_input"), ("tool", "arguments"),
                       ("function", "parameters"), ("tool", "input")])  # fmt: skip
    return _js({keys[0]: name, keys[1]: arguments}, rng)


def _qwen_agent(name: str, arguments: dict[str, Any], rng: Random) -> str:
    return f"✿FUNCTION✿: {name}\n✿ARGS✿: {json.dumps(arguments)}\n✿RESULT✿"


def _internlm(name: str, arguments: dict[str, Any], rng: Random) -> str:
    call = json.dumps({"name": name, "parameters": arguments})
    return f"<|action_start|><|plugin|>\n{call}<|action_end|>"


def _call_in_tag(name: str, arguments: dict[str, Any], rng: Random) -> str:
    return f"<tool_call>\n{name}({_kwargs(arguments)})\n</tool_call>"


# forms that the rules were first written for …
FORMS: dict[str, Writer] = {
    "nemotron_xml": _each(_nemotron),
    "hermes_json": _each(_hermes),
    "llama_json": _each(_llama_json, "; "),
    "mistral": _mistral,
    "openai_dump": _openai_dump,
    "functions_dot": _each(_functions_dot),
    "harmony": _each(_harmony),
    "invoke_xml": _invoke(""),
    "antml": _invoke("antml:"),
    "minimax": _minimax,
    "deepseek": _deepseek,
    "glm": _each(_glm),
    "cohere": _cohere,
    "tool_code": _each(_tool_code),
    "pythonic": _pythonic,
    "phi": _token_list("<|tool_call|>", "<|/tool_call|>"),
    "granite": _token_list("<|tool_call|>", ""),
    "kimi": _kimi,
    "react": _each(_react),
    "langchain": _each(_langchain),
    "function_tag": _each(_function_tag),
    "python_tag": _each(_python_tag),
    "fenced_json": _each(_fenced_json),
    "anthropic_json": _each(_anthropic_json),
}
# … and forms kept aside, to see whether they carry over
HELD_OUT: dict[str, Writer] = {
    "dsml": _dsml,
    "lfm": _lfm,
    "gemma": _each(_gemma),
    "glaive": _each(_glaive),
    "multi_tool": _multi_tool,
    "xml_bare": _each(_xml_bare),
    "tool_key": _each(_tool_key),
    "qwen_agent": _each(_qwen_agent),
    "internlm": _each(_internlm),
    "call_in_tag": _each(_call_in_tag),
    "toolcall_list": _token_list("<TOOLCALL>", "</TOOLCALL>"),
    "apertus": _token_list("<|tools_prefix|>", "<|tools_suffix|>"),
    "longcat": _token_list("<longcat_tool_call>", "</longcat_tool_call>"),
    "tool_request": _token_list("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),
    "hunyuan": _token_list("<tool_calls>", "</tool_calls>"),
    "jamba": _token_list("<tool_calls>", "</tool_calls>", "parameters"),
    "python_function_call": _token_list("<function_call>", "</function_call>"),
}
REQUESTS: dict[str, str] = {
    "python_tag": "<|python_tag|>import math\nprint(math.factorial(20))",
    "python_tag_brave": '<|python_tag|>brave_search.call(query="{query}")',
    "execute": "<execute>\nprint(sum(range(10)))\n</execute>",
    "execute_ipython": "<execute_ipython>\nimport numpy as np\nnp.mean([1, 2])\n</execute_ipython>",
    "code_interpreter": "<code_interpreter>\nx = 2 ** 10\nprint(x)\n</code_interpreter>",
    "python_json": 'python\n{{"code": "print(2**10)"}}',
    "tool_code": "```tool_code\nimport math\nprint(math.pi * 2)\n```",
    "tool_code_tag": "<tool_code>\nprint(google_search(queries=['{query}']))\n</tool_code>",
    "search_tag": "<search>{query}</search>",
    "search_r1": "<search> {query} </search>",
    "search_o1": "<|begin_search_query|>{query}<|end_search_query|>",
    "harmony_browser": '<|channel|>analysis to=browser.search code<|message|>{{"query": "{query}"}}',
    "harmony_python": "<|channel|>analysis to=python code<|message|>print(3 * 7)",
    "stateful_python": "<tool_call>\n<function=stateful_python_code_exec>\n<parameter=code>\nfrom sympy import *\nprint(solve(x))\n</parameter>\n</function>\n</tool_call>",
    "web_search_call": 'web_search("{query}")',
    "search_query": '{{"search_query": [{{"q": "{query}"}}]}}',
    "react_search": "Thought: I should search.\nAction: Search[{query}]",
}
