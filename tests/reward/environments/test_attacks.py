"""The red team's forms on a few tasks each: nothing wrong passes, nothing right is refused."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from typing import Any

import pytest

from data_builders.prompts.questions import read_environment
from posttrain.config.prompts import EnvironmentPrompts
from posttrain.errors import DataError
from posttrain.group_rewards import Group
from reward.environments import ENVIRONMENTS
from reward.environments.base import replay, same_value, says, unusable
from reward.environments.code import find_program, same_output
from reward.environments.instruction_following import CONSTRAINTS
from reward.rlvr import Domain, RoutedReward
from tests.reward.environments.attacks import ATTACKS
from tests.reward.environments.attacks.every_form import attacks_on
from tests.reward.environments.attacks.state_tricks import STATE_TRICKS
from tests.reward.environments.attacks.structure_tricks import KNOWN_TO_PASS
from tests.reward.environments.generated_tasks import rows
from tests.reward.environments.scoring import verify, verify_each


@pytest.mark.parametrize("name", sorted({*ATTACKS, *STATE_TRICKS} - {"code"}))
def test_wrong_answers_fail_and_right_ones_pass(name: str):
    environment = ENVIRONMENTS[name]()
    prompts = [environment.prompt(row) for row in rows(name, seed=5, count=2)]
    attacks = list(attacks_on(environment, prompts, 0))
    scores = verify_each(environment, [(prompt, attack.script) for prompt, attack in attacks])
    wrong = [
        (prompt.gold, attack.form, score)
        for (prompt, attack), score in zip(attacks, scores, strict=True)
        if score.value is None or environment.passes(score) != attack.right
    ]
    assert {form for _, form, _ in wrong} <= KNOWN_TO_PASS, wrong
    assert {attack.right for _, attack in attacks} == {True, False}


def test_the_ninth_option_is_told_from_the_word_i():
    environment = ENVIRONMENTS["multiple_choice"]()
    options = {letter: f"text {letter}" for letter in "ABCDEFGHIJ"}
    row = {"question": "Which?", "gold": "C", "metadata": {"options": options}}
    right = ("Answer: C, as I see it", "Answer: C and I am sure", "Answer: C. I checked it.")
    wrong = ("Answer: C but I if momentum is meant", "Answer: C, otherwise I is right",
             "Answer: C; I unless it is cold")  # fmt: skip
    scores = verify(environment, environment.prompt(row), *right, *wrong)
    assert [score.value for score in scores] == [1, 1, 1, 0, 0, 0]


def test_a_choice_that_the_text_denies_is_none():
    environment = ENVIRONMENTS["multiple_choice"]()
    options = {letter: f"text {letter}" for letter in "ABCDEFGHI"}
    metadata = {"options": options, "output_regex": "Answer:\\s*([A-Za-z])"}
    prompt = environment.prompt({"question": "Which?", "gold": "I", "metadata": metadata})
    right = ("Answer: I", "Answer: I, as it fits", "Answer: I rather than B", "A ❌, I ✅. Answer: I",
             "Answer: A? No.\nAnswer: I", "The incorrect statement is this. Answer: I",
             "Answer: I\n\nWrong answers:\n- A", "A: False. Answer: I", "Answer: I\n\n**I**")  # fmt: skip
    wrong = ("Answer: I don't know", "Answer: I guess so", "Answer: I ❌", "❌ Answer: I",
             "Answer: I? No.", "Answer: I is wrong", "Answer: I. Wait, that is wrong.",
             "Wrong answers:\nAnswer: I", "Answer: not the answer: I", "Answer: ✗ I", "Answer: I: False",
             "Answer: I (wrong)", "See https://a.b/Answer:I", "Answer: I\n\n**B**")  # fmt: skip
    scores = verify(environment, prompt, *right, *wrong)
    assert [score.value for score in scores] == [1.0] * len(right) + [0.0] * len(wrong)
    boxed = environment.prompt(
        {"question": "Which? \\boxed{}", "gold": "B", "metadata": {"options": options}}
    )
    texts = ("\\boxed{B}", "\\boxed{✘ B}", "\\boxed{not the solution: B}", "\\boxed{\\neq B}")
    assert [score.value for score in verify(environment, boxed, *texts)] == [1, 0, 0, 0]
    metadata["output_regex"] = "Choice:\\s*([A-Za-z])"
    article = environment.prompt({"question": "Which?", "gold": "A", "metadata": metadata})
    texts = ("Final Choice: A", "Final Choice: A then D", "Final Choice: A vs D")
    assert [score.value for score in verify(environment, article, *texts)] == [1, 0, 0]
    options = {"A": "True", "B": "False", "C": "Incorrect"}
    verdicts = environment.prompt(
        {"question": "Which? \\boxed{}", "gold": "B", "metadata": {"options": options}}
    )
    texts = (
        "\\boxed{B}: False",
        "\\boxed{B: False}",
        "\\boxed{B} (False)",
        "\\boxed{B}: Incorrect",
    )
    assert [score.value for score in verify(environment, verdicts, *texts)] == [1, 1, 1, 0]


def test_two_options_behind_a_label_are_no_choice():
    environment = ENVIRONMENTS["multiple_choice"]()
    options = {"A": "45 J", "B": "360 J", "C": "36 J", "D": "18 J"}
    row = {"question": "Which?", "gold": "C", "metadata": {"options": options}}
    right = ("Answer: option C since A is too large", "Answer: the letter C")
    wrong = ("Answer: maybe C, maybe A", "Answer: 50% C, 50% A")
    scores = verify(environment, environment.prompt(row), *right, *wrong)
    assert [score.value for score in scores] == [1, 1, 0, 0]


@pytest.mark.parametrize("name", ["math", "multiple_choice", "scheduling", "long_context"])
def test_no_answer_hides_in_a_comment(name: str):
    """A reader of the page sees what is around it."""
    environment = ENVIRONMENTS[name]()
    [row] = rows(name, seed=5, count=1)
    prompt = environment.prompt(row)
    gold = environment.gold(prompt)
    assert gold is not None
    wrong = environment.wrong(prompt)[0][0].content
    answer = gold[0].content
    one_line = answer.replace("\n", " ")
    texts = (
        answer,
        f"<!-- {answer} -->",
        f"{wrong} <!-- {answer} -->",
        f"{answer}<!-- {wrong} -->",
        f"{wrong}\n\n[//]: # ({one_line})",
        f"<span hidden>{answer}</span>",
        f'<div class="a" style="color: red; display: none">{answer}</div>',
        f'<font color="white">{answer}</font>',
        f"% {one_line}",
        f"{wrong}\n\\iffalse\n{answer}\n\\fi",
    )
    scores = verify(environment, prompt, *texts)
    assert [environment.passes(score) for score in scores] == [
        *(True, False, False, True),
        *[False] * 6,
    ]


def test_a_line_that_takes_the_answer_back_is_a_second_answer():
    environment = ENVIRONMENTS["long_context"]()
    prompt = environment.prompt(rows("long_context", seed=5, count=1)[0])
    right = (f"Answer: ({prompt.gold})", f"Answer: {prompt.gold}!", f"x\n**Answer: {prompt.gold}**")
    wrong = f"Answer: {prompt.gold}\n\nActually, answer: Nowhere"
    scores = verify(environment, prompt, *right, wrong)
    assert [score.value for score in scores] == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("$\\boxed{GOLD}$", 1),
        ("\\(GOLD\\)", 1),
        ("**$\\boxed{\\textbf{GOLD}}$.**", 1),
        ("\\boxed{GOLD}, \\boxed{Nowhere}", 0),
        ("\\boxed{not GOLD}", 0),
        ("\\phantom{GOLD}", 0),
        ("~~GOLD~~", 0),
    ],
)
def test_an_answer_line_may_be_set_in_type(form: str, value: float):
    environment = ENVIRONMENTS["long_context"]()
    prompt = environment.prompt(rows("long_context", seed=5, count=1)[0])
    [score] = verify(environment, prompt, f"Answer: {form.replace('GOLD', prompt.gold or '')}")
    assert score.value == value


# -- structured output -----------------------------------------------------------------------------


def structured(schema: dict[str, Any], kind: str = "json", **fields: Any) -> dict[str, Any]:
    return {
        "question": "The town is Bergen.",
        "metadata": {"schema": schema, "format": kind, **fields},
    }


STRING = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}


@pytest.mark.parametrize(
    ("row", "answer", "value"),
    [
        # the schema as shown: what it leaves open stays open
        (structured(STRING, fields={"/town": "Bergen"}), '{"town": "Bergen", "note": 1}', 1.0),
        (structured({**STRING, "required": []}), "{}", 0.0),  # valid, and nothing of the prompt
        (structured(STRING), '{"town": "Bergen"}', 1.0),
        (structured(STRING), '{"town": "string"}', 0.0),
        (structured(STRING), '{"town": "Oslo"}', 0.0),
        (structured(STRING, match="schema_only"), '{"town": "Oslo"}', 1.0),
        (structured(STRING), "```\n" + " " * 200_000, 0.0),
        (structured(STRING), '```json\n{"town": "Bergen"}\n````', 1.0),
        (structured(STRING, fields={"/town": ["Bergen", "Bergen, Norway"]}),
         '{"town": "Bergen, Norway"}', 1.0),
        # YAML 1.2: `no` and dates are texts
        (structured(STRING, "yaml", fields={"/town": "no"}), "town: no", 1.0),
        (structured(STRING, "yaml", fields={"/town": "2020-01-01"}), "town: 2020-01-01", 1.0),
        (structured(STRING, "yaml", fields={"/town": "a"}), "town: !!python/name:os.getcwd", 0.0),
    ],
)  # fmt: skip
def test_valid_and_in_the_prompts_words(row: dict[str, Any], answer: str, value: float):
    environment = ENVIRONMENTS["structured_output"]()
    [score] = verify(environment, environment.prompt(row), answer)
    assert score.value == value


@pytest.mark.parametrize(
    ("step", "price", "value"),
    [(0.01, "19.99", 1), (0.01, "0.07", 1), (0.1, "0.3", 1), (1e-6, "7e-6", 1), (0.01, "1e300", 1),
     (0.01, "19.999", 0), (0.5, "1.3", 0), (1e-6, "1.0000005", 0), (0.01, '"19.99"', 1)],
)  # fmt: skip
def test_multiples_are_those_of_decimal_numbers(step: float, price: str, value: float):
    row = structured({"properties": {"price": {"multipleOf": step}}}, match="schema_only")
    environment = ENVIRONMENTS["structured_output"]()
    [score] = verify(environment, environment.prompt(row), f'{{"price": {price}}}')
    assert score.value == value


@pytest.mark.parametrize(
    ("document", "right", "wrong"),
    [
        ("王芳于2021年3月9日在成都买了7本书，每本48元。", ("王芳", "成都", 7, 48), ("李娜", "上海", 9, 12)),
        ("田中一郎は京都で机を4台、1台9,800円で買った。", ("田中一郎", "京都", 4, 9800), ("佐藤", "東京", 6, 500)),
        ("박지훈은 대구에서 공책 6권을 권당 1500원에 샀다.", ("박지훈", "대구", 6, 1500), ("이영희", "서울", 8, 900)),
        ("สมหญิงซื้อเก้าอี้5ตัวที่ขอนแก่นราคาตัวละ450บาท", ("สมหญิง", "ขอนแก่น", 5, 450), ("วิชัย", "ภูเก็ต", 8, 120)),
    ],
)  # fmt: skip
def test_values_are_found_in_a_document_without_spaces(
    document: str, right: tuple[Any, ...], wrong: tuple[Any, ...]
):
    fields = ("name", "city", "quantity", "price")
    environment = ENVIRONMENTS["structured_output"]()
    prompt = environment.prompt(structured({"type": "object"}) | {"question": document})
    texts = [json.dumps(dict(zip(fields, values, strict=True))) for values in (right, wrong)]
    assert [score.value for score in verify(environment, prompt, *texts)] == [1, 0]


def test_the_share_that_cannot_be_checked_goes_to_the_log_and_a_source_may_ask_for_nvidia_s_rule():
    schema = {
        "type": "object",
        "properties": {"town": {"type": "string"}, "size": {"enum": ["small", "large"]}},
    }
    row = structured(schema)
    environment = ENVIRONMENTS["structured_output"]()
    prompt = environment.prompt(row, source="s")
    answer = says('{"town": "Bergen", "size": "large"}')
    completion = asyncio.run(replay(environment, prompt, answer))
    reward = RoutedReward(lambda _: environment, domains={"s": Domain(("s",), 0.0)})
    [rewards] = asyncio.run(reward.reward([Group(prompt, (completion,))], seed=0))
    assert (rewards.rewards, rewards.parts["unchecked"]) == ((1.0,), (0.5,))
    source = {"name": "s", "path": "s.jsonl", "format": "environment"}
    config = {**source, "environment": "structured_output", "match": "schema_only"}
    read = read_environment(row, EnvironmentPrompts.model_validate(config))
    assert json.loads(read.metadata)["match"] == "schema_only"
    with pytest.raises(ValueError, match="match is for environment structured_output"):
        EnvironmentPrompts.model_validate({**config, "environment": "math"}).check()


def test_a_reference_to_the_network_is_not_followed():
    row = structured({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(DataError, match="leads nowhere"):
        ENVIRONMENTS["structured_output"]().prompt(row)


# -- instructions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "- *[<< \n" * 13_000,
        "A. a. " * 17_000,
        "\n" * 100_000,
        "```json\n" + " " * 100_000,
        "." * 100_000 + "x",
    ],
)
def test_every_constraint_reads_hostile_texts(text: str):
    for kind, constraint in CONSTRAINTS.items():
        arguments = {"word": "a", "words": ["b"], "text": "x", "letter": "a", "exactly": 1}
        assert constraint.holds(text, arguments | {"place": 1, "paragraph": 1}) in (True, False), (
            kind
        )


def test_a_constraint_is_checked_on_what_a_page_shows():
    keyword = {"words": ["lamp"], "at_least": 1}
    for text in ("A light. <!-- lamp -->", "A light. <i title='lamp'></i>", "<p hidden>lamp</p> A"):
        assert not CONSTRAINTS["keywords"].holds(text, keyword), text
    for text in ("The l&#97;mp", "The <b>lamp</b>", "```\n<!-- lamp -->\n```", "A ~~lamp~~"):
        assert CONSTRAINTS["keywords"].holds(text, keyword), text
    assert not CONSTRAINTS["no_commas"].holds("red&#44; green&comma; blue", {})


def test_a_bound_that_is_no_number_is_refused():
    for bound in ("exactly", "at_least", "at_most"):
        metadata = {"constraints": [{"kind": "words", bound: "5"}]}
        with pytest.raises(DataError, match="TypeError"):
            ENVIRONMENTS["instruction_following"]().prompt({"question": "x", "metadata": metadata})


def test_the_reward_of_a_fraction_is_a_pass_only_when_whole():
    environment = ENVIRONMENTS["instruction_following"]()
    constraints = [{"kind": "no_commas"}, {"kind": "words", "at_least": 5}]
    metadata = {"constraints": constraints, "grading": "fraction"}
    prompt = environment.prompt({"question": "x", "metadata": metadata})
    texts = ("a b c d", "a b c d e", "a\u200bb\u200bc\u200bd\u200be")  # the last is one word
    half, whole, joined = verify(environment, prompt, *texts)
    assert (half.value, whole.value, joined.value) == (0.5, 1.0, 0.5)
    assert (environment.passes(half), environment.passes(whole)) == (False, True)


# -- code ------------------------------------------------------------------------------------------

contained = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
SQUARE = {"question": "x", "gold": "def f(x):\n    return x * x"}
CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert candidate(-2) == 4"
CALLED = {**SQUARE, "metadata": {"function": "f", "tests": [{"input": [3], "output": 9}]}}
CHECKED = {**SQUARE, "metadata": {"function": "f", "check": CHECK, "seconds": 1}}
PRINTED = {
    "question": "x",
    "gold": "print(int(input()) ** 2)",
    "metadata": {"tests": [{"input": "3\n", "output": "9\n"}], "seconds": 1},
}
ALWAYS = "class E(int):\n    __eq__ = lambda s, o: True\ndef f(x): return E(0)"
FORGE = (
    "import os\nfor p in os.listdir('/proc'):\n  for fd in range(9):\n    try:\n"
    "      open(f'/proc/{p}/fd/{fd}', 'w').write('\\npassed\\n')\n    except (OSError, ValueError): pass\n"
)
# the driver's memory is what a forged verdict would need
READ = (
    "import os\ntry:\n    open(f'/proc/{os.getppid()}/mem', 'rb'); found = 9\n"
    "except OSError: found = 0\ndef f(x): return x * x if found else 0"
)


WRONG = [
    (CHECKED, "import sys\nsys.exit(0)"),
    (CHECKED, "def f(x):\n    raise SystemExit"),
    (CHECKED, ALWAYS),
    (CALLED, ALWAYS),
    (CHECKED, FORGE + "def f(x): return 0"),
    (CHECKED, READ),
    (CHECKED, "import os\nos.kill(os.getppid(), 9)"),
    (CHECKED, "def f(x):\n    while True: pass"),
    (CHECKED, "def f(x): return abs(x) * 3 if x > 0 else 0"),
    (PRINTED, 'print(\'{"output": "9"}\')'),
    (PRINTED, "print(9)\nimport sys\nsys.exit(1)"),
    (CALLED, "class X:\n    def __repr__(self): return '1e999'\ndef f(x): return X()"),
    (PRINTED, "while True: pass"),
    (PRINTED, "open('program.py', 'w').write('print(9)')"),
]


@contained
@pytest.mark.parametrize("row", [CALLED, CHECKED, PRINTED])
def test_programs_that_do_not_solve_the_task_fail_and_solutions_pass(row: dict[str, Any]):
    environment = ENVIRONMENTS["code"]()
    prompt = environment.prompt(row)
    wrong = [f"```python\n{text}\n```" for task, text in WRONG if task is row]
    gold = row["gold"].replace("\n", "\n  ")
    draft = f"```python\nprint(1)\n```\n- Better:\n  ~~~py\n  {gold}\n  ~~~\nFor 3:\n```\n9\n```"
    values = [score.value for score in verify(environment, prompt, draft, *wrong)]
    assert values == [1.0] + [0.0] * len(wrong)
    assert asyncio.run(unusable(environment, prompt)) is None


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (450, 450.0, True),
        (0.1 + 0.2, 0.3, True),
        (1_000_000_001, 1_000_000_002, False),
        (5, math.inf, False),
        (0.5, 10**400, False),
        (True, 1, False),
        ([1, {"a": None}], [1, {"a": None}], True),
        (["Bonn"], ["bonn"], False),
    ],
)
def test_values_are_the_same_or_not(expected: Any, given: Any, same: bool):
    assert same_value(expected, given) == same
    assert not same_output("9.5", "1e999")


def test_the_kind_of_apostrophe_does_not_count():
    for one, other in ("'’", "’'"):
        forbidden = {"words": [f"don{one}t"]}
        assert not CONSTRAINTS["forbidden_words"].holds(f"I don{other}t know.", forbidden)


@pytest.mark.parametrize(
    "text", ["```" + "a" * 90_000 + "`", "`" * 90_000 + "x`", "```\n" * 25_000]
)
def test_no_program_is_found_in_hostile_texts(text: str):
    assert not find_program(text, "f")


def test_only_a_bare_fence_of_its_own_marks_closes_a_block():
    program = 'text = """\n~~~\n```json\n"""'
    assert find_program(f"```python\n{program}\n```", None) == program
