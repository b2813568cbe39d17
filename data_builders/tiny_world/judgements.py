"""Pairs of answers to questions of the tiny world, with what a judge should say of them and why.

The answers are drawn each on its own, so that neither position is favoured. The reasoning works the
question out and then holds each answer against the result, digit by digit.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from data_builders.keyed import key64
from data_builders.tiny_world.drafts import assistant, user
from data_builders.tiny_world.items import Choices, Place, make_item
from posttrain.config.tiny_world import TinyJudgementsConfig
from posttrain.records import Message, json_text
from posttrain.runs import Counts, Manifest, Run, atomic_write_text
from reward.judge.prompt import judging_messages, verdict_text
from reward.judge.verdict import MIDDLE_RANKING, Verdict

# how much better answer 1 is, in points → the ranking; the other side mirrors it
_RANKINGS = {0: MIDDLE_RANKING, 1: 3.0, 2: 2.0, 3: 1.0, 4: 1.0}


def ranking_of(score_1: int, score_2: int) -> float:
    """1 (answer 1 much better) … 6 (answer 2 much better) as the scores differ."""
    ahead = score_1 - score_2
    ranking = _RANKINGS[abs(ahead)]
    return ranking if ahead >= 0 else 2 * MIDDLE_RANKING - ranking


def make_judgement(place: Place, choices: Choices) -> dict[str, Any]:
    """One pair with its judgement; the same place is always the same pair."""
    item = make_item(place, choices)
    metadata = item["metadata"]
    assert metadata["grading"] == "number", f"{place.family} has answers that are no numbers"
    rng = random.Random(key64(place.seed, "judgement", item["id"]))
    first, second = (draw_response(rng, metadata["gold"]) for _ in range(2))
    worked = item["reference"][-1]["reasoning_content"]
    kept = ("family", "task", "split", "difficulty", "turns", "gold")
    return {
        "id": f"judgement-{item['id']}",
        "messages": item["prompt"],
        "response_1": first.text,
        "response_2": second.text,
        "score_1": first.score,
        "score_2": second.score,
        "ranking": ranking_of(first.score, second.score),
        "reasoning": f"{worked}\n{metadata['gold']}\n[A1]{first.remark}\n[A2]{second.remark}",
        "metadata": {key: metadata[key] for key in kept} | {"kinds": [first.kind, second.kind]},
    }


def warm_up_row(judgement: dict[str, Any], *, layout: str) -> dict[str, Any]:
    """The judgement as a conversation to be trained on: judging prompt, reasoning, verdict."""
    history = [Message(m["role"], m["content"]) for m in judgement["messages"]]
    sides = judgement["response_1"], judgement["response_2"]
    prompt = judging_messages(history, *sides, layout=layout)
    verdict = Verdict(*(float(judgement[key]) for key in ("score_1", "score_2", "ranking")))
    reply = assistant(verdict_text(verdict), judgement["reasoning"])
    return {
        "id": judgement["id"],
        "messages": [*({"role": m.role, "content": m.content} for m in prompt), reply],
        "metadata": judgement["metadata"],
    }


LINES = 16
SAME = 0.5  # about half of the lines, where chance would make it a tenth


def drill_row(index: int, *, seed: int) -> dict[str, Any]:
    """One conversation of `LINES` comparisons; the same seed and index are always the same row."""
    rng = random.Random(key64(seed, "drill", index))
    ones = (rng.choice("0123456789") for _ in range(LINES))
    pairs = [(one, one if rng.random() < SAME else rng.choice("0123456789")) for one in ones]
    question = "\n".join(f"{one} {other}" for one, other in pairs)
    worked = "\n".join(same_or_not(one, other) for one, other in pairs)
    return {
        "id": f"drill-{seed}-{index}",
        "messages": [user(question), assistant("done", worked)],
        "metadata": {"family": "drill", "difficulty": 1},
    }


# about what a model of this size answers, with more of what it seldom does
WEIGHTS = {
    "right": 0.5,
    "wrong": 0.31,
    "worded": 0.06,
    "worded_wrong": 0.02,
    "unknown": 0.03,
    "empty": 0.02,
    "called": 0.02,
    "hedged": 0.02,
    "begging": 0.02,
}
_CALL = '{{"call":"calculate","arguments":"{{\\"expression\\":\\"{n}\\"}}"}}'
SENTENCES = ("The answer is {n}.", "So the result is {n}.")
PLEAS = ("{n}. Yes, right.", "{n}. The answer is right.")


@dataclass(frozen=True, slots=True)
class Response:
    """A final answer; `remark` is what a judge that reasons says of it."""

    text: str
    kind: str
    score: int
    remark: str


def _other_digit(rng: random.Random, gold: int) -> int:
    digits = list(str(gold))
    digits[rng.randrange(len(digits))] = rng.choice("0123456789")
    return int("".join(digits))


Slip = Callable[[random.Random, int], int]
_SLIPS: tuple[Slip, ...] = (
    *[lambda rng, gold: gold + rng.choice((-2, -1, 1, 2))] * 2,
    lambda rng, gold: gold + rng.choice((-10, 10)),
    *[_other_digit] * 2,
    lambda rng, gold: rng.randint(0, 2 * gold + 9),
    lambda rng, gold: int(str(gold)[::-1]),
)


def near_miss(rng: random.Random, gold: int) -> int:
    """A number as slips make it: a neighbour, one digit off, a carry lost, digits swapped.

    Never `gold`, never negative.
    """
    while True:
        other = rng.choice(_SLIPS)(rng, gold)
        if other >= 0 and other != gold:
            return other


def same_or_not(one: str, other: str) -> str:
    """Two digits held against each other: same_or_not("1", "2") == "1=2 no"."""
    return f"{one}={other} {'yes' if one == other else 'no'}"


def compared(answer: str, gold: str) -> str:
    """Two numbers held against each other digit by digit: "6=6 yes 1=2 no wrong"."""
    seen: list[str] = []
    for one, other in itertools.zip_longest(answer, gold, fillvalue="-"):
        seen.append(same_or_not(one, other))
        if one != other:
            return " ".join([*seen, "wrong"])
    return " ".join([*seen, "right"])


def draw_response(rng: random.Random, gold: str) -> Response:
    """One answer to a question whose right answer is the number `gold`, none negative."""
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    wrong = str(near_miss(rng, int(gold)))
    right, not_right = f"{gold} {compared(gold, gold)}", f"{wrong} {compared(wrong, gold)}"
    sentence, plea = rng.choice(SENTENCES), rng.choice(PLEAS)
    both = [gold, wrong]
    rng.shuffle(both)
    text, score, remark = {
        "right": (gold, 5, right),
        "wrong": (wrong, 1, not_right),
        "worded": (sentence.format(n=gold), 4, f"{right} in words"),
        "worded_wrong": (sentence.format(n=wrong), 1, not_right),
        "unknown": ("unknown", 2, "unknown"),
        "empty": ("", 1, "no answer"),
        "called": (_CALL.format(n=wrong), 1, "no answer"),
        "hedged": (" or ".join(both), 1, "no one answer"),
        "begging": (plea.format(n=wrong), 1, not_right),
    }[kind]
    return Response(text, kind, score, remark)


def write_judgements(run: Run, config: TinyJudgementsConfig) -> Manifest:
    """Write the artifact: warm-up, training and held-out rows, and the manifest."""
    files: dict[str, int | None] = {}
    dropped: Counter[str] = Counter()
    parts = {"drills": [drill_row(k, seed=config.seed) for k in range(config.drills)]}
    for name, pairs in _pairs_of_files(config).items():
        kept = _distinct(pairs)
        dropped["repeated_pair"] += len(pairs) - len(kept)
        warm = name == "warm_up"
        parts[name] = [warm_up_row(p, layout=config.layout) for p in kept] if warm else kept
    for name, rows in parts.items():
        atomic_write_text(
            run.path / f"{name}.jsonl", "".join(json_text(row) + "\n" for row in rows)
        )
        files[f"{name}.jsonl"] = len(rows)
    written = sum(rows or 0 for rows in files.values())
    counts = Counts(written + dropped.total(), written, dict(dropped))
    return run.finish(counts=counts, files=files, seed=config.seed)


def _pairs_of_files(config: TinyJudgementsConfig) -> dict[str, list[dict[str, Any]]]:
    parts: dict[str, list[dict[str, Any]]] = {"warm_up": [], "train": [], "heldout": []}
    for family, rows in config.families.items():
        choices = Choices(rows.difficulties, (1, 0, 0), tools_declared=0, several_turns=0)
        places = (Place(config.seed, "train", family, index) for index in itertools.count())
        pairs = (make_judgement(place, choices) for place in places)
        parts["warm_up"] += itertools.islice(pairs, rows.warm_up)
        parts["train"] += itertools.islice(pairs, rows.train)
        held_out = (Place(config.heldout_seed, "heldout", family, k) for k in range(rows.heldout))
        parts["heldout"] += (make_judgement(place, choices) for place in held_out)
    return parts


def _distinct(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("messages", "response_1", "response_2")
    return list({json_text([pair[key] for key in keys]): pair for pair in pairs}.values())
