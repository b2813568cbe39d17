"""Real calls in every notation, and real text without; `python -m benchmarks detector_labelled` runs all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from zlib import crc32

import pytest

from posttrain.chat.detect import detect_calls
from tests.chat.detect.forms import FORMS
from tests.chat.detect.labelled import Case, Turn, negatives, positives, turns


def judge(cases: Iterable[Case]) -> tuple[Counter[str], list[Case]]:
    """Texts by form, and those that are judged wrongly with no tools declared."""
    forms, wrong = Counter[str](), list[Case]()
    for case in cases:
        forms[case.form] += 1
        detection = detect_calls(
            reasoning=case.reasoning, answer=case.answer, tools=None, prompt=case.prompt
        )
        if detection.any is not case.call:
            wrong.append(case)
    return forms, wrong


def test_calls_are_detected(shared):
    forms, missed = judge(case for case in positives(shared) if crc32(case.id.encode()) % 3 == 0)
    assert forms.total() >= 1500
    assert set(FORMS) <= set(forms)
    assert len(missed) <= 0.005 * forms.total(), [(case.form, case.answer[:200]) for case in missed]


def test_other_texts_are_no_calls(shared):
    forms, wrong = judge(negatives(shared, one_in=10))
    assert forms.total() >= 1500
    assert len(wrong) <= 0.0005 * forms.total(), [(case.form, case.answer[:200]) for case in wrong]


@pytest.fixture(scope="module")
def declared(shared) -> list[Turn]:
    return [turn for turn in turns(shared) if turn.tools and turn.id.startswith("sgd")][::150]


def _kinds(turn: Turn, form: str, names: list[str], arguments: list[dict]) -> set[str]:
    text = FORMS[form](names, arguments, Random(form))
    calls = detect_calls(reasoning=None, answer=text, tools=turn.tools, prompt=turn.prompt).calls
    assert [call.name for call in calls] == names, text
    return {call.kind for call in calls}


@pytest.mark.parametrize("form", FORMS)
def test_real_calls_are_judged_against_their_declared_schemas(form: str, declared: list[Turn]):
    for turn in declared:
        assert _kinds(turn, form, turn.names, turn.arguments) == {"declared"}
        renamed = [f"{name}_v2" for name in turn.names]
        assert _kinds(turn, form, renamed, turn.arguments) == {"nonexistent_tool"}
        invented = [{**arguments, "invented_argument": "x"} for arguments in turn.arguments]
        unread = form.startswith("gemma")  # the notation's arguments are not read
        expected = {"declared"} if unread else {"fabricated_arguments"}
        assert _kinds(turn, form, turn.names, invented) == expected
