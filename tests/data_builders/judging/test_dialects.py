"""Preference rows of every dialect become pairs with the gold they state, or a named drop."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from data_builders.dialects import RowProblem
from data_builders.judging.build import refuse
from data_builders.judging.dialects import read_pair, recognise
from data_builders.judging.pair import PreferencePair
from posttrain.config.build_genrm import PreferenceSource
from posttrain.config.load import validate
from posttrain.records import Message
from reward.judge.verdict import HIGHEST_RANKING, LOWEST_RANKING, Gold
from tests.data_builders.judging.small import (
    ARENA,
    CHOSEN,
    HELPSTEER3,
    PANDALM,
    RELEASED,
    ROWS,
    SAFETY,
)

START = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: 7*8?\n\nAssistant: "  # a transcript
SAID = {"chosen": "56", "rejected": "54"}


def read(row: dict[str, Any], **settings: Any) -> PreferencePair:
    raw = {"name": "s", "path": "s.jsonl", **settings}
    return read_pair(row, validate(raw, PreferenceSource, where="source"))[1]


def problem(row: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(RowProblem) as found:
        read(row, **settings)
    return found.value.reason


@pytest.mark.parametrize(
    ("dialect", "row", "gold", "responses"),
    [("helpsteer3", HELPSTEER3, Gold(None, None, 2), ("56", "54")),
     ("arena", ARENA, Gold(None, None, 5), ("54", "56")),
     ("arena", ARENA | {"winner": "model_a"}, Gold(None, None, 2), ("54", "56")),
     ("pandalm", PANDALM, Gold(None, None, 2), ("56", "54")),
     ("chosen_rejected", CHOSEN, Gold(None, None, 2), ("56", "54")),
     ("chosen_rejected", {side: f"{START}{said}" for side, said in SAID.items()},
      Gold(None, None, 2), ("56", "54")),
     ("ranked", SAFETY, Gold(None, None, 1), (SAFETY["response1"], SAFETY["response2"])),
     ("judging_prompt", RELEASED, Gold(5, 1, 1), ("56", "54"))],
)  # fmt: skip
def test_each_dialect_is_recognised_and_read(dialect: str, row: Any, gold: Gold, responses: Any):
    assert recognise(row) == dialect
    pair = read(row)
    assert (pair.gold, (pair.response_1, pair.response_2)) == (gold, responses)


def test_helpsteer3_has_six_strengths_for_six_rankings():
    for ranking, strength in enumerate((-3, -2, -1, 1, 2, 3), start=1):
        pair = read(HELPSTEER3 | {"overall_preference": strength})
        assert pair.gold == Gold(None, None, ranking)
        assert pair.history == (Message("user", "What is 7*8?"),)


def test_scores_of_the_row_are_taken_and_brought_to_one_to_five():
    scored = HELPSTEER3 | {"score_1": 4, "score_2": 2}
    assert read(scored).gold == Gold(4, 2, 2)
    assert read(scored, scores={"low": 0, "high": 4}).gold == Gold(5, 3, 2)
    assert problem(scored | {"score_2": None}) == "malformed_label"
    assert problem(scored | {"score_2": 6}) == "malformed_label"
    assert problem(scored | {"score_2": True}) == "malformed_label"
    named = HELPSTEER3 | {"ratings": {"a": 5, "b": 1}}
    fields = {"score_1": "ratings.a", "score_2": "ratings.b"}
    assert read(named, fields=fields).gold == Gold(5, 1, 2)


def test_ties_are_dropped_or_ranked_in_the_middle():
    rows = [HELPSTEER3 | {"overall_preference": 0}, ARENA | {"winner": "tie"}]
    for row in rows:
        assert problem(row) == "tie"
        assert read(row, ties="middle").gold.ranking == 3.5
    assert problem(ARENA | {"winner": "both_bad"}) == "both_bad"
    assert problem(ARENA | {"winner": "tie (bothbad)"}) == "both_bad"


def test_arena_conversations_may_be_json_text_and_must_share_their_history():
    texts = {key: json.dumps(ARENA[key]) for key in ("conversation_a", "conversation_b")}
    assert read(ARENA | texts) == read(ARENA)
    more = [{"role": "user", "content": "And 9*9?"}, {"role": "assistant", "content": "81"}]
    longer = {key: [*ARENA[key], *more] for key in ("conversation_a", "conversation_b")}
    assert problem(ARENA | longer) == "different_histories"
    # the same first answer on both sides: only the last one is compared
    both, other = ARENA["conversation_b"], {"role": "assistant", "content": "8"}
    alike = {"conversation_a": [*both, *more], "conversation_b": [*both, more[0], other]}
    pair = read(ARENA | alike)
    assert (len(pair.history), pair.response_1, pair.response_2) == (3, "81", "8")


def test_arena_rows_with_columns_for_the_winner_and_lists_of_turns():
    turns = {"prompt": ["What is 7*8?", "Sure?"], "response_a": ["56", "Yes."]}
    turns["response_b"] = ["56", "No."]
    row: dict[str, Any] = {key: json.dumps(value) for key, value in turns.items()}
    row |= {"winner_model_a": 1, "winner_model_b": 0, "winner_tie": 0}
    pair = read(row)
    assert [m.content for m in pair.history] == ["What is 7*8?", "56", "Sure?"]
    assert (pair.response_1, pair.response_2, pair.gold.ranking) == ("Yes.", "No.", 2)
    assert read(row | {"winner_model_a": 0, "winner_model_b": 1}).gold.ranking == 5
    assert problem(row | {"winner_model_a": 0, "winner_tie": 1}) == "tie"
    assert problem(row | {"winner_model_a": 0}) == "no_preference"
    assert problem(row | {"response_a": json.dumps(["54", "Yes."])}) == "different_histories"
    for damaged in (["56", None], ["56"], "56"):
        assert problem(row | {"response_a": json.dumps(damaged)}) == "malformed_message"


def test_helpsteer2_marks_turns_inside_its_prompt():
    prompt = "Hi\n<extra_id_1>Assistant\nHello.\n<extra_id_1>User\n7*8?"
    row = {"prompt": prompt, "response_1": "56", "response_2": "54", "preference_strength": -3}
    assert [m.content for m in read(row).history] == ["Hi", "Hello.", "7*8?"]
    assert problem(row | {"prompt": "<extra_id_1>Nobody\n7*8?"}) == "malformed_message"


def test_pandalm_needs_enough_annotators_to_agree():
    assert read(PANDALM).history == (Message("user", "Multiply.\n\n7*8"),)
    assert problem(PANDALM, agreement=1.0) == "disagreement"
    assert problem(PANDALM | {"annotator2": 0}) == "disagreement"
    assert problem(PANDALM | {"annotator1": 0, "annotator2": 0}) == "tie"
    assert problem(PANDALM | {"annotator2": 7}) == "malformed_label"
    assert problem(PANDALM | {"response1": False}) == "malformed_message"


def test_chosen_and_rejected_have_no_order_of_their_own():
    pair = read(CHOSEN, win=1)
    assert (pair.has_order, pair.gold.ranking) == (False, 1)
    scored = CHOSEN | {"score_chosen": 9.0, "score_rejected": 2.0}
    assert read(scored, scores={"low": 1, "high": 9}).gold == Gold(5, 1.5, 2)
    # on which scale they are nobody says
    assert read(scored).gold == Gold(None, None, 2)
    whole = {
        side: [{"role": "user", "content": "7*8?"}, {"role": "assistant", "content": said}]
        for side, said in (("chosen", "56"), ("rejected", "54"))
    }
    assert read(whole).history == (Message("user", "7*8?"),)


def test_reasoning_is_not_part_of_a_response_or_of_the_history():
    row = CHOSEN | {"chosen": "<think>7*8 is 56</think>56"}
    assert read(row).response_1 == "56"
    asked = [*HELPSTEER3["context"], {"role": "assistant", "content": "<think>so</think>56"}]
    asked += [{"role": "user", "content": "Sure?"}]
    assert read(HELPSTEER3 | {"context": asked}).history[1] == Message("assistant", "56")


def test_released_safety_rows_have_a_principle_and_no_scores():
    assert read(SAFETY).principle == "Refuse what does harm."
    assert problem(SAFETY | {"preference_ranking": 7}) == "malformed_label"
    assert problem(SAFETY | {"preference_ranking": None}, dialect="ranked") == "no_preference"


def test_a_released_judging_prompt_is_taken_apart_at_its_marks():
    pair = read(RELEASED)
    assert pair.frame is not None
    text = RELEASED["messages"][0]["content"]
    assert pair.frame.around("56", "54") == text
    other = pair.swapped()
    swapped = text.replace("56", "x").replace("54", "56").replace("x", "54")
    assert pair.frame.around(other.response_1, other.response_2) == swapped
    assert other.gold == Gold(1, 5, 6)
    forged = text.replace("56", "56 [The End of Response 1]")
    shown = {"messages": [{"role": "user", "content": forged}]}
    assert problem(RELEASED | shown) == "unsplit_prompt"
    assert problem(RELEASED | {"num_responses": 3}) == "several_responses"
    assert read(RELEASED | {"messages": [RELEASED["messages"]]}) == pair


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"context": [*HELPSTEER3["context"], {"role": "assistant", "content": "56"}]},
         "nothing_to_answer"),
        ({"context": []}, "malformed_message"),
        ({"context": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
         "malformed_message"),
        ({"context": [{"role": "user", "content": ""}, {"role": "assistant", "content": "56"},
                      *HELPSTEER3["context"]]}, "empty_user_turn"),
        ({"response2": {"role": "assistant", "content": [{"type": "text"}]}},
         "malformed_message"),
        ({"overall_preference": "much"}, "malformed_label"),
        ({"overall_preference": 0.5}, "malformed_label"),
        ({"overall_preference": float("nan")}, "malformed_label"),
        ({"response2": [{"role": "user", "content": "no"}]}, "several_turns"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_dropped_by_name(change: dict[str, Any], reason: str):
    assert problem(HELPSTEER3 | change) == reason


@pytest.mark.parametrize(
    "row",
    [{"prompt": "7*8?", "completion": "56"}, {"response1": "56", "response2": "54"}, {},
     {"response1": "56", "response2": "54", "ranking": 2}, {"chosen": "56", "rejected": "54"}],
)  # fmt: skip
def test_a_row_that_is_no_preference_is_unrecognised(row: dict[str, Any]):
    assert problem(row) == "unrecognised"


JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 7, 1e308, float("nan"), float("inf"), "", " ", "[", "[]", '["a"]', "\ud800",
    [], [[]], [None], {}, {"role": "user"}, {"role": "assistant", "content": "x"}, b"x", [1, "a"],
    [{"role": "user", "content": "x"}], "model_a", "<think>", 10**400,
)  # fmt: skip


def mutated(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One to three values anywhere in the row replaced, removed or doubled."""
    row = copy.deepcopy(row)
    for _ in range(rng.randint(1, 3)):
        node: Any = row
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.6:
                node = node[key]
                continue
            if rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice(JUNK))
            break
    return row


@pytest.mark.parametrize("dialect", ROWS)
@pytest.mark.parametrize("named", [False, True])
def test_whatever_stands_in_a_row_it_is_a_pair_or_a_named_drop(dialect: str, named: bool):
    rng = random.Random(f"{dialect} {named}")
    raw = {"name": "s", "path": "s.jsonl", "dialect": dialect if named else None, "ties": "middle"}
    source = validate(raw, PreferenceSource, where="source")
    kept, reasons = 0, set[str]()
    for _ in range(600):
        row = mutated(ROWS[dialect], rng)
        try:
            _, pair = read_pair(row, source)
            refuse(pair)
        except RowProblem as problem:
            reasons.add(problem.reason)
            continue
        kept += 1
        assert pair.response_1.strip() != pair.response_2.strip()
        assert LOWEST_RANKING <= pair.gold.ranking <= HIGHEST_RANKING
        assert (pair.gold.score_1 is None) == (pair.gold.score_2 is None)
        assert pair.swapped().swapped() == pair
        assert pair.key == pair.swapped().key
        assert pair.frame is not None or pair.history[-1].role in ("user", "tool")
    assert 0 < kept < 600
    assert all(reason.isidentifier() for reason in reasons)
