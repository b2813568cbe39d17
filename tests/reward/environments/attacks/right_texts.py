"""Texts that keep a constraint, in many forms, for a bound on what its checker refuses; written
before the checkers' code was read.

    for constraint, form, text in right_texts(rng): …

Texts are put together from parts whose number and place are known.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

_WORDS = [
    "lamp",
    "river",
    "quiet",
    "morning",
    "bread",
    "window",
    "garden",
    "letter",
    "yellow",
    "stone",
    "café",
    "paper",
    "cloud",
    "winter",
    "market",
    "honest",
    "table",
    "bridge",
    "copper",
    "violin",
    "naïve",
    "simple",
    "harbour",
    "engine",
    "pepper",
    "ladder",
    "forest",
    "mirror",
    "basket",
    "silver",
    "journey",
    "candle",
    "orchard",
    "thunder",
    "velvet",
    "anchor",
    "pencil",
    "meadow",
    "tunnel",
]
_ONE_SENTENCE = (
    "Dr. Lee came at noon.", "It cost $3.50 in all.", 'She said "Why me?" and left.',
    "Visit example.org today!", "Mr. and Mrs. Gray agree.", "Is it 5 p.m. already?",
    "The U.S. team won again.", "Version 2.0.1 is out now.", "No way, not today!!!",
    "It rains a lot, e.g. in May.", "Really?!", "(The shop was closed.)", "Trains run late…",
    "He lives at No. 5 these days.", "J. R. Moss wrote it.",
)  # fmt: skip


def right_texts(rng: random.Random) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Constraints, each with the name of a form and a text that keeps it."""
    for forms in (_counted(rng), _case_and_words(rng), _places(rng)):
        for kind, (arguments, texts) in forms.items():
            kind, _, part = kind.partition(" ")
            constraint = {"kind": kind, **arguments}
            for form, text in texts.items():
                yield constraint, f"{kind}: {form}{part}", text
            yield constraint, f"{kind}: room around{part}", f"\n \n{next(iter(texts.values()))}\n\n"


Forms = dict[str, tuple[dict[str, Any], dict[str, str]]]  # kind → arguments, form → text


def _bounds(rng: random.Random, count: int) -> dict[str, Any]:
    bound, shift = rng.choice((("exactly", 0), ("at_least", -1), ("at_most", 1)))
    return {bound: count + shift}


def _counted(rng: random.Random) -> Forms:
    """Constraints on a number of things."""
    w = rng.sample(_WORDS, 12)
    three = [" ".join(w[k : k + 4]).capitalize() + "." for k in (0, 4, 8)]
    short = [f"{w[k]} {w[k + 1]} {w[k + 2]}" for k in (0, 3, 6)]
    odd, marked = rng.sample(_ONE_SENTENCE, 3), [f"*{one}*" for one in short]
    numbered = [f"{k}. {one}" for k, one in enumerate(short, 1)]
    letter = rng.choice([c for c in "aeort" if c in "".join(w)])
    n = _bounds(rng, 3)
    return {
        "words": (_bounds(rng, 9), {
            "plain": f"{' '.join(w[:4])}; {' '.join(w[4:9])}.", "on lines": "\n".join(w[:9]),
            "as a list": "\n".join(f"- {one}" for one in short),
            "marked": f"**{w[0]}** *{w[1]}* `{w[2]}` ({' '.join(w[3:9])})!",
            "dash": f"{' '.join(w[:5])} – {' '.join(w[5:9])} …",
            "apostrophes": f"don’t it's {' '.join(w[2:9])}",
            "hyphens": f"well-known mother-in-law {' '.join(w[2:9])}",
            "windows": f"{' '.join(w[:4])}\r\n{' '.join(w[4:9])}"}),
        "sentences": (n, {
            "plain": " ".join(three), "tricky": " ".join(odd), "tricky lines": "\n".join(odd),
            "tricky paragraphs": "\n\n".join(odd), "no last mark": " ".join(three)[:-1],
            "list": "\n".join(f"- {one}" for one in three)}),
        "paragraphs": (n, {
            "plain": "\n\n".join(three), "wide": "\n\n\n".join(three),
            "spaces between": "\n  \n".join(three), "windows": "\r\n\r\n".join(three),
            "lines inside": "\n\n".join(one.replace(" ", "\n", 2) for one in three),
            "list inside": f"{three[0]}\n\n- one\n- two\n- three\n\n{three[2]}"}),
        "divided_paragraphs": (n, {
            "plain": "\n***\n".join(three), "room": "\n\n***\n\n".join(three),
            "spaces": "\n ***  \n".join(three), "windows": "\r\n***\r\n".join(three),
            "paragraphs inside": "\n***\n".join(one.replace(" ", "\n\n", 1) for one in three)}),
        "lines": (n, {
            "plain": "\n".join(short), "empty between": "\n\n".join(short),
            "windows": "\r\n".join(short), "indented": "\n   ".join(short),
            "numbered": "\n".join(numbered)}),
        "bullets": (n, {
            "plain": "\n".join(f"- {one}" for one in short),
            "stars": "\n".join(f"* {one}" for one in short),
            "intro and end": "Here:\n\n" + "\n".join(f"- {one}" for one in short) + "\n\nAll.",
            "empty between": "\n\n".join(f"- {one}" for one in short),
            "windows": "\r\n".join(f"* {one}" for one in short),
            "bold": "\n".join(f"- **{one}**: yes" for one in short),
            "wide": "\n".join(f"-   {one}" for one in short),
            "boxes": "\n".join(f"- [ ] {one}" for one in short),
            "continued": "\n".join(f"- {one}\n  and more of it" for one in short)}),
        "numbered_items": (n, {
            "plain": "\n".join(numbered), "empty between": "\n\n".join(numbered),
            "intro and end": "Do this:\n\n" + "\n".join(numbered) + "\n\nThat is all.",
            "windows": "\r\n".join(numbered),
            "indented": "Steps:\n" + "\n".join(f"   {item}" for item in numbered),
            "bullets below": "\n".join(f"{item}\n   - more" for item in numbered),
            "numbers inside": "\n".join(f"{item} costs 2.50" for item in numbered)}),
        "highlights": ({"at_least": 3}, {
            "plain": " and ".join(marked), "lines": "\n".join(marked),
            "punctuation": f"({marked[0]}), “{marked[1]}”; {marked[2]}.",
            "in a list": "\n".join(f"- {one}" for one in marked),
            "sentences": f"*{w[0]}, yes!* so *{w[1]}’s* *{w[2]} (too)*",
            "beside bold": f"**{w[9]}** {marked[0]} **{w[10]}** {' '.join(marked[1:])}"}),
        "placeholders": ({"at_least": 3}, {
            "plain": f"{w[0]} [{w[1]}] {w[2]} [{w[3]}] [date]",
            "phrases": f"Dear [first name], meet me at [street and number], [town]. {w[0]}",
            "capitals": f"[NAME], [E-MAIL] and [your_phone] {w[0]}",
            "touching": f"{w[0]} {w[1]} is [name][title]: [address]",
            "marked": f"**[name]** *[town]* `[date]` {w[0]} {w[1]}"}),
        "keyword_count": ({"word": w[0]} | n, {
            "plain": f"{w[0]} {w[1]} {w[0]} {w[2]} {w[0]}",
            "cases": f"{w[0].upper()} {w[1]} {w[0].capitalize()}, {w[2]} {w[0]}.",
            "marks": f"“{w[0]}” ({w[0]}) {w[1]} **{w[0]}** {w[2]}",
            "lines": f"{w[1]}\n{w[0]}\n{w[2]}\r\n{w[0]}\n- {w[0]}: {w[3]}",
            "inside others": f"{w[0]} {w[0]}like {w[1]} {w[0]}; {w[2]}{w[0]} {w[0]}!"}),
        "letter_count": ({"letter": letter, "exactly": "".join(w).count(letter)}, {
            "plain": " ".join(w), "capitals": " ".join(w).upper(), "lines": "\n".join(w),
            "marks": f"**{' '.join(w)}**!"}),
        "letters": (_bounds(rng, len("".join(w))), {
            "plain": " ".join(w), "digits between": " 12 ".join(w), "marks": ", ".join(w) + "!",
            "lines": "\r\n".join(w)}),
    }  # fmt: skip


def _case_and_words(rng: random.Random) -> Forms:
    """Constraints on case, marks and single words."""
    w = rng.sample(_WORDS, 9)
    low, high, text = w[:4], [word.capitalize() for word in w[4:8]], " ".join(w)
    loud = [word.upper() for word in w[:3]]
    return {
        "lowercase_words": (_bounds(rng, 4), {
            "plain": " ".join(low + high), "mixed": " ".join(high[:2] + low + high[2:]),
            "marks": ", ".join(low) + "; " + "! ".join(high), "numbers": " 42 ".join(low + high),
            "capitals": " ".join(low) + " " + " ".join(high).upper()}),
        "capital_words": (_bounds(rng, 3), {
            "plain": " ".join(loud + low), "names beside": " Anna ".join(loud) + f" {w[5]}",
            "marks": f"{loud[0]}! ({loud[1]}) {' '.join(low)}, {loud[2]}.",
            "bold": f"**{loud[0]}** {w[4]} *{loud[1]}* {w[5]} “{loud[2]}”"}),
        "keywords": ({"words": [w[0], f"{w[1]} {w[2]}"]}, {
            "plain": f"{w[3]} {w[0]} {w[4]} {w[1]} {w[2]} {w[5]}",
            "capitals": f"{w[1]} {w[2]} {w[3]} {w[0]}".upper(),
            "marks": f"**{w[0]}**, “{w[1]} {w[2]}” ({w[3]})",
            "line break": f"{w[3]} {w[0]} {w[4]} {w[1]}\n{w[2]} {w[5]}",
            "hyphen beside": f"{w[0]}: {w[3]}; {w[1]} {w[2]} – {w[4]}"}),
        "forbidden_words": ({"words": [w[0]]}, {
            "plain": " ".join(w[1:]), "marks": f"- {w[1]}!\n- {' '.join(w[2:])}?",
            "inside another": f"{' '.join(w[1:])} {w[0]}like un{w[0]}"}),
        "no_commas": ({}, {
            "plain": text, "lines": "\n".join(w),
            "other marks": f"{w[0]}; {w[1]}: {w[2]} – {w[3]}’s (3.5) {w[4]}…"}),
        "lowercase": ({}, {
            "plain": text, "numbers and marks": f"1. {text}!\n2. {text} (50%)",
            "accents": f"été straße ñandú {text}", "link": f"see https://example.org/a?b=1 {text}"}),
        "uppercase": ({}, {
            "plain": text.upper(), "accents": f"ÉTÉ ÑANDÚ ÅNGSTRÖM {text.upper()}",
            "numbers and marks": f"1. {text.upper()}!\n2. {text.upper()} (50%)"}),
        "quoted": ({}, {
            "plain": f'"{text}."', "typographic": f"“{text}.”", "mark inside": f'"{text}!"\n',
            "paragraphs": f'"{text}\n\n{text}"', "single inside": f"\"{text} 'so' {text}\""}),
        "json": ({}, _json_forms({w[0]: w[1:3], w[3]: {"n": 3, "ok": True, "no": None}, w[4]: w[5]})),
        "no_repeats": ({}, {
            "plain": text, "marks": f"{w[0].capitalize()}, {w[1]}! ({' '.join(w[2:])})",
            "parts": f"{text} {w[0]}like", "apostrophes": f"don’t it's {text}"}),
    }  # fmt: skip


def _json_forms(value: dict[str, Any]) -> dict[str, str]:
    text, lines = json.dumps(value), json.dumps(value, indent=4, ensure_ascii=False)
    return {
        "plain": text, "indented": lines, "windows": lines.replace("\n", "\r\n"),
        "fenced": f"```json\n{text}\n```", "bare fence": f"```\n{text}\n```",
        "capital fence": f"```JSON\n{lines}\n```", "tildes": f"~~~json\n{text}\n~~~",
    }  # fmt: skip


def _places(rng: random.Random) -> Forms:
    """Constraints on what stands where. A kind with several arguments has a part behind its name."""
    a, b, c, *w = rng.sample(_WORDS, 9)
    rest = " ".join(w)
    starts = (
        ("Dear all", "Dear all, "), ("It's a fact", "It’s a fact that "),
        ("To begin with", "To begin with\n"), ("Good morning!", "Good morning! "),
        ("Once upon a time", "Once upon\na time "),
    )  # fmt: skip
    ends = (
        ("That is all.", ". That is all."), ("that's it", ", that’s it"),
        ("Kind regards", "\n\nKind regards"), ("Any questions?", " – any questions?"),
    )  # fmt: skip
    return {
        **{f"starts_with {k}": ({"text": t}, {"begins ": o + rest}) for k, (t, o) in enumerate(starts)},
        **{f"ends_with {k}": ({"text": t}, {"ends ": rest + o}) for k, (t, o) in enumerate(ends)},
        "first_word": ({"word": a}, {
            "plain": f"{a.capitalize()} {rest}", "quoted": f"“{a}” {rest}",
            "heading": f"# {a.capitalize()}\n{rest}", "bullet": f"- {a}: {rest}",
            "exclaimed": f"{a.upper()}! {rest}"}),
        "last_word": ({"word": a}, {
            "plain": f"{rest} {a}.", "quoted": f"{rest} “{a}.”", "bold": f"{rest} **{a}**",
            "in brackets": f"{rest} ({a})", "dots": f"{rest} {a}…",
            "line": f"{rest}\n\n{a.capitalize()}!"}),
        "nth_word": ({"place": 3, "word": a}, {
            "plain": f"{b} {c} {a} {rest}", "marks": f"{b}, {c}: “{a}” {rest}",
            "lines": f"{b}\n{c}\n{a}\n{rest}", "apostrophes": f"don’t it's {a.upper()} {rest}",
            "hyphen": f"well-known {c} {a} {rest}"}),
        "paragraph_start": ({"paragraph": 2, "word": a}, {
            "plain": f"{b} {c}\n\n{a.capitalize()} {rest}", "quoted": f"{b} {c}\n\n“{a} {rest}”",
            "windows": f"{b} {c}\r\n\r\n{a} {rest}", "three": f"{b} {c}\n\n{a}, {rest}\n\n{b}",
            "list": f"{b} {c}\n\n- {a} {rest}"}),
        "sentence_start": ({"word": "we"}, {
            "plain": f"We {rest}. We stay. We go!", "quoted": f"“We {rest}.” We said so.",
            "title inside": f"We met Dr. Lee there. We like {rest}.",
            "numbers": f"We paid 3.50 each. We took No. 5 and {rest}.",
            "lines": f"We {rest}.\nWe go on.\n\nWe rest.",
            "list": f"- We {rest}.\n- We go on.\n- We rest."}),
        "different_starts": ({}, {
            "plain": f"{a} {rest}. {b} {rest}! {c} {rest}?",
            "title inside": f"We met Mr. Lee. Lee smiled. He saw Mrs. Lee {rest}.",
            "numbers": f"It cost 3.50 euros. Nothing else cost 2.50 {rest}.",
            "lines": f"{a} {rest}.\n{b} {rest}.\n\n{c} {rest}."}),
        "title": ({}, {
            "plain": f"<<{a} {b}>>\n\n{rest}", "room": f"<< {a.capitalize()}: {b}! >>\n{rest}",
            "heading": f"# <<{a} {b}>>\n{rest}", "bold": f"**<<{a}>>**\n{rest}",
            "behind": f"{rest}\n<<{a}’s {b}, no. 2>>"}),
    }  # fmt: skip
