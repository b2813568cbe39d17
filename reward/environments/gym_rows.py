"""NeMo Gym's rows as they are → rows of our environments.

    {"responses_create_params": {"input": […], "tools": […]}, "agent_ref": {"name": "mcqa_…"},
     "options": [{"A": "3"}, {"B": "4"}], "expected_answer": "B"}
    → {"environment": "multiple_choice", "messages": […], "gold": "B", "metadata": {"options": …}}

    admitted = await admit(rows, environments, convert=gym_row)

The server is in `agent_ref.name`, or is given. A server that no table entry reads, one that serves
a benchmark, and a row that lacks what its verifier needs are dropped with a reason. Field names are
NVIDIA's (NVIDIA-NeMo/Gym, resources_servers/*/app.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from posttrain.errors import DataError
from posttrain.jsontext import load_json
from reward.environments.code import MOST_TESTS
from reward.environments.constraints import CONSTRAINTS

Row = Mapping[str, Any]
Fields = dict[str, Any]
# servers whose rows are benchmarks: to train on them is contamination
EVALUATION = frozenset({
    "aalcr", "bigcodebench", "bird_sql", "code_fim", "evalplus", "gpqa_diamond", "graphwalks",
    "hotpotqa_qa", "ifbench", "iheval", "imo_gradingbench", "longmemeval", "mrcr", "omniscience",
    "polymath", "scicode", "simpleqa", "spider2_lite", "swebench", "xstest",
})  # fmt: skip


def gym_row(row: Row, *, server: str | None = None) -> Fields:
    """One row of a Gym data file, for `RLVREnvironment.prompt`.

    Args:
        server: the resources server, where rows have no `agent_ref`.

    Raises:
        DataError: whose message is a drop reason.
    """
    name = server or server_of(row)
    if name in EVALUATION:
        raise DataError(f"evaluation_only: {name}")
    if name not in SERVERS:
        raise DataError(f"unknown_environment: {name}")
    try:
        parameters = cast(Fields, row["responses_create_params"])
        messages = [m for item in parameters["input"] for m in _messages(item)]
        tools = [_tool(tool) for tool in parameters.get("tools") or ()]
        environment, fields = SERVERS[name](row)
    except DataError as error:
        raise DataError(f"malformed_row: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"malformed_row: {type(error).__name__}: {error}") from error
    own: Fields = {"environment": environment, "messages": _joined(messages), **fields}
    return own | ({"tools": tools} if tools else {})


def server_of(row: Row) -> str:
    """The server that a row's agent belongs to: the longest known name that its own begins with."""
    agent = row.get("agent_ref")
    name = str(cast(Fields, agent).get("name")) if isinstance(agent, dict) else "no agent_ref"
    known = [s for s in (*SERVERS, *EVALUATION) if name == s or name.startswith(f"{s}_")]
    return max(known, key=len, default=name)


def _messages(item: Fields) -> list[Fields]:
    """An item of the Responses API as messages of the chat API; reasoning is not carried."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return []
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}]
    if kind != "message":
        raise DataError(f"an input item of type {kind!r}")
    role = {"developer": "system"}.get(item["role"], item["role"])
    content = item["content"]
    if isinstance(content, list):
        parts = cast(list[Fields], content)
        if bad := [p["type"] for p in parts if p["type"] not in ("input_text", "output_text")]:
            raise DataError(f"content of type {bad[0]!r}")
        content = "".join(part["text"] for part in parts)
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
    function = {
        k: tool[k] for k in ("name", "description", "parameters") if tool.get(k) is not None
    }
    return {"type": "function", "function": function}


# -- servers ---------------------------------------------------------------------------------------


def _math(row: Row) -> tuple[str, Fields]:
    return "math", {"gold": _text(row["expected_answer"])}


def _text(answer: Any) -> str:
    """An answer; JSON text of a list or an object stands for its first value."""
    if isinstance(answer, str) and answer.lstrip()[:1] in ("[", "{"):
        try:
            value = load_json(answer)
        except ValueError:
            return answer
        found: list[Any] = (
            list(cast(Fields, value).values()) if answer.lstrip()[0] == "{" else value
        )
        return str(found[0])
    return str(answer)


def _multiple_choice(row: Row) -> tuple[str, Fields]:
    options: Fields = {}
    for option in row["options"]:
        options |= option
    template: Fields = row.get("template_metadata") or {}
    metadata: Fields = {"options": options}
    if template.get("output_regex"):
        metadata["output_regex"] = template["output_regex"]
    return "multiple_choice", {"gold": row["expected_answer"], "metadata": metadata}


def _code(row: Row) -> tuple[str, Fields]:
    tests = row["verifier_metadata"]["unit_tests"]
    if isinstance(tests, str):
        tests = load_json(tests)
    function = tests.get("fn_name")
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    metadata: Fields = {"tests": [{"input": i, "output": o} for i, o in pairs][:MOST_TESTS]}
    return "code", {"metadata": metadata | ({"function": function} if function else {})}


def _structured_output(row: Row) -> tuple[str, Fields]:
    schema = row["schema_str"]
    as_call = row.get("response_mode") == "tool_call"
    metadata: Fields = {
        "schema": load_json(schema) if isinstance(schema, str) else schema,
        "format": "tool_call" if as_call else row.get("schema_type", "json"),
    }
    if as_call:
        metadata |= {"tool": row["tool_name"], "payload": row.get("tool_payload_key")}
    return "structured_output", {"metadata": metadata}


def _tool_call(row: Row) -> tuple[str, Fields]:
    action = row["expected_action"]
    if action["type"] == "message":
        return "tool_call", {"gold": {"message": action["content"]}}
    batch = action["calls"] if action["type"] == "function_call_batch" else [action]
    return "tool_call", {"gold": {"calls": [_call(call) for call in batch]}}


def _tool_calls(row: Row) -> tuple[str, Fields]:
    return "tool_call", {"gold": {"calls": [_call(call) for call in row["expected_answers"]]}}


def _call(call: Fields) -> Fields:
    arguments = call["arguments"]
    own = load_json(arguments) if isinstance(arguments, str) else arguments
    return {"name": call["name"], "arguments": own}


def _instruction_following(row: Row) -> tuple[str, Fields]:
    task = row.get("verifier_metadata") or row
    constraints: list[Fields] = []
    for name, arguments in zip(task["instruction_id_list"], task["kwargs"], strict=True):
        if name not in INSTRUCTIONS:
            raise DataError(f"constraint {name} has no checker")
        given: Fields = arguments or {}
        constraints += INSTRUCTIONS[name]({k: v for k, v in given.items() if v is not None})
    assert all(one["kind"] in CONSTRAINTS for one in constraints)
    grading = {"binary": "all", "fraction": "fraction"}[task.get("grading_mode") or "binary"]
    return "instruction_following", {"metadata": {"constraints": constraints, "grading": grading}}


def _long_context(row: Row) -> tuple[str, Fields]:
    if row.get("source") in EVALUATION:
        raise DataError(f"taken from {row['source']}, which is for evaluation only")
    return "long_context", {"gold": row["expected_answer"]}


def _equivalence(row: Row) -> tuple[str, Fields]:
    return "equivalence", {"gold": str(row["expected_answer"])}


def _rubric(row: Row) -> tuple[str, Fields]:
    return "rubric", {"metadata": {"rubric": row["rubric"]}}


def _scheduling(row: Row) -> tuple[str, Fields]:
    return "scheduling", {"metadata": {"events": row["exp_cal_state"]}}


def _reasoning_gym(row: Row) -> tuple[str, Fields]:
    return "reasoning_gym", {"gold": row["answer"], "metadata": row["metadata"]}


SERVERS: dict[str, Callable[[Row], tuple[str, Fields]]] = {
    "math_with_judge": _math,
    "math_with_autograder": _math,
    "mcqa": _multiple_choice,
    "code_gen": _code,
    "structured_outputs": _structured_output,
    "single_step_tool_use_with_argument_comparison": _tool_call,
    "xlam_fc": _tool_calls,
    "instruction_following": _instruction_following,
    "lc_niah": _long_context,
    "equivalence_llm_judge": _equivalence,
    "lc_judge": _equivalence,
    "multichallenge": _rubric,
    "calendar": _scheduling,
    "reasoning_gym": _reasoning_gym,
}


# -- instructions ----------------------------------------------------------------------------------


def _bound(number: Any, relation: str | None) -> Fields:
    """IFEval's relations; "less than" is one less at most."""
    match relation:
        case "at least":
            return {"at_least": int(number)}
        case "less than" | "at most":
            return {"at_most": int(number) - (relation == "less than")}
        case _:
            raise DataError(f"relation {relation!r}")


def _kind(kind: str, **fields: Any) -> list[Fields]:
    return [{"kind": kind, **fields}]


# id of a training constraint (allenai/open-instruct, IFEvalG) → ours
INSTRUCTIONS: dict[str, Callable[[Fields], list[Fields]]] = {
    "length_constraints:number_words": lambda a: _kind(
        "words", **_bound(a["num_words"], a["relation"])
    ),
    "length_constraints:number_sentences": lambda a: _kind(
        "sentences", **_bound(a["num_sentences"], a["relation"])
    ),
    "length_constraints:number_paragraphs": lambda a: _kind(
        "divided_paragraphs", exactly=a["num_paragraphs"]
    ),
    "length_constraints:nth_paragraph_first_word": lambda a: [
        *_kind("paragraphs", exactly=a["num_paragraphs"]),
        *_kind("paragraph_start", paragraph=a["nth_paragraph"], word=a["first_word"]),
    ],
    "paragraphs:paragraphs": lambda a: _kind("divided_paragraphs", exactly=2),
    "paragraphs:paragraphs2": lambda a: _kind("paragraphs", exactly=2),
    "detectable_format:number_bullet_lists": lambda a: _kind("bullets", exactly=a["num_bullets"]),
    "detectable_format:number_highlighted_sections": lambda a: _kind(
        "highlights", at_least=a["num_highlights"]
    ),
    "detectable_format:title": lambda a: _kind("title"),
    "detectable_format:json_format": lambda a: _kind("json"),
    "detectable_content:number_placeholders": lambda a: _kind(
        "placeholders", at_least=a["num_placeholders"]
    ),
    "keywords:existence": lambda a: _kind("keywords", words=a["keywords"]),
    "keywords:forbidden_words": lambda a: _kind("forbidden_words", words=a["forbidden_words"]),
    "keywords:frequency": lambda a: _kind(
        "keyword_count", word=a["keyword"], **_bound(a["frequency"], a["relation"])
    ),
    "keywords:letter_frequency": lambda a: _kind(
        "letter_count", letter=a["letter"], **_bound(a["let_frequency"], a["let_relation"])
    ),
    "keywords:word_once": lambda a: _kind("keyword_count", word=a["keyword"], exactly=1),
    "letters:letter_counting": lambda a: _kind("letters", **_bound(a["N"], a["relation"])),
    "count:lowercase_counting": lambda a: _kind("lowercase_words", at_most=a["N"]),
    "count:count_unique": lambda a: _kind("no_repeats"),
    "change_case:english_lowercase": lambda a: _kind("lowercase"),
    "change_case:english_capital": lambda a: _kind("uppercase"),
    "change_case:capital_word_frequency": lambda a: _kind(
        "capital_words", **_bound(a["capital_frequency"], a["capital_relation"])
    ),
    "first_word:first_word_answer": lambda a: _kind("first_word", word=a["first_word"]),
    "first_word:first_word_sent": lambda a: _kind("sentence_start", word=a["first_word"]),
    "last_word:last_word_answer": lambda a: _kind("last_word", word=a["last_word"]),
    "startend:end_checker": lambda a: _kind("ends_with", text=a["end_phrase"]),
    "startend:quotation": lambda a: _kind("quoted"),
    "punctuation:no_comma": lambda a: _kind("no_commas"),
}
