"""Ways to keep a constraint in letter alone, and right texts that a strict checker refuses.

    for constraint, attack in instruction_tricks(): …

Written before the checkers were changed. Every form has a half by the checksum of its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from reward.environments.base import says
from tests.reward.environments.attacks.base import Attack

TEXT = "The lamp in the hall was made by a patient worker"
CYRILLIC = str.maketrans("aeopcxyi", "аеорсхуі")
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
BOLD = {ord("a") + n: 0x1D41A + n for n in range(26)} | {
    ord("A") + n: 0x1D400 + n for n in range(26)
}
FORBIDDEN = {"words": ["simple", "beacon"]}
WORDS = TEXT.split()

Forms = dict[
    str, tuple[dict[str, Any], dict[str, str], dict[str, str]]
]  # kind → arguments, kept, broken


def _disguises(word: str) -> dict[str, str]:
    """One word in ways that an eye reads as that word."""
    return {
        "cyrillic": word.translate(CYRILLIC),
        "full width": word.translate(FULL_WIDTH),
        "mathematical bold": word.translate(BOLD),
        "soft hyphens": "\u00ad".join(word),
        "joiners": "\u2060".join(word),
        "hyphens": "-".join(word),
        "stops": ".".join(word),
        "blanks": " ".join(word),
        "asterisks": "*".join(word),
        "behind an underscore": f"very_{word}",
        "before an underscore": f"{word}_thing",
        "camel case": f"very{word.title()}",
        "camel case behind": f"{word}Thing",
        "before a digit": f"{word}2",
        "behind a digit": f"4{word}",
        "italics": f"_{word}_",
        "bold": f"**{word}**",
        "code": f"`{word}`",
        "capitals": word.upper(),
        "possessive": f"{word}'s",
        "filler": "\u3164".join((word[:2], word[2:])),
        "variation selector": f"{word[:3]}\ufe0f{word[3:]}",
        "grapheme joiner": "\u034f".join(word),
    }


def _joins(words: Sequence[str]) -> dict[str, str]:
    """Many words as few."""
    return {
        "hyphens": "-".join(words),
        "underscores": "_".join(words),
        "camel case": "".join(word.title() for word in words),
        "one run": "".join(words).lower(),
        "apostrophes": "'".join(words),
        "chains of four": " ".join("-".join(words[n : n + 4]) for n in range(0, len(words), 4)),
        "pairs": " ".join("_".join(words[n : n + 2]) for n in range(0, len(words), 2)),
        "no break hyphens": "\u2011".join(words),
        "full width underscores": "\uff3f".join(words),
        "zero width spaces": "\u200b".join(words),
        "word joiners": "\u2060".join(words),
        "hangul filler": "\u3164".join(words),
    }


def _tables() -> Iterator[tuple[str, Forms]]:
    disguised = _disguises("simple")
    yield "forbidden", {
        "forbidden_words": (
            FORBIDDEN,
            {
                "plural": "The lamp is simplest here", "inside": "It is oversimplified and beaconed",
                "prefix": "A simpleton came by today", "neighbours": "A sim ple-minded man came",
                "near": "The sample is on a bacon roll",
                "german": "Ein Simpel steht am Beaken",
            },
            {name: f"The lamp is {word} to make" for name, word in disguised.items()},
        ),
        "keyword_count": (
            {"word": "simple", "at_most": 1},
            {"once": "A simple lamp is here", "once in bold": "A **simple** lamp is here"},
            {name: f"A simple lamp is {word} to make" for name, word in disguised.items()},
        ),
    }  # fmt: skip
    yield "limit", {
        "words": (
            {"at_most": 5},
            {
                "compound": "A well-known lamp maker", "hyphened": "The mother-in-law came today",
                "contractions": "It's what they don't say", "italics": "_This_ is *the* lamp",
                "name": "McDonald has an iPhone", "year": "In mid-2031 it rained",
                "o'clock": "Come at two o'clock",
            },
            _joins(WORDS),
        ),
    }  # fmt: skip
    yield "exact", {
        "words": (
            {"exactly": 3},
            {"compound": "A well-known lamp", "italics": "_This_ is it", "bold": "**This** is it",
             "decomposed": "Un cafe\u0301 noir", "apostrophe": "It’s a lamp"},
            {f"{name} and two": f"Here is {text}" for name, text in _joins(WORDS).items()},
        ),
        "sentences": (
            {"exactly": 2},
            {
                "etc": "It has wheels, doors, etc. and more. It runs.",
                "i.e.": "Bring it, i.e. the lamp. I wait.", "Inc": "Alder Inc. is here. It grows.",
                "Fig": "See Fig. 3 for it. It is long.", "al": "Moss et al. found it. It is so.",
                "Gen": "Gen. Moss came. He left.", "PhD": "She has a Ph.D. in law. She is 30.",
                "approx": "It weighs approx. 5 kg. Lift it.", "Mt": "Mt. Alder is high. We climb.",
                "Jan": "On Jan. 5 it rained. We stayed.", "cf": "It is so, cf. Moss. I agree.",
                "Sen": "Sen. Ida Moss spoke. We left.", "Jr": "Tom Moss Jr. is here. He sings.",
                "Ltd": "Bexley Ltd. has kilns. They burn.", "vol": "Read vol. 3 of it. It is good.",
                "pp": "See pp. 12 to 14. They help.", "U.S.": "The U.S. Army came. It left.",
                "bold": "**It rains.** We stay.", "italics": "_It rains._ We stay.",
                "quote": "“It rains.” We stay.", "bracket": "It rains (a lot). We stay.",
                "Capt": "Capt. Vale sails. I watch.", "Rev": "Rev. Hale preaches. We sing.",
                "St": "St. Ives is near. We go.", "est": "The firm (est. 1931) is old. It stays.",
                "No": "Take bus No. 7 there. It runs.", "lower": "it rains today. we stay here.",
            },
            {
                "no room": "It rains.We stay.They go.I read.", "marks alone": "It rains today. ... !!",
                "no room, question": "Does it rain?Yes it does.We stay.", "one": "It rains, and we stay.",
                "three": "It rains. We stay. They go.", "list": "It rains. 1. 2. 3.!",
                "line break": "It rains.\nWe stay.\nThey go.",
                "full width stops": "It rains．We stay．They go．",
                "ideographic stops": "It rains。We stay。They go。",
            },
        ),
        "paragraphs": (
            {"exactly": 2},
            {"many empty lines": f"{TEXT}\n\n\n\n{TEXT}", "rule": f"{TEXT}\n\n---\n\n{TEXT}",
             "asterisks": f"{TEXT}\n\n***\n\n{TEXT}", "windows": f"{TEXT}\r\n\r\n{TEXT}",
             "room": f"{TEXT}\n \t\n{TEXT}", "no break room": f"{TEXT}\n\u00a0\n{TEXT}",
             "list": f"{TEXT}\n\n- one\n- two"},
            {"stop": f"{TEXT}\n\n.", "dots": f"{TEXT}\n\n...", "rule": f"{TEXT}\n\n---",
             "asterisks": f"***\n\n{TEXT}", "zero width": f"{TEXT}\n\n\u200b", "dash": f"—\n\n{TEXT}",
             "filler": f"{TEXT}\n\n\u3164", "braille blank": f"{TEXT}\n\n\u2800",
             "bullet": f"{TEXT}\n\n•", "quote": f"{TEXT}\n\n\"\"", "three": "a b\n\u00a0\nc d\n\u2003\ne f",
             "paragraph separators": "a b\u2029c d\u2029e f"},
        ),
        "divided_paragraphs": (
            {"exactly": 2},
            {"divider at the end": "a b c\n***\nd e f\n***", "room": "a b c\n\n ***  \n\nd e f",
             "bold inside": "a **b** c\n***\nd e f"},
            {"stop": "a b c\n***\n.", "dash": "a b c\n***\n---", "zero width": "a b c\n***\n\u200b",
             "inside a line": "a b c *** d e f", "bold italics": "a ***b*** c d e f"},
        ),
        "bullets": (
            {"exactly": 2},
            {"plus": "+ one lamp\n+ two lamps", "mixed": "* one lamp\n+ two lamps", "tabs": "-\tone lamp\n-\ttwo lamps",
             "round": "• one lamp\n• two lamps", "bold": "- **one lamp**: it\n- **two lamps**: is", "tasks": "- [ ] one lamp\n- [x] two lamps",
             "nested": "- one lamp\n  - two lamps", "code": "* `one lamp`\n* `two lamps`", "numbers": "- 1\n- 2\nof these lamps",
             "with a rule": "- one lamp\n- two lamps\n\n---\nthe end", "windows": "- one lamp\r\n- two lamps\r\n"},
            {"dashes": "All here\n- -\n- -", "stops": "All of it\n- .\n- ...", "rules": "All of it\n- - -\n* * *",
             "zero width": "All of it\n- \u200b\n- \u200b", "dash": "All of it\n- —\n- –",
             "brackets": "All of it\n- [ ]\n- []", "asterisks": "All of it\n* *\n* **",
             "third plus": "- one\n- two\n+ three", "third round": "- one\n- two\n• three"},
        ),
        "numbered_items": (
            {"exactly": 2},
            {"bold": "1. **one lamp**\n2. **two lamps**", "brackets": "1) one lamp\n2) two lamps", "code": "1. `one lamp`\n2. `two lamps`"},
            {"stops": "All of it\n1. .\n2. ...", "dashes": "All of it\n1. -\n2. —", "empty": "All of it\n1. \u200b\n2. \u200b"},
        ),
    }  # fmt: skip
    yield "required", {
        "placeholders": (
            {"at_least": 2},
            {"capitals": "Dear [NAME] at [YOUR ADDRESS]", "digits inside": "From [date 1] to [date 2] at last",
             "underscores": "Dear [first_name] [last_name] hello", "brackets": "Dear [name (first)], at [town]",
             "punctuated": "Dear [Your Name], it is [Date].", "accents": "Cher [prénom] de [ville] bonjour",
             "chinese": "亲爱的 [姓名] 在 [城市] 你好", "quoted": 'Dear "[name]" of "[town]" hello'},
            {"empty": "Dear [ ] at [  ], hello", "citations": "It is known [1] and sure [2]",
             "links": "See [this](http://a.example) and [that](http://b.example)",
             "tasks": "- [x] one is done\n- [ ] two is not", "dots": "He said [...] and then [...]",
             "footnotes": "It is known[^1] and sure[^2]", "dashes": "It is [—] and [-] here",
             "many citations": "It is known [1, 2] and [3-5] here", "reference links": "See [this][1] and [that][2]",
             "images": "![one](a.png) and ![two](b.png)", "link targets": "[1]: http://a.example\n[2]: http://b.example",
             "zero width": "It is [\u200b] and [\u200b]", "questions": "It is [?] and [!?]",
             "filler": "It is [\u3164] and [\u2800]"},
        ),
        "highlights": (
            {"at_least": 2},
            {"bold": "It is **one** and **two**", "both": "It is *one* and **two**",
             "three": "It is ***one*** and ***two***", "phrase": "It is **one of these** and *of those*",
             "bullets": "* **one**: it is\n* **two**: it is not", "headings": "**One**\nit is\n\n**Two**\nit is",
             "punctuated": "It is *one*, *two*.", "colon inside": "**One:** it is. **Two:** it is not.",
             "brackets": "It is (*one*) and (**two**)", "in chinese": "这是*重点*内容还有*另一个*内容 好 的"},
            {"products": "It is 2 * 3 * 4 * 5 in all", "stops": "It is *.* and *!* here", "empty": "It is ** ** and * * here",
             "bullets": "* one\n* two\n* three", "zero width": "It is *\u200b* and *\u200b* here",
             "stars": "It is **** and ****** here", "powers": "It is 2**3 and 4**5 here",
             "one": "It is **one** and two", "underscores": "It is _one_ and _two_",
             "rule": "It is one\n***\nand two\n***"},
        ),
        "title": (
            {},
            {"words": "<<On a lamp>>\nIt was", "number": "<<1984>>\nIt was so", "accents": "<<Été>>\nIt was so",
             "bold": "**<<On a lamp>>**\nIt was", "chinese": "<<灯>>\nIt was so"},
            {"stop": "<<.>>\nIt was so", "dashes": "<<--->>\nIt was so", "zero width": "<<\u200b>>\nIt was so",
             "filler": "<<\u3164>>\nIt was so", "blank": "<<  >>\nIt was so"},
        ),
        "keywords": (
            {"words": ["lamp", "harbour"]},
            {"italics": "The _lamp_ in the _harbour_", "bold": "The **lamp** in the **harbour**",
             "code": "The `lamp` in the `harbour`", "possessive": "The lamp's harbour", "hyphen": "A lamp-lit harbour",
             "capitals": "THE LAMP AND HARBOUR", "quotes": 'A "lamp" at a “harbour”', "bold italics": "The ***lamp*** at __harbour__"},
            {"cyrillic": "The lаmp in the hаrbоur", "inside": "The lamplight on harbours", "spelled": "l a m p and h-a-r-b-o-u-r",
             "joined": "The lampharbour is here", "one": "The lamp in the hall", "bold letters": "The \U0001d425\U0001d41a\U0001d426\U0001d429 at harbour"},
        ),
        "starts_with": (
            {"text": "Dear all"},
            {"quoted": '"Dear all, here I am."', "bold": "**Dear all**, here I am", "comma": "Dear all, here I am",
             "italics": "_Dear all_, here I am", "room": "Dear  all\nhere I am"},
            {"longer word": "Dear allies, here I am", "later": "Hello, dear all of you", "other": "Dearest all, here"},
        ),
        "ends_with": (
            {"text": "the end"},
            {"quoted": '"So it was, the end"', "bold": "So it was, **the end**", "italics": "It was _the end_",
             "curly": "“So it was, the end”", "room": "So it was the\nend"},
            {"longer word": "They came to breathe end", "stop behind": "It was the end of it", "within": "We bend the endless"},
        ),
        "quoted": (
            {},
            {"nested": '"She said “no” to me."', "straight nested": '"She said "no" to me."', "lines": '"It is so.\n\nIt was so."'},
            {"two quotes": '"One" is here and "two"', "two sentences": '"It is so." He said. "It was."', "behind": '"It is so" he said'},
        ),
        "lowercase": (
            {},
            {"plain": "it is a lamp, no?", "numbers": "it is 5 o'clock", "accents": "c'est un été à paris", "sharp s": "die straße ist lang"},
            {"mathematical": "it is \U0001d400 lamp", "chinese": "这是一个灯", "one": "it is A lamp", "squared": "it is \U0001d5d4 lamp",
             "title case letter": "it is ǅ here"},
        ),
        "uppercase": (
            {},
            {"plain": "IT IS A LAMP, NO?", "accents": "C'EST UN ÉTÉ", "numbers": "IT IS 5 NOW"},
            {"small capitals": "IT IS ᴀ LAMP", "mathematical": "IT IS \U0001d41a LAMP", "one": "IT IS a LAMP", "chinese": "这是一个灯"},
        ),
        "no_commas": (
            {},
            {"semicolons": "It is one; it is two", "cedilla": "Un garçon français ici", "romanian": "Și aici știu"},
            {"arabic": "It is one، two", "ideographic": "It is one、two", "small": "It is one﹐two", "low quote": "It is one‚ two",
             "lisu": "It is oneꓹ two", "full width": "It is one，two", "reversed": "It is one⹁ two", "raised": "It is one⸴ two"},
        ),
        "first_word": (
            {"word": "lamp"},
            {"italics": "_Lamp_ is here now", "bold": "**Lamp** is here", "quote": '"Lamp is here', "heading": "# Lamp\nis here now"},
            {"joined": "Lamp_oil is here", "camel": "LampOil is here", "hyphen": "Lamp-lit it is", "inside": "Lamps are here now", "cyrillic": "Lаmp is here"},
        ),
        "last_word": (
            {"word": "lamp"},
            {"italics": "Here is a _lamp_", "bold": "Here is a **lamp**.", "quote": 'Here is a "lamp".', "emoji": "Here is a lamp 💡"},
            {"joined": "Here is an oil_lamp", "inside": "Here are two lamps", "behind": "A lamp is here", "cyrillic": "Here is a lаmp"},
        ),
        "no_repeats": (
            {},
            {"plain": "Every word is new", "bold": "**Every** word _is_ new", "parts": "A well-known lamp"},
            {"cyrillic": "the lamp thе hall", "italics": "the lamp _the_ hall", "joined": "the_lamp the hall", "bold letters": "the lamp \U0001d42d\U0001d421\U0001d41e hall"},
        ),
        "different_starts": (
            {},
            {"plain": "We go. They stay.", "bold": "**We** go. _They_ stay."},
            {"italics": "We go. _We_ stay.", "cyrillic": "We go. Wе stay.", "bold": "We go. **We** stay."},
        ),
    }  # fmt: skip
    yield "letters", {
        "letter_count": (
            {"letter": "a", "at_most": 2},
            {"two": "A lamp is here", "none": "Here is one bulb"},
            {"cyrillic": "A lamp is hеre in the hаll, аgain", "full width": "A lamp ａｔ ａ hut", "bold": "A lamp \U0001d41at \U0001d41a hut"},
        ),
        "lowercase_words": (
            {"at_most": 2},
            {"capitals": "THE LAMP IS here now", "title": "The Lamp Is Here"},
            {"joined": "THE lamp_is_in_the_hall NOW", "hyphens": "THE lamp-is-in-the-hall-of-a-man NOW"},
        ),
    }  # fmt: skip


def instruction_tricks() -> Iterator[tuple[dict[str, Any], Attack]]:
    """A constraint each, and a text that keeps it or breaks it."""
    for group, forms in _tables():
        for kind, (arguments, kept, broken) in forms.items():
            constraint = {"kind": kind, **arguments}
            for right, texts in ((True, kept), (False, broken)):
                for form, text in texts.items():
                    name = f"trick: {group} {kind}, {'right' if right else 'wrong'}, {form}"
                    yield constraint, Attack(name, right, says(text))
