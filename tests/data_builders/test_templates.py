"""Prompt templates: what they request is what graders read; which records they are given to."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from data_builders.prompts.build import PromptPlan, templates_refused
from data_builders.templates import augmented
from posttrain.config.build_sft import SftAugment
from posttrain.config.prompts import QuestionPrompts, Setting
from posttrain.config.templates import SHIPPED, AugmentConfig, fill
from posttrain.errors import DataError
from posttrain.records import Message, ToolCall, json_text, make_example
from posttrain.rollouts import Prompt
from posttrain.runs import read_artifact
from reward.graders import GRADERS
from reward.graders.base import Attempt
from tests.data_builders.small_build import build, write_recipe
from tests.reward.graders.attempts import completion_of

OPTIONS = {"A": "a violin", "B": "a drum", "C": "a flute", "D": "a harp"}
# set → its graders, with (gold, wrong answer)
CASES = {
    "math": [("math", "144", "12"), ("math", "-3/4", "3/4"), ("numeric", "2.5", "25")],
    "multiple_choice": [("multiple_choice", "C", "A"), ("multiple_choice", "A", "D")],
    "free": [("exact", "Lake Geneva", "Lake Como"), ("exact", "17", "71")],
}


def shipped(name: str):
    return AugmentConfig.model_validate({"templates": name, "share": 1.0}).templates


def prompts_in(name: str, gold: str) -> list[Prompt]:
    return [
        Prompt(
            id=template.name,
            task="q",
            setting="s",
            messages=(
                Message("user", fill(template.text, "Which one? It has {A} in it.", OPTIONS)),
            ),
            gold=gold,
            metadata=json_text({"options": OPTIONS} if name == "multiple_choice" else {}),
            template=template.name,
        )
        for template in shipped(name)
    ]


@pytest.mark.parametrize("name", CASES)
def test_graders_read_what_each_template_requests(name: str):
    templates = shipped(name)
    assert len(templates) >= 12
    for grader_name, gold, wrong in CASES[name]:
        grader, prompts = GRADERS[grader_name](), prompts_in(name, gold)
        assert templates_refused(prompts, templates, grader) == [None] * len(templates)
        for answer, expected in ((gold, 1.0), (wrong, 0.0)):
            replies = [str(t.answer).replace("{answer}", answer) for t in templates]
            attempts = [
                Attempt(prompt, completion_of(reply))
                for prompt, reply in zip(prompts, replies, strict=True)
            ]
            assert {score.value for score in grader.grade(attempts)} == {expected}
        # without the requested format a reply is wrong, and not unscored
        other = completion_of("I would rather talk about something else")
        asked = zip(prompts, templates, strict=True)
        attempts = [Attempt(p, other) for p, template in asked if template.answer != "{answer}"]
        assert {score.value for score in grader.grade(attempts)} == {0.0}


def test_every_template_holds_the_question_word_for_word_and_differs():
    for file in SHIPPED.glob("*.yaml"):
        templates = shipped(file.stem)
        options = OPTIONS if templates[0].shows_options else {}
        texts = [fill(t.text, "What is {A} + {question}?", options) for t in templates]
        assert len(templates) >= 12
        assert len(set(texts)) == len(texts)
        assert all("What is {A} + {question}?" in text for text in texts)
        assert all(option in text for text in texts for option in options.values())


def source(tmp_path: Path, rows: list[dict[str, str]], **keys: object) -> QuestionPrompts:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {"name": "q", "format": "question", "path": str(path), "grader": "math", **keys}
    return QuestionPrompts.model_validate_json(json.dumps(raw))


def built(source: QuestionPrompts):
    return PromptPlan([source], [Setting(name="s")], seed=0, out=Path("out")).build()


SUMS = [{"question": f"{k} + {k}?", "answer": str(2 * k)} for k in range(40)]


def test_for_evaluation_each_question_is_asked_in_each_template(tmp_path: Path):
    made = built(source(tmp_path, SUMS[:5], templates="math"))
    by_task: dict[str, list[Prompt]] = {}
    for prompt in made.prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    names = [template.name for template in shipped("math")]
    assert len({prompt.id for prompt in made.prompts}) == 5 * len(names)
    for own in by_task.values():
        assert [prompt.template for prompt in own] == names
        assert len({prompt.gold for prompt in own}) == 1
        assert len({prompt.messages for prompt in own}) == len(names)
    assert set(made.stats()["templates"]["q"].values()) == {5}


def test_a_question_whose_gold_one_template_hides_is_asked_in_none(tmp_path: Path):
    rows = [{"question": "1?", "answer": "a}b"}, {"question": "2?", "answer": "c"}]
    asked = source(tmp_path, rows, templates="free", grader="exact")
    made = built(asked)
    assert {prompt.gold for prompt in made.prompts} == {"c"}
    assert made.row_counts["q"].dropped["gold_refused: template_refused"] == 1
    with pytest.raises(DataError, match="template_refused"):
        built(asked.model_copy(update={"count": 2}))


def test_for_training_a_share_is_asked_in_one_template_by_a_keyed_hash(tmp_path: Path):
    def names(rows: list[dict[str, str]]) -> dict[str, str | None]:
        asked = source(tmp_path, rows, augment={"templates": "math", "share": 0.5})
        made = built(asked)
        return {prompt.task: prompt.template for prompt in made.prompts}

    found = names(SUMS)
    assert 8 <= sum(name is None for name in found.values()) <= 32
    assert len(set(found.values())) > 5
    assert names(SUMS[::-1][:20]).items() <= found.items()


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"templates": "maths"}, "did you mean 'math'"),
        ({"templates": "multiple_choice"}, "shows options"),
        ({"templates": "math", "augment": {"templates": "math", "share": 1}}, "not both"),
        (
            {"templates": [{"name": n, "text": t} for n, t in (("a", "-"), ("b", "{question}"))]},
            "once",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, keys, wanted: str):
    with pytest.raises(ValueError, match=wanted):
        source(tmp_path, SUMS, **keys)


def record(question: str, *replies: Message):
    return make_example((Message("user", question), *replies), source="s", dialect="openai")


def test_a_record_is_asked_in_a_template_and_answers_in_its_format():
    augment = SftAugment.model_validate({"templates": "math", "share": 1.0})
    records = [record(f"{k} + 1?", Message("assistant", str(k + 1))) for k in range(80)]
    answers = {template.name: template.answer for template in augment.templates}
    names: Counter[str] = Counter()
    for own in records:
        made, name = augmented(own, augment, seed=0)
        names[name] += 1
        gold = own.messages[1].content
        assert made.id == own.id
        assert own.messages[0].content in made.messages[0].content
        assert made.messages[1].content == str(answers[name]).replace("{answer}", gold)
    assert set(names) == set(answers)


def test_a_record_keeps_a_reply_with_a_format_and_is_left_where_nothing_fits():
    augment = SftAugment.model_validate({"templates": "math", "share": 1.0})
    boxed = Message("assistant", "It is one more.\nSo \\boxed{5}.")
    for k in range(20):
        made, name = augmented(record(f"{k}: 4 + 1?", boxed), augment, seed=0)
        assert name.startswith("box_")
        assert made.messages[1] == boxed
    prose = record("4 + 1?", Message("assistant", "One more than four.\nThat is five."))
    call = record("4 + 1?", Message("assistant", "", tool_calls=(ToolCall("add"),)))
    again = record(
        "4?", Message("assistant", "4"), Message("user", "+ 1?"), Message("assistant", "5")
    )
    for own, why in ((prose, "answer_format"), (call, "several_turns"), (again, "several_turns")):
        assert augmented(own, augment, seed=0) == (own, why)
    few = augment.model_copy(update={"share": 0.1})
    found = [
        augmented(record(f"{k}?", Message("assistant", "5")), few, seed=0)[1] for k in range(200)
    ]
    assert 5 <= sum(name != "not_chosen" for name in found) <= 40


def test_question_and_options_are_taken_out_of_a_rows_own_instruction():
    pattern = r"(?s)Choose\. (?P<question>.*?)\n(?P<options>A\).*)"
    raw = {"templates": "multiple_choice", "share": 1.0, "question": pattern}
    augment = SftAugment.model_validate(raw)
    own = record("Choose. Which {options}?\nA) red\nB) blue", Message("assistant", "B"))
    made, name = augmented(own, augment, seed=0)
    template = next(t for t in augment.templates if t.name == name)
    text = made.messages[0].content
    assert "Choose." not in text
    assert text.count("A) red\nB) blue") == 1
    assert "Which {options}?" in text
    assert made.messages[1].content == str(template.answer).replace("{answer}", "B")
    other = record("Which?", Message("assistant", "B"))
    assert augmented(other, augment, seed=0) == (other, "no_question")


def test_a_build_counts_its_templates(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    raw = yaml.safe_load(recipe.read_text())
    raw["sources"][0]["augment"] = {"templates": "framing", "share": 0.7}
    recipe.write_text(yaml.safe_dump(raw))
    build(recipe)
    manifest = read_artifact(raw["out"])
    first, *others = manifest.stats["sources"].values()
    assert set(first["templates"]) - {"not_chosen", "several_turns"} <= {
        template.name for template in shipped("framing")
    }
    assert sum(first["templates"].values()) == sum(first["licenses"].values())
    assert len(first["templates"]) > 3
    assert all(source["templates"] == {} for source in others)
