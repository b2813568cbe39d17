"""Agentic runs: flags of a stored run, figures, published totals scored again, the report."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.errors import ConfigError
from posttrain.evaluation.agentic import (
    PRECEDENCE,
    RunFailure,
    agentic_figures,
    failures,
    family_of,
    paired_difference,
    scored_expectations,
    solved_share,
)
from posttrain.evaluation.run import Record, read_records
from posttrain.pages.agentic import failing_step, in_words
from posttrain.pages.agentic import figures as sections
from posttrain.records import Message, Score, ToolCall
from posttrain.rollouts import Completion, ParsedCompletion, Prompt, Step
from tests.data_builders.small_build import script

TOOLS = json.dumps([{"type": "function", "function": {"name": "read", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"],
    "additionalProperties": False}}}])  # fmt: skip
METADATA = '{"family": "f", "fixture": "0/0"}'
PROMPT = Prompt("p", "p", "rlvr", (Message("user", "go"),), tools=TOOLS, metadata=METADATA)
SOUND, OTHER = '{"path": "a"}', '{"path": "b"}'


def completion(
    *turns: tuple[str, str, str, bool], finish: Any = "stop", missing: bool = False,
    problems: tuple[str, ...] = (),
) -> Completion:  # fmt: skip
    """Turns of (tool, arguments as text, result, whether it changed a file), then an answer."""
    steps: list[Step] = []
    changes: list[dict[str, list[str]]] = []
    for tool, arguments, result, changed in turns:
        call = ToolCall(tool, arguments, "c")
        parsed = ParsedCompletion(None, "", (call,), (), True)
        given = (Message("tool", result, tool_call_id="c", name=tool),)
        steps.append(Step("", parsed, "stop", 0, 1, 9, results=given))
        if arguments.startswith("{") and arguments.endswith("}"):
            changes.append({"changed": ["x"] * changed})
    answer = ParsedCompletion(None, "done", (), problems, True)
    steps.append(Step("done", answer, "stop", 0, 1, 9))
    state = {"calls": changes, "missing": ["x"] * missing, "changes": {}, "infrastructure": None}
    return Completion("p", 0, tuple(steps), finish, state=json.dumps(state))


def test_a_family_of_the_tiny_world_is_no_agentic_one():
    assert family_of(PROMPT) == "f"
    assert family_of(replace(PROMPT, metadata='{"family": "maths", "task": "subtract"}')) is None


LOOK = ("read", SOUND, "one", False)
CHANGE = ("read", OTHER, "ok", True)


def modes(run: Completion, score: Score) -> tuple[str, ...]:
    return tuple(failure.mode for failure in failures(PROMPT, run, score))


@pytest.mark.parametrize(
    ("run", "value", "flags", "step"),
    [
        (completion(LOOK), 1.0, (), None),
        (completion(LOOK, CHANGE, LOOK), 0.0, ("wrong_answer",), 1),
        (completion(LOOK, missing=True), 0.0, ("gave_up_mid_plan",), 1),
        (completion(LOOK, finish="turn_limit"), 0.0, ("gave_up_mid_plan",), 1),
        (completion(LOOK, finish="token_limit"), 0.0, ("gave_up_mid_plan",), 1),
        (completion(LOOK, LOOK, LOOK), 0.0, ("tool_call_redundancy", "wrong_answer"), 2),
        (completion(LOOK, LOOK), 0.0, ("wrong_answer",), 2),
        # a clock in the result, a result after an error, another call in between, keys in another
        # order, a change in between
        (completion(LOOK, LOOK, ("read", SOUND, "at 10:41:07", False)), 0.0,
         ("tool_call_redundancy", "wrong_answer"), 2),
        (completion(("read", SOUND, "error: busy", False), LOOK, LOOK), 0.0, ("wrong_answer",), 3),
        (completion(LOOK, ("read", OTHER, "n", False), LOOK, ("read", '{ "path":"a"}', "one", False)),
         0.0, ("tool_call_redundancy", "wrong_answer"), 3),
        (completion(LOOK, LOOK, CHANGE, LOOK), 0.0, ("wrong_answer",), 2),
        (completion(("open", SOUND, "error: no tool", False), CHANGE), 1.0,
         ("tool_call_hallucinated",), None),
        (completion(("open", SOUND, "error: no tool", False), missing=True), 0.0,
         ("tool_call_hallucinated", "gave_up_mid_plan"), 0),
        (completion(LOOK, ("read", '{"file": "a"}', "error", False)), 0.0,
         ("tool_call_hallucinated", "wrong_answer"), 1),
        (completion(LOOK, ("read", '["a"]', "error", False), CHANGE, LOOK, LOOK), 0.0,
         ("tool_call_hallucinated", "wrong_answer"), 1),
        (completion(LOOK, problems=("malformed_call",)), 0.0,
         ("tool_call_hallucinated", "wrong_answer"), 1),
        (completion(LOOK, LOOK, LOOK), None, ("infrastructure_error", "tool_call_redundancy"), 3),
        (Completion("p", 0, (), "failed", error="gone"), None, ("infrastructure_error",), 0),
        # an error that a tool gives, as an injected one, is a result
        (completion(("read", SOUND, "error: timed out", False), LOOK, CHANGE), 1.0, (), None),
    ],
)  # fmt: skip
def test_flags_and_what_decides(
    run: Completion, value: float | None, flags: tuple[str, ...], step: int | None
):
    score = Score(value, None, "")
    assert modes(run, score) == flags
    if flags == ("gave_up_mid_plan",) and run.finish == "stop":  # a right answer, but in prose
        assert modes(run, Score(value, "It is not defined.", "")) == ("wrong_answer",)
    if step is not None:
        assert failures(PROMPT, run, score)[0] == RunFailure(flags[0], step)
    assert list(flags) == sorted(flags, key=PRECEDENCE.index)


# -- published totals ------------------------------------------------------------------------------

# solved of 3 runs by task: articles on agentic-core-v1 of 21 May 2026 (data packs
# 2026-05-21-nvidia-nemotron-nano-3-30b and 2026-05-21-qwen3-32b); Super's from Nano's deltas
NANO = (1, 0, 1, 1, 0, 1, 3, 3, 0, 0)
SUPER = tuple(n - d for n, d in zip(NANO, (-1, -1, 1, 1, -1, -1, 3, 1, -1, -3), strict=True))
QWEN = (3, 3, 3, 3, 2, 3, 3, 0, 0, 3)


def values(solved: tuple[int, ...]) -> list[tuple[float, int]]:
    return [(float(run < n), task) for task, n in enumerate(solved) for run in range(3)]


def test_published_totals_scored_again():
    assert (sum(NANO), sum(SUPER), sum(QWEN)) == (10, 12, 23)
    nano, qwen = solved_share(values(NANO)), solved_share(values(QWEN))
    assert (nano["solved"], nano["runs"], nano["tasks"]) == (10, 30, 10)
    # wider than a bootstrap over the ten tasks, [0.13, 0.57] and [0.50, 1.00], which is too narrow
    assert (nano["low"], nano["high"]) == pytest.approx((0.134, 0.617), abs=0.002)
    assert (qwen["low"], qwen["high"]) == pytest.approx((0.419, 0.937), abs=0.002)
    nothing = solved_share(values((0,) * 10))
    assert nothing["low"] == 0.0
    assert 0.2 < nothing["high"] < 0.35
    against_super = paired_difference(values(NANO), values(SUPER))
    against_qwen = paired_difference(values(NANO), values(QWEN))
    assert against_super["p"] == pytest.approx(0.71, abs=0.01)
    assert against_qwen["p"] == pytest.approx(0.044, abs=0.002)
    assert "does not rank" in in_words({"names": ["Nano", "Super"], **against_super})


# -- a run of the evaluation -----------------------------------------------------------------------

FAMILIES = ("multi_step_plan", "recover_from_tool_error", "know_when_to_stop")


RECIPE: dict[str, Any] = {
    "checkpoints": {
        "one": {"backend": {"kind": "scripted", "policy": "oracle"}},
        "two": {"backend": {"kind": "scripted", "policy": "takes_the_stale_copy"}},
    },
    "prompts": [
        {"name": f, "format": "environment", "environment": f, "generated": 7, "count": 2}
        for f in FAMILIES
    ],
    "settings": [{"name": "agent", "thinking": 0.0}],
    "n": 2,
    "sampling": {"max_turns": 15},
    "prices": {"one": {"input": 1, "output": 3}},
    "expect": {"multi_step_plan": [0.9, 1.0], "all": [0.2, 0.6]},
}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
def test_two_models_in_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe, out, main = tmp_path / "eval.yaml", tmp_path / "out", script("eval").main
    recipe.write_text(yaml.safe_dump(RECIPE | {"out": str(out)}))
    command = ["--config", str(recipe)]
    main(command)
    figures = json.loads((out / "metrics.json").read_text())["agentic"]
    one, two = figures["models"]
    total = one["families"][-1]
    assert (one["checkpoint"], total["solved"], total["runs"]) == ("one", 12, 12)
    assert two["families"][-1]["solved"] == 0
    decided = {row["mode"]: row["decides"] for row in two["failures"]}
    assert decided == dict.fromkeys(PRECEDENCE, 0) | {"wrong_answer": 4, "gave_up_mid_plan": 8}
    [pair] = figures["pairs"]
    assert (pair["names"], pair["a"], pair["b"], pair["questions"]) == (["two", "one"], 0.0, 1.0, 6)
    expected = scored_expectations(figures, {"multi_step_plan": (0.9, 1.0)})
    verdicts = {row["checkpoint"]: (row["met"], row["contradicted"]) for row in expected}
    assert verdicts == {"one": (True, False), "two": (False, False)}  # of two tasks
    stale = read_records(out / "records/two/recover_from_tool_error.agent.jsonl")[0]
    assert failing_step(stale) == (2, "wrong answer")
    page = (out / "report.html").read_text()
    assert all(text in page for text in ("Agentic leaderboard", "Predictions"))
    # what the machine failed is in no share
    lost = [replace(r, score=Score(None, None, "gone", "sandbox")) for r in read_all(out, "two")]
    mixed = agentic_figures({"one": read_all(out, "one"), "two": lost})
    assert mixed is not None
    assert mixed["pairs"] == []
    missing = mixed["models"][1]["families"][-1]
    assert (missing["runs"], missing["unscored"], missing["share"]) == (0, 12, None)
    assert {row["decides"] for row in mixed["models"][1]["failures"]} == {12, 0}
    assert next(scored_expectations(mixed, {"all": (0, 1)}))["checkpoint"] == "one"
    assert all(section.blocks for section in sections(mixed, {}, ()))
    capsys.readouterr()
    main(["leaderboard", f"{out}:two", f"{out}:one"])
    assert "12/12" in capsys.readouterr().out
    # a prediction cannot be changed once the run is there
    with pytest.raises(ConfigError):
        main([*command, "expect.all=[0.0, 1.0]"])
    for wrong in ("expect={multi_step_plans: [0.1, 0.2]}", "expect.all=[0.6, 0.2]"):
        with pytest.raises(ConfigError, match="expect"):
            main([*command, wrong, f"out={tmp_path}/other"])


def read_all(out: Path, checkpoint: str) -> list[Record]:
    files = [out / f"records/{checkpoint}/{name}.agent.jsonl" for name in FAMILIES]
    return [record for file in files for record in read_records(file)]
