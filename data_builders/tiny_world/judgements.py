"""Pairs of answers to questions of the tiny world, with the judgement that a judge should give.

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
from data_builders.tiny_world.drafts import assistant_message, user_message
from data_builders.tiny_world.items import Choices, Place, make_item
from posttrain.config.tiny_world import TinyJudgementsConfig
from posttrain.records import Message, json_text
from posttrain.runs import Counts, Manifest, Run, atomic_write_text
from reward.judge.prompt import judging_messages, verdict_text
from reward.judge.verdict import MIDDLE_RANKING, Verdict

# points by which answer 1 is better → the ranking; the other side mirrors it
_RANKINGS = {0: MIDDLE_RANKING, 1: 3.0, 2: 2.0, 3: 1.0, 4: 1.0}


def ranking_of(score_1: int, score_2: int) -> float:
    """Ranking that fits two scores: 1 (answer 1 much better) … 6 (answer 2 much better)."""
    lead = score_1 - score_2
    ranking = _RANKINGS[abs(lead)]
    return ranking if lead >= 0 else 2 * MIDDLE_RANKING - ranking


def make_judgement(place: Place, choices: Choices) -> dict[str, Any]:
    """Make one pair with its judgement; the same place is always the same pair."""
    item = make_item(place, choices)
    metadata = item["metadata"]
    assert metadata["grading"] == "number", f"{place.family} has answers that are no numbers"
    rng = random.Random(key64(place.seed, "judgement", item["id"]))
    first = draw_response(rng, metadata["gold"])
    second = draw_response(rng, metadata["gold"])
    solution = item["reference"][-1]["reasoning_content"]
    kept_keys = ("family", "task", "split", "difficulty", "turns", "gold")
    return {
        "id": f"judgement-{item['id']}",
        "messages": item["prompt"],
        "response_1": first.text,
        "response_2": second.text,
        "score_1": first.score,
        "score_2": second.score,
        "ranking": ranking_of(first.score, second.score),
        "reasoning": f"{solution}\n{metadata['gold']}\n[A1]{first.remark}\n[A2]{second.remark}",
        "metadata": {key: metadata[key] for key in kept_keys}
        | {"kinds": [first.kind, second.kind]},
    }


def warm_up_row(judgement: dict[str, Any], *, layout: str) -> dict[str, Any]:
    """Training row of a judgement: a conversation of judging prompt, reasoning and verdict."""
    history = [Message(message["role"], message["content"]) for message in judgement["messages"]]
    prompt = judging_messages(
        history, judgement["response_1"], judgement["response_2"], layout=layout
    )
    verdict = Verdict(
        float(judgement["score_1"]), float(judgement["score_2"]), float(judgement["ranking"])
    )
    messages = [{"role": message.role, "content": message.content} for message in prompt]
    reply = assistant_message(verdict_text(verdict), judgement["reasoning"])
    return {
        "id": judgement["id"],
        "messages": [*messages, reply],
        "metadata": judgement["metadata"],
    }


DRILL_LINES = 16
# share of the lines that are made equal, where chance would make it a tenth
SAME_SHARE = 0.5


def drill_row(index: int, *, seed: int) -> dict[str, Any]:
    """Make one conversation that compares digits; the same seed and index are the same row."""
    rng = random.Random(key64(seed, "drill", index))
    pairs: list[tuple[str, str]] = []
    for _ in range(DRILL_LINES):
        left = rng.choice("0123456789")
        right = left if rng.random() < SAME_SHARE else rng.choice("0123456789")
        pairs.append((left, right))
    question = "\n".join(f"{left} {right}" for left, right in pairs)
    reasoning = "\n".join(same_or_not(left, right) for left, right in pairs)
    return {
        "id": f"drill-{seed}-{index}",
        "messages": [user_message(question), assistant_message("done", reasoning)],
        "metadata": {"family": "drill", "difficulty": 1},
    }


# relative weights of the kinds of answers: about what a model of this size answers, with more of
# what it seldom does
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
    """A final answer.

    Attributes:
        kind: key of `WEIGHTS`.
        score: 1 (worst) … 5.
        remark: reasoning of a judge about it.
    """

    text: str
    kind: str
    score: int
    remark: str


def _replace_digit(rng: random.Random, gold: int) -> int:
    digits = list(str(gold))
    digits[rng.randrange(len(digits))] = rng.choice("0123456789")
    return int("".join(digits))


Slip = Callable[[random.Random, int], int]
_SLIPS: tuple[Slip, ...] = (
    *[lambda rng, gold: gold + rng.choice((-2, -1, 1, 2))] * 2,
    lambda rng, gold: gold + rng.choice((-10, 10)),
    *[_replace_digit] * 2,
    lambda rng, gold: rng.randint(0, 2 * gold + 9),
    lambda rng, gold: int(str(gold)[::-1]),
)


def near_miss(rng: random.Random, gold: int) -> int:
    """Draw a wrong number as slips make it: a neighbour, one digit off, a lost carry, reversed.

    Never `gold`, never negative.
    """
    while True:
        number = rng.choice(_SLIPS)(rng, gold)
        if number >= 0 and number != gold:
            return number


def same_or_not(left: str, right: str) -> str:
    """Compare two digits: same_or_not("1", "2") == "1=2 no"."""
    return f"{left}={right} {'yes' if left == right else 'no'}"


def compared(answer: str, gold: str) -> str:
    """Compare two numbers digit by digit, up to the first difference: "6=6 yes 1=2 no wrong"."""
    comparisons: list[str] = []
    for answer_digit, gold_digit in itertools.zip_longest(answer, gold, fillvalue="-"):
        comparisons.append(same_or_not(answer_digit, gold_digit))
        if answer_digit != gold_digit:
            return " ".join([*comparisons, "wrong"])
    return " ".join([*comparisons, "right"])


def draw_response(rng: random.Random, gold: str) -> Response:
    """Draw an answer to a question whose right answer is the number `gold`, not negative."""
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    # drawn for every kind, so that the second answer does not depend on the kind of the first
    wrong = str(near_miss(rng, int(gold)))
    sentence = rng.choice(SENTENCES)
    plea = rng.choice(PLEAS)
    hedge = [gold, wrong]
    rng.shuffle(hedge)
    right_remark = f"{gold} {compared(gold, gold)}"
    wrong_remark = f"{wrong} {compared(wrong, gold)}"
    text, score, remark = {
        "right": (gold, 5, right_remark),
        "wrong": (wrong, 1, wrong_remark),
        "worded": (sentence.format(n=gold), 4, f"{right_remark} in words"),
        "worded_wrong": (sentence.format(n=wrong), 1, wrong_remark),
        "unknown": ("unknown", 2, "unknown"),
        "empty": ("", 1, "no answer"),
        "called": (_CALL.format(n=wrong), 1, "no answer"),
        "hedged": (" or ".join(hedge), 1, "no one answer"),
        "begging": (plea.format(n=wrong), 1, wrong_remark),
    }[kind]
    return Response(text, kind, score, remark)


def write_judgements(run: Run, config: TinyJudgementsConfig) -> Manifest:
    """Write the artifact: warm-up, training and held-out rows, and the manifest."""
    files: dict[str, int | None] = {}
    dropped: Counter[str] = Counter()
    rows_by_file = {"drills": [drill_row(k, seed=config.seed) for k in range(config.drills)]}
    for name, pairs in _make_pairs(config).items():
        rows = _drop_repeated_pairs(pairs)
        dropped["repeated_pair"] += len(pairs) - len(rows)
        if name == "warm_up":
            # as `recipes/tiny/build_genrm.yaml` asks the judge afterwards
            rows = [warm_up_row(pair, layout="compact") for pair in rows]
        rows_by_file[name] = rows
    for name, rows in rows_by_file.items():
        text = "".join(json_text(row) + "\n" for row in rows)
        atomic_write_text(run.path / f"{name}.jsonl", text)
        files[f"{name}.jsonl"] = len(rows)
    written = sum(count or 0 for count in files.values())
    counts = Counts(written + dropped.total(), written, dict(dropped))
    return run.finish(counts=counts, files=files, seed=config.seed)


def _make_pairs(config: TinyJudgementsConfig) -> dict[str, list[dict[str, Any]]]:
    """Judged pairs of each file, repeats included."""
    pairs_by_file: dict[str, list[dict[str, Any]]] = {"warm_up": [], "train": [], "heldout": []}
    for family, amounts in config.families.items():
        choices = Choices(amounts.difficulties, (1, 0, 0), tools_declared=0, several_turns=0)
        # training pairs go on where those of the warm-up end
        places = (Place(config.seed, "train", family, index) for index in itertools.count())
        pairs = (make_judgement(place, choices) for place in places)
        pairs_by_file["warm_up"] += itertools.islice(pairs, amounts.warm_up)
        pairs_by_file["train"] += itertools.islice(pairs, amounts.train)
        for index in range(amounts.heldout):
            place = Place(config.heldout_seed, "heldout", family, index)
            pairs_by_file["heldout"].append(make_judgement(place, choices))
    return pairs_by_file


def _drop_repeated_pairs(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs with distinct question and answers; of repeated ones the last, in the first's place."""
    distinct_pairs: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        content = [pair["messages"], pair["response_1"], pair["response_2"]]
        distinct_pairs[json_text(content)] = pair
    return list(distinct_pairs.values())
