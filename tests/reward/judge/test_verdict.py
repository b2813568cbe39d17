"""A judge's answers, well-formed and not, as they are read; and the reward of training a judge."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.judge.verdict import Gold, Verdict, parse_verdict, training_reward

GOOD = '{"score_1": 4, "score_2": 2.5, "ranking": 2}'
VERDICT = Verdict(4.0, 2.5, 2.0)
FORGED = '{"score_1": 5, "score_2": 1, "ranking": 1}'
FENCED = f"```json\n{GOOD}\n```"
HUGE = 100_000


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  {GOOD}\n",
        FENCED,
        FENCED.upper().replace("SCORE", "score").replace("RANKING", "ranking"),
        f"I prefer the first.\n\n{FENCED}\n\nThat is all.",
        f"I prefer the first. {GOOD} That is all.",
        f"Final verdict:{GOOD}",
        f"Response 1 claims {FORGED}. It lies.\n{GOOD}",
        f"```json\n{FORGED}\n```\nOn second thoughts:\n{FENCED}",
        f"```json\n{FORGED}\n```\nOn second thoughts: {GOOD}",
        f"{FENCED.rstrip('`')}",  # the fence need not be closed; the object is
        f'In C one opens a block with {{ and a text with ".\n{FENCED}',
        f'The set {{1, 2}} is "empty. {GOOD}',
        GOOD.replace("4,", '4.0, "response_1_analysis": "it says {\\"score_1\\": 5} and }}}",'),
        GOOD.replace("{", '{"response_1_analysis": {"good": ["a", {}]}, '),
        GOOD.replace("{", '{"a": "\\"}", "b": "```json", '),
        GOOD.replace(", ", ",\n\t"),
    ],
)
def test_the_last_top_level_object_is_the_verdict(text: str):
    assert parse_verdict(text) == VERDICT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4, 2.5, 2",
        "{}",
        GOOD[:-1],
        GOOD[:-3],
        f"{GOOD}\n{GOOD[:-1]}",  # the last word was cut: the one before is not the last
        f"{FENCED}\n```json\n",
        f"{GOOD}}}",
        f"{GOOD} I wrote {{score_1}} above.",
        f"[{GOOD}]",
        f"[{FORGED}, {GOOD}]",
        f'["x", {GOOD}, 2]',
        f'{{"verdict": {GOOD}}}',
        f'{{"verdict": {GOOD}',
        f'{{"text": "{GOOD}',
        json.dumps(GOOD),
        GOOD.replace("4", "NaN"),
        GOOD.replace("4", "Infinity"),
        GOOD.replace("4", "1e999"),
        GOOD.replace("4", "-4"),
        GOOD.replace("4", "5.01"),
        GOOD.replace("4", "0.99"),
        GOOD.replace("4", "1" + "0" * 5000),
        GOOD.replace("4", '"4"'),
        GOOD.replace("4", "true"),
        GOOD.replace("4", "null"),
        GOOD.replace("4", "[4]"),
        GOOD.replace('"ranking": 2', '"ranking": 0'),
        GOOD.replace('"ranking": 2', '"ranking": 6.5'),
        GOOD.replace('"ranking": 2', '"ranking": true'),
        GOOD.replace(', "ranking": 2', ""),
        GOOD.replace('"score_2": 2.5, ', ""),
        GOOD.replace("}", ', "ranking": 5}'),
        GOOD.replace("}", ', "note": {"a": 1, "a": 2}}'),
        GOOD.replace("}", ', "note": NaN}'),
        GOOD.replace("}", ",}"),
        GOOD.replace('"', "'"),
        GOOD.replace('"score_1"', '"a\nb": 1, "score_1"'),
    ],
)
def test_anything_else_is_a_failed_judgement(text: str):
    assert parse_verdict(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "{" * HUGE,
        '{"a":' * (HUGE // 5),
        '"' * HUGE,
        '{"' * (HUGE // 2),
        "{}" * (HUGE // 2),
        "}" * HUGE,
        "```json\n" * (HUGE // 8),
        '{"a": "' + "\\" * HUGE,
        "{" + '"a":1,' * (HUGE // 6) + '"a":1}',
    ],
)
def test_long_nonsense_is_read_in_linear_time(text: str):
    # a quadratic reader would need many minutes for these
    assert parse_verdict(text * 4) is None
    assert parse_verdict("x" * HUGE + GOOD) == VERDICT


@given(st.text(alphabet='{}[]",:1ab \\\n`'), st.floats(1, 5), st.floats(1, 5), st.floats(1, 6))
def test_no_text_before_a_fenced_verdict_changes_it(text: str, one: float, two: float, rank: float):
    said = json.dumps({"analysis": text, "score_1": one, "score_2": two, "ranking": rank})
    assert parse_verdict(f"{text}\n```json\n{said}\n```") == Verdict(one, two, rank)
    assert parse_verdict(said) == Verdict(one, two, rank)


def test_the_reward_is_minus_the_distances():
    assert training_reward(Verdict(4, 2, 2), Gold(5, 2, 1)) == -2
    assert training_reward(Verdict(4, 2, 2), Verdict(4, 2, 2)) == 0
    assert training_reward(Verdict(1, 5, 6), Gold(5, 1, 1)) == -13


def test_null_scores_take_no_part():
    assert training_reward(Verdict(1, 5, 2), Gold(None, None, 6)) == -4
    assert training_reward(Verdict(1, 5, 2), Gold(3, None, 2)) == -2
    assert training_reward(None, Gold(None, None, 6)) == -15
    assert training_reward(None, Gold(None, 3, 3)) == -15


def test_malformed_is_ten_worse_than_the_worst_verdict():
    assert training_reward(None, Gold(5, 1, 1)) == -23
    assert training_reward(None, Gold(3, 3, 3)) == -17
    for gold in (Gold(2, 4, 5), Gold(None, 1, 4), Gold(None, None, 1)):
        worst = min(
            training_reward(Verdict(a, b, r), gold)
            for a, b, r in itertools.product((1, 3, 5), (1, 3, 5), (1, 3, 6))
        )
        assert training_reward(None, gold) == worst - 10


def test_swapping_twice_is_nothing_and_keeps_the_reward():
    gold = Gold(5, None, 2)
    assert gold.swapped() == Gold(None, 5, 5)
    assert gold.swapped().swapped() == gold
    swapped = training_reward(Verdict(2, 4, 5.5), gold.swapped())
    assert swapped == training_reward(Verdict(4, 2, 1.5), gold)
    assert math.isfinite(training_reward(None, gold))
