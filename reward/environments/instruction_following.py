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

import functools
import json
import random
import re
import unicodedata
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, cast

from posttrain.jsontext import load_json
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, says, unfenced
from reward.judge.quoting import look_alike_characters

Arguments = Mapping[str, Any]
Draw = Callable[[str, random.Random], dict[str, Any]]
BOUNDS = ("exactly", "at_least", "at_most")
_LETTER = r"[^\W_]"
# a run of letters and digits, with apostrophes inside
_PART = rf"{_LETTER}+(?:['’]{_LETTER}+)*"
_WORD = re.compile(rf"{_PART}(?:[-‐‑_]{_PART})*")
_HUMP = re.compile(r"(?<=[a-z]{2})(?=[A-Z])")
LONGEST_WORD = 24  # letters; a longer run is words without the spaces between them
USUAL_LENGTH = 6
# a run of marks is tried from its beginning alone; a mark may also stand without room behind it
_SENTENCE_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’)*_\]»]*+(?=\s|$)|(?<=[a-z]{2})[.!?](?=[A-Z](?:[a-z'’]|\s))|[。！？｡．]"
)
_STARTERS = (
    "A|An|And|But|He|Her|His|I|If|In|It|Its|Our|She|So|That|The|There|These|They|This|We|When|You"
)
_NO_END = re.compile(
    # titles, and what numbers and names follow
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|Gen|Sen|Rep|Gov|Rev|Hon|Capt|Col|Lt|Maj|Sgt|vs|cf|viz|e\.g|i\.e)\."
    r"|\b(?:No|Nos|Figs?|Eqs?|Sec|Ch|[Vv]ol|pp?|[Aa]pprox|[Ee]st|ca|Jan|Feb|Mar|Apr|Aug|Sept?|Oct|Nov"
    r"|Dec)\.(?=\s\(?\d)"
    r"|\b(?:etc|al|Inc|Ltd|Co|Corp|Jr|Sr|approx|est|dept)\.(?=\s[a-z])"
    r"|\b(?:[A-Za-z]{1,2}\.){2,4}(?=\s[a-z])"
    rf"|\b(?:[A-Z]\.){{2,4}}(?=\s(?!(?:{_STARTERS})\b)[A-Z])"
    r"|(?:^|(?<=[.!?…)”]\s))(?:[A-Z]\.\s?){1,3}(?=[A-Z][a-z])|^[ \t]*\d+\.(?=\s)"
    r"|(?:…|\.{3}|[.!?][\"'”’)]+)(?=\s[a-z])",
    re.MULTILINE,
)
_BULLET = re.compile(rf"^[ \t]*+[-+*•][ \t]++[^\n]*{_LETTER}", re.MULTILINE)
_NUMBERED = re.compile(rf"^[ \t]*+\d++[.)][ \t]++[^\n]*{_LETTER}", re.MULTILINE)
# *this*, **this** or ***this***; a product has digits or room around its stars
_HIGHLIGHT = re.compile(
    r"(?<![*A-Za-z0-9_])(\*{1,3})(?![\s*])([^*\n]{0,400}[^*\s])\1(?![*A-Za-z0-9])"
)
# no footnote, image, link, citation or task
_PLACEHOLDER = re.compile(
    r"(?<!!)\[(?!\^|[xX ]\])(?=[^\[\]\n]*[^\W\d_])[^\[\]\n]{1,100}\](?!\(|\[\d*\]|:\s*<?https?:)"
)
_TITLE = re.compile(rf"<<(?=[^<>\n]*{_LETTER})[^<>\n]{{1,200}}>>")
_MARKS = "\"“”'‘’*_#> \n"  # around a whole answer, its first word or its last
# what no eye sees, and blanks that count as letters
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028]")


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
        text = _LINE_BREAK.sub("\n", _UNSEEN.sub("", text)).replace("\u2029", "\n\n")
        return self.check(unicodedata.normalize("NFC", text).strip(), arguments)

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


def _separate_words(text: str) -> list[str]:
    """The words of a text, for a limit: those of long chains are counted one by one.

    `well-known` is one word; `the-lamp-in-the-hall`, `theLampInTheHall` and a run of forty letters
    are not.
    """
    words = _WORD.findall(text)
    parts = [part for word in words for part in _parts(word)]
    return parts if 2 * len(parts) > 3 * len(words) else words


def _parts(word: str) -> list[str]:
    parts: list[str] = []
    for part in re.split("[-‐‑_]", _HUMP.sub("-", word)):
        pieces = re.split("['’]", part)
        for piece in [part] if len(pieces) < 4 else pieces:
            step = USUAL_LENGTH if len(piece) > LONGEST_WORD else len(piece)
            parts += [piece[start : start + step] for start in range(0, len(piece), step)]
    return parts


def seen(text: str) -> str:
    """A text as it is read: letters of other alphabets and styles are the ones that they look like.

    What a constraint forbids is looked for here; what it requires has to stand as it is written.
    """
    return text if text.isascii() else text.translate(_look_alikes())


@functools.cache
def _look_alikes() -> dict[int, str]:
    """The characters that look like one of ASCII, but for Latin letters with marks."""
    return {
        code: alike
        for code, alike in look_alike_characters().items()
        if not re.match(r"LATIN \w+ LETTER \w+ WITH ", unicodedata.name(chr(code), ""))
    }


def paragraphs_of(text: str) -> list[str]:
    """The paragraphs with a letter or digit in them."""
    return _with_letters(re.split(r"\n[^\S\n]*\n", text))


def _with_letters(parts: list[str]) -> list[str]:
    return [part.strip() for part in parts if re.search(_LETTER, part)]


def sentences_of(text: str) -> list[str]:
    """The sentences with a word in them; what is behind the last mark is one too."""
    text = _NO_END.sub(lambda found: re.sub("[.!?…]", "", found[0]), text)
    return [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]


def within(least: int, most: int, arguments: Arguments) -> bool:
    """Whether a count keeps its bounds: `least` is what surely counts, `most` what may count too.
    Raises KeyError without a bound, TypeError for no number."""
    if not any(bound in arguments for bound in BOUNDS):
        raise KeyError("exactly, at_least or at_most")
    exactly = arguments.get("exactly", least)
    return (
        least >= exactly >= least
        and most <= arguments.get("exactly", most)
        and least >= arguments.get("at_least", least)
        and most <= arguments.get("at_most", most)
    )


def _counted(
    words: str, items: Callable[[str], Sized], limit: Callable[[str], Sized] | None = None
) -> Constraint:
    if limit is None:
        return _counted_by(words, lambda text, _: items(text), _nothing)
    return _counted_by(words, lambda text, _: items(text), _nothing, lambda text, _: limit(text))


def _counted_by(
    words: str,
    items: Callable[[str, Arguments], Sized],
    draw: Draw,
    limit: Callable[[str, Arguments], Sized] | None = None,
) -> Constraint:
    """A constraint on the number of items; its bounds are drawn around a text's own. `limit`: what
    counts against an upper bound, where that is more."""

    def bounds(text: str, rng: random.Random) -> dict[str, Any]:
        arguments = draw(text, rng)
        number = len(items(text, arguments))
        bound = rng.choice(BOUNDS if number else ("exactly", "at_most"))
        slack = rng.randint(0, number // 3 + (bound == "at_most"))
        slack = {"exactly": 0, "at_least": -slack, "at_most": slack}[bound]
        return arguments | {bound: number + slack}

    def check(text: str, arguments: Arguments) -> bool:
        least = len(items(text, arguments))
        most = least if limit is None else max(least, len(limit(text, arguments)))
        return within(least, most, arguments)

    return Constraint(words, check, bounds)


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
    text = r"[\s_]+".join(map(re.escape, words)).replace("'", "['’]")
    return re.compile(rf"(?<!{_LETTER}){text}(?!{_LETTER})", re.IGNORECASE)


def _disguised(text: str, word: str) -> list[str]:
    """Where a text has a word or phrase that is forbidden or limited, also s-p-e-l-l-e-d, joined to
    another by an underscore, a digit or a capital, or in look-alike letters."""
    plain = seen(str(word)).replace("’", "'")
    words = r"[\s_]+".join(map(re.escape, plain.split())).replace("'", "['’]")
    letters = [re.escape(letter) for letter in plain if not letter.isspace()]
    forms = [words] + [r"[\W_]{1,2}".join(letters)] * (len(letters) > 3)
    boundary = r"[^\W\d_]" if re.fullmatch(r"[^\W\d]+", plain) else _LETTER
    pattern = rf"(?<!{boundary})(?:{'|'.join(forms)})(?!{boundary})"
    return re.findall(pattern, _HUMPED.sub(_parted, seen(text)), re.IGNORECASE)


_HUMPED = re.compile(r"(?<![A-Za-z])[a-z]{2,}(?:[A-Z][a-z]*)+")


def _parted(match: re.Match[str]) -> str:
    return _HUMP.sub(" ", match[0])


def _plain(text: Any) -> str:
    """A text for comparison: case, the kind of white space, apostrophes and marks around it do not
    count."""
    return " ".join(str(text).lower().replace("’", "'").split()).strip(_MARKS)


def _starts(text: str, start: str) -> bool:
    return text.startswith(start) and not (
        start[-1:].isalnum() and text[len(start) :][:1].isalnum()
    )


def _quoted(text: str) -> bool:
    """Whether a text is in quotation marks as a whole: `"one" and "two"` is not."""
    if len(text) < 3 or text[0] not in '"“' or text[-1] not in '"”':
        return False
    inner = text[1:-1]
    mark = re.search('["”]', inner)
    # the first mark inside ends the text's own, or begins a quotation in it
    opens = mark is not None and re.search(r"(?:\A|[\s(\[*_—])\Z", inner[: mark.start()])
    return mark is None or bool(opens) or "“" in inner[: mark.start()]


def _no_commas(text: str, a: Arguments) -> bool:
    # a low quotation mark with room behind it opens nothing
    return not re.search(r"‚(?=\s)", text) and not any(map(_is_comma, set(text)))


def _is_comma(character: str) -> bool:
    name = unicodedata.name(character, "")
    return seen(character) == "," or ("COMMA" in name and not character.isalpha())


def _has_case(text: str, wanted: str, refused: str) -> bool:
    """Whether a text has letters of one case and none of the others, by Unicode's categories."""
    kinds = set(map(unicodedata.category, set(text)))
    return wanted in kinds and not kinds & {refused, "Lt"}


def _is_capital(word: str) -> bool:
    letters = [c for c in word if c.isalpha()]
    return len(letters) > 1 and all(c.isupper() for c in letters)


def _is_json(text: str, a: Arguments) -> bool:
    try:
        return isinstance(load_json(unfenced(text)), dict | list)
    except ValueError:
        return False


def _different_starts(text: str, a: Arguments) -> bool:
    starts = [words_of(seen(sentence))[0] for sentence in sentences_of(text)]
    return len(set(starts)) == len(starts)


def _no_repeats(text: str, a: Arguments) -> bool:
    words = [word.lower() for word in _separate_words(seen(text).replace("_", " "))]
    return len(set(words)) == len(words)


def _lowercase_words(words: list[str]) -> list[str]:
    return [word for word in words if word == word.lower() and word[0].isalpha()]


CONSTRAINTS: dict[str, Constraint] = {
    "words": _counted("Use {count} words.", words_of, _separate_words),
    "sentences": _counted("Write {count} sentences.", sentences_of),
    "paragraphs": _counted(
        "Write {count} paragraphs, with an empty line between them.", paragraphs_of
    ),
    "divided_paragraphs": _counted(
        "Write {count} parts, with *** on a line of its own between them.",
        lambda t: _with_letters(re.split(r"^[ \t]*\*\*\*[ \t]*$", t, flags=re.M)),
    ),
    "lines": _counted(
        "Write {count} lines, empty ones not counted.",
        lambda t: [line for line in t.splitlines() if line.strip()],
    ),
    "bullets": _counted(
        "Have {count} bullet points, each a line that begins with -, + or *.", _BULLET.findall
    ),
    "numbered_items": _counted(
        "Have {count} numbered items, as 1. and 2., each on a line of its own.", _NUMBERED.findall
    ),
    "highlights": _counted(
        "Highlight {count} parts with asterisks, as *this*.",
        lambda t: _with_letters([match[1] for match in _HIGHLIGHT.findall(t)]),
    ),
    "placeholders": _counted(
        "Have {count} placeholders in square brackets, as [address].",
        _PLACEHOLDER.findall,
    ),
    "keyword_count": _counted_by(
        'Use the word "{word}" {count} times.',
        lambda t, a: _phrase(a["word"]).findall(t),
        lambda t, r: {"word": r.choice(words_of(t))},
        lambda t, a: _disguised(t, a["word"]),
    ),
    "letter_count": _counted_by(
        'Have the letter "{letter}" {count} times.',
        lambda t, a: re.findall(re.escape(str(a["letter"]).lower()), t.lower()),
        lambda t, r: {"letter": r.choice("aeiostjqxz")},
        lambda t, a: re.findall(re.escape(str(a["letter"]).lower()), seen(t).lower()),
    ),
    "letters": _counted("Answer with {count} letters.", lambda t: [*filter(str.isalpha, t)]),
    "lowercase_words": _counted(
        "Have {count} words in lower case.",
        lambda t: _lowercase_words(_WORD.findall(t)),
        lambda t: _lowercase_words(_separate_words(t)),
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
        lambda t, a: not any(_disguised(t, word) for word in a["words"]),
        _other_words,
    ),
    "no_commas": Constraint("Use no commas.", _no_commas),
    "lowercase": Constraint("Write in lower case only.", lambda t, a: _has_case(t, "Ll", "Lu")),
    "uppercase": Constraint(
        "Write in capital letters only.", lambda t, a: _has_case(t, "Lu", "Ll")
    ),
    "starts_with": Constraint(
        'Begin with "{text}".',
        lambda t, a: _starts(_plain(t), _plain(a["text"])),
        lambda t, r: {"text": " ".join(t.split()[:3])},
    ),
    "ends_with": Constraint(
        'End with "{text}", and nothing behind it.',
        lambda t, a: _starts(_plain(t)[::-1], _plain(a["text"])[::-1]),
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
    "different_starts": Constraint("No two sentences begin with the same word.", _different_starts),
    "title": Constraint(
        "Have a title in double angular brackets, as <<a title>>.",
        lambda t, a: _TITLE.search(t) is not None,
    ),
    "quoted": Constraint(
        "Put the whole answer in double quotation marks.",
        lambda t, a: _quoted(t),
    ),
    "json": Constraint("Answer with one JSON object alone.", _is_json),
    "no_repeats": Constraint("Use no word twice.", _no_repeats),
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
