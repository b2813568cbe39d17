"""IFEval's constraints: how many can be checked, and how far strict grading agrees with others.

    NLTK_DATA=DIR python -m benchmarks instruction_following ../shared/data/ifeval.jsonl

Responses are made for each prompt from what it asks for, and then broken in six ways. Every
constraint of every response is checked by the grader `ifeval`, by lm-eval (`pip install lm-eval`),
which comes from the same original, and, for the kinds that a few lines say, by the functions below,
which were written from the prompts' words alone, before anything was compared.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reward.graders.constraints import check_constraints

Row = dict[str, Any]
FILLER = (
    "The river runs past the old mill and the road bends north. People of the town meet there on "
    "market days to trade apples and to hear the news. A bell rings at noon. "
)


def compared(count: int, arguments: Row, number: str) -> bool:
    """True if a count is in IFEval's `relation`, "at least" or "less than", to the bound."""
    bound = arguments[number]
    return count < bound if arguments.get("relation") == "less than" else count >= bound


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def is_json(text: str) -> bool:
    body = re.sub(r"^```(?:json|JSON|Json)?\n?|```$", "", text.strip()).strip()
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def times(text: str, word: str) -> int:
    return len(re.findall(re.escape(word), text, re.IGNORECASE))


# kind of constraint → check that was written from the prompts' words
INDEPENDENT_CHECKS: dict[str, Callable[[str, Row], bool]] = {
    "punctuation:no_comma": lambda text, _: "," not in text,
    "detectable_format:json_format": lambda text, _: is_json(text),
    "detectable_format:title": lambda text, _: any(
        title.strip() for title in re.findall(r"<<([^\n]+)>>", text)
    ),
    "startend:quotation": lambda text, _: (
        len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'
    ),
    "startend:end_checker": lambda text, a: (
        text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower())
    ),
    "length_constraints:number_words": lambda text, a: compared(len(words(text)), a, "num_words"),
    "keywords:existence": lambda text, a: all(times(text, word) for word in a["keywords"]),
    "keywords:frequency": lambda text, a: compared(times(text, a["keyword"]), a, "frequency"),
    "keywords:forbidden_words": lambda text, a: (
        not any(
            re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)
            for word in a["forbidden_words"]
        )
    ),
    "keywords:letter_frequency": lambda text, a: compared(
        text.lower().count(a["letter"].lower()),
        {"relation": a["let_relation"], "n": a["let_frequency"]},
        "n",
    ),
    "detectable_content:number_placeholders": lambda text, a: (
        len(re.findall(r"\[[^\]]*\]", text)) >= a["num_placeholders"]
    ),
    "detectable_format:number_bullet_lists": lambda text, a: (
        len(re.findall(r"^[ \t]*(?:\*(?!\*)|-)", text, re.MULTILINE)) == a["num_bullets"]
    ),
    "combination:repeat_prompt": lambda text, a: (
        text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())
    ),
    "combination:two_responses": lambda text, _: (
        len(parts := [part.strip() for part in text.split("******")]) == 2
        and all(parts)
        and parts[0] != parts[1]
    ),
}


def obedient_response(row: Row) -> str:
    """Response that tries to keep what the prompt asks for."""
    constraints = dict(zip(row["instruction_id_list"], row["kwargs"], strict=True))
    parts = [FILLER * 2]
    for name, a in constraints.items():
        kind = name.partition(":")[2]
        if kind == "existence":
            parts.append(" ".join(a["keywords"]) + ".")
        elif kind == "frequency" and a["relation"] == "at least":
            parts.append(" ".join([a["keyword"]] * a["frequency"]) + ".")
        elif kind == "letter_frequency" and a["let_relation"] == "at least":
            parts.append(a["letter"] * a["let_frequency"])
        elif kind == "number_words" and a["relation"] == "at least":
            parts.append(FILLER * (a["num_words"] // 30))
        elif kind == "number_placeholders":
            parts.append(" ".join(f"[name {k}]" for k in range(a["num_placeholders"])))
        elif kind == "number_bullet_lists":
            parts.append("".join(f"\n* point {k}" for k in range(a["num_bullets"])))
        elif kind == "number_highlighted_sections":
            parts.append(" ".join(f"*part {k}*" for k in range(a["num_highlights"])))
        elif kind == "multiple_sections":
            name = a["section_spliter"]
            parts += [f"\n{name} {k + 1}\n{FILLER}" for k in range(a["num_sections"])]
        elif kind == "number_paragraphs":
            parts.append("\n***\n".join([FILLER] * a["num_paragraphs"]))
        elif kind == "nth_paragraph_first_word":
            paragraphs = [f"{a['first_word']} {FILLER}"] * a["num_paragraphs"]
            parts = ["\n\n".join(paragraphs)]
        elif kind == "number_sentences":
            parts.append("A short one. " * a["num_sentences"])
        elif kind == "capital_word_frequency":
            parts.append("LOUD " * a["capital_frequency"])
        elif kind == "postscript":
            parts.append(f"\n{a['postscript_marker']} One more thing.")
    text = " ".join(parts)
    if "combination:two_responses" in constraints:
        text = f"{text}\n******\nAnother answer. {FILLER}"
    if "detectable_format:title" in constraints:
        text = f"<<A title>>\n{text}"
    if "combination:repeat_prompt" in constraints:
        text = f"{constraints['combination:repeat_prompt']['prompt_to_repeat']}\n{text}"
    if "detectable_format:json_format" in constraints:
        text = json.dumps({"answer": text})
    if "startend:end_checker" in constraints:
        text = f"{text} {constraints['startend:end_checker']['end_phrase']}"
    if "change_case:english_capital" in constraints:
        text = text.upper()
    if "change_case:english_lowercase" in constraints:
        text = text.lower()
    if "detectable_format:constrained_response" in constraints:
        text = "My answer is yes."
    return f'"{text}"' if "startend:quotation" in constraints else text


def responses(row: Row) -> list[str]:
    """Response that tries to keep the constraints of a row, then six that are broken."""
    text = obedient_response(row)
    return [
        text,
        text[: len(text) // 2],
        text.upper(),
        text.lower(),
        f"Sure, here it is:\n{text}\nEnjoy!",
        text.replace(".", ",").replace("*", ""),
        f"**{text}**",
    ]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="IFEval's rows")


def main(options: Namespace) -> None:
    rows = [json.loads(line) for line in options.file.read_text("utf-8").splitlines()]
    checkable: Counter[bool] = Counter()
    checkable_prompts = 0
    for row in rows:
        checkable_in_row: list[bool] = []
        for name, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            result = check_constraints("ifeval", [name], [kwargs], row["prompt"], FILLER)
            checkable_in_row.append(result["problem"] is None)
        checkable.update(checkable_in_row)
        checkable_prompts += all(checkable_in_row)
    print(f"constraints checkable: {checkable[True]} of {checkable.total()}")
    print(f"prompts with all of theirs checkable: {checkable_prompts} of {len(rows)}")
    from lm_eval.tasks.ifeval.utils import InputExample, test_instruction_following_strict

    outcomes: dict[str, Counter[bool]] = {"lm-eval": Counter(), "own": Counter()}
    differences: dict[str, Counter[str]] = {"lm-eval": Counter(), "own": Counter()}
    kept: Counter[bool] = Counter()
    for row in rows:
        names = row["instruction_id_list"]
        arguments = row["kwargs"]
        for text in responses(row):
            result = check_constraints("ifeval", names, arguments, row["prompt"], text)
            if result["problem"] is not None:
                continue
            verdicts = [is_kept for is_kept, _ in result["results"]]
            kept.update(verdicts)
            example = InputExample(row["key"], names, row["prompt"], arguments)
            by_lm_eval = test_instruction_following_strict(example, text).follow_instruction_list
            for name, kwargs, verdict, lm_eval_verdict in zip(
                names, arguments, verdicts, by_lm_eval, strict=True
            ):
                checks = {"lm-eval": lm_eval_verdict}
                if name in INDEPENDENT_CHECKS:
                    checks["own"] = INDEPENDENT_CHECKS[name](text, kwargs)
                for judge, other_verdict in checks.items():
                    outcomes[judge][other_verdict == verdict] += 1
                    if other_verdict != verdict:
                        differences[judge][name] += 1
    print(f"constraints checked: {kept.total()}, of which kept: {kept[True]}")
    for judge, counts in outcomes.items():
        differing = dict(differences[judge])
        print(f"agreement with {judge}: {counts[True]} of {counts.total()}; {differing}")
