"""Rejection sampling: what passes becomes a row, what fails, hangs or is cut off never does."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_builders.rows.read import read_examples
from data_builders.synthesis.kinds import open_kind
from data_builders.synthesis.plan import first_asks, plan_rows
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.sampling.sampler import Request
from reward.environments.base import RLVREnvironment, Script
from reward.environments.instruction_following import InstructionFollowingEnvironment
from reward.environments.workplace import WorkplaceEnvironment
from tests.data_builders.synthesis.small_synthesis import made, recipe_of, server, write_rows
from tests.sampling.scripted import END, FAIL, Scripted, call

SUMS = [(n, n + 2) for n in range(12)]


def make_of(tmp_path: Path, asks: str = "Put it in", **others: Any) -> dict[str, Any]:
    rows = [{"question": f"{a}+{b}? {asks} \\boxed{{}}.", "gold": str(a + b)} for a, b in SUMS]
    source = {
        "name": "sums",
        "format": "environment",
        "environment": "math",
        "path": str(write_rows(tmp_path / "sums.jsonl", rows)),
    }
    settings = [{"name": "plain", "thinking": 0.0}]
    return {"kind": "rejection", "prompts": [source], "settings": settings, **others}


def sum_of(request: Request) -> int:
    a, _, rest = request.messages[-1].content.partition("+")
    return int(a) + int(rest.partition("?")[0])


def unsure(request: Request, rng: random.Random) -> str:
    """Right in half of its answers; for 0+2 never, for 1+3 cut off, for 2+4 silent."""
    total = sum_of(request)
    if total == 4:
        return "so long that it never ends " * 100
    if total == 6:
        return END
    right = rng.random() < 0.5 and total != 2
    words = "Adding both" if rng.random() < 0.5 else "Counting on"
    return f"{words}: \\boxed{{{total if right else total + 1}}}{END}"


def test_rows_are_the_completions_that_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make = make_of(tmp_path, n=6, most=2)
    recipe = recipe_of(tmp_path / "out", make, {"generator": server("sft")})
    rows, manifest = made(recipe, {"sft": Scripted(unsure, batched=False)}, monkeypatch)
    seeds = {row["metadata"]["synthesis"]["seed"] for row in rows}
    assert manifest.counts.rows_in == 12
    assert manifest.counts.kept == len(seeds) == 9
    assert manifest.counts.dropped == {"none_passes": 1, "truncated": 1, "empty_answer": 1}
    for row in rows:
        question, answer = [message["content"] for message in row["messages"]]
        assert f"\\boxed{{{row['metadata']['gold']}}}" in answer
        assert question.endswith("\\boxed{}.")
        assert row["metadata"]["synthesis"]["models"] == {"generator": "sft"}
    answers = [
        (row["metadata"]["synthesis"]["seed"], row["messages"][1]["content"]) for row in rows
    ]
    assert len({*answers}) == len(answers), "no completion of a prompt stands twice"
    assert manifest.stats["requests"] == {"generator": 72}
    assert manifest.stats["models"] == {"generator": {"sft": [12, 9]}}
    assert manifest.stats["planted"] == {"rows": 9, "dropped": {"none_passes": 9}}


def test_build_sft_reads_the_rows_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = recipe_of(tmp_path / "out", make_of(tmp_path, n=6), {"generator": server("sft")})
    rows, _ = made(recipe, {"sft": Scripted(unsure, batched=False)}, monkeypatch)
    source = SourceConfig(name="made", path=str(tmp_path / "out/rows.jsonl"))
    examples = list(read_examples(source, tmp_path))
    assert [[m.content for m in e.messages] for e in examples] == [
        [m["content"] for m in row["messages"]] for row in rows
    ]


@pytest.mark.parametrize("environment", [WorkplaceEnvironment, InstructionFollowingEnvironment])
def test_what_is_planted_is_wrong_by_the_state_and_by_any_constraint(
    environment: type[RLVREnvironment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A text in the place of the last answer changed no state, and kept some constraints."""
    rows = environment().rows(seed=5, count=8)
    scripts: dict[str, Script] = {}
    for row in rows:
        prompt = environment().prompt(row)
        gold = environment().gold(prompt)
        assert gold is not None
        scripts[prompt.messages[-1].content] = gold

    def right(request: Request, _: random.Random) -> str:
        question = next(m.content for m in request.messages if m.role == "user")
        step = scripts[question][sum(m.role == "assistant" for m in request.messages)]
        calls = [call(c.name, **json.loads(c.arguments)) for c in step.tool_calls]
        return "\n".join([step.content, *calls]).strip() + END

    source = {"name": "tasks", "format": "environment", "environment": environment.name}
    source["path"] = str(write_rows(tmp_path / "rows.jsonl", rows))
    tools = {} if environment is InstructionFollowingEnvironment else {"tools": "given"}
    settings = [{"name": "plain", "thinking": 0.0, **tools}]
    make = {"kind": "rejection", "prompts": [source], "settings": settings, "n": 1}
    recipe = recipe_of(tmp_path / "out", make, {"generator": server("sft")})
    _, manifest = made(recipe, {"sft": Scripted(right, batched=False)}, monkeypatch)
    planted = manifest.stats["planted"]
    assert planted["rows"] == sum(planted["dropped"].values()) >= 6


def test_a_control_arm_keeps_completions_whether_they_pass_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make = make_of(tmp_path, n=6, most=6, keep="any")
    recipe = recipe_of(tmp_path / "out", make, {"generator": server("sft")})
    rows, manifest = made(recipe, {"sft": Scripted(unsure, batched=False)}, monkeypatch)
    assert manifest.counts.dropped == {"truncated": 1, "empty_answer": 1}
    assert len(rows) == 60, "repeated ones too, as often as the model writes them"
    right = [
        f"\\boxed{{{row['metadata']['gold']}}}" in row["messages"][1]["content"] for row in rows
    ]
    assert 15 < sum(right) < 45
    assert {tuple(row["metadata"]["synthesis"]["checks"]) for row in rows} == {()}
    assert manifest.stats["planted"] == {"rows": 0, "dropped": {}}, "there is no check to try"


def test_the_shortest_or_a_keyed_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def wordy(request: Request, rng: random.Random) -> str:
        return f"{'well, ' * rng.randrange(9)}\\boxed{{{sum_of(request)}}}{END}"

    lengths: dict[str, int] = {}
    for choose in ("draw", "shortest"):
        make = make_of(tmp_path, n=8, choose=choose)
        recipe = recipe_of(tmp_path / choose, make, {"generator": server("sft")})
        rows, _ = made(recipe, {"sft": Scripted(wordy)}, monkeypatch)
        lengths[choose] = sum(len(row["messages"][1]["content"]) for row in rows)
    assert lengths["shortest"] < lengths["draw"]


def test_several_generators_share_the_seeds_by_a_keyed_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def right(request: Request, _: random.Random) -> str:
        return f"\\boxed{{{sum_of(request)}}}{END}"

    models = {"generator": [server("small"), server("large")]}
    recipe = recipe_of(tmp_path / "out", make_of(tmp_path, n=1), models)
    samplers = {"small": Scripted(right), "large": Scripted(right)}
    rows, manifest = made(recipe, samplers, monkeypatch)
    names = [row["metadata"]["synthesis"]["models"]["generator"] for row in rows]
    assert {*names} == {"small", "large"}
    shares = manifest.stats["models"]["generator"]
    assert {name: counts[0] for name, counts in shares.items()} == {
        name: names.count(name) for name in shares
    }


def test_a_plan_counts_steps_of_tools_where_a_prompt_has_them_alone(tmp_path: Path):
    recipe = recipe_of(
        tmp_path / "out", make_of(tmp_path, n=6), {"generator": server("sft", max_tokens=100)}
    )
    kind = open_kind(recipe)
    seeds = kind.seeds(tmp_path).seeds
    asks = first_asks(recipe, kind, seeds)
    with_tools = replace(asks[0].prompt, tools="[]", environment="tiny_world")
    asks[0] = replace(asks[0], prompt=with_tools)
    [row] = plan_rows(recipe, kind, seeds, asks)
    assert row["completions"] == 72
    assert row["output"] == 66 * 100 + 6 * 800, "eight steps of one prompt, one of the others"


class Interrupted(Scripted):
    """Answers so many requests, and is then interrupted."""

    def __init__(self, answers: int) -> None:
        super().__init__(unsure, batched=False)
        self.left = answers

    async def sample(self, requests, *, progress=None):
        if self.left == 0:
            raise RuntimeError("killed")
        self.left -= 1
        return await super().sample(requests, progress=progress)


@pytest.mark.parametrize("answers", [0, 1, 30, 71])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    answers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make = make_of(tmp_path, n=6, most=2)
    models = {"generator": server("sft")}
    whole = recipe_of(tmp_path / "whole", make, models)
    made(whole, {"sft": Scripted(unsure, batched=False)}, monkeypatch)
    recipe = recipe_of(tmp_path / "cut", make, models)
    with pytest.raises(RuntimeError, match="killed"):
        made(recipe, {"sft": Interrupted(answers)}, monkeypatch)
    second = Scripted(unsure, batched=False)
    made(recipe, {"sft": second}, monkeypatch)
    assert len(second.calls) == 72 - answers, "nothing is requested twice"
    for name in ("rows.jsonl", "examples.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_failed_request_is_no_row_and_ends_the_run_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(request: Request, _: random.Random) -> str:
        total = sum_of(request)
        return FAIL if total == 2 else f"\\boxed{{{total}}}{END}"

    make, models = make_of(tmp_path, n=1), {"generator": server("sft")}
    recipe = recipe_of(tmp_path / "out", make, models, max_failure_rate=0.2)
    _, manifest = made(recipe, {"sft": Scripted(failing, batched=False)}, monkeypatch)
    assert manifest.counts.dropped == {"request_failed": 1}
    strict = recipe_of(tmp_path / "strict", make, models)
    with pytest.raises(DataError, match="max_failure_rate"):
        made(strict, {"sft": Scripted(failing, batched=False)}, monkeypatch)


@pytest.mark.parametrize(
    ("make", "models", "words"),
    [
        ({"most": 9, "n": 8}, {"generator": server("sft")}, "9 rows of a prompt with 8"),
        ({}, {"generator": server("sft"), "jugde": server("sft")}, "no role 'jugde'"),
        ({}, {"judge": server("sft")}, "no role 'judge'"),
        ({}, {"generator": [server("sft"), server("sft")]}, "found twice: sft"),
    ],
)
def test_impossible_recipes_are_refused(make, models, words, tmp_path: Path):
    with pytest.raises(ConfigError, match=words):
        recipe_of(tmp_path / "out", make_of(tmp_path, **make), models)


ROWS = [{"name": "rows", "path": "rows.jsonl"}]
LONG = {"kind": "long_documents", "tokenizer": "t", "lengths": [900], "count": 1}
PROMPTS = [
    {
        "name": "b",
        "format": "environment",
        "environment": "conversation",
        "generated": 0,
        "count": 3,
    }
]


@pytest.mark.parametrize(
    ("make", "roles", "idle"),
    [
        ({"kind": "twin", "sources": ROWS}, ["rewriter"], "rewriter"),
        ({"kind": "twin", "sources": ROWS}, ["solver"], "solver"),
        (LONG, ["writer"], "writer"),
        (
            {"kind": "tool_conversation", "prompts": PROMPTS, "settings": [{"name": "t"}]},
            ["user", "agent", "tools"],
            "tools",
        ),
    ],
)
def test_a_model_that_is_never_asked_is_refused(make, roles: list[str], idle: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=rf"models\.{idle} is never asked"):
        recipe_of(tmp_path / "out", make, {role: server(role) for role in roles})


def test_completions_in_another_language_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("py3langid", reason="the extra language is not installed")

    def multilingual(request: Request, rng: random.Random) -> str:
        """Right in English or Chinese; for 0+2 in Chinese alone."""
        total = sum_of(request)
        english = "We add both of the numbers in the question and come to the sum, which is"
        chinese = "我们把题目里的两个数字加在一起，先看第一个数字，再看第二个数字，然后把它们相加，最后得到的总和是"
        words = english if rng.random() < 0.5 and total != 2 else chinese
        return f"{words} \\boxed{{{total}}}{END}"

    for checks, languages in (({}, {"We"}), ({"language": False}, {"We", "我们"})):
        out = tmp_path / str(len(languages))
        make = make_of(tmp_path, n=6, most=6, asks="Put the sum of both numbers in")
        recipe = recipe_of(out, make, {"generator": server("sft")}, checks=checks)
        rows, manifest = made(recipe, {"sft": Scripted(multilingual)}, monkeypatch)
        assert {row["messages"][1]["content"][:2] for row in rows} == languages
        assert manifest.counts.dropped == ({} if checks else {"other_language": 1})
