"""Conversion of NeMo Gym's rows into rows of our environments.

    {"responses_create_params": {"input": […], "tools": […]}, "agent_ref": {"name": "mcqa_…"},
     "options": [{"A": "3"}, {"B": "4"}], "expected_answer": "B"}
    → {"environment": "multiple_choice", "messages": […], "gold": "B", "metadata": {"options": …}}

Field names are NVIDIA's (NVIDIA-NeMo/Gym, resources_servers/*/app.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from posttrain.config.load import nearest
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import load_json
from reward.environments.code import MOST_TESTS

Row = Mapping[str, Any]
Fields = dict[str, Any]
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
# servers whose rows are benchmarks: to train on them is contamination
EVALUATION = frozenset(
    {
        *("aalcr", "bigcodebench", "bird_sql", "code_fim", "evalplus", "gpqa_diamond"),
        *("graphwalks", "hotpotqa_qa", "ifbench", "iheval", "imo_gradingbench", "longmemeval"),
        *("mrcr", "omniscience", "polymath", "scicode", "simpleqa", "spider2_lite", "swebench"),
        "xstest",
    }
)


def gym_row(row: Row, *, server: str | None = None, environment: str | None = None) -> Fields:
    """Convert a row of a Gym data file into one for `RLVREnvironment.prompt`.

    Args:
        server: resources server of rows whose agent is unknown to us.
        environment: our environment whose servers are tried for rows without an agent.

    Raises:
        DataError: the row cannot be converted; the message is a drop reason.
    """
    row_server = server_of(row)
    if server is not None and row_server not in SERVERS and row_server not in EVALUATION:
        row_server = server
    if row_server in EVALUATION:
        raise DataError(f"evaluation_only: {row_server}")
    candidates = [row_server] if row_server in SERVERS else []
    if row_server is None and environment is not None:
        for name, (environment_of_server, _) in SERVERS.items():
            if environment_of_server == environment:
                candidates.append(name)
    if not candidates:
        raise DataError(f"unknown_environment: {row_server or 'no agent_ref'}")
    problems: list[DataError] = []
    for candidate in candidates:
        try:
            return _convert(row, candidate)
        except DataError as error:
            problems.append(error)
    raise problems[0]


def check_server(server: str, environment: str | None, *, where: str) -> None:
    """Raise ConfigError for a server whose rows this environment does not read."""
    if server not in SERVERS:
        raise ConfigError(
            f"{where}: server: none is called {server!r}{nearest(server, (*SERVERS,))}"
        )
    if SERVERS[server][0] != environment:
        raise ConfigError(f"{where}: rows of {server} are read by {SERVERS[server][0]}")


def gym_messages(row: Row) -> Fields:
    """The messages and tools of a row of any server. Raises DataError as `gym_row` does."""
    try:
        parameters = cast(Fields, row["responses_create_params"])
        items = parameters["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        instructions = parameters.get("instructions")
        messages = [{"role": "system", "content": instructions}] if instructions else []
        for item in items:
            messages += _chat_messages(item)
        tools = [_convert_tool(tool) for tool in parameters.get("tools") or ()]
    except DataError as error:
        raise DataError(f"malformed_row: {error}") from error
    except _MALFORMED as error:
        raise DataError(f"malformed_row: {type(error).__name__}: {error}") from error
    conversation: Fields = {"messages": _with_joined_calls(messages)}
    if tools:
        conversation["tools"] = tools
    return conversation


def _convert(row: Row, server: str) -> Fields:
    environment, convert_fields = SERVERS[server]
    conversation = gym_messages(row)
    try:
        fields = convert_fields(row)
    except DataError as error:
        raise DataError(f"malformed_row: {error}") from error
    except _MALFORMED as error:
        raise DataError(f"malformed_row: {type(error).__name__}: {error}") from error
    return {"environment": environment, **conversation, **fields}


def server_of(row: Row) -> str | None:
    """Server of a row's agent; None for a row without an agent.

    It is the longest known name that begins the agent's name, else the agent's name itself.
    """
    agent = row.get("agent_ref")
    if not isinstance(agent, dict):
        return None
    agent_name = str(cast(Fields, agent).get("name"))
    servers = [
        server
        for server in (*SERVERS, *EVALUATION)
        if agent_name == server or agent_name.startswith(f"{server}_")
    ]
    return max(servers, key=len, default=agent_name)


def _chat_messages(item: Fields) -> list[Fields]:
    """Convert an item of the Responses API into messages of the chat API, without reasoning."""
    match item.get("type", "message"):
        case "reasoning":
            return []
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            return [{"role": "assistant", "content": "", "tool_calls": [call]}]
        case "function_call_output":
            return [{"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}]
        case "message":
            content = item["content"]
        case kind:
            raise DataError(f"an input item of type {kind!r}")
    if isinstance(content, list):
        parts = cast(list[Fields], content)
        for part in parts:
            if part["type"] not in ("input_text", "output_text"):
                raise DataError(f"content of type {part['type']!r}")
        content = "".join(part["text"] for part in parts)
    role = "system" if item["role"] == "developer" else item["role"]
    return [{"role": role, "content": content}]


def _with_joined_calls(messages: list[Fields]) -> list[Fields]:
    """Move calls into the assistant's message that they follow; drop empty system messages."""
    joined: list[Fields] = []
    for message in messages:
        previous = joined[-1] if joined else {}
        if "tool_calls" in message and previous.get("role") == "assistant":
            earlier_calls = cast(list[Any], previous.get("tool_calls", []))
            joined[-1] = previous | {"tool_calls": [*earlier_calls, *message["tool_calls"]]}
        elif message["role"] != "system" or message["content"]:
            joined.append(message)
    return joined


def _convert_tool(tool: Fields) -> Fields:
    if tool.get("type") != "function":
        raise DataError(f"a tool of type {tool.get('type')!r}")
    keys = ("name", "description", "parameters")
    function = {key: tool[key] for key in keys if tool.get(key) is not None}
    return {"type": "function", "function": function}


# -- servers ---------------------------------------------------------------------------------------


def _answer_text(answer: Any) -> str:
    """Text of an answer; of a JSON list or object its first value."""
    value: Any = None
    if isinstance(answer, str) and answer.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            value = load_json(answer)
    if isinstance(value, dict):
        value = list(cast(Fields, value).values())
    return str(answer if value is None else value[0])


def _multiple_choice_fields(row: Row) -> Fields:
    options: Fields = {}
    for option in row["options"]:
        options |= option
    metadata: Fields = {"options": options}
    template: Fields = row.get("template_metadata") or {}
    if pattern := template.get("output_regex"):
        metadata["output_regex"] = pattern
    return {"gold": row["expected_answer"], "metadata": metadata}


# names that solutions of LeetCode use without importing; builtins last, so that none is replaced
LEETCODE_SETUP = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *
sys.setrecursionlimit(50_000)
"""
LEETCODE_TOLERANCE = 1e-5  # LeetCode's tolerance for results with decimals


def _code_fields(row: Row) -> Fields:
    """Tests of a program, or with `fn_name` of a function or a method of `Solution`.

    A program's test has texts; a function's has an argument in JSON on each line of the input, and
    a value in JSON as its output.
    """
    unit_tests = row["verifier_metadata"]["unit_tests"]
    if isinstance(unit_tests, str):
        unit_tests = load_json(unit_tests)
    function = unit_tests.get("fn_name")
    pairs = [*zip(unit_tests["inputs"], unit_tests["outputs"], strict=True)][:MOST_TESTS]
    tests: list[Fields] = []
    for test_input, output in pairs:
        if function:
            tests.append({"input": _read_arguments(test_input), "output": _read_value(output)})
        else:
            tests.append({"input": test_input, "output": output})
    metadata: Fields = {"tests": tests}
    if function:
        metadata["function"] = function
        metadata["setup"] = LEETCODE_SETUP
        metadata["tolerance"] = LEETCODE_TOLERANCE
    return {"metadata": metadata}


def _read_arguments(test_input: Any) -> list[Any]:
    if isinstance(test_input, list):
        return cast(list[Any], test_input)
    return [load_json(line) for line in str(test_input).split("\n") if line.strip()]


def _read_value(output: Any) -> Any:
    return load_json(output) if isinstance(output, str) else output


def _structured_output_fields(row: Row) -> Fields:
    schema = row["schema_str"]
    is_tool_call = row.get("response_mode") == "tool_call"
    metadata: Fields = {
        "schema": load_json(schema) if isinstance(schema, str) else schema,
        "format": "tool_call" if is_tool_call else row.get("schema_type", "json"),
    }
    if is_tool_call:
        metadata["tool"] = row["tool_name"]
        metadata["payload"] = row.get("tool_payload_key")
    return {"metadata": metadata}


def _tool_call_fields(row: Row) -> Fields:
    action = row["expected_action"]
    if action["type"] == "message":
        return {"gold": {"message": action["content"]}}
    calls = action["calls"] if action["type"] == "function_call_batch" else [action]
    return {"gold": {"calls": [_convert_call(call) for call in calls]}}


def _convert_call(call: Fields) -> Fields:
    arguments = call["arguments"]
    if isinstance(arguments, str):
        arguments = load_json(arguments)
    return {"name": call["name"], "arguments": arguments}


def _instruction_following_fields(row: Row) -> Fields:
    task = row.get("verifier_metadata") or row
    constraints: list[Fields] = []
    for name, arguments in zip(task["instruction_id_list"], task["kwargs"], strict=True):
        if name not in INSTRUCTIONS:
            raise DataError(f"constraint {name} has no checker")
        fields: Fields = arguments or {}
        constraints += _convert_instruction(
            name, {k: v for k, v in fields.items() if v is not None}
        )
    grading = {"binary": "all", "fraction": "fraction"}[task.get("grading_mode") or "binary"]
    return {"metadata": {"constraints": constraints, "grading": grading}}


def _long_context_fields(row: Row) -> Fields:
    if row.get("source") in EVALUATION:
        raise DataError(f"taken from {row['source']}, which is for evaluation only")
    return {"gold": row["expected_answer"]}


def _math_fields(row: Row) -> Fields:
    return {"gold": _answer_text(row["expected_answer"])}


def _equivalence_fields(row: Row) -> Fields:
    return {"gold": str(row["expected_answer"])}


# server → our environment, and the function that converts its rows' own fields
SERVERS: dict[str, tuple[str, Callable[[Row], Fields]]] = {
    "math_with_judge": ("math", _math_fields),
    "math_with_autograder": ("math", _math_fields),
    "mcqa": ("multiple_choice", _multiple_choice_fields),
    "code_gen": ("code", _code_fields),
    "structured_outputs": ("structured_output", _structured_output_fields),
    "single_step_tool_use_with_argument_comparison": ("tool_call", _tool_call_fields),
    "xlam_fc": (
        "tool_call",
        lambda row: {"gold": {"calls": [_convert_call(call) for call in row["expected_answers"]]}},
    ),
    "instruction_following": ("instruction_following", _instruction_following_fields),
    "lc_niah": ("long_context", _long_context_fields),
    "equivalence_llm_judge": ("equivalence", _equivalence_fields),
    "lc_judge": ("equivalence", _equivalence_fields),
    "multichallenge": ("rubric", lambda row: {"metadata": {"rubric": row["rubric"]}}),
    "calendar": ("scheduling", lambda row: {"metadata": {"events": row["exp_cal_state"]}}),
    "reasoning_gym": (
        "reasoning_gym",
        lambda row: {"gold": row["answer"], "metadata": row["metadata"]},
    ),
}


# -- instructions ----------------------------------------------------------------------------------


def _convert_instruction(instruction: str, arguments: Fields) -> list[Fields]:
    """Our constraints for an instruction of theirs; "less than N" becomes "at most N - 1"."""
    kind, sources = INSTRUCTIONS[instruction]
    fields: Fields = {"kind": kind}
    for argument, source in sources.items():
        if not isinstance(source, tuple):
            fields[argument] = arguments[source] if isinstance(source, str) else source
            continue
        number_key, relation_key = cast(tuple[str, str], source)
        number = arguments[number_key]
        relation = arguments[relation_key]
        if relation not in ("at least", "at most", "less than"):
            raise DataError(f"relation {relation!r}")
        bound = "at_least" if relation == "at least" else "at_most"
        fields[bound] = int(number) - (relation == "less than")
    if kind == "paragraph_start":
        return [{"kind": "paragraphs", "exactly": arguments["num_paragraphs"]}, fields]
    return [fields]


# id of a training constraint (allenai/open-instruct, IFEvalG) → our kind, and the source of each of
# our arguments: the name of theirs, a number that theirs implies, or the names of a number and its
# relation
INSTRUCTIONS: dict[str, tuple[str, Fields]] = {
    "length_constraints:number_words": ("words", {"": ("num_words", "relation")}),
    "length_constraints:number_sentences": ("sentences", {"": ("num_sentences", "relation")}),
    "length_constraints:number_paragraphs": ("divided_paragraphs", {"exactly": "num_paragraphs"}),
    "length_constraints:nth_paragraph_first_word": (
        "paragraph_start", {"paragraph": "nth_paragraph", "word": "first_word"}
    ),
    "paragraphs:paragraphs": ("divided_paragraphs", {"exactly": 2}),
    "paragraphs:paragraphs2": ("paragraphs", {"exactly": 2}),
    "detectable_format:number_bullet_lists": ("bullets", {"exactly": "num_bullets"}),
    "detectable_format:number_highlighted_sections": ("highlights", {"at_least": "num_highlights"}),
    "detectable_format:title": ("title", {}),
    "detectable_format:json_format": ("json", {}),
    "detectable_content:number_placeholders": ("placeholders", {"at_least": "num_placeholders"}),
    "keywords:existence": ("keywords", {"words": "keywords"}),
    "keywords:forbidden_words": ("forbidden_words", {"words": "forbidden_words"}),
    "keywords:frequency": ("keyword_count", {"word": "keyword", "": ("frequency", "relation")}),
    "keywords:letter_frequency": (
        "letter_count", {"letter": "letter", "": ("let_frequency", "let_relation")}
    ),
    "keywords:word_once": ("keyword_count", {"word": "keyword", "exactly": 1}),
    "letters:letter_counting": ("letters", {"": ("N", "relation")}),
    "count:lowercase_counting": ("lowercase_words", {"at_most": "N"}),
    "count:count_unique": ("no_repeats", {}),
    "change_case:english_lowercase": ("lowercase", {}),
    "change_case:english_capital": ("uppercase", {}),
    "change_case:capital_word_frequency": (
        "capital_words", {"": ("capital_frequency", "capital_relation")}
    ),
    "first_word:first_word_answer": ("first_word", {"word": "first_word"}),
    "first_word:first_word_sent": ("sentence_start", {"word": "first_word"}),
    "last_word:last_word_answer": ("last_word", {"word": "last_word"}),
    "startend:end_checker": ("ends_with", {"text": "end_phrase"}),
    "startend:quotation": ("quoted", {}),
    "punctuation:no_comma": ("no_commas", {}),
}  # fmt: skip
