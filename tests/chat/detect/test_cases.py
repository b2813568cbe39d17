"""Every notation, each with the nearest text that is no call."""

from __future__ import annotations

from random import Random

import pytest

from posttrain.chat.detect import detect_calls
from posttrain.chat.detect.markers import has_call_marker
from tests.chat.detect.forms import FORMS

CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
XML = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
INVOKE = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'

# form → the notations of `FORMS` that have it
NOTATIONS = {
    "nemotron_xml": "nemotron", "hermes_json": "hermes jamba",
    "bare_json": "llama_json openai command_r langchain fenced_json anthropic multi_tool tool_args",
    "mistral": "mistral mistral_args tool_request",
    "functions_dot": "functions_dot functions_dot_python",
    "harmony": "harmony harmony_recipient harmony_stripped",
    "tool_tag": "invoke toolcall_list", "minimax": "minimax",
    "deepseek": "deepseek deepseek_v3_1 dsml", "glm": "glm", "cohere": "cohere internlm",
    "tool_code": "tool_code", "python_request": "tool_code_tag",
    "pythonic": "pythonic pythonic_marked", "special_token": "lfm phi gemma apertus",
    "kimi": "kimi", "marker": "gemma_stripped qwen_agent functionary gorilla",
    "react": "react", "function_tag": "function_tag", "llama_python_tag": "python_tag",
    "glaive": "glaive", "invoke_xml": "param_xml", "tool_call_tag": "call_in_tag",
    "longcat": "longcat",
}  # fmt: skip
# further ones: form, answer, name
POSITIVE = [
    ("nemotron_xml", "Let me compute.\n<tool_call>\n<function=python>\n<parameter=code>\nprint(1)\n", "python"),
    ("hermes_json", f"I will look it up {TAGGED}", "get_weather"),
    ("hermes_json", f"{TAGGED}\n<tool_response>\n18\n</tool_response>\nIt is 18 degrees.", "get_weather"),
    ("hermes_json", '<tool_call>\n{"name": "get_weather", "argu', "get_weather"),
    ("hermes_json", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"', None),
    ("tool_call_tag", "Let me see.\n<tool_call>", None),
    ("tool_call_tag", "<tool_call>\nI need the weather in Paris\n</tool_call>", None),
    ("invoke_xml", INVOKE, "get_weather"),
    ("tool_tag", "<use_mcp_tool>\n<tool_name>get</tool_name>\n</use_mcp_tool>", "get"),
    ("mistral", "[TOOL_CALLS]get_wea", "get_wea"),
    ("kimi", '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}', "get_weather"),
    ("harmony", 'commentary to=functions.get_weather json{"city": "Paris"}', "get_weather"),
    ("harmony", "<|channel|>analysis to=python code<|message|>print(1)", "python"),
    ("bare_json", f"Sure! {CALL}", "get_weather"),
    ("bare_json", f"I'll call the tool.\n\n```json\n{CALL}\n```", "get_weather"),
    ("bare_json", f"`{CALL}`", "get_weather"),
    ("bare_json", '{"action": "get_weather", "action_input": "Paris"}', "get_weather"),
    ("bare_json", '{"name": "get_weather", "parameters": {"city": "Paris"', "get_weather"),
    ("pythonic", '[get_weather(city="Paris"), get_time(zone="CET")]', "get_weather"),
    ("pythonic", 'get_weather(city="Paris")', "get_weather"),
    ("pythonic", 'print(default_api.get_weather(city="Paris"))', "get_weather"),
    ("react", "Thought: I need it.\nAction 1: Search[Paris weather]", "Search"),
    ("text_lines", 'tool_call: get_weather\narguments: {"city": "Paris"}', "get_weather"),
    ("text_lines", '**Tool Call:** get_weather\n**Arguments:** {"city": "Paris"}', "get_weather"),
    ("tool_code", "```tool_code\nprint(default_api.get_weather(city='Paris'))\n```", "get_weather"),
    ("llama_python_tag", '<|python_tag|>brave_search.call(query="Paris")', "brave_search"),
    ("python_request", "<|python_tag|>import sympy\nprint(sympy.sqrt(8))", "python"),
    ("python_request", "I will run it:\n<execute>\nprint(2)\n</execute>", "python"),
    ("search_request", "<search>weather in Paris</search>", "search"),
    ("search_request", "<|begin_search_query|>weather in Paris<|end_search_query|>", "search"),
    ("marker", 'functools[{"name": "get_weather", "arguments": {}}]', "get_weather"),
    ("marker", '<|recipient|>get_weather\n<|content|>{"city": "Paris"}', "get_weather"),
    ("kimi", '<|open|>call tool="get_weather"<|sep|><|close|>call<|sep|>', "get_weather"),
    ("pythonic", '[Market Trends API(country="us")]', "Market Trends API"),
    ("pythonic", 'Call: get_weather(city="Paris")', "get_weather"),
    ("search_request", 'web_search("weather in Paris")', "web_search"),
    ("tool_call_tag", "Checking.<tool_call>get_weather</tool_call>", "get_weather"),
    ("tool_tag", "Checking.<my_tool_calls><tool_call>get_weather<tool_sep></tool_call></my_tool_calls>", "get_weather"),
    ("hermes_json", '<tool_call>{"name": "foo", "arguments": {"x": 1}}</tool_call>', "foo"),
    ("nemotron_xml", f"hello{XML}there", "get_weather"),
    ("pythonic", 'I will look. [get_weather(city="Paris")]', "get_weather"),
    ("pythonic", 'This comes before [get_weather(city="Paris")]', "get_weather"),
    ("bare_json", '[{"name": "get_weather", "parameters": {"city": "Paris"}},', "get_weather"),
    ("marker", 'I will look.>>>get_weather\n{"city": "Paris"}', "get_weather"),
    ("marker", "call:get_weather{city:Paris}", "get_weather"),
    ("invoke_xml", '<function name="noop"></function>', "noop"),
    ("pythonic", 'Action: get_weather(city="Paris")\nPAUSE', "get_weather"),
    ("pythonic", 'tool_code\nprint(maps.get_weather(city="Paris"))', "maps.get_weather"),
    ("bare_json", '{"thought": "I need it", "action": {"name": "get_weather", "args": {"city": "Paris"}}}', "get_weather"),
    ("bare_json", '{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "get_weather", "arguments": {}}, "id": 1}', "get_weather"),
    ("mistral", 'bash[TOOL_CALLS][ARGS]{"city": "Paris"}', None),
    ("pythonic", 'Action: get_weather("Paris")', "get_weather"),
    ("harmony", 'assistantcommentary to=functions.get_weather json{"city": "Par', "get_weather"),
    ("function_tag", 'I look: <function=get_weather>{"city": "Paris"}</function> and wait.', "get_weather"),
    ("bare_json", '```json\n[{"name": "get_weather", "parameters": {"city": "Paris"}},\n```', "get_weather"),
]  # fmt: skip

ABOUT = "What does a Hermes tool call look like?"
# prompt, answer
NEGATIVE = [
    (ABOUT, "The `<tool_call>` tag opens a call."),
    (ABOUT, "A call is wrapped in <tool_call> and </tool_call> tags."),
    (ABOUT, f"The model emits <tool_call>{CALL}</tool_call> and then waits."),
    (ABOUT, f"It looks like this:\n\n```xml\n{TAGGED}\n```\n\nThe name comes first."),
    (ABOUT, f"It looks like this:\n\n{TAGGED}\n"),
    ("Show me an example of a Nemotron tool call.", XML),
    ("Give me an example of an OpenAI function call in JSON.", f"```json\n{CALL}\n```"),
    ("工具调用的格式是什么？请给出示例。", f"示例：\n{TAGGED}"),
    ("How do I send tool calls to the OpenAI API?", '```json\n{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]}\n```'),
    ("Write a parser for Hermes tool calls in Python.", f'```python\nsample = """{TAGGED}"""\nprint(parse(sample))\n```'),
    ("", 'Answer within <tool_call></tool_call> tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'),
    ("", '<tool_call>\n{"name": "tool_name", "arguments": {"param": "value"}}\n</tool_call>'),
    ("", '<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n</function>\n</tool_call>'),
    ("", "Llama writes <|python_tag|> before code, Mistral [TOOL_CALLS] before calls."),
    ("", "| Marker | Model |\n|---|---|\n| <tool_call> | Hermes |\n| [TOOL_CALLS] | Mistral |"),
    ("", "I have no tools here, so there is no <tool_call> to make."),
    ("", "I should not write <function=get_weather> since there is no such function."),
    ("", '<workflow>\n<invoke name="deploy"></invoke>\n</workflow>'),
    ("", "<root>\n<python>3.11</python>\n</root>"),
    ("", '{"name": "Alice", "input": {"age": 3}}'),
    ("Dump the request.", f'{{"messages": [{{"role": "assistant", "tool_calls": [{CALL}]}}], "model": "m"}}'),
    ("", 'You could call `get_weather(city="Paris")` to find out.'),
    ("", "I would need a tool such as get_weather(city) for that."),
    ("Describe get_weather as JSON with its name and parameters.", '{"name": "get_weather", "parameters": {"city": "string"}}'),
    ("Extract the debater and the arguments as JSON.", '{"name": "John Smith", "arguments": {"for": "x"}}'),
    ("Write the schema of a weather tool.", '{"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}'),
    ("Give an example of a JSON-RPC request.", '```json\n{"jsonrpc": "2.0", "method": "subtract", "params": {"a": 1}, "id": 1}\n```'),
    ("", '{"action": "Final Answer", "action_input": "It is 18 degrees."}'),
    ("", "[f(x), g(x)]"),
    ("What does the list print as?", "[Point(x=1, y=2), Point(x=3, y=4)]"),
    ("", '<invoke name="$FUNCTION_NAME">\n<parameter name="$KEY">$VALUE</parameter>\n</invoke>'),
    ("", 'print(default_api.get_weather(city="Paris")) is what the model writes.'),
    ("", "The list is [math.sqrt(2), math.sqrt(3)]."),
    ("Write Python.", "print(math.fsum(seq=values))"),
    ("Write code that draws it.", "```python\nplot(kind='bar')\n```"),
    ("", "exports.api = functions.https.onRequest((req, res) => {});"),
    ("Write XML.", "<note>\n<to>Tove</to>\n<search>x</search>\n</note>"),
    ("Write Doxygen XML for main.", '<function name="main">\n<param name="argc">int</param>\n</function>'),
    ("", "**Host's Action:**\nHe opens a door.\n**Input:** none"),
    ("", "Function: f(x) = x^2\nArguments: x is real"),
    ("", "Tool: hammer\nUse: nails"),
    ("", "search(\"x\") returns the index of x."),
    ("", "[Assuming a uniform prior (p=0.5)]"),
    ("", "Results\n{\"a\": 1}"),
    ("", ">>>text\nand more"),
    ("Write a test case.", "Action: login\nInput: name\nExpected: ok"),
    ("Document it.", 'Function: sort_array\nInput: [3, 1, 2]'),
    ("Give me the config as JSON.", '{"name": "experiment_1", "parameters": {"lr": 0.1}}'),
    ("", "<|start|>assistant to=user<|message|>It is 18 degrees.<|eot|>"),
    ("", "In Python, >>>name\nprints it, and call:later is a label."),
]  # fmt: skip


@pytest.mark.parametrize("form", NOTATIONS)
def test_every_notation_is_found_and_named(form: str):
    for notation in NOTATIONS[form].split():
        answer = FORMS[notation](["get_weather"], [{"city": "Paris"}], Random(0))
        trace = f"I should look this up.\n\n{answer}\n"
        for part in ({"reasoning": None, "answer": answer}, {"reasoning": trace, "answer": "18."}):
            [call] = detect_calls(**part, tools=None, prompt="Weather in Paris?").calls
            assert (call.form, call.name, call.kind) == (form, "get_weather", "undeclared")
            assert call.part == ("reasoning" if part["reasoning"] else "answer")


@pytest.mark.parametrize(("form", "answer", "name"), POSITIVE)
def test_a_call_is_found_and_named(form: str, answer: str, name: str | None):
    verdict = detect_calls(reasoning=None, answer=answer, tools=None, prompt="Weather in Paris?")
    assert [verdict.in_answer, verdict.in_reasoning] == [True, False]
    first = verdict.calls[0]
    assert (first.form, first.name, first.kind) == (form, name, "undeclared")
    assert answer[first.start : first.end] == first.text


@pytest.mark.parametrize(("prompt", "answer"), NEGATIVE)
def test_what_is_shown_or_spoken_of_is_no_call(prompt: str, answer: str):
    assert detect_calls(reasoning=None, answer=answer, tools=None, prompt=prompt).calls == ()
    assert detect_calls(reasoning=answer, answer="", tools=None, prompt=prompt).calls == ()


@pytest.mark.parametrize(
    "prompt",
    ["Use the search tool to find the height of Everest.", "Call the function get_weather for Paris.",
     "How tall is Everest? You may use function calls.", "Return the weather in Paris as JSON."],
)  # fmt: skip
@pytest.mark.parametrize("answer", [TAGGED, XML, CALL, f"Here is the call:\n{TAGGED}"])
def test_a_prompt_that_wants_a_tool_used_asks_nothing_about_calls(prompt: str, answer: str):
    assert detect_calls(reasoning=None, answer=answer, tools=None, prompt=prompt).any


def test_an_answer_that_begins_with_a_marker_is_a_call():
    answer = "<tool_call> look up the price"
    (call,) = detect_calls(reasoning=None, answer=answer, tools=None).calls
    assert (call.form, call.name, call.start) == ("tool_call_tag", None, 0)
    assert not detect_calls(reasoning=None, answer=f"Well. {answer}", tools=None).calls


@pytest.mark.parametrize(
    ("text", "marks"),
    [("It is 4. <tool_call> 4", True), ("4\n</tool_call>", True), ("[TOOL_CALLS]4", True),
     ("<|tool_call|>4", True), ("✿FUNCTION✿", True), ("<think>4</think>", False),
     ("a <b>call</b>", False), ("<tool_response>4</tool_response>", False), ("[calls]", False)],
)  # fmt: skip
def test_half_a_call_holds_the_marker_of_one(text: str, marks: bool):
    assert has_call_marker(text) is marks


def test_a_call_after_a_mention_is_found():
    text = f"The `<tool_call>` tag is how I call.\n\nHere I go:\n{XML}"
    (call,) = detect_calls(reasoning=None, answer=text, tools=None).calls
    assert call.text == XML


def test_calls_of_a_list_share_a_span():
    text = f"[TOOL_CALLS][{CALL}, {CALL.replace('weather', 'time')}]"
    calls = detect_calls(reasoning=None, answer=text, tools=None).calls
    assert [call.name for call in calls] == ["get_weather", "get_time"]
    assert {(call.start, call.end) for call in calls} == {(0, len(text))}


def test_several_calls_are_each_found():
    text = f"First.\n{TAGGED}\nThen.\n{XML}\n\n```json\n{CALL}\n```"
    forms = [call.form for call in detect_calls(reasoning=None, answer=text, tools=None).calls]
    assert forms == ["hermes_json", "nemotron_xml", "bare_json"]
