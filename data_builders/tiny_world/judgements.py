"""Pairs of answers to questions of the tiny world, with what a judge should say of them and why.

    make_judgement(Place(3, "train", "maths", 7), choices)
    → {"id": "judgement-train-3-maths-7", "messages": [{"role": "user", "content": "Add 3 and 4."}],
       "response_1": "8", "response_2": "7", "score_1": 1, "score_2": 5, "ranking": 6,
       "reasoning": "3+4\\n3+4=7\\n7\\n[A1]8 8=7 no wrong\\n[A2]7 7=7 yes right", "metadata": {…}}

The question is an item of the tiny world and held out as items are; the answers are drawn for it,
each on its own, so that neither position is favoured. Scores and ranking are ours, and so is 3.5,
the middle of the ranking, for two answers of the same worth. The reasoning works the question out
and then holds each answer against the result, digit by digit.
"""

from __future__ import annotations

import random
from typing import Any

from data_builders.keyed import key64
from data_builders.tiny_world.drafts import assistant
from data_builders.tiny_world.items import Choices, Place, make_item
from data_builders.tiny_world.responses import draw_response
from posttrain.records import Message
from reward.genrm import MIDDLE_RANKING, Verdict
from reward.genrm_prompt import judging_messages, verdict_text

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
    asked = judging_messages(
        history, judgement["response_1"], judgement["response_2"], layout=layout
    )
    verdict = Verdict(*(float(judgement[key]) for key in ("score_1", "score_2", "ranking")))
    said = assistant(verdict_text(verdict), judgement["reasoning"])
    return {
        "id": judgement["id"],
        "messages": [*({"role": m.role, "content": m.content} for m in asked), said],
        "metadata": judgement["metadata"],
    }
