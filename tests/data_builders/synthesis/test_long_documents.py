"""Long documents: lengths in tokens, golds by code, and every needed document proven needed."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_builders.synthesis.kinds import open_kind
from data_builders.synthesis.long_documents import FAMILIES, LongQuestion, refuse_unproven
from data_builders.synthesis.steps import Discarded
from posttrain.errors import ConfigError, DataError
from posttrain.sampling.sampler import Request
from reward.environments.base import replay, says
from reward.environments.long_context import LongContextEnvironment
from tests.data_builders.small_build import build, index, write_recipe, write_tokenizer
from tests.data_builders.synthesis import long_golds
from tests.data_builders.synthesis.small_synthesis import (
    made,
    read_rows,
    recipe_of,
    server,
    write_rows,
)
from tests.sampling.scripted import END, Scripted


def recipe(tmp_path: Path, *, generator: bool = False, **make: Any):
    tokenizer = tmp_path / "tokenizer"
    if not tokenizer.is_dir():
        write_tokenizer(tokenizer)
    kind = {
        "kind": "long_documents",
        "tokenizer": str(tokenizer),
        "lengths": [6000, 9000],
        "count": 12,
        **make,
    }
    models = {"generator": server("sft")} if generator else {}
    return recipe_of(tmp_path / "out", kind, models)


def seeds_of(config) -> dict[str, LongQuestion]:
    kind = open_kind(config)
    return {seed.id: seed.content for seed in kind.seeds(Path()).seeds}


def test_questions_fill_their_length_and_need_every_needed_document(tmp_path: Path):
    config = recipe(tmp_path)
    questions = seeds_of(config)
    assert len(questions) == 12
    assert questions == seeds_of(config), "the same questions for a seed"
    for seed_id, question in questions.items():
        length = int(seed_id.split("-")[1])
        assert 0.9 * length <= question.tokens <= length == question.length
        assert len(question.needed) == 5
        documents = question.text.split("\n\n")[:-1]
        for number in question.needed:
            assert documents[number - 1].startswith(f"Document {number}.")


@pytest.mark.parametrize("family", FAMILIES)
def test_another_program_finds_every_gold_and_every_document_needed(tmp_path: Path, family: str):
    config = recipe(tmp_path, families=[family], count=24, needed=4)
    positions: list[float] = []
    for question in seeds_of(config).values():
        documents, asked = long_golds.split(question.text)
        gold = long_golds.stated(question.gold)
        assert long_golds.answer(documents, asked) == gold
        assert len(question.needed) == (1 if family in ("single_needle", "multi_key") else 4)
        for number, position in zip(question.needed, question.positions, strict=True):
            before = "\n\n".join(question.text.split("\n\n")[: number - 1])
            # the small tokenizer has a token a byte
            assert position == pytest.approx(len(before) / question.tokens, abs=0.01)
            others = documents[: number - 1] + documents[number:]
            assert long_golds.answer(others, asked) != gold
        positions += question.positions
    assert min(positions) < 0.2
    assert max(positions) > 0.8


def test_the_one_needed_document_may_be_the_only_one_of_its_form(tmp_path: Path):
    config = recipe(tmp_path, families=["single_needle", "multi_key"], count=2)
    single, among_others = seeds_of(config).values()
    assert single.text.count("access code of") == 2, "the needle and the question"
    assert among_others.text.count("access code of") == 2 + 15
    assert single.gold.isdecimal()


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("single_needle", "multi_key")])
def test_a_document_that_is_not_needed_is_found(family):
    facts = FAMILIES[family](random.Random(0), 4)
    documents = [*facts.needed, facts.needed[1]]  # one of them stands there twice
    gold = facts.solve(facts.needed)
    text = "\n\n".join([*documents, facts.question])
    question = LongQuestion(text, str(gold), (1, 2, 3, 4), 0, 0, ())
    reason = "contradicted" if family == "aggregation" else "not_needed"
    with pytest.raises(Discarded) as raised:
        refuse_unproven(question, facts)
    assert raised.value.reason == reason
    whole = replace(question, text="\n\n".join([*facts.needed, facts.question]))
    refuse_unproven(whole, facts)


def test_texts_of_others_stand_between_and_may_contradict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    texts = [{"text": f"The ferry number {k} leaves the quay at noon. " * 3} for k in range(20)]
    path = write_rows(tmp_path / "texts.jsonl", texts)
    documents = [{"name": "ferries", "path": str(path)}]
    assert all("ferry" in q.text for q in seeds_of(recipe(tmp_path, documents=documents)).values())
    wrong = "The depot of Elsewhere lies in the {} and holds 7 crates of rope."
    regions = ("north", "coast", "valley", "highlands")
    write_rows(path, [{"text": wrong.format(region)} for region in regions])
    config = recipe(tmp_path, documents=documents, families=["aggregation", "needles"])
    made(config, {}, monkeypatch)
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    assert {task["metadata"]["family"] for task in tasks} == {"needles"}


def test_tasks_pass_their_environment_and_need_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows, manifest = made(recipe(tmp_path), {}, monkeypatch)
    assert rows == []
    assert manifest.stats["requests"] == {}
    environment = LongContextEnvironment()
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    assert len(tasks) == 12
    for task in tasks:
        assert environment.prompt(task).gold == task["gold"]


def test_only_right_answers_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    golds = {question.text: question.gold for question in seeds_of(recipe(tmp_path)).values()}

    def unsure(request: Request, rng: random.Random) -> str:
        gold = golds[request.messages[0].content]
        return rng.choice([f"Found.\nAnswer: {gold}", "Answer: 12345", "", "I cannot say"]) + END

    config = recipe(tmp_path, generator=True)
    rows, manifest = made(config, {"sft": Scripted(unsure)}, monkeypatch)
    assert 0 < len(rows) < 12
    assert {*manifest.counts.dropped} <= {"wrong_answer", "empty_answer"}
    for row in rows:
        assert row["messages"][1]["content"].endswith(f"Answer: {row['metadata']['gold']}")
    assert manifest.stats["planted"]["dropped"] == {"wrong_answer": len(rows)}
    assert len(read_rows(tmp_path / "out/tasks.jsonl")) == 12, "tasks do not depend on the answer"


def test_an_answer_may_quote_where_copies_are_not_penalised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = recipe(tmp_path, generator=True, count=4, copy_penalty=False)
    golds = {question.text: question.gold for question in seeds_of(config).values()}

    def quote(request: Request, _: random.Random) -> str:
        text = request.messages[0].content
        quoted = " ".join(text.split()[:40])
        return f"{quoted}\nAnswer: {golds[text]}{END}"

    rows, manifest = made(config, {"sft": Scripted(quote)}, monkeypatch)
    assert len(rows) == 4, manifest.counts.dropped
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    assert {task["metadata"]["copy_penalty"] for task in tasks} == {False}


def test_rows_of_one_length_are_chat_rows_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    golds = {question.text: question.gold for question in seeds_of(recipe(tmp_path)).values()}
    right = Scripted(lambda request, _: f"Answer: {golds[request.messages[0].content]}{END}")
    made(recipe(tmp_path, generator=True), {"sft": right}, monkeypatch)
    source = {
        "name": "long",
        "path": str(tmp_path / "out/rows.jsonl"),
        "license": "MIT",
        "where": {"metadata.length": {"le": 6000}},
    }
    (tmp_path / "sft").mkdir()
    packing = {"max_length": 8192}
    held_out = {"rate": 0.0}
    sft = write_recipe(tmp_path / "sft", sources=[source], packing=packing, held_out=held_out)
    build(sft)
    lengths = [row["length"] for row in index(tmp_path / "sft/out")]
    assert len(lengths) == 6
    assert all(5400 < length < 6500 for length in lengths)


def test_answers_by_code_are_right_and_say_what_they_rest_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = recipe(tmp_path, families=list(FAMILIES), count=14, answers_by_code=True)
    rows, manifest = made(config, {}, monkeypatch)
    assert manifest.stats["requests"] == {}
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    environment = LongContextEnvironment()
    for row, task in zip(rows, tasks, strict=True):
        user, assistant = (message["content"] for message in row["messages"])
        assert user == task["question"]
        prompt = environment.prompt(task)
        completion = asyncio.run(replay(environment, prompt, says(assistant)))
        assert asyncio.run(environment.score(prompt, completion)).value == 1
        assert {**task["metadata"], "gold": task["gold"]}.items() <= row["metadata"].items()
        sentences = assistant.splitlines()[:-1]
        documents = user.split("\n\n")
        needed = [documents[number - 1] for number in task["metadata"]["needed"]]
        assert all(any(sentence in text for text in needed) for sentence in sentences)
        assert all(any(sentence in text for sentence in sentences) for text in needed)


def test_no_code_answers_for_a_writer_or_beside_a_generator(tmp_path: Path):
    make = {"kind": "long_documents", "tokenizer": "t", "lengths": [4000], "count": 1}
    make |= {"answers_by_code": True}
    written = {"families": ["written"], "documents": [{"name": "x", "path": "x.jsonl"}]}
    with pytest.raises(ConfigError, match="answers_by_code: no code answers the questions"):
        recipe_of(tmp_path, make | written, {})
    with pytest.raises(ConfigError, match="answers_by_code: a generator would answer the same"):
        recipe_of(tmp_path, make, {"generator": server("sft")})


@pytest.mark.parametrize("filler", [0, 1, 4])
def test_facts_stand_among_so_many_sentences(tmp_path: Path, filler: int):
    config = recipe(tmp_path, families=["multi_hop"], needed=3, filler=filler)
    sentences: list[int] = []
    for question in seeds_of(config).values():
        documents = question.text.split("\n\n")
        sentences += [documents[number - 1].count(".") - 1 for number in question.needed]
    assert {*sentences} == ({1} if filler == 0 else {*range(2, filler + 2)})


def test_impossible_lengths_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="do not hold 20 needed documents"):
        seeds_of(recipe(tmp_path, needed=20, lengths=[500], families=["needles"]))


TEXTS = [f"The {name} of the museum has {number} rooms, all of them open." for name, number in
         (("tower", 21), ("cellar", 34), ("garden", 55), ("annex", 13), ("hall", 8))]  # fmt: skip


def written(tmp_path: Path):
    path = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])
    documents = [{"name": "museum", "path": str(path)}]
    make = recipe(tmp_path, families=["written"], documents=documents, needed=2, count=3).make
    models = {role: server(role) for role in ("writer", "solver")}
    return recipe_of(tmp_path / "out", make.model_dump(mode="json"), models)


def rooms(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"has (\d+) rooms", text)]


def writer(request: Request, _: random.Random) -> str:
    total = sum(rooms(request.messages[0].content))
    return f"Question: How many rooms are there?\nAnswer: {total}{END}"


def solver(request: Request, _: random.Random) -> str:
    text = request.messages[0].content
    answer = 16 if "spiders" in text else sum(rooms(text))
    return f"Counted.\nAnswer: {answer}{END}"


def answers_all(request: Request, rng: random.Random, *, otherwise: str) -> str:
    """Answers where both needed documents are there."""
    return solver(request, rng) if len(rooms(request.messages[0].content)) == 2 else otherwise


def test_written_questions_are_solved_with_all_and_not_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"writer": Scripted(writer), "solver": Scripted(solver)}
    _, manifest = made(written(tmp_path), samplers, monkeypatch)
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    assert len(tasks) == 3
    for task in tasks:
        documents = task["question"].split("\n\n")
        needed = [documents[number - 1] for number in task["metadata"]["needed"]]
        assert sum(rooms("".join(needed))) == int(task["gold"])
        assert LongContextEnvironment().prompt(task).gold == task["gold"]
    assert manifest.stats["planted"] == {"rows": 3, "dropped": {"not_needed": 3}}


@pytest.mark.parametrize(
    ("write", "solve", "reason"),
    [
        (lambda r, _: f"How many rooms are there?{END}", solver, "no_question 3"),
        (lambda r, _: END, solver, "empty_answer 3"),
        (lambda r, _: f"Question: Why?\nAnswer: {'because ' * 20}{END}", solver, "long_answer 3"),
        (writer, lambda r, _: f"Answer: none{END}", "not_answerable 3"),
        # what is cut off or missing without a document is no proof that it is needed
        (writer, lambda r, rng: answers_all(r, rng, otherwise="and so on " * 300), "truncated 3"),
        (writer, lambda r, rng: answers_all(r, rng, otherwise=END), "empty_answer 3"),
        (
            lambda r, _: f"Question: Sum?\nAnswer: 7{END}",
            lambda r, _: f"Answer: 7{END}",
            "not_needed",
        ),
    ],
)
def test_bad_writers_and_solvers_give_no_question(
    write, solve, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(DataError, match=reason):
        made(written(tmp_path), {"writer": Scripted(write), "solver": Scripted(solve)}, monkeypatch)


def test_written_questions_need_their_models(tmp_path: Path):
    config = recipe(tmp_path, families=["written"], documents=[{"name": "x", "path": "x.jsonl"}])
    with pytest.raises(ConfigError, match="need a model as writer, solver"):
        open_kind(config)


def test_a_generator_that_is_cut_off_gives_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    samplers = {"sft": Scripted(lambda r, _: "so " * 3000)}
    rows, manifest = made(recipe(tmp_path, generator=True), samplers, monkeypatch)
    assert rows == []
    assert manifest.counts.dropped == {"truncated": 12}
    assert len(read_rows(tmp_path / "out/tasks.jsonl")) == 12


def test_several_codes_of_a_town_are_at_least_two(tmp_path: Path):
    make = {"kind": "long_documents", "tokenizer": "t", "lengths": [4000], "count": 1, "needed": 1}
    recipe_of(tmp_path, make | {"families": ["multi_key", "multi_hop"]}, {})
    with pytest.raises(ConfigError, match="needed: multi_value asks for several"):
        recipe_of(tmp_path, make | {"families": ["multi_key", "multi_value"]}, {})
