"""Texts that keep a constraint or break it, one constraint each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from posttrain.rollouts import Prompt, metadata_of
from reward.environments.base import says
from tests.reward.environments.attacks.base import Attack, Attacks

# kind → arguments, texts that keep the constraint, texts that do not
_FORMS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "words": ({"exactly": 4}, ("One two, three four.", "it's a well-known fact"), ("a b c", "a b c d e")),
    "sentences": ({"exactly": 2}, ("It rains. I stay in!", 'He said "No." Then he left.', "Pi is 3.14. Good."),
                  ("It rains today.", "One is. Two is. Three is.")),
    "paragraphs": ({"exactly": 2}, ("a b c\n\nd e f", "a b c\n \n\nd e f\n"), ("a b c\nd e f", "a b\n\nc d\n\ne f")),
    "divided_paragraphs": ({"exactly": 2}, ("a b c\n***\nd e f", "a b c\n\n***\n\nd e f"),
                           ("a b c d", "a b c *** d e f", "a b\n***\nc d\n***\ne f")),
    "lines": ({"exactly": 3}, ("one a\ntwo b\nthree c", "one\n\ntwo b\n\nthree c\n"), ("one two three", "a b\nc d")),
    "bullets": ({"exactly": 2}, ("- a b\n- c d", "* a b\n* c d", "Intro here:\n  - a\n  - b"),
                ("a b c - d e - f", "- a b\n- c\n- d", "-a b c\n-d")),
    "numbered_items": ({"exactly": 2}, ("1. a b\n2. c d", "Steps:\n1) a b\n2) c"),
                       ("1.5 is a b\n2.5 is c", "first a second b", "1. a\n2. b\n3. c")),
    "highlights": ({"at_least": 2}, ("a *b c* and *d*", "*one* two *three*"),
                   ("a *b* c d", "**a** b ** c d", "2 * 3 * 4 is 24", "* a\n* b\n* c")),
    "placeholders": ({"at_least": 2}, ("To [name] at [town].", "[a b] and [c]"), ("To [name] at town.", "[] and [] x y z")),
    "keyword_count": ({"word": "cat", "exactly": 2}, ("Cat and cat, here.", "a CAT, no: cat!"),
                      ("cat category concat here", "cat cat cat", "one cat here")),
    "letter_count": ({"letter": "z", "at_least": 3}, ("Zz and buzz now", "zoo zebra zip"), ("zoo zip here", "none here at all")),
    "letters": ({"at_least": 10}, ("abcde fghij kl m", "twelve letters here"), ("a b c 1234567890", "only few x")),
    "lowercase_words": ({"at_most": 2}, ("ONE TWO three four", "All Are Capital Here"), ("a b c D", "three words are")),
    "capital_words": ({"exactly": 1}, ("This is NASA today", "I read a WORD"), ("I am here now", "TWO WORDS are here")),
    "keywords": ({"words": ["sun", "red moon"]}, ("The Sun and a red moon.", "red moon, sun!"),
                 ("The sunny red moon is", "sun and moon, red", "The sun alone here")),
    "forbidden_words": ({"words": ["bad"]}, ("A badge is fine here", "All is good here"), ("This is Bad, really", "bad bad bad")),
    "no_commas": ({}, ("One and two; three.", "No commas at all"), ("One, two and three", "一，二 and three four")),
    "lowercase": ({}, ("all lower here", "it is 5 o'clock"), ("All lower here", "12 34 56")),
    "uppercase": ({}, ("ALL UPPER HERE", "IT IS 5 NOW!"), ("ALL UPPER HeRE", "12 34 56")),
    "starts_with": ({"text": "Dear all"}, ("Dear all, here I am", "dear all of you"), ("Hello. Dear all, I am", "Oh dear all is lost")),
    "ends_with": ({"text": "the end"}, ("This is The End", "so, the end\n"), ("the end is near now", "This is the end.")),
    "first_word": ({"word": "crash"}, ("Crash barriers are here", "**Crash** it is now", "crash, boom, bang"),
                   ("A crash is here now", "crashing it is here")),
    "last_word": ({"word": "contest"}, ("It was a contest.", "Join our Contest!"), ("The contest was here", "We love contests now")),
    "nth_word": ({"place": 2, "word": "big"}, ("A big dog here", "The BIG, bad one"), ("big dogs are here", "A bigger dog here")),
    "paragraph_start": ({"paragraph": 2, "word": "then"}, ("One a b.\n\nThen two.", "a b\n\n**then** c d"),
                        ("Then one.\n\nTwo then.", "Just one then here")),
    "sentence_start": ({"word": "we"}, ("We go. We stay!", "we see it here"), ("We go. They stay here.", "Well, we go now")),
    "different_starts": ({}, ("A b. C d. E f.", "One is here now"), ("The a. The b is.", "We go. we stay.")),
    "title": ({}, ("<<My day>>\nIt was long.", "It is <<A Title>> here"), ("<My day>\nIt was", "<< >\nIt was >", "# My day it was")),
    "quoted": ({}, ('"All of this here."', ' "so it is now" '), ('"All" of this here', "'all of this here'")),
    "json": ({}, ('{"a": "one two three"}', '```json\n{"a": ["b", "c d"]}\n```'),
             ("{'a': 'one two three'}", 'Here: {"a": "one two"}', '"only a text here"', '{"a": "b" "c d"}')),
    "no_repeats": ({}, ("every word is new", "One two Three 4"), ("the dog saw The cat", "no no no")),
}  # fmt: skip


def instruction_forms() -> Iterator[tuple[dict[str, Any], Attack]]:
    """One constraint each, with texts that keep it and texts that do not."""
    for kind, (arguments, kept, broken) in _FORMS.items():
        constraint = {"kind": kind, **arguments}
        for k, text in enumerate(kept):
            yield constraint, Attack(f"{kind} {k}", True, says(text))
        for k, text in enumerate(broken):
            yield constraint, Attack(f"not {kind} {k}", False, says(text))


def instruction_following(prompt: Prompt, rng: random.Random) -> Attacks:
    """The row's text, edited so that one of its constraints breaks; see `_FORMS` for the others."""
    gold = prompt.gold or ""
    yield Attack("line breaks around", True, says(f"\n{gold}\n\n"))
    yield Attack("says so", False, says("I followed."))
    for one in metadata_of(prompt)["constraints"]:
        trivial = one.get("at_least", 4) < 4 or one.get("words") == []  # any text keeps it
        if (edit := _BREAKS.get(one["kind"])) is not None and not trivial:
            yield Attack(f"breaks {one['kind']}", False, says(edit(gold, one)))


def _beyond(unit: str) -> Callable[[str, Mapping[str, Any]], str]:
    """More than at most, other than exactly; for at least nothing of it, but three words."""
    return lambda text, a: f"{text}{unit * 200}" if "at_least" not in a else "so it is"


_BREAKS: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "no_commas": lambda t, a: t + ", and more",
    "lowercase": lambda t, a: t + " And More",
    "uppercase": lambda t, a: t + " and more",
    "keywords": lambda t, a: "nothing of it is here today",
    "forbidden_words": lambda t, a: f"{t} {' '.join(a['words'])} x" if a["words"] else "x",
    "starts_with": lambda t, a: "Well then. " + t,
    "ends_with": lambda t, a: t + " and so on it goes",
    "first_word": lambda t, a: "Zebra " + t,
    "last_word": lambda t, a: t + " zebra",
    "nth_word": lambda t, a: "zebra zebra zebra " + " ".join(["zebra"] * a["place"]),
    "paragraph_start": lambda t, a: "zebra a b\n\n" * (a["paragraph"] + 1),
    "title": lambda t, a: t.replace("<", "").replace(">", ""),
    "quoted": lambda t, a: t + " indeed",
    "json": lambda t, a: t + " }",
    "no_repeats": lambda t, a: t + " zebra zebra",
    "sentences": _beyond(" More is here."),
    "words": _beyond(" more"),
    "lines": _beyond("\nmore of it"),
    "bullets": _beyond("\n- more"),
    "highlights": _beyond(" *more*"),
    "placeholders": _beyond(" [more]"),
}
