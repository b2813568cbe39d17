"""NeMo Gym's rows as they are → rows of our environments.

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
EVALUATION = frozenset({
    "aalcr", "bigcodebench", "bird_sql", "code_fim", "evalplus", "gpqa_diamond", "graphwalks",
    "hotpotqa_qa", "ifbench", "iheval", "imo_gradingbench", "longmemeval", "mrcr", "omniscience",
    "polymath", "scicode", "simpleqa", "spider2_lite", "swebench", "xstest",
})  # fmt: skip


def gym_row(row: Row, *, server: str | None = None, environment: str | None = None) -> Fields:
    """One row of a Gym data file, for `RLVREnvironment.prompt`.

    Args:
        server: the resources server of rows whose agent is none that we know.
        environment: ours, whose servers are tried for rows without an agent.

    Raises:
        DataError: whose message is a drop reason.
    """
    name = server_of(row)
    if server is not None and name not in SERVERS and name not in EVALUATION:
        name = server
    if name in EVALUATION:
        raise DataError(f"evaluation_only: {name}")
    candidates = [name] if name in SERVERS else []
    if name is None and environment is not None:
        candidates = [own for own, (reads, _) in SERVERS.items() if reads == environment]
    if not candidates:
        raise DataError(f"unknown_environment: {name or 'no agent_ref'}")
    problems: list[DataError] = []
    for candidate in candidates:
        try:
            return _read(row, candidate)
        except DataError as error:
            problems.append(error)
    raise problems[0]


def check_server(server: str, environment: str | None, *, where: str) -> None:
    """Raises ConfigError for a server whose rows this environment does not read."""
    if server not in SERVERS:
        raise ConfigError(
            f"{where}: server: none is called {server!r}{nearest(server, (*SERVERS,))}"
        )
    if SERVERS[server][0] != environment:
        raise ConfigError(f"{where}: rows of {server} are read by {SERVERS[server][0]}")


def gym_messages(row: Row) -> Fields:
    """The messages and tools of a row, whatever its server. Raises as `gym_row`."""
    try:
        parameters = cast(Fields, row["responses_create_params"])
        given = parameters["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        instructions = parameters.get("instructions")
        messages = [{"role": "system", "content": instructions}] if instructions else []
        for item in items:
            messages += _messages(item)
        tools = [_tool(tool) for tool in parameters.get("tools") or ()]
    except DataError as error:
        raise DataError(f"malformed_row: {error}") from error
    except _MALFORMED as error:
        raise DataError(f"malformed_row: {type(error).__name__}: {error}") from error
    return {"messages": _joined(messages)} | ({"tools": tools} if tools else {})


def _read(row: Row, server: str) -> Fields:
    environment, fields_of = SERVERS[server]
    conversation = gym_messages(row)
    try:
        fields = fields_of(row)
    except DataError as error:
        raise DataError(f"malformed_row: {error}") from error
    except _MALFORMED as error:
        raise DataError(f"malformed_row: {type(error).__name__}: {error}") from error
    return {"environment": environment, **conversation, **fields}


def server_of(row: Row) -> str | None:
    """The server that a row's agent belongs to: the longest known name that its own begins with, or
    the agent's own name; None without an agent."""
    agent = row.get("agent_ref")
    if not isinstance(agent, dict):
        return None
    name = str(cast(Fields, agent).get("name"))
    known = [s for s in (*SERVERS, *EVALUATION) if name == s or name.startswith(f"{s}_")]
    return max(known, key=len, default=name)


def _messages(item: Fields) -> list[Fields]:
    """An item of the Responses API as messages of the chat API; reasoning is not carried."""
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
        if bad := [p["type"] for p in parts if p["type"] not in ("input_text", "output_text")]:
            raise DataError(f"content of type {bad[0]!r}")
        content = "".join(part["text"] for part in parts)
    role = "system" if item["role"] == "developer" else item["role"]
    return [{"role": role, "content": content}]


def _joined(messages: list[Fields]) -> list[Fields]:
    """Calls that follow one another, or a message of the same turn, as one message."""
    joined: list[Fields] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if "tool_calls" in message and last.get("role") == "assistant":
            before = cast(list[Any], last.get("tool_calls", []))
            joined[-1] = last | {"tool_calls": [*before, *message["tool_calls"]]}
        elif message["role"] != "system" or message["content"]:
            joined.append(message)
    return joined


def _tool(tool: Fields) -> Fields:
    if tool.get("type") != "function":
        raise DataError(f"a tool of type {tool.get('type')!r}")
    kept = ("name", "description", "parameters")
    return {"type": "function", "function": {k: tool[k] for k in kept if tool.get(k) is not None}}


# -- servers ---------------------------------------------------------------------------------------


def _text(answer: Any) -> str:
    """An answer; JSON text of a list or an object stands for its first value."""
    value: Any = None
    if isinstance(answer, str) and answer.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            value = load_json(answer)
    if isinstance(value, dict):
        value = list(cast(Fields, value).values())
    return str(answer if value is None else value[0])


def _multiple_choice(row: Row) -> Fields:
    options: Fields = {}
    for option in row["options"]:
        options |= option
    metadata: Fields = {"options": options}
    template: Fields = row.get("template_metadata") or {}
    if pattern := template.get("output_regex"):
        metadata["output_regex"] = pattern
    return {"gold": row["expected_answer"], "metadata": metadata}


# what solutions of LeetCode take for granted; builtins last, so that none of them is replaced
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
LEETCODE_TOLERANCE = 1e-5  # LeetCode's own, of results with decimals


def _code(row: Row) -> Fields:
    """Programs that read and write, or, with `fn_name`, a function or a method of `Solution`: then
    an input has an argument a line, in JSON, and an output is a value in JSON."""
    tests = row["verifier_metadata"]["unit_tests"]
    if isinstance(tests, str):
        tests = load_json(tests)
    function = tests.get("fn_name")
    pairs = [*zip(tests["inputs"], tests["outputs"], strict=True)][:MOST_TESTS]
    if not function:
        return {"metadata": {"tests": [{"input": i, "output": o} for i, o in pairs]}}
    calls = [{"input": _arguments(given), "output": _result(result)} for given, result in pairs]
    metadata: Fields = {"tests": calls, "function": function, "setup": LEETCODE_SETUP}
    return {"metadata": metadata | {"tolerance": LEETCODE_TOLERANCE}}


def _arguments(given: Any) -> list[Any]:
    if isinstance(given, list):
        return cast(list[Any], given)
    return [load_json(line) for line in str(given).split("\n") if line.strip()]


def _result(given: Any) -> Any:
    return load_json(given) if isinstance(given, str) else given


def _structured_output(row: Row) -> Fields:
    schema = row["schema_str"]
    as_call = row.get("response_mode") == "tool_call"
    metadata: Fields = {
        "schema": load_json(schema) if isinstance(schema, str) else schema,
        "format": "tool_call" if as_call else row.get("schema_type", "json"),
    }
    if as_call:
        metadata |= {"tool": row["tool_name"], "payload": row.get("tool_payload_key")}
    return {"metadata": metadata}


def _tool_call(row: Row) -> Fields:
    action = row["expected_action"]
    if action["type"] == "message":
        return {"gold": {"message": action["content"]}}
    batch = action["calls"] if action["type"] == "function_call_batch" else [action]
    return {"gold": {"calls": [_call(call) for call in batch]}}


def _call(call: Fields) -> Fields:
    own = call["arguments"]
    return {"name": call["name"], "arguments": load_json(own) if isinstance(own, str) else own}


def _instruction_following(row: Row) -> Fields:
    task = row.get("verifier_metadata") or row
    constraints: list[Fields] = []
    for name, arguments in zip(task["instruction_id_list"], task["kwargs"], strict=True):
        if name not in INSTRUCTIONS:
            raise DataError(f"constraint {name} has no checker")
        given: Fields = arguments or {}
        constraints += _constraints(name, {k: v for k, v in given.items() if v is not None})
    grading = {"binary": "all", "fraction": "fraction"}[task.get("grading_mode") or "binary"]
    return {"metadata": {"constraints": constraints, "grading": grading}}


def _long_context(row: Row) -> Fields:
    if row.get("source") in EVALUATION:
        raise DataError(f"taken from {row['source']}, which is for evaluation only")
    return {"gold": row["expected_answer"]}


def _math(row: Row) -> Fields:
    return {"gold": _text(row["expected_answer"])}


def _equivalence(row: Row) -> Fields:
    return {"gold": str(row["expected_answer"])}


# server → our environment, and the fields of its rows
SERVERS: dict[str, tuple[str, Callable[[Row], Fields]]] = {
    "math_with_judge": ("math", _math),
    "math_with_autograder": ("math", _math),
    "mcqa": ("multiple_choice", _multiple_choice),
    "code_gen": ("code", _code),
    "structured_outputs": ("structured_output", _structured_output),
    "single_step_tool_use_with_argument_comparison": ("tool_call", _tool_call),
    "xlam_fc": (
        "tool_call",
        lambda row: {"gold": {"calls": [_call(call) for call in row["expected_answers"]]}},
    ),
    "instruction_following": ("instruction_following", _instruction_following),
    "lc_niah": ("long_context", _long_context),
    "equivalence_llm_judge": ("equivalence", _equivalence),
    "lc_judge": ("equivalence", _equivalence),
    "multichallenge": ("rubric", lambda row: {"metadata": {"rubric": row["rubric"]}}),
    "calendar": ("scheduling", lambda row: {"metadata": {"events": row["exp_cal_state"]}}),
    "reasoning_gym": (
        "reasoning_gym",
        lambda row: {"gold": row["answer"], "metadata": row["metadata"]},
    ),
}


# -- instructions ----------------------------------------------------------------------------------


def _constraints(name: str, given: Fields) -> list[Fields]:
    """Ours for one of theirs; IFEval's "less than" is one less at most."""
    kind, arguments = INSTRUCTIONS[name]
    fields: Fields = {"kind": kind}
    for own, theirs in arguments.items():
        if not isinstance(theirs, tuple):
            fields[own] = given[theirs] if isinstance(theirs, str) else theirs
            continue
        number, relation = (given[key] for key in cast(tuple[str, str], theirs))
        if relation not in ("at least", "at most", "less than"):
            raise DataError(f"relation {relation!r}")
        bound = "at_least" if relation == "at least" else "at_most"
        fields[bound] = int(number) - (relation == "less than")
    if kind == "paragraph_start":
        return [{"kind": "paragraphs", "exactly": given["num_paragraphs"]}, fields]
    return [fields]


# id of a training constraint (allenai/open-instruct, IFEvalG) → our kind, and by our argument the
# name of theirs, a number that theirs implies, or the names of a number and its relation
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
