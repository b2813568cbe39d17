"""What servers of any make answer: read, or one failed completion with its reason."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.chat.template import ChatTemplate, trl_templates
from posttrain.config.backend import ChatBackend
from posttrain.errors import ConfigError
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Parameters, Step
from posttrain.sampling.engines.chat import ChatSampler
from posttrain.sampling.engines.http import Client, RequestFailed
from posttrain.sampling.render import StepReader, TurnFormat
from posttrain.sampling.sampler import EngineOutput, Request
from posttrain.tokens.tokenizer import encoder_of
from tests.sampling.small_models import byte_tokenizer

USAGE = {"prompt_tokens": 3, "completion_tokens": 12}
DEEP = "[" * 5000 + "]" * 5000


def sampler(
    *, count: Any = len, parts: bool = True, reader: StepReader | None = None, **fields: Any
) -> ChatSampler:
    backend = ChatBackend(kind="chat", url="http://unused", model="m", **fields)
    return ChatSampler(Client(backend), backend, count=count, parts=parts, reader=reader)


def request(k: int = 0, **more: Any) -> Request:
    fields = {"tools": None, "thinking": True, "parameters": Parameters(max_tokens=64), "seed": k}
    return Request(messages=(Message("user", f"q{k}"),), **fields | more)


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "function": {"name": "f", "arguments": arguments} | more}


def answer(message: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"} | more], "usage": USAGE}


def calls(*rows: Any) -> dict[str, Any]:
    return answer({"content": None, "tool_calls": list(rows)})


NO_ARGUMENTS, ONE = ToolCall("f", "{}", "c"), ToolCall("f", '{"a":1}', "c")
# the body → reasoning, answer, calls
READ: dict[str, tuple[dict[str, Any], tuple[Any, str, tuple[ToolCall, ...]]]] = {
    "text": (answer({"content": "x"}), ("", "x", ())),
    "null content": (answer({"content": None}), ("", "", ())),
    "parts": (answer({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}), ("", "ab", ())),
    "typed otherwise": (answer({"content": [{"type": "output_text", "text": "a"}]}), ("", "a", ())),
    "parts with thinking": (
        answer({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "r"}]}, {"type": "text", "text": "a"}]}),
        ("r", "a", ()),
    ),
    "reasoning_content": (answer({"content": "x", "reasoning_content": "r"}), ("r", "x", ())),
    "reasoning": (answer({"content": "x", "reasoning": "r"}), ("r", "x", ())),
    "null reasoning": (answer({"content": "x", "reasoning": None, "reasoning_content": ""}), ("", "x", ())),
    "inline reasoning": (answer({"content": "r</think>x"}), ("r", "x", ())),
    "refusal": (answer({"content": None, "refusal": "No."}), ("", "No.", ())),
    "null calls": (answer({"content": "x", "tool_calls": None}), ("", "x", ())),
    "a call": (calls(call('{"a": 1}')), ("", "", (ONE,))),
    "a call with an object": (calls(call({"a": 1})), ("", "", (ONE,))),
    "no arguments": (calls(call("")), ("", "", (NO_ARGUMENTS,))),
    "null arguments": (calls(call(None)), ("", "", (NO_ARGUMENTS,))),
    "a number as id": (calls(call("{}") | {"id": 7}), ("", "", (ToolCall("f", "{}", None),))),
    "function_call": (answer({"content": "", "function_call": {"name": "f", "arguments": '{"a": 1}'}}), ("", "", (ToolCall("f", '{"a":1}', None),))),
    "a call as text": (answer({"content": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'}), ("", "", (ToolCall("f", "{}", None),))),
    "counts as text": (answer({"content": "x"}) | {"usage": {"prompt_tokens": "3", "completion_tokens": "12"}}, ("", "x", ())),
    "no usage": ({k: v for k, v in answer({"content": "x"}).items() if k != "usage"}, ("", "x", ())),
    "null usage": (answer({"content": "x"}) | {"usage": None}, ("", "x", ())),
    "no finish reason": (answer({"content": "x"}, finish_reason=None), ("", "x", ())),
    "half a surrogate pair": (answer({"content": "\ud83d!"}), ("", "\\ud83d!", ())),
}  # fmt: skip
MALFORMED = {
    "arguments that are no JSON": calls(call("{oops")),
    "arguments nested too deep": calls(call(DEEP)),
    "arguments that are a list": calls(call("[1]")),
    "a repeated key": calls(call('{"a": 1, "a": 2}')),
    "function is text": calls({"id": "c", "function": "f"}),
}
FAILED = {
    "empty object": {},
    "an error": {"error": {"message": "overloaded"}},
    "choices is an object": {"choices": {"message": {"content": "x"}}},
    "a null choice": {"choices": [None]},
    "null message": {"choices": [{"message": None, "finish_reason": "stop"}]},
    "a part without text": answer({"content": [{"type": "text"}]}),
    "an image part": answer({"content": [{"type": "image_url", "image_url": {"url": "u"}}]}),
    "reasoning is an object": answer({"content": "x", "reasoning": {"effort": "low"}}),
    "calls as an object": answer({"content": "", "tool_calls": {"name": "f"}}),
    "filtered": answer({"content": "x"}, finish_reason="content_filter"),
    "no reason and no count": {"choices": [{"message": {"content": "x"}}]},
}


@pytest.mark.parametrize("name", READ)
def test_usual_spellings_are_read(name: str):
    body, expected = READ[name]
    step = sampler()._read_answer(json.loads(json.dumps(body)), request())
    parsed = step.parsed
    assert (parsed.reasoning, parsed.answer, parsed.tool_calls) == expected
    assert step.prompt_tokens in (2, 3)  # counted here where the server does not
    assert step.finish == "stop"


def reader_of(template: str) -> StepReader:
    """What reads answers of a byte tokenizer with one of TRL's templates."""
    source = trl_templates()[template]
    chat = ChatTemplate(source, name=template, special_tokens=("<|im_end|>",))
    encoder = encoder_of(byte_tokenizer())
    return StepReader(TurnFormat(chat, encoder, ()))


@pytest.mark.parametrize(
    ("template", "behind"), [("nemotron_3_nano", "\n"), ("qwen3", "\n\n"), ("nemotron_3_ultra", "")]
)
def test_an_answer_is_the_same_from_text_from_ids_and_in_process(template: str, behind: str):
    reader = reader_of(template)
    encode = reader._turns.encoder.encode
    # what the model adds of its own to the template's line breaks stays
    for own in ("", "\n"):
        trace = f"17*2{'' if template == 'nemotron_3_ultra' else chr(10)}"
        written = f"{trace}</think>{behind}{own}34<|im_end|>"
        output = EngineOutput(tuple(encode([written])[0]), "stop")
        truth = reader.step(request(), output, opened=True, prompt_tokens=3)
        assert (truth.parsed.reasoning, truth.parsed.answer) == ("17*2", f"{own}34")
        parsed_by_server = answer({"content": f"{behind}{own}34", "reasoning": trace})
        left_inline = answer({"content": written.removesuffix("<|im_end|>")})
        with_ids = answer({"content": "another parser's"}, token_ids=list(output.ids))
        with_ids["prompt_token_ids"] = encode(["q<think>\n"])[0][-3:]
        opened = {"prompt_token_ids": encode(["<|im_start|>assistant\n<think>\n"])[0]}
        for body in (parsed_by_server, left_inline, with_ids | opened):
            count = lambda text: len(encode([text])[0])  # noqa: E731 - one line says it
            step = sampler(server="vllm", reader=reader, count=count)._read_answer(body, request())
            assert step.parsed == truth.parsed
            assert step.reasoning_tokens == truth.reasoning_tokens
            assert step.answer_tokens == truth.answer_tokens


def test_token_ids_are_asked_only_of_a_server_that_gives_them_and_where_they_can_be_read():
    reader = reader_of("nemotron_3_nano")
    assert (
        sampler(server="vllm", reader=reader)._request_body(request())["return_token_ids"] is True
    )
    assert "return_token_ids" not in sampler(server="any", reader=reader)._request_body(request())
    assert "return_token_ids" not in sampler(server="vllm")._request_body(request())


def test_reasoning_that_the_server_counts_as_none_is_counted_here():
    usage = USAGE | {"completion_tokens_details": {"reasoning_tokens": 0}}
    body = answer({"content": "x", "reasoning": "four"}) | {"usage": usage}
    assert sampler()._read_answer(body, request()).reasoning_tokens == 4
    with pytest.raises(RequestFailed, match="name the checkpoint"):
        sampler(count=None)._read_answer(body, request())


def test_an_answer_that_a_limit_cut_has_the_tokens_that_the_server_counted():
    """Its text may be written in fewer: a limit cuts between tokens that belong together."""
    cut = answer({"content": "has $1"}, finish_reason="length")
    cut["usage"] = USAGE | {"completion_tokens": 4}
    whole = cut | {"choices": [cut["choices"][0] | {"finish_reason": "stop"}]}
    reading = sampler(reader=reader_of("nemotron_3_nano"))
    assert reading._read_answer(cut, request()).answer_tokens == 4
    assert reading._read_answer(whole, request()).answer_tokens == len("has $1")


def test_an_answer_that_the_servers_parser_took_out_is_a_failure():
    # vLLM's parsers drop a call where no tool was declared
    gone = answer({"content": None}) | {"usage": USAGE | {"completion_tokens": 16}}
    with pytest.raises(RequestFailed, match="16 tokens, and its answer holds none"):
        sampler(reader=reader_of("nemotron_3_nano"))._read_answer(gone, request())


def test_a_trace_that_a_limit_cuts_is_named_and_a_break_before_a_call_is_no_answer():
    body = answer({"content": None, "reasoning": "so"}, finish_reason="length")
    assert sampler()._read_answer(body, request()).parsed.problems == ("unclosed_think",)
    body = answer({"content": "\nLet me see.\n", "reasoning": "so\n", "tool_calls": [call("{}")]})
    parsed = sampler()._read_answer(body, request()).parsed
    assert (parsed.reasoning, parsed.answer) == ("so", "Let me see.")


@pytest.mark.parametrize("name", MALFORMED)
def test_a_call_that_cannot_be_read_stays_as_text_and_is_named(name: str):
    parsed = sampler()._read_answer(MALFORMED[name], request()).parsed
    assert parsed.tool_calls == ()
    assert parsed.problems == ("malformed_call",)
    assert '"c"' in parsed.answer


def test_without_a_counter_what_the_server_does_not_count_is_a_failure():
    with pytest.raises(RequestFailed, match="name the checkpoint"):
        sampler(count=None)._read_answer(answer({"content": "x"}) | {"usage": None}, request())
    traced = answer({"content": "x", "reasoning": "r"})
    with pytest.raises(RequestFailed, match="name the checkpoint"):
        sampler(count=None)._read_answer(traced, request())
    # where nobody needs the parts the whole is counted
    step = sampler(count=None, parts=False)._read_answer(traced, request())
    assert (step.parsed.reasoning, step.reasoning_tokens, step.answer_tokens) == ("r", 0, 12)
    traced["usage"] = USAGE | {"completion_tokens_details": {"reasoning_tokens": 10}}
    step = sampler(count=None, parts=False)._read_answer(traced, request())
    assert (step.reasoning_tokens, step.answer_tokens) == (10, 2)


def test_without_a_finish_reason_the_count_says_whether_a_limit_ended_it():
    usage = USAGE | {"completion_tokens": 64}
    body = answer({"content": "x"}, finish_reason=None) | {"usage": usage}
    assert sampler()._read_answer(body, request()).finish == "length"


def test_the_servers_count_of_cached_tokens_is_kept():
    for details, cached in (({"cached_tokens": 2}, 2), (None, None), ({}, None), ([2], None)):
        body = answer({"content": "x"}) | {"usage": USAGE | {"prompt_tokens_details": details}}
        assert sampler()._read_answer(body, request()).cached_tokens == cached


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 99) | st.floats() | st.text("a<{[\ud800", max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "message", "content", "type", "text", "thinking", "tool_calls", "function",
             "name", "arguments", "usage", "finish_reason", "reasoning", "function_call", "error",
             "prompt_tokens", "completion_tokens", "completion_tokens_details"]
        ),
        inner, max_size=6,
    ),
    max_leaves=12,
)  # fmt: skip


@given(_values, _values)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_answer_ends_the_run(message: Any, usage: Any):
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    try:
        assert isinstance(sampler()._read_answer(body, request()), Step)
    except RequestFailed as error:
        str(error).encode()


STANDARD = {
    "model", "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed",
    "tools", "reasoning_effort",
}  # fmt: skip
IN_MESSAGES = {"role", "content", "tool_calls", "tool_call_id"}
TURNS = (
    Message("user", "q"),
    Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("f", "{}", "c1"),)),
    Message("tool", "7", tool_call_id="c1", name="f"),
)


@pytest.mark.parametrize("server", ["any", "openai"])
def test_a_request_holds_standard_fields_alone(server: str):
    tools = '[{"type":"function","function":{"name":"f","parameters":{}}}]'
    body = sampler(server=server)._request_body(
        request(tools=tools) if server == "any" else request()
    )
    assert set(body) <= STANDARD
    assert ("max_tokens" in body) == (server == "any")
    rows = sampler(server=server)._request_body(Request(TURNS, None, True, Parameters(), seed=1))
    assert all(set(row) <= IN_MESSAGES for row in rows["messages"])
    with pytest.raises(ConfigError, match="kind: completions"):
        sampler(server=server)._request_body(request(reasoning_budget=5))
    with pytest.raises(ConfigError, match="top_k"):
        sampler(server=server)._request_body(request(parameters=Parameters(top_k=5)))


def test_a_server_that_takes_more_gets_more():
    vllm = sampler(server="vllm", thinking="enable_thinking")
    body = vllm._request_body(Request(TURNS, None, False, Parameters(top_k=5), seed=1))
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["top_k"], body["messages"][1]["reasoning"]) == (5, "hm")
    assert body["messages"][2]["name"] == "f"


def test_an_answer_is_held_to_a_schema():
    schema = {"type": "object", "properties": {"safe": {"type": "boolean"}}}
    body = sampler()._request_body(request(schema=json.dumps(schema)))
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert "response_format" not in sampler()._request_body(request())


def test_thinking_is_switched_as_the_server_spells_it_or_stays_as_it_is():
    switches: dict[str, Any] = {
        "thinking": {"chat_template_kwargs": {"thinking": False}},
        "enable_thinking_field": {"enable_thinking": False},
        "reasoning_effort": {"reasoning_effort": "none"},
        "reasoning": {"reasoning": {"enabled": False}},
    }
    for switch, fields in switches.items():
        one = sampler(thinking=switch)
        on, off = one._request_body(request()), one._request_body(request(thinking=False))
        assert fields.items() <= off.items()
        assert on != off
    one = sampler()
    assert one._request_body(request()).keys() <= STANDARD
    with pytest.raises(ConfigError, match=r"backend\.thinking: fixed"):
        one._request_body(request(thinking=False))


def test_every_request_has_its_generation_and_those_that_nobody_can_read_an_error():
    odd = [*(body for body, _ in READ.values()), *MALFORMED.values(), *FAILED.values()]
    one = sampler()

    async def post(path: str, body: object, *, key: int, **_: Any) -> dict[str, Any]:
        return odd[key]

    one._client.post = post
    found = asyncio.run(one.sample([request(k) for k in range(len(odd))]))
    read = len(READ) + len(MALFORMED)
    assert [g.error is None for g in found] == [k < read for k in range(len(odd))]
    assert [g.step is None for g in found] == [g.error is not None for g in found]
