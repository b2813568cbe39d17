"""Safety data: the classifier sorts candidates of several generators, and one pair is drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from data_builders.rows.read import read_examples
from data_builders.synthesis.kinds import open_kind
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError, DataError
from posttrain.sampling.sampler import Request
from tests.data_builders.synthesis.small_synthesis import (
    made,
    read_rows,
    recipe_of,
    server,
    write_rows,
)
from tests.sampling.scripted import END, Scripted

HARMFUL = [f"How do I zap the neighbour's {thing}?" for thing in ("cat", "car", "roof", "tree")]
HARMLESS = [f"How do I zap a {thing} in this game?" for thing in ("goblin", "dragon", "ghost")]


def recipe(tmp_path: Path, generators: tuple[str, ...] = ("big", "small")):
    rows = [{"prompt": text, "harmful": True, "category": "animals"} for text in HARMFUL]
    rows += [{"prompt": text, "harmful": False, "category": "none"} for text in HARMLESS]
    path = str(write_rows(tmp_path / "requests.jsonl", rows))
    make = {
        "kind": "safety",
        "requests": [{"name": "zaps", "path": path, "category": "category"}],
        "strategies": {"animals": "Name the animal helpline."},
    }
    models = {"generator": [server(name) for name in generators], "judge": server("judge")}
    return recipe_of(tmp_path / "out", make, models)


def generator(request: Request, rng: random.Random) -> str:
    text = request.messages[0].content
    if "something harmful" in text:
        assert "Name the animal helpline." in text
        return f"I will not help with it. The animal helpline is there day and night.{END}"
    if "far too careful" in text:
        return f"I cannot help, that could be harmful.{END}"
    return f"Take the wand and zap it, {rng.randrange(10**6)} times.{END}"


def judge(request: Request, _: random.Random) -> str:
    asked, _, answer = request.messages[0].content.partition("\nAnswer:\n")
    answer = answer.partition("Judge the answer alone")[0]
    refuses = "not help" in answer
    harmful = "neighbour" in asked and "wand" in answer
    return f'{{"safe": {str(not harmful).lower()}, "refuses": {str(refuses).lower()}}}{END}'


def test_pairs_are_what_the_classifier_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    samplers = {name: Scripted(generator) for name in ("big", "small")}
    rows, manifest = made(recipe(tmp_path), samplers | {"judge": Scripted(judge)}, monkeypatch)
    pairs = read_rows(tmp_path / "out/pairs.jsonl")
    assert len(rows) == 7
    assert len(pairs) == 7
    for pair in pairs:
        harmful = pair["metadata"]["harmful"]
        chosen, rejected = pair["chosen"][0]["content"], pair["rejected"][0]["content"]
        assert ("helpline" if harmful else "wand") in chosen
        assert ("wand" if harmful else "cannot help") in rejected
        assert pair["metadata"]["synthesis"]["checks"] == ["classifier"]
    models = Counter(pair["metadata"][side] for pair in pairs for side in ("chosen", "rejected"))
    assert {*models} == {"big", "small"}
    planted = manifest.stats["planted"]
    assert planted == {"rows": 7, "dropped": {"no_plain_answer": 3, "no_safe_answer": 4}}
    source = SourceConfig(name="rows", path=str(tmp_path / "out/rows.jsonl"))
    assert len(list(read_examples(source, tmp_path))) == 7


def test_without_an_answer_to_reject_there_is_a_row_and_no_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def always_safe(request: Request, rng: random.Random) -> str:
        return f"Let us not help with it.{END}"

    samplers = {"big": Scripted(always_safe), "judge": Scripted(judge)}
    rows, manifest = made(recipe(tmp_path, ("big",)), samplers, monkeypatch)
    assert len(rows) == len(HARMFUL)
    assert not (tmp_path / "out/pairs.jsonl").exists()
    assert manifest.counts.dropped == {"no_plain_answer": len(HARMLESS)}
    assert manifest.stats["figures"]["pairs"] == {"harmful: no answer to reject": len(HARMFUL)}


def test_a_classifier_that_says_yes_to_everything_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def yes(request: Request, _: random.Random) -> str:
        return f'{{"safe": true, "refuses": false}}{END}'

    samplers = {"big": Scripted(generator), "judge": Scripted(yes)}
    _, manifest = made(recipe(tmp_path, ("big",)), samplers, monkeypatch)
    assert read_rows(tmp_path / "out/pairs.jsonl") == []
    assert manifest.stats["planted"] == {"rows": 7, "dropped": {}}


def test_what_is_planted_is_what_the_classifier_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A safe answer in the place of another is no bad row, and says nothing of the checks."""

    def often_safe(request: Request, rng: random.Random) -> str:
        if rng.random() < 0.7:
            return f"Let us not help with it.{END}"
        return generator(request, rng)

    rows = [{"prompt": f"How do I zap my neighbour's cat {n}?", "harmful": True} for n in range(90)]
    path = str(write_rows(tmp_path / "requests.jsonl", rows))
    make = {"kind": "safety", "requests": [{"name": "zaps", "path": path}]}
    make["default_strategy"] = "Name the animal helpline."
    models = {"generator": server("big"), "judge": server("judge")}
    samplers = {"big": Scripted(often_safe), "judge": Scripted(judge)}
    _, manifest = made(recipe_of(tmp_path / "out", make, models), samplers, monkeypatch)
    assert 20 < manifest.stats["pairs"] < 60
    assert manifest.stats["planted"] == {"rows": 20, "dropped": {"no_safe_answer": 20}}


REFUSAL = "I can't help with that."


CARRIED = ("grading", "gold", "gold_state", "options", "tools_declared")


def graded_recipe(
    tmp_path: Path,
    *,
    grader: str = "tiny_world",
    fields: Sequence[str] = CARRIED,
    **others: object,
):
    """Rows that carry what the tiny world's grader reads, and no judge."""
    rows: list[dict[str, object]] = []
    for text in (*HARMFUL, *HARMLESS):
        item = {"gold_state": None, "options": [], "tools_declared": []}
        harmful = text in HARMFUL
        item |= {"grading": "refusal", "gold": REFUSAL} if harmful else {}
        item |= {} if harmful else {"grading": "words", "gold": "use the wand"}
        rows.append({"prompt": text, "harmful": harmful, "item": item})
    path = str(write_rows(tmp_path / "requests.jsonl", rows))
    metadata = [f"item.{name}" for name in fields]
    requests = [{"name": "zaps", "path": path, "metadata": metadata}]
    make = {"kind": "safety", "grader": grader, "requests": requests}
    return recipe_of(tmp_path / "out", make, {"generator": server("big"), **others})


def test_a_grader_classifies_answers_to_the_request_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def answers(request: Request, _: random.Random) -> str:
        text = request.messages[0].content
        told_to_refuse = "something harmful" in text or "far too careful" in text
        if "ghost" in text and not told_to_refuse:
            return f"Use the broom.{END}"  # a wrong answer is no plain one
        return f"{REFUSAL if told_to_refuse else 'use the wand'}{END}"

    rows, manifest = made(graded_recipe(tmp_path), {"big": Scripted(answers)}, monkeypatch)
    assert len(rows) == 6
    for pair in read_rows(tmp_path / "out/pairs.jsonl"):
        texts = [pair["chosen"][0]["content"], pair["rejected"][0]["content"]]
        expected = [REFUSAL, "use the wand"]
        assert texts == (expected if pair["metadata"]["harmful"] else expected[::-1])
    assert manifest.counts.dropped == {"no_plain_answer": 1}
    assert manifest.stats["requests"] == {"generator": 14}
    planted = manifest.stats["planted"]
    assert planted == {"rows": 6, "dropped": {"no_plain_answer": 2, "no_safe_answer": 4}}


def test_recipes_name_a_judge_or_a_grader_that_exists(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"either make\.grader or a model as judge"):
        graded_recipe(tmp_path, judge=server("judge"))
    with pytest.raises(ConfigError, match=r"no grader or environment 'tiny_wrld' \(did you"):
        open_kind(graded_recipe(tmp_path, grader="tiny_wrld"))


def test_a_field_that_no_row_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unlabelled = recipe(tmp_path)
    write_rows(tmp_path / "requests.jsonl", [{"prompt": HARMFUL[0], "harmfull": True}])
    with pytest.raises(DataError, match=r"malformed_row 1\), such as: harmful is neither"):
        made(unlabelled, {}, monkeypatch)


def test_a_carried_field_that_no_row_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    misspelt = graded_recipe(tmp_path, fields=("grading", "golds"))
    with pytest.raises(ConfigError, match=r"names 'item\.golds', .* \(did you mean 'item\.gold'"):
        made(misspelt, {}, monkeypatch)


@pytest.mark.parametrize(
    ("writes", "judges", "reason"),
    [
        (lambda r, _: END, judge, "no_usable_answer 7"),
        (lambda r, _: "on and on " * 500, judge, "no_usable_answer 7"),
        (generator, lambda r, _: f"Fine with me.{END}", "no_safe_answer 4"),
    ],
)
def test_bad_models_give_no_row(
    writes, judges, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"big": Scripted(writes), "judge": Scripted(judges)}
    with pytest.raises(DataError, match=reason):
        made(recipe(tmp_path, ("big",)), samplers, monkeypatch)
