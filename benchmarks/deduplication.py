"""What deduplication finds and what it leaves alone, on real sets.

    python benchmarks/deduplication.py --data ../shared/data [--each 200] [--pairs]

Copies are planted: of every set up to `--each` conversations with a message or trace of at least 50
words, with a share of the characters of every text edited at random places (inserted, deleted or
replaced, letters, spaces and points), laid out anew, or published again; and of those whose texts
are all shorter but come to 50 words together. What is found among the sets as they are can be
listed with `--pairs`, to be read. What it costs is measured by `deduplication_cost.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_sets import sets_in
from data_builders.dedup.duplicates import REASONS, Duplicates
from data_builders.dedup.near_text import count_words, near_text, squeeze
from posttrain.config.deduplication import DeduplicationConfig, NearConfig
from posttrain.records import Example, Message, make_example
from tests.data_builders.dedup.copies import chat, deduplicate, edited_copy

WORDS = 50
SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
EXACT = DeduplicationConfig()
NEAR = DeduplicationConfig(near=NearConfig())
Change = Callable[[Example], Example]


def main() -> None:
    parser = argparse.ArgumentParser(description="What deduplication finds on real sets.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--each", type=int, default=200, help="copies planted in each set")
    parser.add_argument("--pairs", action="store_true", help="list what is found unplanted")
    options = parser.parse_args()
    sets = sets_in(options.data)
    with tempfile.TemporaryDirectory() as scratch:
        distinct = unplanted(sets, Path(scratch), listed=options.pairs)
        planted(distinct, options.each, Path(scratch))
        short_prompts(sets, Path(scratch))


def unplanted(
    sets: dict[str, list[Example]], scratch: Path, *, listed: bool
) -> dict[str, list[Example]]:
    """What the sets hold as they are; returns what is left of each."""
    print("| set | records | of 40 words | exact copies | near-duplicates |\n|---|---|---|---|---|")
    left: dict[str, list[Example]] = {}
    for name, examples in sets.items():
        found = deduplicate({name: examples}, NEAR, scratch)
        near = _of_reason(found, "near_duplicate")
        long = sum(near_text(e).words >= 40 for e in examples)
        exact = len(_of_reason(found, "duplicate"))
        print(f"| {name} | {len(examples):,} | {long:,} | {exact:,} | {len(near):,} |", flush=True)
        if listed:
            for place in near:
                row, kept = int(found.row[place]), int(found.kept[place])
                show(examples[row], examples[kept], float(found.similarity[place]))
        gone = set(found.row.tolist())
        left[name] = [e for k, e in enumerate(examples) if k not in gone]
    return left


def _of_reason(found: Duplicates, reason: str) -> list[int]:
    return [k for k, number in enumerate(found.reason.tolist()) if REASONS[number] == reason]


def show(one: Example, other: Example, similarity: float) -> None:
    """The places where two records differ first, on each side."""
    print(f"    {similarity:.4f} {one.id[:8]} {other.id[:8]}")
    a, b = near_text(one), near_text(other)
    for x, y in ((a.prompt, b.prompt), (a.answer, b.answer)):
        at = next((k for k, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), None)
        if at is not None:
            a_side, b_side = x[max(at - 60, 0) : at + 60], y[max(at - 60, 0) : at + 60]
            print(f"      - {a_side!r}\n      + {b_side!r}")


def planted(sets: dict[str, list[Example]], each: int, scratch: Path) -> None:
    """The share of planted copies that is found, by set and kind of copy."""
    kinds = [f"{share:.0%}" for share in SHARES] + ["laid out anew", "published again"]
    print(f"\n| set | copies | {' | '.join(kinds)} |\n|{'---|' * (2 + len(kinds))}")
    for name, examples in sets.items():
        long = [e for e in examples if _longest(e) >= WORDS]
        _found_line(name, long, each, scratch)
        if name == "reasoning_gym":
            _found_line(f"{name}, prose", [e for e in long if _is_prose(e)], each, scratch)
        short = [e for e in examples if _longest(e) < WORDS <= near_text(e).words]
        _found_line(f"{name}, shorter texts", short, each, scratch)


def _longest(example: Example) -> int:
    """Words of the longest text that is edited and compared."""
    turns = [m for m in example.messages if m.role != "system"]
    said = [text for m in turns for text in (m.content, m.reasoning or "")]
    return max(count_words(squeeze(text)) for text in said)


def _found_line(name: str, examples: list[Example], each: int, scratch: Path) -> None:
    if not examples:
        return
    rng = random.Random(0)
    chosen = rng.sample(examples, min(each, len(examples)))
    changes: list[tuple[Change, DeduplicationConfig]] = [
        (lambda e, share=share: edited_copy(e, share, rng), NEAR) for share in SHARES
    ]
    changes += [(lambda e: laid_out(e, rng), EXACT), (published, NEAR)]
    shares: list[str] = []
    for change, config in changes:
        copies = [change(e) for e in chosen]
        found = deduplicate({"first": chosen, "copies": copies}, config, scratch)
        count = sum(row >= len(chosen) for row in found.row.tolist())
        shares.append(f"{count / len(chosen):.3f}")
    print(f"| {name} | {len(chosen)} | {' | '.join(shares)} |", flush=True)


def _is_prose(example: Example) -> bool:
    """At least two thirds letters: no board, no matrix, no circuit."""
    said = near_text(example).prompt
    return 3 * sum(c.isalpha() for c in said) >= 2 * len(said.replace(" ", ""))


def laid_out(example: Example, rng: random.Random) -> Example:
    """The same with other white space, other ids, and JSON indented with its keys in reverse."""
    messages: list[Message] = []
    for m in example.messages:
        calls = tuple(
            replace(c, arguments=indented(c.arguments), id=f"x{rng.randrange(10**9)}")
            for c in m.tool_calls
        )
        messages.append(replace(m, content=spaced(m.content, rng), tool_calls=calls))
    tools = None if example.tools is None else indented(example.tools)
    return make_example(messages, tools=tools, source="copies", dialect="other")


def spaced(text: str, rng: random.Random) -> str:
    """White space between words replaced by other white space; JSON indented."""
    if text.lstrip()[:1] in ("{", "["):
        return indented(text)
    return "".join(rng.choice((" ", "  ", "\n", " \n")) if c.isspace() else c for c in text)


def indented(text: str) -> str:
    """JSON over many lines, the keys of its objects in reverse."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(_reversed(value), indent=3)


def _reversed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return [_reversed(member) for member in value] if isinstance(value, list) else value


def published(example: Example) -> Example:
    """The same without its tools' declarations, under a system text of another publisher."""
    turns = [replace(m, name=None) for m in example.messages if m.role != "system"]
    turns.insert(0, Message("system", "You are a careful and friendly assistant."))
    return make_example(turns, source="copies", license="other", dialect="other")


def short_prompts(sets: dict[str, list[Example]], scratch: Path) -> None:
    """Distinct questions, all with one answer: how many are taken for one another."""
    asked = {
        "questions of gsm8k": [e.messages[0].content for e in sets["gsm8k"]],
        "instructions of alpaca_en": [e.messages[0].content for e in sets["alpaca_en"]],
        "What is a+b?": [f"What is {a}+{b}?" for a in range(100) for b in range(100)],
        "a story of 60 words about a and b": [story(a, b) for a in range(30) for b in range(30)],
        "questions of reasoning_gym": [e.messages[0].content for e in sets["reasoning_gym"]],
    }
    print("\n| prompts | distinct | merged | share |\n|---|---|---|---|")
    config = DeduplicationConfig(prompt=True, near=NearConfig())
    for name, prompts in asked.items():
        # what differs in white space alone is one prompt
        distinct = list({" ".join(p.split()): p for p in prompts}.values())
        found = deduplicate({"a": as_chats(distinct)}, config, scratch)
        count = len(found.row)
        print(f"| {name} | {len(distinct):,} | {count} | {count / len(distinct):.3%} |", flush=True)
        for row, kept in list(zip(found.row.tolist(), found.kept.tolist(), strict=True))[:10]:
            print(f"    {distinct[row][-100:]!r}\n    {distinct[kept][-100:]!r}")


def as_chats(prompts: Sequence[str]) -> list[Example]:
    return [chat(prompt, "See the last page.") for prompt in prompts]


def story(a: int, b: int) -> str:
    """One text but for its two numbers."""
    return (
        f"A baker in a small town fills {a} baskets with bread each morning and carries them to "
        f"the market, where the first of her customers are waiting. On the way she meets a friend "
        f"who gives her {b} baskets more, since his own oven is broken and he has to stay at home "
        f"that day. How many baskets does she have when she comes to the market?"
    )


if __name__ == "__main__":
    main()
