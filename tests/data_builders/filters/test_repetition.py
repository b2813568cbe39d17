"""The filter against repetition: honest texts of many kinds stay, loops go; texts that were read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from data_builders.filters.repetition import find_repetition
from data_builders.rows.raw import Match
from posttrain.config.filters import RepetitionFilter
from tests.data_builders.repetition_steps import STEPS, step_by_step
from tests.data_builders.repetition_texts import chinese, honest_kinds, loops, sentences
from tests.data_builders.spoken import labels, spoken

LIMITS = RepetitionFilter()
SENTENCE = "But wait, maybe I should check whether the first case really gives seven. "
PROSE = " ".join(sentences(150, random.Random(0)))


def found(text: str) -> Match | None:
    return find_repetition(text, LIMITS)


@pytest.mark.parametrize("kind", [(half, kind) for half in STEPS for kind in STEPS[half]])
def test_honest_step_by_step_texts_stay(kind: tuple[str, str]):
    lost = [loop for text in step_by_step(*kind) if (loop := found(text))]
    # a plan for two months may say the same on all days: "Day 7: 50 mg in the morning."
    assert len(lost) <= (5 if kind[1] == "medication_plan" else 0), lost


@pytest.mark.parametrize("seed", range(2))
def test_honest_kinds_stay(seed: int):
    kinds = honest_kinds(random.Random(seed))
    assert {kind: loop for kind, text in kinds.items() if (loop := found(text))} == {}


# kinds of which some are too near to honest steps, and how many of ten must be found
AT_LEAST = {
    "a word changes": 8,
    "one of a few words fills a place": 5,
    "rounds of sentences in changing order": 4,
    "sentences in changing order": 8,
    "short rounds with a counter": 4,
}


@pytest.mark.parametrize("half", ["seen", "unseen"])
def test_loops_are_found_wherever_they_begin(half: str):
    for kind, texts in loops(half, [PROSE, *step_by_step("seen", "accumulation", 3)], 10).items():
        count = sum(found(text) is not None for text in texts)
        assert count >= AT_LEAST.get(kind, len(texts)), kind


def test_sentences_in_changing_order_are_found_once_all_have_returned():
    rng = random.Random(0)
    few = sentences(4, rng)
    text = f"{PROSE} {' '.join(rng.choice(few) for _ in range(300))}"
    repetition = found(text)
    assert repetition is not None
    assert repetition.detail.startswith("ngrams")
    assert repetition.start > len(PROSE)


@pytest.mark.parametrize(
    "loop",
    [
        SENTENCE * 30,
        "Let me try again.\nThat does not work either.\n" * 60,
        "0." + "3" * 4000,
        " " * 4000,
        "💻🔧" * 200,
        "\n" * 300,
        chinese(20, random.Random(1)) * 12,
        "".join(f"{k}. Identify the risks of the project.\n" for k in range(1, 60)),
        f"[{'0,' * 49}0],\n" * 80,
        f"{SENTENCE}\n\n{SENTENCE}" * 20,
    ],
)
def test_the_span_covers_the_loop(loop: str):
    text = f"{PROSE}\n{loop} So the answer is 7."
    repetition = found(text)
    assert repetition is not None
    assert abs(repetition.start - len(PROSE)) <= 0.1 * len(loop) + 20
    assert abs(repetition.end - len(PROSE) - len(loop)) <= 0.1 * len(loop) + 20


@pytest.mark.parametrize(
    "steps",
    [
        "The bracket here opens a new level now, The bracket here closes a new level now, ",
        "Скобка здесь открывает новый уровень теперь, Скобка здесь закрывает новый уровень теперь, ",
    ],
)
def test_two_steps_in_turn_are_a_loop_where_the_text_is_cut_off(steps: str):
    assert found(steps * 40) is None
    assert found((steps * 40)[:-4]) is not None


def test_a_counter_is_content_where_a_name_changes_as_well():
    turns = "".join(f"Turn {k}: {'Ada' if k % 3 else 'Kim'} passes it.\n" for k in range(1, 200))
    players = "".join(f"{k}. {'Ada' if k % 2 else 'Bo'} has the coin.\n" for k in range(1, 200))
    apples = "".join(f"We add one, and {k} apples lie on the table.\n" for k in range(1, 200))
    assert found(turns) is None
    assert found(players) is None
    assert found(apples) is None


def test_a_round_that_only_counts_itself_is_a_loop():
    assert found("".join(f"Attempt {k}: {SENTENCE}\n" for k in range(1, 30))) is not None
    objects = (f'{{"id": {k}, "text": "{SENTENCE}"}}' for k in range(1, 30))
    assert found(",\n".join(objects)) is not None


def test_a_place_that_a_few_words_fill_again_and_again_is_a_loop():
    template = "Maybe the answer is {}, but that does not fit the description in the question.\n"
    names = " ".join(sentences(60, random.Random(0))).split()
    distinct = list(dict.fromkeys(names))[:30]
    rng = random.Random(1)
    assert found("".join(template.format(rng.choice(names[:8])) for _ in range(30))) is not None
    assert found("".join(map(template.format, distinct))) is None
    assert found("".join(template.format(rng.randrange(1000)) for _ in range(30))) is not None
    assert found("".join(template.format(k * k) for k in range(30))) is None


def test_three_long_rounds_are_a_loop_and_two_are_none():
    passage = " ".join(sentences(40, random.Random(2)))
    assert found(f"{PROSE}\n{passage}\n{passage}\n{passage}") is not None
    assert found(f"{PROSE}\n{passage}\n{passage}\n{PROSE[:500]}") is None


def test_a_state_goes_to_and_fro_for_a_while():
    step = "The light is {}, so the cars {} and the people {}.\n"
    both = step.format("green", "go", "wait") + step.format("red", "wait", "go")
    assert found(f"{PROSE}\n{both * 40}") is None
    assert found(f"{PROSE}\n{both * 80}") is not None
    assert found(f"{PROSE}\n{both * 40}The light is") is not None  # and never ends


def test_random_choices_of_a_template_are_no_loop():
    bits = random.Random(0).choices("01", k=100)
    assert (
        found("\n".join(f"The last bit is {b}; we write {b} and shift right." for b in bits))
        is None
    )


def test_long_and_hostile_texts_are_judged():
    assert found("(" * 500_000) is not None
    assert found("<" + " \t" * 200_000) is not None
    assert found("\ud800" * 20_000) is not None
    assert found("".join(random.Random(0).choices("ab 1.\n(", k=200_000))) is None
    assert found("") is None


def test_texts_that_were_read(shared: Path):
    """Of the labelled real texts no honest one is dropped."""
    by_label: dict[str, list[bool]] = {"loop": [], "honest": []}
    read = labels()
    for name in ("pandalm_human", "open_instruct_human_eval_pairs", "reasoning_gym_graded"):
        for text in spoken(shared, name):
            if label := read.get((name, text.row, text.part)):
                by_label.setdefault(label, []).append(found(text.text) is not None)
    assert not any(by_label["honest"])
    assert len(by_label["honest"]) >= 200
    assert sum(by_label["loop"]) >= 0.4 * len(by_label["loop"])
