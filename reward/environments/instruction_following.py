"""The environment "instruction_following": constraints on a text, each checked by a small function.

    {"environment": "instruction_following", "question": "Describe a lamp. Use no commas. …",
     "metadata": {"constraints": [{"kind": "no_commas"}, {"kind": "words", "at_least": 40}]}}

The reward is 1 where every constraint holds; with `grading: "fraction"` it is the share that holds,
and only all of them are a pass. What the text is about is not checked, only that it is more than a
few words. The checkers are our own: IFEval and IFBench stay evaluation.

Counts have `exactly`, `at_least` or `at_most`. A word is a run of letters, digits, apostrophes and
hyphens; words are compared whatever their case. Paragraphs are parted by an empty line. The stop of
a title, an initial, a list's number or an abbreviation inside a sentence does not end it. All
checks take time linear in the text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, cast

from posttrain.jsontext import load_json
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, says, unfenced

Arguments = Mapping[str, Any]
Draw = Callable[[str, random.Random], dict[str, Any]]
BOUNDS = ("exactly", "at_least", "at_most")
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
# a run of marks is tried from its beginning alone
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)]*+(?=\s|$)")
_NO_END = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs)\.|\bNo\.(?=\s\d)|\b(?:[A-Za-z]\.){2,4}(?=\s[a-z])"
    r"|(?:^|(?<=[.!?…)”]\s))(?:[A-Z]\.\s?){1,3}(?=[A-Z][a-z])|^[ \t]*\d+\.(?=\s)"
    r"|(?:…|\.{3}|[.!?][\"'”’)]+)(?=\s[a-z])",
    re.MULTILINE,
)
_BULLET = re.compile(r"^[ \t]*[-*•][ \t]+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*\d+[.)][ \t]+\S", re.MULTILINE)
_NO_WIDTH = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # between letters of one word


def _nothing(text: str, rng: random.Random) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One kind of constraint.

    Attributes:
        words: how prompts put it, filled in with the arguments; `{count}` is "at least 3".
        check: whether a text keeps it. Raises KeyError, TypeError where arguments are missing.
        draw: arguments from a text that are likely to hold for it.
    """

    words: str
    check: Callable[[str, Arguments], bool]
    draw: Draw = _nothing

    def holds(self, text: str, arguments: Arguments) -> bool:
        return self.check(_NO_WIDTH.sub("", text).replace("\r\n", "\n").strip(), arguments)

    def wording(self, arguments: Arguments) -> str:
        listed = {
            k: ", ".join(cast(list[str], v)) if isinstance(v, list) else v
            for k, v in arguments.items()
        }
        bound = next((b for b in BOUNDS if b in arguments), None)
        count = "" if bound is None else f"{bound.replace('_', ' ')} {arguments[bound]}"
        return self.words.format(**listed, count=count)


def words_of(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def paragraphs_of(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


def sentences_of(text: str) -> list[str]:
    """The sentences with a word in them; what is behind the last mark is one too."""
    text = _NO_END.sub(lambda found: re.sub("[.!?…]", "", found[0]), text)
    return [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]


def within(number: int, arguments: Arguments) -> bool:
    """Whether a count keeps its bounds. Raises KeyError without any, TypeError for no number."""
    if not any(bound in arguments for bound in BOUNDS):
        raise KeyError("exactly, at_least or at_most")
    return (
        number >= arguments.get("exactly", number) >= number
        and number >= arguments.get("at_least", number)
        and number <= arguments.get("at_most", number)
    )


def _counted(words: str, items: Callable[[str], Sized]) -> Constraint:
    return _counted_by(words, lambda text, _: items(text), _nothing)


def _counted_by(words: str, items: Callable[[str, Arguments], Sized], draw: Draw) -> Constraint:
    """A constraint on the number of items; its bounds are drawn around a text's own."""

    def bounds(text: str, rng: random.Random) -> dict[str, Any]:
        arguments = draw(text, rng)
        number = len(items(text, arguments))
        bound = rng.choice(BOUNDS if number else ("exactly", "at_most"))
        slack = rng.randint(0, number // 3 + (bound == "at_most"))
        slack = {"exactly": 0, "at_least": -slack, "at_most": slack}[bound]
        return arguments | {bound: number + slack}

    return Constraint(words, lambda text, a: within(len(items(text, a)), a), bounds)


def _other_words(text: str, rng: random.Random) -> dict[str, Any]:
    return {"words": [w for w in ("therefore", "very", "amber", "ocean") if rng.random() < 0.6]}


def _at(place: str, items: Callable[[str], list[str]]) -> Draw:
    def draw(text: str, rng: random.Random) -> dict[str, Any]:
        own = [words_of(item)[:1] for item in items(text)]
        number = rng.randint(1, len(own))
        return {place: number, "word": "".join(own[number - 1])}

    return draw


def _first(items: list[str], place: Any) -> list[str]:
    """The first word of the item at a place, counted from 1."""
    return words_of("".join(items[int(place) - 1 : int(place)]))[:1] if int(place) > 0 else []


def _phrase(word: str) -> re.Pattern[str]:
    """A word or phrase, not as a part of another word; a line may break inside."""
    words = str(word).replace("’", "'").split()
    text = r"\s+".join(map(re.escape, words)).replace("'", "['’]")
    return re.compile(rf"(?<!\w){text}(?!\w)", re.IGNORECASE)


def _plain(text: Any) -> str:
    """A text for comparison: case, the kind of white space and of apostrophes do not count."""
    return " ".join(str(text).lower().replace("’", "'").split())


def _is_capital(word: str) -> bool:
    letters = [c for c in word if c.isalpha()]
    return len(letters) > 1 and all(c.isupper() for c in letters)


def _is_json(text: str, a: Arguments) -> bool:
    try:
        return isinstance(load_json(unfenced(text)), dict | list)
    except ValueError:
        return False


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _same_start(text: str, a: Arguments) -> bool:
    starts = [words_of(sentence)[0] for sentence in sentences_of(text)]
    return len(set(starts)) == len(starts)


CONSTRAINTS: dict[str, Constraint] = {
    "words": _counted("Use {count} words.", words_of),
    "sentences": _counted("Write {count} sentences.", sentences_of),
    "paragraphs": _counted(
        "Write {count} paragraphs, with an empty line between them.", paragraphs_of
    ),
    "divided_paragraphs": _counted(
        "Write {count} parts, with *** on a line of its own between them.",
        lambda t: [p for p in re.split(r"^[ \t]*\*\*\*[ \t]*$", t, flags=re.M) if p.strip()],
    ),
    "lines": _counted(
        "Write {count} lines, empty ones not counted.",
        lambda t: [line for line in t.splitlines() if line.strip()],
    ),
    "bullets": _counted(
        "Have {count} bullet points, each a line that begins with - or *.", _BULLET.findall
    ),
    "numbered_items": _counted(
        "Have {count} numbered items, as 1. and 2., each on a line of its own.", _NUMBERED.findall
    ),
    "highlights": _counted(
        "Highlight {count} parts with asterisks, as *this*.",
        re.compile(r"(?<![*\w])\*[^*\s][^*\n]{0,200}\*(?![*\w])").findall,
    ),
    "placeholders": _counted(
        "Have {count} placeholders in square brackets, as [address].",
        re.compile(r"\[[^\[\]\n]{1,100}\]").findall,
    ),
    "keyword_count": _counted_by(
        'Use the word "{word}" {count} times.',
        lambda t, a: _phrase(a["word"]).findall(t),
        lambda t, r: {"word": r.choice(words_of(t))},
    ),
    "letter_count": _counted_by(
        'Have the letter "{letter}" {count} times.',
        lambda t, a: re.findall(re.escape(str(a["letter"]).lower()), t.lower()),
        lambda t, r: {"letter": r.choice("aeiostjqxz")},
    ),
    "letters": _counted("Answer with {count} letters.", lambda t: [*filter(str.isalpha, t)]),
    "lowercase_words": _counted(
        "Have {count} words in lower case.",
        lambda t: [w for w in _WORD.findall(t) if w == w.lower() and w[0].isalpha()],
    ),
    "capital_words": _counted(
        "Have {count} words in all capitals.", lambda t: [*filter(_is_capital, _WORD.findall(t))]
    ),
    "keywords": Constraint(
        "Include these words: {words}.",
        lambda t, a: all(_phrase(word).search(t) for word in a["words"]),
        lambda t, r: {"words": r.sample(sorted(set(words_of(t))), 2)},
    ),
    "forbidden_words": Constraint(
        "Do not use these words: {words}.",
        lambda t, a: not any(_phrase(word).search(t) for word in a["words"]),
        _other_words,
    ),
    "no_commas": Constraint("Use no commas.", lambda t, a: not set(",，") & set(t)),
    "lowercase": Constraint(
        "Write in lower case only.", lambda t, a: t == t.lower() and _has_letters(t)
    ),
    "uppercase": Constraint(
        "Write in capital letters only.", lambda t, a: t == t.upper() and _has_letters(t)
    ),
    "starts_with": Constraint(
        'Begin with "{text}".',
        lambda t, a: _plain(t).startswith(_plain(a["text"])),
        lambda t, r: {"text": " ".join(t.split()[:3])},
    ),
    "ends_with": Constraint(
        'End with "{text}", and nothing behind it.',
        lambda t, a: _plain(t).endswith(_plain(a["text"])),
        lambda t, r: {"text": " ".join(t.split()[-3:])},
    ),
    "first_word": Constraint(
        'The first word is "{word}".',
        lambda t, a: words_of(t)[:1] == [str(a["word"]).lower()],
        lambda t, r: {"word": words_of(t)[0]},
    ),
    "last_word": Constraint(
        'The last word is "{word}".',
        lambda t, a: words_of(t)[-1:] == [str(a["word"]).lower()],
        lambda t, r: {"word": words_of(t)[-1]},
    ),
    "nth_word": Constraint(
        'Word number {place} is "{word}".',
        lambda t, a: _first(words_of(t), a["place"]) == [str(a["word"]).lower()],
        _at("place", words_of),
    ),
    "paragraph_start": Constraint(
        'Paragraph {paragraph} begins with the word "{word}"; an empty line parts paragraphs.',
        lambda t, a: _first(paragraphs_of(t), a["paragraph"]) == [str(a["word"]).lower()],
        _at("paragraph", paragraphs_of),
    ),
    "sentence_start": Constraint(
        'Every sentence begins with the word "{word}".',
        lambda t, a: all(words_of(s)[:1] == [str(a["word"]).lower()] for s in sentences_of(t)),
        lambda t, r: {"word": words_of(t)[0]},
    ),
    "different_starts": Constraint("No two sentences begin with the same word.", _same_start),
    "title": Constraint(
        "Have a title in double angular brackets, as <<a title>>.",
        lambda t, a: re.search(r"<<[^<>\n]{1,200}>>", t) is not None,
    ),
    "quoted": Constraint(
        "Put the whole answer in double quotation marks.",
        lambda t, a: len(t) > 2 and t[0] in '"“' and t[-1] in '"”',
    ),
    "json": Constraint("Answer with one JSON object alone.", _is_json),
    "no_repeats": Constraint(
        "Use no word twice.", lambda t, a: len(set(words_of(t))) == len(words_of(t))
    ),
}


LONGEST = 200_000  # characters of an answer
LEAST_WORDS = 3
LARGEST = 5000  # of what a constraint counts


class InstructionFollowingEnvironment(RLVREnvironment):
    name = "instruction_following"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        if task.get("grading", "all") not in ("all", "fraction"):
            return f"grading {task['grading']!r} is neither all nor fraction"
        listed: Any = task.get("constraints")
        if not isinstance(listed, list) or not listed:
            return "no constraints"
        for one in cast(list[Arguments], listed):
            if one.get("kind") not in CONSTRAINTS:
                return f"unknown constraint {one.get('kind')!r}"
            if any(isinstance(value, int) and not 0 <= value <= LARGEST for value in one.values()):
                return f"{one['kind']}: a number beyond {LARGEST}"
            CONSTRAINTS[one["kind"]].holds("A text.", one)  # raises for a missing argument
        return None

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("Done!")]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        text = completion.answer.strip()
        if len(text) > LONGEST:
            return Score(0.0, None, f"longer than {LONGEST} characters")
        if len(words_of(text)) < LEAST_WORDS:
            return Score(0.0, text, f"fewer than {LEAST_WORDS} words")
        listed: list[Arguments] = metadata_of(prompt)["constraints"]
        broken = [one["kind"] for one in listed if not CONSTRAINTS[one["kind"]].holds(text, one)]
        share = 1 - len(broken) / len(listed)
        value = share if metadata_of(prompt).get("grading") == "fraction" else float(not broken)
        return Score(value, None, f"breaks {', '.join(broken)}" if broken else "all constraints")

    def row(self, seed: int, number: int) -> dict[str, Any]:
        rng = random.Random(f"{seed}/if/{number}")
        text = rng.choice(_STYLES)(rng.sample(_SENTENCES, rng.randint(1, 5)))
        constraints: list[dict[str, Any]] = []
        for kind in rng.sample(list(CONSTRAINTS), len(CONSTRAINTS)):
            arguments = CONSTRAINTS[kind].draw(text, rng)
            if CONSTRAINTS[kind].holds(text, arguments):
                constraints.append({"kind": kind} | arguments)
        constraints = constraints[: rng.randint(1, 4)]
        wordings = [CONSTRAINTS[one["kind"]].wording(one) for one in constraints]
        return {
            "id": f"if-{seed}-{number}",
            "question": f"{rng.choice(_TOPICS)} {' '.join(wordings)}",
            "gold": text,
            "metadata": {"constraints": constraints},
        }


_TOPICS = (
    "Describe a lamp.", "Tell me about your town.", "Explain why bread rises.",
    "Write about a day at sea.", "How do bees find their way?", "Recommend a book.",
)  # fmt: skip
_SENTENCES = (
    "The lamp in the hall was made by a patient worker.",
    "It gives a warm light in the evening, and visitors stop to look.",
    "Nobody knows its age for certain!",
    "Was the shade mended twice?",
    "A small plate on the foot shows a NAME.",
    "Some say that *the foot* came from [a town] far away.",
    "Walk past it slowly.",
)
_STYLES: tuple[Callable[[list[str]], str], ...] = (
    lambda parts: " ".join(parts),
    lambda parts: "\n\n".join(parts),
    lambda parts: "\n***\n".join(parts),
    lambda parts: "\n".join(f"- {part}" for part in parts),
    lambda parts: "\n".join(f"{k}. {part}" for k, part in enumerate(parts, 1)),
    lambda parts: "<<On a lamp>>\n" + "\n".join(parts),
    lambda parts: json.dumps({"answer": " ".join(parts)}),
    lambda parts: '"' + " ".join(parts) + '"',
    lambda parts: " ".join(parts).lower().replace(",", ""),
    lambda parts: " ".join(parts).upper(),
)
