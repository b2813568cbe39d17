"""Environment "instruction_following": constraints on a text, each checked by a small function.

    {"environment": "instruction_following", "question": "Describe a lamp. Use no commas. …",
     "metadata": {"constraints": [{"kind": "no_commas"}, {"kind": "words", "at_least": 40}]}}

The reward is 1 where all constraints hold. With `grading: "fraction"` it is the share that holds,
and only a reward of 1 is a pass. The subject of the text is not checked, only that it has more than
a few words. The checkers are our own, so that IFEval and IFBench stay evaluations.

Counts have `exactly`, `at_least` or `at_most`. A word is a run of letters, digits, apostrophes and
hyphens; words are compared in lower case. Empty lines separate paragraphs. The full stop of a
title, an initial, a list's number or an abbreviation inside a sentence does not end the sentence.
All checks take time linear in the text.
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
from reward.graders.visible import shown
from reward.judge.quoting import look_alike_characters

Arguments = Mapping[str, Any]
Draw = Callable[[str, random.Random], dict[str, Any]]
BOUNDS = ("exactly", "at_least", "at_most")
_LETTER = r"[^\W_]"
# a run of letters and digits, with apostrophes inside
_PART = rf"{_LETTER}+(?:['’]{_LETTER}+)*"
_WORD = re.compile(rf"{_PART}(?:[-‐‑_]{_PART})*")
_HUMP = re.compile(r"(?<=[a-z]{2})(?=[A-Z])")
MAX_WORD_LETTERS = 24  # a longer run is several words without the spaces between them
USUAL_WORD_LETTERS = 6  # length of the words that such a run counts as
# A run of marks is tried from its beginning alone. A mark may be followed by no space.
_SENTENCE_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’)*_\]»]*+(?=\s|$)|(?<=[a-z]{2})[.!?](?=[A-Z](?:[a-z'’]|\s))|[。！？｡．]"
)
_STARTERS = (
    "A|An|And|But|He|Her|His|I|If|In|It|Its|Our|She|So|That|The|There|These|They|This|We|When|You"
)
_NO_END = re.compile(
    # titles, and abbreviations before numbers and names
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
# *this*, **this** or ***this***; the stars of a product have digits or spaces around them
_HIGHLIGHT = re.compile(
    r"(?<![*A-Za-z0-9_])(\*{1,3})(?![\s*])([^*\n]{0,400}[^*\s])\1(?![*A-Za-z0-9])"
)
# Brackets that are no footnote, image, link, citation or task.
_PLACEHOLDER = re.compile(
    r"(?<!!)\[(?!\^|[xX ]\])(?=[^\[\]\n]*[^\W\d_])[^\[\]\n]{1,100}\](?!\(|\[\d*\]|:\s*<?https?:)"
)
_TITLE = re.compile(rf"<<(?=[^<>\n]*{_LETTER})[^<>\n]{{1,200}}>>")
_MARKS = "\"“”'‘’*_#> \n"  # around a whole answer, its first word or its last
# Invisible characters, and blanks that count as letters.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028]")


def _draw_nothing(text: str, rng: random.Random) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One kind of constraint.

    Attributes:
        words: format of its sentence in a prompt, with the arguments; `{count}` is "at least 3".
        check: function of a text and arguments, True where the text keeps the constraint. Raises
            KeyError or TypeError where arguments are missing.
        draw: function that draws arguments likely to hold for a text.
    """

    words: str
    check: Callable[[str, Arguments], bool]
    draw: Draw = _draw_nothing

    def holds(self, text: str, arguments: Arguments) -> bool:
        """True where a text, as a page shows it, keeps the constraint.

        Line breaks and the Unicode form make no difference.
        """
        text = _LINE_BREAK.sub("\n", _INVISIBLE.sub("", shown(text))).replace("\u2029", "\n\n")
        return self.check(unicodedata.normalize("NFC", text).strip(), arguments)

    def wording(self, arguments: Arguments) -> str:
        """Sentence of a prompt that states the constraint with these arguments."""
        texts: dict[str, Any] = {}
        for name, value in arguments.items():
            texts[name] = ", ".join(cast(list[str], value)) if isinstance(value, list) else value
        bound = next((name for name in BOUNDS if name in arguments), None)
        count = "" if bound is None else f"{bound.replace('_', ' ')} {arguments[bound]}"
        return self.words.format(**texts, count=count)


def words_of(text: str) -> list[str]:
    """Words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def _separate_words(text: str) -> list[str]:
    """Words of a text for an upper limit, with the words of long chains counted one by one.

    `well-known` is one word; `the-lamp-in-the-hall`, `theLampInTheHall` and a run of forty letters
    are several. Without this a limit on words is met by leaving out spaces.
    """
    words = _WORD.findall(text)
    parts: list[str] = []
    for word in words:
        parts += _split_chain(word)
    return parts if 2 * len(parts) > 3 * len(words) else words


def _split_chain(word: str) -> list[str]:
    """Parts of a word between hyphens, capitals and many apostrophes, cut where they are long."""
    parts: list[str] = []
    for part in re.split("[-‐‑_]", _HUMP.sub("-", word)):
        pieces = re.split("['’]", part)
        # fewer apostrophes are those of one word
        for piece in [part] if len(pieces) < 4 else pieces:
            step = USUAL_WORD_LETTERS if len(piece) > MAX_WORD_LETTERS else len(piece)
            parts += [piece[start : start + step] for start in range(0, len(piece), step)]
    return parts


def without_look_alikes(text: str) -> str:
    """Replace letters of other alphabets and styles by the ASCII letters that they look like.

    Forbidden text is searched in the result; required text must be written as it is.
    """
    return text if text.isascii() else text.translate(_look_alikes())


@functools.cache
def _look_alikes() -> dict[int, str]:
    """Code of a character → ASCII character that it looks like, without accented Latin letters."""
    return {
        code: alike
        for code, alike in look_alike_characters().items()
        if not re.match(r"LATIN \w+ LETTER \w+ WITH ", unicodedata.name(chr(code), ""))
    }


def paragraphs_of(text: str) -> list[str]:
    """Paragraphs of a text that hold a letter or digit."""
    return _parts_with_letters(re.split(r"\n[^\S\n]*\n", text))


def _parts_with_letters(parts: list[str]) -> list[str]:
    return [part.strip() for part in parts if re.search(_LETTER, part)]


def sentences_of(text: str) -> list[str]:
    """Sentences of a text that hold a word; text after the last mark is a sentence too."""
    text = _NO_END.sub(lambda match: re.sub("[.!?…]", "", match[0]), text)
    return [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]


def within(least: int, most: int, arguments: Arguments) -> bool:
    """True where a count between `least` and `most` certainly keeps the bounds of `arguments`.

    Raises:
        KeyError: there is no bound.
        TypeError: a bound is not a number.
    """
    if not any(bound in arguments for bound in BOUNDS):
        raise KeyError("exactly, at_least or at_most")
    exactly = arguments.get("exactly", least)
    return (
        least >= exactly >= least
        and most <= arguments.get("exactly", most)
        and least >= arguments.get("at_least", least)
        and most <= arguments.get("at_most", most)
    )


def _count_constraint(
    words: str, items: Callable[[str], Sized], limit: Callable[[str], Sized] | None = None
) -> Constraint:
    """Constraint on the number of items of a text, without arguments besides the bound."""
    if limit is None:
        return _count_constraint_with_arguments(words, lambda text, _: items(text), _draw_nothing)
    return _count_constraint_with_arguments(
        words, lambda text, _: items(text), _draw_nothing, lambda text, _: limit(text)
    )


def _count_constraint_with_arguments(
    words: str,
    items: Callable[[str, Arguments], Sized],
    draw: Draw,
    limit: Callable[[str, Arguments], Sized] | None = None,
) -> Constraint:
    """Constraint on the number of items, with bounds drawn around the number in a text.

    Args:
        limit: items that count against an upper bound, where these are more than `items`.
    """

    def draw_bound(text: str, rng: random.Random) -> dict[str, Any]:
        arguments = draw(text, rng)
        number = len(items(text, arguments))
        # "at least 0" holds for any text
        bounds = BOUNDS if number else ("exactly", "at_most")
        bound = rng.choice(bounds)
        slack = rng.randint(0, number // 3 + (bound == "at_most"))
        signed_slack = {"exactly": 0, "at_least": -slack, "at_most": slack}[bound]
        return arguments | {bound: number + signed_slack}

    def check(text: str, arguments: Arguments) -> bool:
        least = len(items(text, arguments))
        most = least if limit is None else max(least, len(limit(text, arguments)))
        return within(least, most, arguments)

    return Constraint(words, check, draw_bound)


def _draw_absent_words(text: str, rng: random.Random) -> dict[str, Any]:
    """Draw words that no generated text has."""
    candidates = ("therefore", "very", "amber", "ocean")
    return {"words": [word for word in candidates if rng.random() < 0.6]}


def _draw_first_word(argument: str, items: Callable[[str], list[str]]) -> Draw:
    """Make a function that draws an item's number, under `argument`, and its first word."""

    def draw(text: str, rng: random.Random) -> dict[str, Any]:
        first_words = [words_of(item)[:1] for item in items(text)]
        number = rng.randint(1, len(first_words))
        return {argument: number, "word": "".join(first_words[number - 1])}

    return draw


def _first_word_of_item(items: list[str], number: Any) -> list[str]:
    """First word of the item with a number from 1, [] where there is none."""
    if int(number) <= 0:
        return []
    return words_of("".join(items[int(number) - 1 : int(number)]))[:1]


def _phrase_pattern(word: str) -> re.Pattern[str]:
    """Pattern of a word or phrase that is no part of another word; it may span lines."""
    words = str(word).replace("’", "'").split()
    text = r"[\s_]+".join(map(re.escape, words)).replace("'", "['’]")
    return re.compile(rf"(?<!{_LETTER}){text}(?!{_LETTER})", re.IGNORECASE)


def _find_disguised(text: str, word: str) -> list[str]:
    """Occurrences of a forbidden or limited word or phrase in a text, disguised ones included.

    A disguise is s-p-e-l-l-i-n-g, an underscore, digit or capital that joins it to another word, or
    look-alike letters.
    """
    plain_word = without_look_alikes(str(word)).replace("’", "'")
    words = r"[\s_]+".join(map(re.escape, plain_word.split())).replace("'", "['’]")
    letters = [re.escape(letter) for letter in plain_word if not letter.isspace()]
    forms = [words]
    # the letters of a short word follow one another by chance: I-F
    if len(letters) > 3:
        forms.append(r"[\W_]{1,2}".join(letters))
    boundary = r"[^\W\d_]" if re.fullmatch(r"[^\W\d]+", plain_word) else _LETTER
    pattern = rf"(?<!{boundary})(?:{'|'.join(forms)})(?!{boundary})"
    plain_text = _CAMEL_CASE.sub(_split_camel_case, without_look_alikes(text))
    return re.findall(pattern, plain_text, re.IGNORECASE)


_CAMEL_CASE = re.compile(r"(?<![A-Za-z])[a-z]{2,}(?:[A-Z][a-z]*)+")


def _split_camel_case(match: re.Match[str]) -> str:
    return _HUMP.sub(" ", match[0])


def _plain(text: Any) -> str:
    """Text for comparison: lower case, single spaces, plain apostrophes, no marks around it."""
    return " ".join(str(text).lower().replace("’", "'").split()).strip(_MARKS)


def _starts_with_phrase(text: str, start: str) -> bool:
    """True where a text starts with `start` and no word of it continues beyond."""
    splits_word = start[-1:].isalnum() and text[len(start) :][:1].isalnum()
    return text.startswith(start) and not splits_word


def _is_quoted(text: str) -> bool:
    """True for a text in quotation marks as a whole: `"one" and "two"` is not."""
    if len(text) < 3 or text[0] not in '"“' or text[-1] not in '"”':
        return False
    inner = text[1:-1]
    mark = re.search('["”]', inner)
    # the first mark inside either ends the outer quotation or opens one within it
    opens = mark is not None and re.search(r"(?:\A|[\s(\[*_—])\Z", inner[: mark.start()])
    return mark is None or bool(opens) or "“" in inner[: mark.start()]


def _has_no_commas(text: str, a: Arguments) -> bool:
    # a low quotation mark before a space opens no quotation: it stands for a comma
    return not re.search(r"‚(?=\s)", text) and not any(map(_is_comma, set(text)))


def _is_comma(character: str) -> bool:
    name = unicodedata.name(character, "")
    return without_look_alikes(character) == "," or ("COMMA" in name and not character.isalpha())


def _has_case(text: str, required: str, refused: str) -> bool:
    """True for a text with letters of one case and none of the other, by Unicode's categories."""
    categories = set(map(unicodedata.category, set(text)))
    return required in categories and not categories & {refused, "Lt"}


def _is_capital(word: str) -> bool:
    letters = [c for c in word if c.isalpha()]
    return len(letters) > 1 and all(c.isupper() for c in letters)


def _is_json(text: str, a: Arguments) -> bool:
    try:
        return isinstance(load_json(unfenced(text)), dict | list)
    except ValueError:
        return False


def _has_different_starts(text: str, a: Arguments) -> bool:
    starts = [words_of(without_look_alikes(sentence))[0] for sentence in sentences_of(text)]
    return len(set(starts)) == len(starts)


def _has_no_repeats(text: str, a: Arguments) -> bool:
    words = [word.lower() for word in _separate_words(without_look_alikes(text).replace("_", " "))]
    return len(set(words)) == len(words)


def _lowercase_words(words: list[str]) -> list[str]:
    return [word for word in words if word == word.lower() and word[0].isalpha()]


# of the functions below, t is the text, a the arguments and r the random generator
CONSTRAINTS: dict[str, Constraint] = {
    "words": _count_constraint("Use {count} words.", words_of, _separate_words),
    "sentences": _count_constraint("Write {count} sentences.", sentences_of),
    "paragraphs": _count_constraint(
        "Write {count} paragraphs, with an empty line between them.", paragraphs_of
    ),
    "divided_paragraphs": _count_constraint(
        "Write {count} parts, with *** on a line of its own between them.",
        lambda t: _parts_with_letters(re.split(r"^[ \t]*\*\*\*[ \t]*$", t, flags=re.M)),
    ),
    "lines": _count_constraint(
        "Write {count} lines, empty ones not counted.",
        lambda t: [line for line in t.splitlines() if line.strip()],
    ),
    "bullets": _count_constraint(
        "Have {count} bullet points, each a line that begins with -, + or *.", _BULLET.findall
    ),
    "numbered_items": _count_constraint(
        "Have {count} numbered items, as 1. and 2., each on a line of its own.", _NUMBERED.findall
    ),
    "highlights": _count_constraint(
        "Highlight {count} parts with asterisks, as *this*.",
        lambda t: _parts_with_letters([match[1] for match in _HIGHLIGHT.findall(t)]),
    ),
    "placeholders": _count_constraint(
        "Have {count} placeholders in square brackets, as [address].",
        _PLACEHOLDER.findall,
    ),
    "keyword_count": _count_constraint_with_arguments(
        'Use the word "{word}" {count} times.',
        lambda t, a: _phrase_pattern(a["word"]).findall(t),
        lambda t, r: {"word": r.choice(words_of(t))},
        lambda t, a: _find_disguised(t, a["word"]),
    ),
    "letter_count": _count_constraint_with_arguments(
        'Have the letter "{letter}" {count} times.',
        lambda t, a: re.findall(re.escape(str(a["letter"]).lower()), t.lower()),
        lambda t, r: {"letter": r.choice("aeiostjqxz")},
        lambda t, a: re.findall(
            re.escape(str(a["letter"]).lower()), without_look_alikes(t).lower()
        ),
    ),
    "letters": _count_constraint(
        "Answer with {count} letters.", lambda t: [*filter(str.isalpha, t)]
    ),
    "lowercase_words": _count_constraint(
        "Have {count} words in lower case.",
        lambda t: _lowercase_words(_WORD.findall(t)),
        lambda t: _lowercase_words(_separate_words(t)),
    ),
    "capital_words": _count_constraint(
        "Have {count} words in all capitals.", lambda t: [*filter(_is_capital, _WORD.findall(t))]
    ),
    "keywords": Constraint(
        "Include these words: {words}.",
        lambda t, a: all(_phrase_pattern(word).search(t) for word in a["words"]),
        lambda t, r: {"words": r.sample(sorted(set(words_of(t))), 2)},
    ),
    "forbidden_words": Constraint(
        "Do not use these words: {words}.",
        lambda t, a: not any(_find_disguised(t, word) for word in a["words"]),
        _draw_absent_words,
    ),
    "no_commas": Constraint("Use no commas.", _has_no_commas),
    "lowercase": Constraint("Write in lower case only.", lambda t, a: _has_case(t, "Ll", "Lu")),
    "uppercase": Constraint(
        "Write in capital letters only.", lambda t, a: _has_case(t, "Lu", "Ll")
    ),
    "starts_with": Constraint(
        'Begin with "{text}".',
        lambda t, a: _starts_with_phrase(_plain(t), _plain(a["text"])),
        lambda t, r: {"text": " ".join(t.split()[:3])},
    ),
    "ends_with": Constraint(
        'End with "{text}", and nothing behind it.',
        lambda t, a: _starts_with_phrase(_plain(t)[::-1], _plain(a["text"])[::-1]),
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
        lambda t, a: _first_word_of_item(words_of(t), a["place"]) == [str(a["word"]).lower()],
        _draw_first_word("place", words_of),
    ),
    "paragraph_start": Constraint(
        'Paragraph {paragraph} begins with the word "{word}"; an empty line parts paragraphs.',
        lambda t, a: (
            _first_word_of_item(paragraphs_of(t), a["paragraph"]) == [str(a["word"]).lower()]
        ),
        _draw_first_word("paragraph", paragraphs_of),
    ),
    "sentence_start": Constraint(
        'Every sentence begins with the word "{word}".',
        lambda t, a: all(words_of(s)[:1] == [str(a["word"]).lower()] for s in sentences_of(t)),
        lambda t, r: {"word": words_of(t)[0]},
    ),
    "different_starts": Constraint(
        "No two sentences begin with the same word.", _has_different_starts
    ),
    "title": Constraint(
        "Have a title in double angular brackets, as <<a title>>.",
        lambda t, a: _TITLE.search(t) is not None,
    ),
    "quoted": Constraint(
        "Put the whole answer in double quotation marks.",
        lambda t, a: _is_quoted(t),
    ),
    "json": Constraint("Answer with one JSON object alone.", _is_json),
    "no_repeats": Constraint("Use no word twice.", _has_no_repeats),
}


MAX_CHARACTERS = 200_000  # of an answer
MIN_WORDS = 3  # of an answer
MAX_NUMBER = 5000  # in the arguments of a constraint


class InstructionFollowingEnvironment(RLVREnvironment):
    """Texts under constraints, graded by all of them or by the share that holds."""

    name = "instruction_following"

    def malformed(self, prompt: Prompt) -> str | None:
        task = metadata_of(prompt)
        if task.get("grading", "all") not in ("all", "fraction"):
            return f"grading {task['grading']!r} is neither all nor fraction"
        constraints: Any = task.get("constraints")
        if not isinstance(constraints, list) or not constraints:
            return "no constraints"
        for constraint in cast(list[Arguments], constraints):
            kind = constraint.get("kind")
            if kind not in CONSTRAINTS:
                return f"unknown constraint {kind!r}"
            numbers = [value for value in constraint.values() if isinstance(value, int)]
            if not all(0 <= number <= MAX_NUMBER for number in numbers):
                return f"{kind}: a number beyond {MAX_NUMBER}"
            CONSTRAINTS[kind].holds("A text.", constraint)  # raises for a missing argument
        return None

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("Done!")]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        text = completion.answer.strip()
        if len(text) > MAX_CHARACTERS:
            return Score(0.0, None, f"longer than {MAX_CHARACTERS} characters")
        if len(words_of(text)) < MIN_WORDS:
            return Score(0.0, text, f"fewer than {MIN_WORDS} words")
        constraints: list[Arguments] = metadata_of(prompt)["constraints"]
        broken: list[str] = []
        for constraint in constraints:
            if not CONSTRAINTS[constraint["kind"]].holds(text, constraint):
                broken.append(constraint["kind"])
        share = 1 - len(broken) / len(constraints)
        value = share if metadata_of(prompt).get("grading") == "fraction" else float(not broken)
        explanation = f"breaks {', '.join(broken)}" if broken else "all constraints"
        return Score(value, None, explanation)

    def row(self, seed: int, number: int) -> dict[str, Any]:
        rng = random.Random(f"{seed}/if/{number}")
        text = rng.choice(_STYLES)(rng.sample(_SENTENCES, rng.randint(1, 5)))
        constraints: list[dict[str, Any]] = []
        for kind in rng.sample(list(CONSTRAINTS), len(CONSTRAINTS)):
            arguments = CONSTRAINTS[kind].draw(text, rng)
            if CONSTRAINTS[kind].holds(text, arguments):
                constraints.append({"kind": kind} | arguments)
        constraints = constraints[: rng.randint(1, 4)]
        wordings = [CONSTRAINTS[c["kind"]].wording(c) for c in constraints]
        return {
            "id": f"if-{seed}-{number}",
            "question": f"{rng.choice(_TOPICS)} {' '.join(wordings)}",
            "gold": text,
            "metadata": {"constraints": constraints},
        }


_TOPICS = (
    "Describe a lamp.",
    "Tell me about your town.",
    "Explain why bread rises.",
    "Write about a day at sea.",
    "How do bees find their way?",
    "Recommend a book.",
)
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
