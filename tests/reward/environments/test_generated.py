"""Generated families: gold passes, wrong completions do not, and right ones in other forms do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.records import Message
from posttrain.rollouts import Parameters, RolloutLimits, metadata_of
from posttrain.sampling.rollout import Task, roll_out
from posttrain.sampling.sampler import Request
from reward.environments import ENVIRONMENTS
from reward.environments.base import RLVREnvironment, calls, replay, says
from reward.environments.long_context import copied_share
from tests.reward.environments.scoring import verify
from tests.sampling.scripted import END, Scripted

FAMILIES = ("workplace", "scheduling", "long_context", "conversation")


def tasks(name: str, count: int, seed: int = 7) -> tuple[RLVREnvironment, list[dict[str, Any]]]:
    environment = ENVIRONMENTS[name]()
    return environment, environment.rows(seed=seed, count=count)


@pytest.mark.parametrize("name", FAMILIES)
def test_gold_passes_and_wrong_completions_get_nothing(name: str):
    environment, rows = tasks(name, 4)
    assert json.dumps(rows) == json.dumps(tasks(name, 4)[1])
    assert rows != tasks(name, 4, seed=8)[1]
    for row in rows:
        prompt = environment.prompt(row)
        script = environment.gold(prompt) or ()
        gold, *others = verify(environment, prompt, script, "", *environment.wrong(prompt))
        assert gold.value == 1, gold
        assert [score.value for score in others] == [0] * len(others)
        assert len(others) > 6


# -- workplace -------------------------------------------------------------------------------------


def test_whatever_route_leads_to_the_gold_s_state_passes():
    environment, rows = tasks("workplace", 30)
    row = next(r for r in rows if len(r["metadata"]["calls"]) > 1)
    prompt = environment.prompt(row)
    made = row["metadata"]["calls"]
    junk = {"sender": "a@b", "recipient": "c@d", "subject": "s", "body": "b", "date": "2031-03-10"}
    right, undone, extra = verify(
        environment,
        prompt,
        (
            *calls(("search_emails", {"subject": "re"}), ("create_email", junk), ("fly", {})),
            *(message for call in reversed(made) for message in calls(call)),
        ),
        (*calls(*made, ("delete_event", {"id": "events-1"})), *says("All of it is done.")),
        (*calls(*made, ("update_task", {"id": "tasks-1", "due": "2031-12-31"})), *says("ok")),
    )
    assert [right.value, undone.value, extra.value] == [1, 0, 0]


@pytest.mark.parametrize(
    "made",
    [
        [],
        [["update_task", {"id": "tasks-99", "status": "done"}]],
        [["update_task", {"id": "tasks-1", "assignee": "nobody@nowhere"}]],
        [["update_task", {"id": "tasks-1", "status": "paused"}]],
    ],
)
def test_a_gold_that_does_nothing_or_cannot_be_done_is_refused(made: list[Any]):
    environment, (row,) = tasks("workplace", 1)
    with pytest.raises(DataError):
        environment.prompt(row | {"metadata": {**row["metadata"], "calls": made}})


def test_a_table_that_lacks_something_is_refused_or_an_error_that_the_model_reads():
    environment, (row,) = tasks("workplace", 1)
    del row["metadata"]["tables"]["tasks"]["tasks-2"]["due"]
    with pytest.raises(DataError):
        environment.prompt(row)
    environment, (row,) = tasks("conversation", 1)
    prompt = environment.prompt(row)
    del row["metadata"]["tables"]["accounts"]["accounts-4"]["customer"]
    state = environment.open(replace(prompt, metadata=json.dumps(row["metadata"])))
    assert state is not None
    assert asyncio.run(state.call("order_card", {"account": "accounts-4"})).startswith("error:")


# -- scheduling ------------------------------------------------------------------------------------


def calendar(*entries: tuple[int, str, int]) -> str:
    names = ("event_id", "start_time", "duration")
    return json.dumps([dict(zip(names, entry, strict=True)) for entry in entries])


DAY = {"min_time": "10:00", "max_time": "16:00"}
EVENTS = {
    "0": {"duration": 60, "constraint": "between 10am and 11:45am", **DAY},
    "1": {"duration": 60, "constraint": "before 1:45\u202fpm", **DAY},
    "2": {"duration": 30, "constraint": "at 2pm", **DAY},
    "3": {"duration": 30, "constraint": None, "after": [2], **DAY},
}
EARLY = ((0, "10:00", 60), (1, "11:00", 60), (2, "14:00", 30), (3, "14:30", 30))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (calendar(*EARLY), 1),
        (f"Here you are:\n```json\n{calendar(*reversed(EARLY))}\n```\nAnything else?", 1),
        (calendar((1, "12:45", 60), (0, "10:45", 60), (3, "15:30", 30), (2, "14:00", 30)), 1),
        (calendar((0, "10:00", 60), (1, "12:46", 60), *EARLY[2:]), 0),
        (calendar((0, "10:00", 60), (1, "10:59", 60), *EARLY[2:]), 0),
        (calendar(*EARLY[:2], (2, "14:15", 30), (3, "15:00", 30)), 0),
        (calendar(*EARLY[:3], (3, "13:00", 30)), 0),
        (calendar(*EARLY[:3], (3, "15:45", 30)), 0),
        (calendar(*EARLY, (4, "15:00", 30)), 0),
        (calendar(*EARLY[:3]), 0),
        (calendar(*EARLY) + calendar(*EARLY), 0),
        (f"{calendar(*EARLY)}\n\nEvents [0] and [1] do not overlap.[^1]", 1),
        (f"{calendar(*EARLY)} is wrong.", 0),
        (f"[{calendar(*EARLY)}]", 0),
        ('[{"a": ' + "[" * 60_000, 0),
        (calendar(*EARLY).replace("10:00", "24:00"), 0),
        (calendar(*EARLY).replace('"event_id": 1', '"event_id": true'), 0),
        ("[{" * 60_000, 0),
        ("[ " * 60_000, 0),
    ],
)
def test_any_calendar_that_meets_the_constraints_passes(answer: str, value: float):
    environment = ENVIRONMENTS["scheduling"]()
    prompt = environment.prompt({"question": "Plan.", "metadata": {"events": EVENTS}})
    completion = asyncio.run(replay(environment, prompt, says(answer)))
    assert environment.check(prompt, completion).value == value


@pytest.mark.parametrize(
    "change",
    [{"constraint": "around noon"}, {"constraint": "at 9am"}, {"after": [3]}, {"duration": 0},
     {"constraint": "before 10:59am"}, {"after": [7]}],
)  # fmt: skip
def test_constraints_that_nothing_meets_or_nobody_understands_are_refused(change: dict[str, Any]):
    events = EVENTS | {"0": EVENTS["0"] | change}
    if "after" in change:
        events["2"] = EVENTS["2"] | {"after": [0]}
    with pytest.raises(DataError):
        ENVIRONMENTS["scheduling"]().prompt({"question": "Plan.", "metadata": {"events": events}})


# -- long context ----------------------------------------------------------------------------------


def solved(documents: Sequence[str], question: str) -> str | None:
    """The answer by another way than the generator's: facts are read out of the documents."""
    text = "\n".join(documents)
    if "parcel" in question:
        onward = dict(re.findall(r"Depot (\w+) sends parcels on to depot (\w+)", text))
        place, days = re.search(r"depot (\w+) on", question), re.search(r"day (\d+)\?", question)
        assert place is not None
        assert days is not None
        depot: str | None = place[1]
        for _ in range(int(days[1]) - 1):
            depot = onward.get(depot or "")
        return depot
    asked = re.search(r"crates of (\w+) do the depots in (the \w+)", question)
    assert asked is not None
    held = re.findall(
        rf"Depot (\w+) lies in {asked[2]}\. It holds (\d+) crates of {asked[1]}", text
    )
    broken = re.findall(rf"Memo: (\d+) crates of {asked[1]} at depot (\w+)", text)
    return str(sum(int(n) for _, n in held) - sum(int(n) for n, _ in broken))


def test_every_needed_document_is_needed_and_there_are_five():
    _, rows = tasks("long_context", 12)
    for row in rows:
        *documents, question = row["question"].split("\n\n")
        needed = row["metadata"]["needed"]
        assert len(needed) >= 5
        assert solved(documents, question) == row["gold"]
        for number in needed:
            rest = [text for k, text in enumerate(documents, 1) if k != number]
            assert solved(rest, question) != row["gold"]
    assert {"parcel" in row["question"].split("\n\n")[-1] for row in rows} == {True, False}


def test_copying_the_prompt_costs_and_an_own_line_counts_whatever_its_marks():
    environment, (row,) = tasks("long_context", 1)
    prompt = environment.prompt(row)
    half = " ".join(prompt.messages[0].content.split()[:200])
    thought = Message("assistant", f"Answer: {row['gold']}", reasoning=half)
    copied, *right = verify(
        environment,
        prompt,
        (thought,),
        f"I went through them.\n\n**Answer:** {row['gold']}.",
        f"Final answer: `{row['gold']}`",
    )
    assert [score.value for score in right] == [1, 1]
    assert 0 <= (copied.value or 0) < 0.05
    assert copied_share(" ".join(f"w{k}" for k in range(100)), prompt.messages) == 0
    row["metadata"]["copy_penalty"] = False
    [free] = verify(environment, environment.prompt(row), (thought,))
    assert free.value == 1
    row["metadata"]["copy_penalty"] = "no"
    with pytest.raises(DataError, match="copy_penalty: neither true nor false"):
        environment.prompt(row)
    names = environment.prompt(
        {"question": "Which? Answer: [a, b]", "gold": '["n1", "n2"]', "metadata": {}}
    )
    texts = ("Answer: [n2, n1]", "Answer: [n2]", "Answer: [n1, n2, n3]", "Answer: n1, n2")
    scores = verify(environment, names, *texts)
    assert [score.value for score in scores] == [1, 0, 0, 0]


# -- conversation ----------------------------------------------------------------------------------


def clerk(moves: Sequence[str]):
    """A model that makes these moves; `{reference}` is what the last tool returned."""

    def script(request: Request, _: object) -> str:
        number = sum(m.role == "assistant" for m in request.messages)
        results = [m.content for m in request.messages if m.role == "tool"]
        reference = results[-1] if results else ""
        move = moves[min(number, len(moves) - 1)].replace("{reference}", reference)
        return f"I must not say: {results[:1]}.</think>{move}{END}"

    return script


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def test_a_conversation_in_the_rollout_loop_is_state_said_and_unsaid():
    environment, rows = tasks("conversation", 24)
    row = next(
        r
        for r in rows
        if r["metadata"]["forbidden"] and r["metadata"]["forbidden"][0][0] == "transfer"
    )
    prompt = environment.prompt(row)
    metadata: Mapping[str, Any] = metadata_of(prompt)
    case = call_text("open_case", {"kind": "transfer_limit"})
    transfer = call_text(*metadata["forbidden"][0])
    start = ["Your code, please?", call_text(*metadata["calls"][0]), "How much is it?", case]
    done, declined = "A colleague takes over: {reference}.", "I am sorry, no."
    leak = f"It says: {'.'.join(metadata['never_say'][0])}!"

    def value(moves: Sequence[str]) -> float | None:
        [completion] = asyncio.run(
            roll_out(
                [Task(prompt, 0, 1)],
                Scripted(clerk(moves)),
                open_environment=environment.open,
                limits=RolloutLimits(Parameters(max_tokens=4000), max_turns=12),
            )
        )
        return asyncio.run(environment.verify(prompt, completion)).value

    made = [call for row in rows for call in row["metadata"]["calls"]]
    assert all(given["amount"] <= 500 for name, given in made if name == "transfer")  # the policy's
    assert value([*start, done, declined]) == 1
    for moves in ([*start, declined], [*start, done, transfer], [*start, done, leak], ["Hm."]):
        assert value(moves) == 0


def test_a_user_gives_what_is_asked_for_and_gives_up_in_the_end():
    environment, (row,) = tasks("conversation", 1)
    prompt = environment.prompt(row)
    code, card = (fact["text"] for fact in row["metadata"]["user"]["facts"])
    for turns, replies in {
        ("The code and which card?",): [f"{code} {card}"],
        ("Which card?", "And the code?"): [card, code],
        ("Hm.",) * 5: [code, card],
    }.items():
        script = tuple(message for text in turns for message in says(text))
        completion = asyncio.run(replay(environment, prompt, script))
        users = [m.content for m in completion.messages if m.role == "user"]
        assert users == replies
    without = {"metadata": {**row["metadata"], "calls": row["metadata"]["calls"][:1]}}
    with pytest.raises(DataError, match="no gold call gives a reference"):
        environment.prompt(row | without)
