"""The adapter of reasoning-gym, over a stand-in for the package."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

from posttrain.errors import ConfigError, DataError
from reward.environments import reasoning_gym as adapter
from reward.environments.base import replay, says

ROW = {"question": "2+3?", "gold": "5", "metadata": {"source_dataset": "sums", "size": 2}}


def sums(answer: str, entry: Mapping[str, Any]) -> float:
    """As many of the package's scorers: junk gets a little."""
    assert entry["metadata"]["size"] == 2
    return 1.0 if answer == entry["answer"] else 0.01


def evaluated(answer: str, entry: Mapping[str, Any]) -> float:
    return float(eval(answer) == int(entry["answer"]))  # noqa: S307 - what is to be refused


def anywhere(answer: str, entry: Mapping[str, Any]) -> float:
    """As those that look for the answer in whatever stands around it."""
    return float(entry["answer"] in answer)


def strict(answer: str, entry: Mapping[str, Any]) -> float:
    """As those with many right answers, each to be read whole."""
    parts = answer.split(" + ")
    return float(all(part.isdigit() for part in parts) and sum(map(int, parts)) == 5)


def python_list(answer: str, entry: Mapping[str, Any]) -> float:
    """As that of number_sorting: a gold that is no JSON is run as Python."""
    try:
        try:
            gold = json.loads(entry["answer"])
        except json.JSONDecodeError:
            gold = eval(entry["answer"])  # noqa: S307 - what is to be refused
        return float(json.loads(answer.replace("'", '"')) == gold)
    except Exception:  # noqa: BLE001 - as theirs
        return 0.0


def listed(answer: str, entry: Mapping[str, Any]) -> float:
    """As that of word_sorting: words behind the last right one are not looked at."""
    words = entry["answer"].split(", ")
    return sum(a == b for a, b in zip(answer.split(", "), words, strict=False)) / len(words)


def factors(answer: str, entry: Mapping[str, Any]) -> float:
    """As that of prime_factorization: what is no number raises."""
    return float(math.prod(int(part) for part in answer.split("×")) == int(entry["answer"]))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    families = {
        "sums": sums,
        "evaluated": evaluated,
        "anywhere": anywhere,
        "strict": strict,
        "number_sorting": python_list,
        "listed": listed,
        "factors": factors,
    }

    def scorer(name: str):
        if name not in families:
            raise ValueError(f"Dataset '{name}' not registered")
        return families[name]

    factory = ModuleType("reasoning_gym.factory")
    factory.get_score_answer_fn = scorer  # type: ignore[attr-defined] - a stand-in
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    adapter._scorer.cache_clear()
    yield
    adapter._scorer.cache_clear()


def value(answer: str, family: str = "sums", *, gold: str = "5") -> float | None:
    environment = adapter.ReasoningGymEnvironment()
    metadata = {"source_dataset": family, "size": 2}
    prompt = environment.prompt({**ROW, "gold": gold, "metadata": metadata})
    completion = asyncio.run(replay(environment, prompt, says(answer)))
    return environment.check(prompt, completion).value


@pytest.mark.usefixtures("package")
def test_only_the_full_mark_of_one_answer_counts():
    right = ("5", "So <answer> 5 </answer>.", "It is \\boxed{5}", "<answer>5</answer>" * 2)
    wrong = ("6", "<answer>5</answer> or <answer>6</answer>", "<answer>5", "<answer>" * 50_000)
    assert [value(text) for text in right] == [1] * 4
    assert [value(text) for text in wrong] == [0] * 4


@pytest.mark.usefixtures("package")
def test_a_scorer_never_runs_the_answer():
    with pytest.raises(RuntimeError, match="as Python"):
        value("2+3", "evaluated")
    compile("2+3", "own", "eval")  # only a scorer is kept from it


@pytest.mark.usefixtures("package")
def test_rows_of_no_family_are_refused():
    environment = adapter.ReasoningGymEnvironment()
    for change in ({"gold": None}, {"metadata": {}}, {"metadata": {"source_dataset": "none"}}):
        with pytest.raises(DataError):
            environment.prompt(ROW | change)


def test_without_the_package_one_sentence_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    adapter._scorer.cache_clear()
    with pytest.raises(ConfigError, match="pip install reasoning-gym"):
        adapter.ReasoningGymEnvironment().prompt(ROW)


@pytest.mark.usefixtures("package")
def test_a_scorer_that_looks_past_a_second_answer_is_no_licence_for_one():
    right = ("5", "<answer>5 apples</answer>", "<answer>It is 5.</answer>", "So \\boxed{5}")
    wrong = ("<answer>5 or 6</answer>", "<answer>6, 5</answer>", "<answer>either 5</answer>",
             "\\boxed{5} or \\boxed{6}", "\\boxed{5}, \\boxed{True}")  # fmt: skip
    assert [value(text, "anywhere") for text in right] == [1] * 4
    assert [value(text, "anywhere") for text in wrong] == [0] * 5
    assert value("<answer>1 + 4</answer>", "strict") == 1
    words = ("<answer>The answer is drow.</answer>", "<answer>drow, xof</answer>")
    assert [value(text, "anywhere", gold="drow") for text in words] == [1, 0]


@pytest.mark.usefixtures("package")
def test_a_gold_that_is_a_python_list_is_read_without_running_it():
    gold = "['52.2', '-49.0']"
    right = (gold, '["52.2", "-49.0"]')
    wrong = ("['-49.0', '52.2']", "52.2, -49.0", "__import__('os').getpid()")
    assert [value(f"<answer>{a}</answer>", "number_sorting", gold=gold) for a in right] == [1, 1]
    assert [value(f"<answer>{a}</answer>", "number_sorting", gold=gold) for a in wrong] == [0] * 3


@pytest.mark.usefixtures("package")
def test_words_behind_a_list_with_a_number_in_it_are_no_part_of_it():
    gold = "400, marble, one"
    assert value(f"<answer>{gold}</answer>", "listed", gold=gold) == 1
    assert value(f"<answer>{gold}, repair</answer>", "listed", gold=gold) == 0


@pytest.mark.usefixtures("package")
def test_an_answer_that_a_scorer_cannot_parse_is_wrong():
    answers = ("2 × 3", "2 × 3 or 7", "junk")
    assert [value(a, "factors", gold="6") for a in answers] == [1, 0, 0]
