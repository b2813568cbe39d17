"""Answers to questions on many documents, computed from the text alone, as a reader would.

Nothing of `data_builders.synthesis.long_documents` is used: sentences are split and compared word
by word, and the question's own words say what is asked for.
"""

from __future__ import annotations

import json

Answer = frozenset[str] | None


def split(text: str) -> tuple[list[str], str]:
    """Documents, without their numbers, and the question behind them."""
    *documents, question = text.split("\n\n")
    texts: list[str] = []
    for number, document in enumerate(documents, 1):
        head, _, body = document.partition("\n")
        assert head == f"Document {number}."
        texts.append(body)
    return texts, question


def stated(gold: str) -> Answer:
    """A gold as a set of names or numbers."""
    return frozenset(json.loads(gold) if gold.startswith("[") else [gold])


def answer(documents: list[str], question: str) -> Answer:
    """Answer that the documents give to the question; None where they give none."""
    sentences: list[list[str]] = []
    for document in documents:
        sentences += [sentence.split() for sentence in document.removesuffix(".").split(". ")]
    words = question.split()
    if question.startswith(("What is the access code", "What are the access codes")):
        asked = question.partition("?")[0].partition(" of ")[2].split(", ")
        codes = {s[4]: s[6] for s in sentences if s[:4] == ["The", "access", "code", "of"]}
        return frozenset(codes[town] for town in asked) if set(asked) <= set(codes) else None
    if question.startswith("The documents name several access codes of"):
        town = question.partition(" codes of ")[2].partition(".")[0]
        return _or_none(s[6] for s in sentences if s[:5] == ["The", "access", "code", "of", town])
    if question.startswith("Which variables have the value"):
        return _same_value(sentences, words[5].rstrip("?"))
    if question.startswith("How many crates of rope do all depots in"):
        region = question.partition(" depots in ")[2].partition(" hold together")[0]
        amounts = [
            int(s[s.index("holds") + 1])
            for s in sentences
            if s[:2] == ["The", "depot"]
            and " ".join(s[s.index("in") + 1 : s.index("and")]) == region
        ]
        return frozenset([str(sum(amounts))]) if amounts else None
    assert " had the blue folder at first" in question
    handed = {s[0]: s[-1] for s in sentences if s[1:5] == ["handed", "the", "blue", "folder"]}
    holder = words[0]
    while holder in handed:
        holder = handed.pop(holder)
    return None if holder == words[0] else frozenset([holder])


def _same_value(sentences: list[list[str]], value: str) -> Answer:
    """Names of a value: those tied to each other are one group, whichever is said first."""
    groups: list[set[str]] = []
    for s in sentences:
        if s[:2] == ["The", "variable"] and s[3:5] == ["has", "the"]:
            group = {s[2], s[-1]}  # of a name and another name, or its value
            for other in [other for other in groups if other & group]:
                groups.remove(other)
                group |= other
            groups.append(group)
    return _or_none(name for group in groups if value in group for name in group - {value})


def _or_none(names) -> Answer:
    return frozenset(names) or None
