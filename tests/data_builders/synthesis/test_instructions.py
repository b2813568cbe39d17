"""Conversations under constraints: every turn is verified, and trivial answers are judged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from data_builders.synthesis.kinds import open_kind
from posttrain.errors import ConfigError, DataError
from posttrain.sampling.sampler import Request
from reward.environments.instruction_following import CONSTRAINTS, InstructionFollowingEnvironment
from tests.data_builders.synthesis.small_synthesis import (
    made,
    read_rows,
    recipe_of,
    server,
    write_rows,
)
from tests.sampling.scripted import END, Scripted

PERSONAS = [f"a gardener who grows {plant}" for plant in ("roses", "leeks", "figs", "mint", "oats")]


def recipe(tmp_path: Path, *, judge: bool = True, **make):
    path = write_rows(tmp_path / "personas.jsonl", [{"persona": p} for p in PERSONAS])
    personas = [{"name": "people", "path": str(path)}]
    models = {"user": server("user"), "generator": server("agent")}
    if judge:
        models["judge"] = server("judge")
    kind = {"kind": "instructions", "personas": personas, "only": ["forbidden_words"], **make}
    return recipe_of(tmp_path / "out", kind, models)


def user(request: Request, _: random.Random) -> str:
    shown = request.messages[0].content
    plant = next(p for p in PERSONAS if p in shown).rpartition(" ")[2]
    turn = shown.count("\nassistant:")
    return f"How do I care for {plant} in month {turn}?{END}"


def agent(request: Request, _: random.Random) -> str:
    question = request.messages[-1].content
    if "figs" in question:
        return f"Use very amber therefore ocean words.{END}"
    plant = next(p for p in ("roses", "leeks", "mint", "oats") if p in question)
    return f"Give your {plant} water and light each day.{END}"


def judge(request: Request, _: random.Random) -> str:
    text = request.messages[0].content.lower()
    substance = text.count("water and light") == text.count("\nassistant:")
    return f'{{"substance": {str(substance).lower()}}}{END}'


def test_every_turn_keeps_its_constraints_and_trivial_answers_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"user": Scripted(user), "agent": Scripted(agent), "judge": Scripted(judge)}
    rows, manifest = made(recipe(tmp_path), samplers, monkeypatch)
    assert set(manifest.counts.dropped) <= {"constraints_broken"}
    assert rows
    for row in rows:
        users = [m["content"] for m in row["messages"] if m["role"] == "user"]
        answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
        assert 1 <= len(users) == len(answers) <= 3
        assert all("Do not use these words:" in text for text in users)
        assert row["metadata"]["synthesis"]["checks"] == ["instruction_following", "judge"]
    planted = manifest.stats["planted"]
    # texts that keep all constraints, and none is about the plant
    assert planted == {"rows": len(rows), "dropped": {"judge_refuses": len(rows)}}
    environment = InstructionFollowingEnvironment()
    for task in read_rows(tmp_path / "out/tasks.jsonl"):
        assert environment.prompt(task).messages[-1].role == "user"


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        (lambda request, _: END, "empty_answer 5\\)"),
        (lambda request, _: "and on " * 1000, "truncated 5"),
        (lambda request, _: request.messages[-1].content + END, "echoed_prompt 5"),
        (lambda request, _: f"very therefore amber ocean{END}", "constraints_broken"),
    ],
)
def test_bad_generators_give_no_row(
    writes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = recipe(tmp_path, judge=False, turns=1)
    with pytest.raises(DataError, match=reason):
        made(config, {"user": Scripted(user), "agent": Scripted(writes)}, monkeypatch)


def test_without_a_judge_a_text_that_breaks_constraints_is_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = recipe(tmp_path, judge=False, only=["keywords", "starts_with"], turns=1)
    kind = open_kind(config)

    def obedient(request: Request, _: random.Random) -> str:
        return keeping(kind)[request.messages[-1].content.partition("? ")[2]] + END

    samplers = {"user": Scripted(user), "agent": Scripted(obedient)}
    rows, manifest = made(config, samplers, monkeypatch)
    assert len(rows) == len(PERSONAS)
    assert manifest.stats["planted"]["dropped"] == {"constraints_broken": len(PERSONAS)}


def keeping(kind) -> dict[str, str]:
    """The wording of each seed's constraints → a text that keeps them."""
    texts: dict[str, str] = {}
    for seed in kind.seeds(Path()).seeds:
        constraints, text = kind.constraints(seed, 0)
        texts[" ".join(CONSTRAINTS[c["kind"]].wording(c) for c in constraints)] = text
    return texts


def test_an_unknown_constraint_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="did you mean 'keywords'"):
        open_kind(recipe(tmp_path, only=["keyword"]))
