"""Structured outputs of documents without `fields`, right and wrong ones; tool calls below.

    for prompt_row, attack in documents(): …

Written before the content was checked. A form is one field of one document with another value, or
one filler in all of them; its half is the checksum of its name.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from posttrain.records import json_text
from posttrain.rollouts import Prompt
from reward.environments.base import calls, says
from tests.reward.environments.attacks.base import Attack, Attacks

Value = dict[str, Any]
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NUMBER = {"type": "number"}
TEXTS = {"type": "array", "items": TEXT}


def _object(**properties: Any) -> Value:
    return {"type": "object", "properties": properties, "required": list(properties)}


# document, schema, right value, pointer → (other right values, wrong values)
_DOCUMENTS: list[tuple[str, Value, Value, dict[str, tuple[list[Any], list[Any]]]]] = [
    (
        "Mara Holt (born 3 May 1972 in Graz) is an Austrian architect. She studied at Leeds and worked for Beck "
        "& Roy until 1998, when she founded Holt Studio with two partners. Her Nordhafen Library in Bergen, opened "
        "in June 2011, cost 14.5 million euros and won the Alder Prize. The studio employs 43 people.",
        _object(name=TEXT, born=TEXT, birthplace=TEXT, profession=TEXT, university=TEXT, founded=WHOLE, partners=WHOLE,
                building=_object(name=TEXT, city=TEXT, opened=TEXT, cost_euros=NUMBER, prize=TEXT), employees=WHOLE,
                summary=TEXT),
        {"name": "Mara Holt", "born": "1972-05-03", "birthplace": "Graz", "profession": "architect", "university": "Leeds",
         "founded": 1998, "partners": 2, "employees": 43,
         "building": {"name": "Nordhafen Library", "city": "Bergen", "opened": "June 2011", "cost_euros": 14500000,
                      "prize": "Alder Prize"},
         "summary": "Mara Holt is an Austrian architect who founded her own studio in 1998 and built a library in Bergen."},
        {
            "/name": (["MARA HOLT", "Holt, Mara"], ["Mara Brandt", "Ida Holt", "Jun Park"]),
            "/born": (["3 May 1972", "May 3, 1972", "03.05.1972"], ["1972-05-04", "1973-05-03", "1972-06-03", "4 May 1972"]),
            "/birthplace": (["graz"], ["Vienna", "Graz, Germany", "Linz"]),
            "/university": (["University of Leeds"], ["Oxford", "University of York"]),
            "/founded": ([1998.0], [1997, 1989, 2001]),
            "/partners": ([], [3, 5, 20]),
            "/building/name": (["the Nordhafen Library"], ["Nordhafen Museum", "Southport Library", "Opera House"]),
            "/building/city": ([], ["Oslo", "Bergamo", "Trondheim"]),
            "/building/opened": (["2011-06", "06/2011"], ["2011-07", "June 2012", "May 2010"]),
            "/building/cost_euros": ([14_500_000.0, 14.5], [15_400_000, 145_000, 14_500]),
            "/building/prize": (["The Alder Prize"], ["Pritzker Prize", "Stirling Prize"]),
            "/employees": ([43.0], [34, 430, 44]),
            "/summary": (["An architect from Graz who founded Holt Studio."],
                         ["Jane Austen wrote novels in Hampshire between 1795 and 1817.", "Holt was born in Vienna in 1970."]),
        },
    ),
    (
        "Invoice 2031-0417 from Estuary Kilns Ltd to Ines Roy, dated March 9th, 2031: three kiln shelves at 48.50 each, "
        "one pyrometer at 210.00, delivery 25. Subtotal 380.50, VAT at 20 % 76.10, total GBP 456.60, due within 30 days. "
        "Questions: accounts@estuary.example or +44 20 7946 0018. Ship to 12 Weaver Street, Leeds LS1 4AP.",
        _object(number=TEXT, seller=TEXT, buyer=TEXT, date=TEXT, items={"type": "array", "items": _object(
            name=TEXT, quantity=WHOLE, price=NUMBER)}, subtotal=NUMBER, vat_rate=NUMBER, vat=NUMBER, total=NUMBER,
            currency=TEXT, due_days=WHOLE, email=TEXT, phone=TEXT, street=TEXT, city=TEXT, postcode=TEXT),
        {"number": "2031-0417", "seller": "Estuary Kilns Ltd", "buyer": "Ines Roy", "date": "2031-03-09",
         "items": [{"name": "kiln shelf", "quantity": 3, "price": 48.5}, {"name": "pyrometer", "quantity": 1, "price": 210},
                   {"name": "delivery", "quantity": 1, "price": 25}],
         "subtotal": 380.5, "vat_rate": 20, "vat": 76.1, "total": 456.6, "currency": "GBP", "due_days": 30,
         "email": "accounts@estuary.example", "phone": "+44 20 7946 0018", "street": "12 Weaver Street", "city": "Leeds",
         "postcode": "LS1 4AP"},
        {
            "/number": (["Invoice 2031-0417"], ["2031-0418", "INV-001", "2013-0417"]),
            "/seller": (["Estuary Kilns"], ["Estuary Ovens Ltd", "Alder Ltd"]),
            "/buyer": (["INES ROY"], ["Ines Ray", "Tomas Beck"]),
            "/date": (["9 March 2031", "March 9, 2031", "09/03/2031"], ["2031-03-19", "2030-03-09", "2031-04-09"]),
            "/items/0/quantity": ([3.0], [4, 13, 48]),
            "/items/0/price": ([48.50], [45.80, 4850, 49.5]),
            "/items/1/name": (["Pyrometer"], ["Thermometer Pro", "Hygrometer X2"]),
            "/items/1/price": ([210.0], [201, 2100]),
            "/subtotal": ([380.50], [308.5, 390.5]),
            "/vat_rate": ([0.2, 20.0], [0.19, 25, 2]),
            "/total": ([456.60], [465.6, 456.1, 4566]),
            "/currency": (["gbp"], ["USD", "EUR"]),
            "/due_days": ([30.0], [14, 60, 31]),
            "/email": (["Accounts@estuary.example"], ["info@estuary.example", "accounts@alder.example"]),
            "/phone": (["+442079460018", "020 7946 0018"], ["+44 20 7946 0081", "+1 555 0100"]),
            "/street": (["Weaver Street 12"], ["21 Weaver Street", "12 Baker Street"]),
            "/postcode": (["LS14AP"], ["LS2 4AP", "SW1A 1AA"]),
        },
    ),
    (
        "Tide tables and a short history of the harbour are in the annex. The ferry Solveig leaves Halifax at 6:30 pm "
        "on Mondays and Thursdays and reaches Port Amber eleven hours later. She carries 240 passengers and 60 cars; "
        "Captain Tove Arden has commanded her since 2024. Tickets are 35 dollars, children half.",
        _object(ship=TEXT, departure_port=TEXT, departure_time=TEXT, days=TEXTS, arrival_port=TEXT, hours=WHOLE,
                passengers=WHOLE, cars=WHOLE, captain=TEXT, since=WHOLE, price=NUMBER, child_discount=TEXT, note=TEXT),
        {"ship": "Solveig", "departure_port": "Halifax", "departure_time": "18:30", "days": ["Monday", "Thursday"],
         "arrival_port": "Port Amber", "hours": 11, "passengers": 240, "cars": 60, "captain": "Tove Arden", "since": 2024,
         "price": 35, "child_discount": "half", "note": "Tide tables are in the annex."},
        {
            "/ship": (["MV Solveig", "SOLVEIG"], ["Sunniva", "Titanic"]),
            "/departure_port": (["halifax"], ["Boston", "St. John's"]),
            "/departure_time": (["6:30 pm", "6.30 PM", "18:30:00"], ["19:30", "6:45 pm", "08:30"]),
            "/days": ([["Mondays", "Thursdays"], ["Thursday", "Monday"]], [["Monday", "Friday"], ["Sunday", "Saturday"]]),
            "/arrival_port": (["Port Amber harbour"], ["Port Albert", "New York"]),
            "/hours": ([11.0], [12, 111]),
            "/passengers": ([240.0], [204, 2400]),
            "/cars": ([60.0], [66, 600]),
            "/captain": (["Captain Tove Arden", "Capt. Arden"], ["Hugo Pell", "Tove Ardent"]),
            "/since": ([2024.0], [2023, 2042]),
            "/price": ([35.0], [53, 350, 35.5]),
            "/note": (["The annex has tide tables and a history of the harbour."], ["Visit Reykjavik in 2019 with Captain Cook."]),
        },
    ),
]  # fmt: skip
# what only the right values could tell: it stands at another place of the document, or a whole name
# of it has something added
KNOWN_TO_PASS = frozenset(f"trick: document {form}" for form in (
    "0, wrong, /birthplace Graz, Germany", "0, wrong, /partners 3", "1, wrong, /vat_rate 25",
))  # fmt: skip
_FILLERS: dict[str, Any] = {
    "empty": {"string": "", "integer": 0, "number": 0}, "string": {"string": "string", "integer": 0, "number": 0},
    "unknown": {"string": "unknown", "integer": 1, "number": 1}, "n/a": {"string": "N/A", "integer": 0, "number": 0},
    "lorem": {"string": "Lorem ipsum", "integer": 42, "number": 3.14}, "names": {"string": "John Doe", "integer": 123, "number": 1.5},
    "dots": {"string": "...", "integer": 0, "number": 0.0}, "x": {"string": "x", "integer": 1, "number": 1},
    "the": {"string": "the", "integer": 1, "number": 1}, "of the": {"string": "of the", "integer": 0, "number": 0},
    "schema": {"string": "name", "integer": 0, "number": 0}, "placeholder": {"string": "<value>", "integer": -1, "number": -1},
}  # fmt: skip


def _filled(schema: Value, values: Value) -> Any:
    if schema["type"] == "object":
        return {name: _filled(inner, values) for name, inner in schema["properties"].items()}
    return (
        [_filled(schema["items"], values)] if schema["type"] == "array" else values[schema["type"]]
    )


def documents(match: str | None = None) -> Iterator[tuple[dict[str, Any], Attack]]:
    """A row and an answer to it."""
    for place, (document, schema, gold, changes) in enumerate(_DOCUMENTS):
        asked = f"{document}\n\nAnswer with JSON by this schema: {json_text(schema)}"
        metadata = {"schema": schema, "format": "json"} | ({"match": match} if match else {})
        row: dict[str, Any] = {"question": asked, "gold": gold, "metadata": metadata}

        def attack(
            form: str, right: bool, value: Any, place: int = place, row: dict[str, Any] = row
        ) -> tuple[dict[str, Any], Attack]:
            name = f"trick: document {place}, {'right' if right else 'wrong'}, {form}"
            return row, Attack(name, right, says(json.dumps(value)))

        yield attack("gold", True, gold)
        for name, values in _FILLERS.items():
            yield attack(f"filler {name}", False, _filled(schema, values))
        words = document.split()
        echo = {"string": words[0], "integer": 0, "number": 0}
        yield attack("its first word everywhere", False, _filled(schema, echo))
        number = {"string": document, "integer": 1, "number": 1}
        yield attack("the document everywhere", False, _filled(schema, number))
        other = _DOCUMENTS[(place + 1) % len(_DOCUMENTS)][0].split()
        theirs = {"string": " ".join(other[:2]), "integer": 77, "number": 7.7}
        yield attack("another document's words", False, _filled(schema, theirs))
        for pointer, (right_values, wrong_values) in changes.items():
            for right, values in ((True, right_values), (False, wrong_values)):
                for value in values:
                    changed = copy.deepcopy(gold)
                    inner: Any = changed
                    *path, last = pointer.split("/")[1:]
                    for part in path:
                        inner = inner[int(part)] if isinstance(inner, list) else inner[part]
                    inner[last] = value
                    yield attack(f"{pointer} {value}", right, changed)


# -- tool calls ------------------------------------------------------------------------------------

_ASKS = (
    "Which {word} do you want?", "What {word} should I take?", "Could you tell me the {word}, please?",
    "Please specify the {word}. Which one is it?", "I need the {word}. What is it?", "What's the {word}?",
    "Can you share the {word} with me?", "The {word} is missing. Could you provide it?", "May I have the {word}?",
    "For which {word}?", "Would you let me know the {word}?", "Sure! Just one thing: which {word}?",
    "Before I start: what is the {word} here?", "How should I fill in the {word}?", "Do you have a {word} in mind?",
    "I can help with that. Which {word} is it for?", "Happy to! Please tell me the {word}, okay?",
    "To go on I need to know the {word}. Can you give it to me?",
)  # fmt: skip
_ASKS_NOTHING = (
    "{word}?", "{word} ?", "? {word}", "{word} {word}?", "Hm, {word}?", "{word} missing ?", "{word}. ?", "({word}) ???",
    "Done for your {word}, okay?", "I booked it with the {word}. Anything else?", "Do you like the {word}?",
    "I used a default {word}, fine?", "Is this {word} not lovely?", "Why is there a {word}?", "Nice {word}, right?",
    "The {word} is set. What else can I do?", "I have sent it with that {word}. Is there more?",
    "Who invented the {word}?", "It is done; the {word} was Bonn. Any questions?", "How nice is the {word}?",
)  # fmt: skip


def tool_call_tricks(prompt: Prompt, rng: random.Random) -> Attacks:
    """Questions and what only has their words; values in another case."""
    gold = json.loads(prompt.gold or "{}")
    if "message" in gold:
        [[word], _] = gold["mentions"]
        for right, texts in ((True, _ASKS), (False, _ASKS_NOTHING)):
            for number, text in enumerate(texts):
                form = f"trick: question, {'right' if right else 'wrong'}, {number}"
                yield Attack(form, right, says(text.format(word=word)))
        return
    made = [(call["name"], dict(call["arguments"])) for call in gold["calls"]]
    name, own = made[0]
    for key, value in own.items():
        if not isinstance(value, str):
            continue
        changed = {
            "lower": value.lower(),
            "upper": value.upper(),
            "title": value.title(),
            "swapped": value.swapcase(),
        }
        for form, text in changed.items():
            if text != value:
                call = (name, own | {key: text})
                yield Attack(f"trick: {key} {form}, wrong", False, calls(call, *made[1:]))
        for form, text in {
            "behind": f"{value} ",
            "before": f"\n{value}",
            "stop": f"{value}.",
        }.items():
            yield Attack(
                f"trick: {key} {form}, right", True, calls((name, own | {key: text}), *made[1:])
            )


CALL_TRICKS = {"tool_call": tool_call_tricks}
