"""Answers in another language than their request are found; code, names and translations pass."""

from __future__ import annotations

import pytest

from data_builders.filters.language import AnswerLanguage

pytest.importorskip("py3langid", reason="the extra language is not installed")

QUESTION = "Tom has 6 boxes with 7 apples each. How many apples does he have in all?"
GERMAN = "Tom hat sechs Kisten mit je sieben Äpfeln, das sind zusammen zweiundvierzig Äpfel."
ENGLISH = "Each of the six boxes holds seven apples, so that Tom has 42 apples in all of them."


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        (QUESTION, GERMAN),
        (
            QUESTION,
            "Tom tiene seis cajas con siete manzanas cada una; en total son cuarenta y dos.",
        ),
        (QUESTION, "У Тома шесть коробок по семь яблок, всего получается сорок два яблока."),
        (
            QUESTION,
            "汤姆有六个盒子，每个盒子里有七个苹果。六乘以七等于四十二，所以他一共有四十二个苹果，这就是最后的答案。",
        ),
        # an Indonesian text is half as likely a Malay one
        (
            QUESTION,
            "Tom memiliki enam kotak yang masing-masing berisi tujuh apel, jadi semuanya 42.",
        ),
        ("How many are 6*7?", GERMAN),
        (
            "安排明天上午10点的会议。",
            "Certainly, I will schedule a meeting for you tomorrow at ten.",
        ),
        (GERMAN, ENGLISH),
    ],
)
def test_an_answer_in_another_language_is_found(request_text: str, answer: str):
    assert AnswerLanguage().foreign(answer, request_text) is not None


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        (QUESTION, ENGLISH),
        (GERMAN, GERMAN),
        (QUESTION, "Zweiundvierzig Äpfel"),
        (QUESTION, f"```python\n{GERMAN}\n```\nThat is 42."),
        (QUESTION, f"$$\\text{{{GERMAN}}}$$ gives \\boxed{{42}}."),
        (
            "Name the top cities in France.",
            "Paris, Lyon, Marseille, Nice, Bordeaux, Toulouse, Lille",
        ),
        (
            "Make a list of 10 fruits.",
            "1. Apple\n2. Banana\n3. Orange\n4. Pineapple\n5. Mango\n6. Kiwi",
        ),
        ("Solve the Tower of Hanoi with 6 disks.", "Move disk 1 from Peg 1 to Peg 2\n" * 20),
        ("-1, -2, -4, -8, -16, ?", ENGLISH),
        (f"{QUESTION} Answer in German.", GERMAN),
        (f"Make this article available by translating it: {QUESTION}", GERMAN),
        (f"Continue the story.\n\n{GERMAN}", GERMAN),
        (f"Écrivez la suite de cette histoire : « {GERMAN} »", GERMAN),
        ("将句子翻译成英语：苹果在盒子里。", ENGLISH),
        (
            "写一个包含“do away with”短语的句子。",
            "Many people say that we should do away with plastics.",
        ),
        (
            "生成一个正确使用“opulent”一词的例句。",
            "The reception was held in an opulent ballroom with chandeliers.",
        ),
        (
            "Form a palindrome of letters.",
            "vvvsuuuuukkkjfzzrrqqllleepgccgpellellqqrrzzfjjkkkuuuuusvvv" * 3,
        ),
        ("Übersetze: Der Apfel liegt in der Kiste.", ENGLISH),
    ],
)
def test_what_is_asked_for_or_cannot_be_told_passes(request_text: str, answer: str):
    assert AnswerLanguage().foreign(answer, request_text) is None


def test_a_prompt_around_the_request_says_nothing_of_its_language():
    frame = "Write the next message of the user alone, and do not thank or end the conversation."
    request = f"user:\n  {GERMAN}\n\n{frame}"
    assert AnswerLanguage().foreign(ENGLISH, request) is None
    assert AnswerLanguage([frame]).foreign(ENGLISH, request) is not None
    assert AnswerLanguage([frame]).foreign(GERMAN, request) is None
