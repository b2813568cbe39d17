"""The detector on real data: calls of real conversations in every notation, and real text without.

A third of the set; `benchmarks/detector_labelled.py` runs all of it.
"""

from __future__ import annotations

import itertools
from random import Random

import pytest

from posttrain.chat.detect import detect_calls
from tests.chat.detect.figures import Tally, tally
from tests.chat.detect.labelled_forms import FORMS, HELD_OUT
from tests.chat.detect.labelled_negatives import negatives
from tests.chat.detect.labelled_positives import positives
from tests.chat.detect.labelled_set import Turn, turns


@pytest.fixture(scope="module")
def figures(shared) -> Tally:
    calls = itertools.islice(positives(shared), 0, None, 3)
    others = itertools.islice(negatives(shared), 1, None, 3)
    return tally(itertools.chain(calls, others))


def test_the_set_is_large_and_hard_enough(figures: Tally):
    assert figures.count(True) >= 2000
    assert figures.theirs >= 300
    assert figures.count(False) >= 2000
    assert figures.hard >= 300


def test_calls_are_found_and_little_else(figures: Tally):
    report = "\n".join(figures.lines())
    assert figures.recall >= 0.995, report
    assert figures.false_rate <= 0.001, report


def _declared(shared) -> list[Turn]:
    found = turns(shared)
    both = [*found["sgd_openai_tools"][::40], *found["lf_glaive"][::5]]
    return [turn for turn in both if turn.tools]


def test_real_calls_keep_their_declared_schemas_in_every_notation(shared):
    for turn in _declared(shared):
        for form, write in {**FORMS, **HELD_OUT}.items():
            text = write(turn.names, turn.arguments, Random(form))
            found = detect_calls(reasoning=None, answer=text, tools=turn.tools, prompt=turn.prompt)
            assert [c.name for c in found.calls] == turn.names, (form, text)
            assert {c.kind for c in found.calls} == {"declared"}, (form, text)


def test_changed_names_and_arguments_are_told_apart_in_every_notation(shared):
    for turn in _declared(shared)[::4]:
        renamed = [f"{name}_v2" for name in turn.names]
        invented = [{**a, "invented_argument": "x"} for a in turn.arguments]
        for form, write in {**FORMS, **HELD_OUT}.items():
            for names, arguments, kind in (
                (renamed, turn.arguments, "nonexistent_tool"),
                (turn.names, invented, "fabricated_arguments"),
            ):
                text = write(names, arguments, Random(form))
                found = detect_calls(reasoning=None, answer=text, tools=turn.tools)
                kinds = {c.kind for c in found.calls}
                if kind == "fabricated_arguments" and form == "gemma":
                    assert kinds <= {kind, "declared"}  # its arguments are not read
                else:
                    assert kinds == {kind}, (form, text)
