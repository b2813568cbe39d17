"""Translation: planted changes of numbers, code and refusals are found; honest lines are kept."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from data_builders.synthesis.steps import Discarded
from data_builders.synthesis.translate import lines_to_translate, refuse_broken_line, with_lines
from posttrain.errors import DataError
from posttrain.records import Message
from posttrain.sampling.sampler import Request
from tests.data_builders.synthesis.small_synthesis import made, recipe_of, server, write_rows
from tests.sampling.scripted import END, Scripted

HONEST = [
    ("Add 54 and 14.", "Addiere 54 und 14."),
    ("The price is 1,234.50 dollars.", "Der Preis beträgt 1.234,50 Dollar."),
    ("It rose to 12 000 people.", "Sie stieg auf 12.000 Menschen."),
    ("Run `git status` first.", "Führe zuerst `git status` aus."),
    ("See https://example.org/a?b=1 for more.", "Mehr dazu: https://example.org/a?b=1."),
    ("<answer>yes</answer> is the form.", "Die Form ist <answer>ja</answer>."),
    ("So the answer is \\boxed{42}.", "Die Antwort lautet also \\boxed{42}."),
    ("So \\(a+b\\) is \\[c\\], and [d].", "Also ist \\(a+b\\) \\[c\\], und [e]."),
    ("Since $x^2 = 4$, we take 2.", "Da $x^2 = 4$, nehmen wir 2."),
    ("I am sorry that you are late.", "Es tut mir leid, dass du zu spät bist."),
    ("- first, 3 apples", "- erstens, 3 Äpfel"),
    ("It rose to 1,234,567.", "Sie stieg auf 1.234.567."),
    ("It is 1.234 or 1234.", "Es ist 1234 oder 1,234."),
    ("At -5.5 degrees, not 5.5.", "Bei \u22125,5 Grad, nicht bei 5,5."),
    ("Take 10%-20% of it, or 3-5.", "Nimm 10% bis 20% davon, oder 3 bis 5."),
    ("It has 25 pages.", "इसमें २५ पृष्ठ हैं।"),
    ("I cannot translate this letter.", "Ich kann diesen Brief nicht übersetzen."),
]
PLANTED = [
    ("Add 54 and 14.", "Addiere 54 und 41.", "numbers_changed"),
    ("Add 54 and 14.", "Addiere 54.", "numbers_changed"),
    ("Three plus one is four.", "Drei plus eins ist 4.", "numbers_changed"),
    ("It costs 1.5 dollars.", "Es kostet 15 Dollar.", "numbers_changed"),
    ("It is 3.14 or 314.", "Es ist 314 oder 314.", "numbers_changed"),
    ("It was -5 degrees.", "Es waren 5 Grad.", "numbers_changed"),
    ("It was 12.50.", "Es waren 1.250.", "numbers_changed"),
    ("Run `git status` first.", "Führe zuerst `git Status` aus.", "protected_changed"),
    ("Run `git status` first.", "Führe zuerst git status aus.", "protected_changed"),
    ("See https://example.org/a.", "Siehe https://beispiel.org/a.", "protected_changed"),
    ("<answer>yes</answer>", "<Antwort>ja</Antwort>", "protected_changed"),
    ("It is \\boxed{42}.", "Es ist \\boxed{24}.", "protected_changed"),
    ("It is \\boxed{\\frac{a}{b}}.", "Es ist \\boxed{\\frac{a}{c}}.", "protected_changed"),
    ("So \\(a+b\\) is it.", "Also ist es \\(a-b\\).", "protected_changed"),
    ("So \\[ a+b \\] is it.", "Also ist es \\[ a-b \\].", "protected_changed"),
    ("Since $x^2 = 4$ holds", "Da $x^2 = 5$ gilt", "protected_changed"),
    ("Add them.", "I'm sorry, but I cannot translate this line.", "refusal"),
    ("Add them.", "I can't help with that.", "refusal"),
    ("Add them.", "Here is the translation: Addiere sie.", "refusal"),
    ("Add them.", "Es tut mir leid, das kann ich nicht übersetzen.", "refusal"),
    ("Add them.", "Lo siento, pero no puedo traducir esta línea.", "refusal"),
    ("Add them.", "Mi dispiace, non posso tradurre questa riga.", "refusal"),
    ("Add them.", "Désolé, je ne peux pas traduire cette ligne.", "refusal"),
    ("Add them.", "申し訳ありませんが、この行は翻訳できません。", "refusal"),
    ("Add them.", "Addiere sie.\nDas ist leicht.", "line_count"),
]


@pytest.mark.parametrize(("line", "translation"), HONEST)
def test_honest_translations_pass(line: str, translation: str):
    refuse_broken_line(line, translation)


@pytest.mark.parametrize(("line", "translation", "reason"), PLANTED)
def test_planted_changes_are_found(line: str, translation: str, reason: str):
    with pytest.raises(Discarded) as raised:
        refuse_broken_line(line, translation)
    assert raised.value.reason == reason


def test_lines_of_formulas_are_not_translated():
    text = "First:\n\\[\na + b &= c\n\\]\nSecond:\n  $$\nx\n$$  \nLast \\] and then\n\\]\nDone."
    lines = lines_to_translate([Message("user", text)])
    assert [line.text for line in lines] == ["First:", "Second:", "Last \\] and then", "Done."]


def test_code_calls_and_tool_results_are_no_lines_to_translate():
    text = "Look:\n```python\nprint('hello there')\n```\n    done here\n\n`x = 1`\n12 + 3 = 15"
    messages = [
        Message("user", text),
        Message("tool", "found nothing"),
        Message("assistant", "Fine.", reasoning="First step\nthen 2"),
    ]
    lines = list(lines_to_translate(messages))
    assert [line.text for line in lines] == [
        "Look:",
        "done here",
        "First step",
        "then 2",
        "Fine.",
    ]
    marked = with_lines(messages, lines, [f"<{line.text}>" for line in lines])
    assert marked[0].content == text.replace("Look:", "<Look:>").replace("done here", "<done here>")
    assert marked[1] == messages[1]
    assert marked[2].reasoning == "<First step>\n<then 2>"


DICTIONARY = {
    "What does the market sell on a Sunday morning when everybody is still asleep?": (
        "Was verkauft der Markt an einem Sonntagmorgen, wenn alle noch schlafen?"
    ),
    "It sells bread, cheese and 12 kinds of apples from the valley behind the town.": (
        "Er verkauft Brot, Käse und 12 Sorten Äpfel aus dem Tal hinter der Stadt."
    ),
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text, None),
        (lambda text: text.replace("12", "13"), "numbers_changed"),
        (lambda text: "", "empty_answer"),
    ],
)
def test_a_row_is_kept_whole_or_dropped_with_the_reason(
    change, reason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    question, reply = DICTIONARY
    row = {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"{reply}\n```\ncode stays\n```"},
        ]
    }
    other = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    }
    path = write_rows(tmp_path / "rows.jsonl", [row, row, other])

    def translator(request: Request, _: random.Random) -> str:
        line = request.messages[0].content.rstrip().splitlines()[-1]
        return change(DICTIONARY.get(line, "Grüß Gott")) + END

    make = {
        "kind": "translate",
        "sources": [{"name": "rows", "path": str(path), "license": "MIT"}],
        "language": "de",
        "language_name": "German",
    }
    recipe = recipe_of(tmp_path / "out", make, {"translator": server("mt")})
    if reason == "empty_answer":
        with pytest.raises(DataError, match="empty_answer 2"):
            made(recipe, {"mt": Scripted(translator)}, monkeypatch)
        return
    rows, manifest = made(recipe, {"mt": Scripted(translator)}, monkeypatch)
    assert manifest.counts.dropped == {"duplicate": 1} | ({} if reason is None else {reason: 1})
    if reason is None:
        planted = manifest.stats["planted"]
        assert planted["rows"] == sum(planted["dropped"].values()) == 2
        answer = rows[0]["messages"][1]["content"]
        assert answer == f"{DICTIONARY[reply]}\n```\ncode stays\n```"
        assert rows[0]["metadata"]["language"] == "de"


def test_what_is_planted_changes_numbers_code_and_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def spells(request: Request, _: random.Random) -> str:
        return request.messages[0].content.rstrip().splitlines()[-1] + END

    line = "Führe zuerst `git status` aus, und dann noch {} andere Befehle in diesem Ordner."
    rows: list[dict[str, Any]] = []
    for number in range(2, 22):
        contents = [line.format(number), "Das habe ich getan."]
        chat = zip(("user", "assistant"), contents, strict=True)
        rows.append({"messages": [{"role": role, "content": text} for role, text in chat]})
    path = write_rows(tmp_path / "rows.jsonl", rows)
    make = {
        "kind": "translate",
        "sources": [{"name": "rows", "path": str(path)}],
        "language": "de",
        "language_name": "German",
    }
    recipe = recipe_of(tmp_path / "out", make, {"translator": server("mt")})
    _, manifest = made(recipe, {"mt": Scripted(spells)}, monkeypatch)
    planted = manifest.stats["planted"]["dropped"]
    assert planted.keys() == {"numbers_changed", "protected_changed", "refusal"}
    assert sum(planted.values()) == manifest.stats["planted"]["rows"] == 20


@pytest.mark.parametrize(("gold", "dropped"), [("12", {}), ("cheese", {"gold_changed": 1})])
def test_a_gold_of_the_row_is_carried_along_and_stays_in_the_answer(
    gold: str, dropped: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    question, reply = DICTIONARY
    rows = [
        {"messages": [{"role": "user", "content": question}], "gold": gold},
        {"messages": [{"role": "user", "content": reply}], "gold": "none"},
    ]
    for row, answer in zip(rows, (reply, question), strict=True):
        row["messages"].append({"role": "assistant", "content": answer})
    path = write_rows(tmp_path / "rows.jsonl", rows)

    def translator(request: Request, _: random.Random) -> str:
        return DICTIONARY[request.messages[0].content.rstrip().splitlines()[-1]] + END

    make = {
        "kind": "translate",
        "sources": [{"name": "rows", "path": str(path), "metadata": ["gold"]}],
        "language": "de",
        "language_name": "German",
    }
    recipe = recipe_of(tmp_path / "out", make, {"translator": server("mt")})
    rows, manifest = made(recipe, {"mt": Scripted(translator)}, monkeypatch)
    assert manifest.counts.dropped == dropped
    assert {row["metadata"]["gold"] for row in rows} == {"none"} | (
        {gold} if not dropped else set()
    )


def test_an_answer_in_another_language_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    question, reply = DICTIONARY
    content = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    unknown = [
        {"role": "user", "content": "Who opens the market in the morning?"},
        {"role": "assistant", "content": "The baker opens it, long before the sun comes up."},
    ]
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": content}, {"messages": unknown}])

    def translator(request: Request, _: random.Random) -> str:
        line = request.messages[0].content.rstrip().splitlines()[-1]
        known = DICTIONARY.get(line)
        # a sentence that is not in the dictionary comes back in Spanish
        return (known or "¿Qué vende el mercado los domingos por la mañana temprano, o no?") + END

    make = {
        "kind": "translate",
        "sources": [{"name": "rows", "path": str(path), "license": "MIT"}],
        "language": "de",
        "language_name": "German",
    }
    recipe = recipe_of(tmp_path / "out", make, {"translator": server("mt")})
    rows, manifest = made(recipe, {"mt": Scripted(translator)}, monkeypatch)
    assert [row["messages"][0]["content"] for row in rows] == [DICTIONARY[question]]
    assert manifest.counts.dropped == {"other_language": 1}
