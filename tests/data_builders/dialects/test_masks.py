"""Loss masks that rows carry; rows as other projects document them: read as they say, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from data_builders.rows.raw import RawRow
from data_builders.rows.read import PlacedExample, RowCounts, examples_of
from posttrain.chat import nemotron_3_nano_template, training_samples
from posttrain.config.source import SourceConfig
from posttrain.jsontext import encode_json, load_json
from posttrain.records import Message, message_from_row, message_to_row
from tests.data_builders.small_rows import WEATHER, problem, read

ASK, SAY = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
HUMAN, GPT = {"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}
UNTRAINED = [
    {"weight": 0}, {"weight": 0.0}, {"weight": "0"}, {"loss_weight": 0}, {"loss_weight": "0.0"},
    {"loss": False}, {"loss": "false"}, {"train": False}, {"train": 0}, {"training": False},
    {"train_on_turn": "False"}, {"trainable": False}, {"masked": True}, {"masked": 1},
    {"masked": "1"}, {"requires_grad": False}, {"mask": True}, {"mask": "true"}, {"masked": True, "weight": 0},
]  # fmt: skip
TRAINED = [
    {"weight": 1}, {"weight": "1"}, {"loss_weight": 1.0}, {"loss": True}, {"train": "true"},
    {"masked": False}, {"masked": 0}, {"mask": False}, {"mask": "false"}, {"weight": None},
    {"loss_mask": None}, {"weight": 1, "masked": False}, {"constraint": 0}, {"glossary": False},
    {"name": "trainer"}, {"labels": {"spam": 0}},
]  # fmt: skip
UNKNOWN = [
    {"loss_mask": 1}, {"loss_mask": [0, 1]}, {"train_mask": 1}, {"train_loss": False},
    {"is_masked": False}, {"ignore_loss": True}, {"supervised": False}, {"lossMask": 0},
    {"Weight": 0}, {"unmasked": False}, {"train_detail": [{"train": False}]}, {"ignored": True},
    {"ignore": True}, {"skip": 1}, {"exclude": True}, {"labels": [-100]}, {"sample_weight": 0},
    {"weight": 0.5}, {"weight": -1}, {"loss_weight": "half"}, {"train": "yes"}, {"loss": []},
    {"include_in_training": False}, {"mask": 0}, {"mask": "1"}, {"stop_grad": True}, {"stopGradient": True}, {"weight": 1, "train": False}, {"weight": 0, "masked": False},
]  # fmt: skip


def masked(more: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """Rows that go on behind an answer with such keys: where it stands, and which message it is."""
    call = {"from": "function_call", "value": '{"name": "weather", "arguments": {}}', **more}
    rain = {"from": "observation", "value": "rain"}
    return [
        ("messages[1]", 1, {"messages": [ASK, SAY | more, ASK, SAY]}),
        ("messages[3]", 3, {"messages": [ASK, SAY, ASK, SAY | more]}),
        ("conversations[1]", 1, {"conversations": [HUMAN, GPT | more, HUMAN, GPT]}),
        ("conversations[1]", 1, {"conversations": [HUMAN, call, rain, GPT]}),
        ("prompt[1]", 1, {"prompt": [ASK, SAY | more, ASK], "completion": "4"}),
        ("prompt[1]", 1, {"prompt": [ASK, SAY | more, ASK], "chosen": "4", "rejected": "5"}),
    ]


@pytest.mark.parametrize("more", UNTRAINED)
def test_an_answer_that_is_not_to_be_trained_is_not(more: dict[str, Any]) -> None:
    for _, index, row in masked(more):
        trained = [m.trained for m in read(row)[1].messages]
        assert trained == [k != index for k in range(len(trained))]
    # nothing is left to train
    for row in (
        {"messages": [ASK, SAY | more]},
        {"prompt": "2+2?", "completion": [SAY | more]},
        {"prompt": "2+2?", "chosen": [SAY, ASK, SAY | more], "rejected": "5"},
        {"messages": [ASK, SAY]} | more,
        {"instruction": "2+2?", "output": "4"} | more,
    ):
        assert problem(row).reason == "untrained_turn"
    # half an answer is not honoured
    half = {"messages": [ASK, SAY | {"content": [{"type": "text", "text": "4", **more}]}]}
    assert problem(half).reason == "malformed_message"


@pytest.mark.parametrize("more", UNKNOWN)
def test_a_mask_that_cannot_be_honoured_is_named(more: dict[str, Any]) -> None:
    for where, _, row in masked(more):
        found = problem(row)
        assert found.reason == "malformed_message", row
        assert found.field in {f"{where}.{key}" for key in more}


@pytest.mark.parametrize("more", TRAINED)
def test_masks_that_train_an_answer_are_no_matter(more: dict[str, Any]) -> None:
    for _, _, row in masked(more):
        assert all(m.trained for m in read(row)[1].messages)


@pytest.mark.parametrize("more", [*UNTRAINED, *UNKNOWN])
def test_masks_of_other_turns_are_no_matter(more: dict[str, Any]) -> None:
    assert all(m.trained for m in read({"messages": [ASK | more, SAY]})[1].messages)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, SAY]},
        {"conversations": [HUMAN, GPT]},
        {"instruction": "2+2?", "output": "4"},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    ],
)
def test_a_mask_over_the_row_is_refused_unless_it_says_what_is_done(row: dict[str, Any]) -> None:
    for more in ({"loss_mask": [0]}, {"train_on_inputs": True}, {"assistant_masks": [0]}):
        assert problem(row | more).reason == "malformed_message"
    # a number that nobody can tell from a weight of the loss, unless the recipe names the column
    for more in ({"weight": 70}, {"loss": 0.23}, {"sample_weight": 0}):
        assert problem(row | more).reason == "malformed_message"
        assert len(read(row | more, metadata=tuple(more))[1].messages) == 2
    for more in ({"train_on_inputs": False}, {"mask": "User"}, {"learning_goal": "adds numbers"}):
        assert len(read(row | more)[1].messages) == 2


@pytest.mark.parametrize(
    "more", [{"metadata": {"train_on_last_turn_only": True}}, {"extra": '{"trainOnlyLastTurn": true}'},
             {"info": '{"loss_mask": [0, 0, 0, 1]}'}, {"a": {"b": {"weights": [0, 0, 0, 1]}}}]
)  # fmt: skip
def test_a_mask_inside_a_column_is_honoured(more: dict[str, Any]) -> None:
    trained = [m.trained for m in read({"messages": [ASK, SAY, ASK, SAY]} | more)[1].messages]
    assert (trained[1], trained[3]) == (False, True)


def test_a_mask_inside_a_column_that_is_not_clear_is_refused() -> None:
    found = problem({"messages": [ASK, SAY], "metadata": {"trainable_turns": [1]}})
    assert (found.reason, found.field) == ("malformed_message", "metadata.trainable_turns")


@pytest.mark.parametrize(
    "more",
    [
        {"skip_prompt_formatting": True}, {"skip_special_tokens": False}, {"in_gsm8k_train": False},
        {"used_in_training": "yes"}, {"train_set": "gsm8k"}, {"learning_rate": 0.1},
        {"metadata": {"train_loss": 0.23, "training_set": "v1"}},
        {"info": '{"training_data": [{"id": "a"}]}'}, {"info": '{"mask'},
    ],
)  # fmt: skip
def test_what_only_sounds_like_a_mask_is_no_matter(more: dict[str, Any]) -> None:
    conversation = read({"messages": [ASK, SAY]} | more)[1]
    assert conversation.messages[1].trained
    assert conversation.unread.keys() == more.keys()


@pytest.mark.parametrize(
    "more", [{"is_correct": False}, {"isCorrect": "False"}, {"is_safe": 0}, {"feedback": "👎"},
             {"label": "wrong"}, {"response_accepted": "false"}, {"is_correct": "no"}, {"keep": False}]
)  # fmt: skip
def test_an_answer_that_the_row_calls_bad_is_not_trained(more: dict[str, Any]) -> None:
    row = {"messages": [ASK, SAY]} | more
    assert problem(row).reason == "rejected_answer"
    assert read(row, metadata=tuple(more))[1].messages
    for good in (True, "gold", None, 4):
        assert read({"messages": [ASK, SAY]} | dict.fromkeys(more, good))[1].messages


@pytest.mark.parametrize(
    "more", [{"is_rejected": True}, {"isIncorrect": 1}, {"response_invalid": "true"}, {"error": True},
             {"failed": True}, {"deleted": True}, {"bad_response": True}, {"should_drop": True}]
)  # fmt: skip
def test_an_answer_with_a_fault_by_name_is_not_trained(more: dict[str, Any]) -> None:
    for row in ({"messages": [ASK, SAY]} | more, {"messages": [ASK, SAY | more]}):
        assert problem(row).reason == "rejected_answer"
    assert read({"messages": [ASK, SAY]} | more, metadata=tuple(more))[1].messages
    for good in (False, 0, None, "", "none so far"):
        assert read({"messages": [ASK, SAY]} | dict.fromkeys(more, good))[1].messages
    assert read({"prompt": "2+2?", "chosen": "4", "rejected": "true"})[1].messages


@pytest.mark.parametrize("key", ["edited_content", "correctedAnswer", "revised_response"])
def test_a_better_version_of_the_answer_is_not_left_out(key: str) -> None:
    better = {key: "It is 4."}
    assert problem({"messages": [ASK, SAY | better]}).reason == "malformed_message"
    assert problem({"messages": [ASK, SAY]} | better).reason == "unread_column"
    assert read({"messages": [ASK, SAY]} | better, metadata=(key,))[1].messages
    # the answer itself, an empty one, or one of a question
    assert read({"messages": [ASK, SAY]} | {key: "4"})[1].messages
    assert read({"messages": [ASK, SAY | {key: ""}]})[1].messages
    assert read({"messages": [ASK | better, SAY]})[1].messages


@pytest.mark.parametrize(
    "more",
    [{"verified": False}, {"is_verified": 0}, {"answerVerified": "false"}, {"resolved": False}],
)
def test_an_answer_that_nobody_checked_is_kept_and_listed_by_name(more: dict[str, Any]) -> None:
    [(name, value)] = more.items()
    counts = RowCounts()
    for row in ({"messages": [ASK, SAY]} | more, {"messages": [ASK, SAY | more]}):
        counts.note_unread(read(row)[1].unread)
    counts.note_unread(read({"messages": [ASK, SAY], name: True})[1].unread)
    rows = {listed: count for listed, (count, _) in counts.unread.items()}
    inside = f"messages[].{name}"
    assert rows == {name: 2, f"{name}: {value}": 1, inside: 1, f"{inside}: {value}": 1}


def test_a_mask_that_is_honoured_is_not_listed_as_unread() -> None:
    row = {"messages": [ASK, SAY, ASK, SAY], "weights": [0, 0, 0, 1], "level": 3}
    assert read(row)[1].unread == {"level": 3}


@pytest.mark.parametrize("more", [{"label": -100}, {"target": -100}, {"feedback": "thumbs_down"}])
def test_an_answer_in_a_list_that_is_not_to_be_trained_is_refused(more: dict[str, Any]) -> None:
    assert problem({"messages": [ASK, SAY | more, ASK, SAY]}).reason == "rejected_answer"
    # of a question, or where nothing is trained, it is no matter
    assert read({"messages": [ASK | more, SAY]})[1].messages[1].trained
    assert read({"messages": [ASK, SAY | more]}, ignored_keys=tuple(more))[1].messages


@pytest.mark.parametrize("more", [{"训练掩码": [0, 1, 0, 1]}, {"маска": [1]}, {"目标": [-100, 4]}])
def test_a_mask_in_any_language_is_refused(more: dict[str, Any]) -> None:
    assert problem({"messages": [ASK, SAY]} | more).reason == "malformed_message"
    assert read({"messages": [ASK, SAY]} | more, metadata=tuple(more))[1].messages
    assert read({"messages": [ASK, SAY], "correctness": [True, False]})[1].messages


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, SAY], "finish_reason": "length"},
        {"messages": [ASK, SAY], "choices": [{"finish_reason": "length"}]},
        {"messages": [ASK, SAY], "response": {"incomplete": {"status": "incomplete"}}},
        {"messages": [ASK, SAY | {"response_metadata": {"stop_reason": "max_tokens"}}]},
        {"messages": [ASK, SAY | {"finishReason": "MAX_TOKENS"}]},
        {"prompt": "2+2?", "completion": "4", "truncated": True},
        {
            "input": "2+2?",
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "incomplete",
                    "content": [{"type": "output_text", "text": "4"}],
                }
            ],
        },
    ],
)
def test_an_answer_that_was_cut_off_is_not_trained(row: dict[str, Any]) -> None:
    assert problem(row).reason == "truncated_answer"
    ended = load_json(
        encode_json(row)
        .replace('"length"', '"stop"')
        .replace('"incomplete"', '"completed"')
        .replace('"max_tokens"', '"end_turn"')
        .replace('"MAX_TOKENS"', '"STOP"')
        .replace('"truncated":true', '"truncated":false')
    )
    assert read(ended)[1].messages[-1] == Message("assistant", "4")


def test_the_loss_sees_what_the_masks_leave() -> None:
    """NVIDIA's masks, less the turns that the row takes out; with reasoning, one turn a sequence."""
    template = nemotron_3_nano_template()
    for more, turns in (({}, [(0, [3])]), ({"reasoning": "2 and 2"}, [(1, [3])])):
        row = {"messages": [ASK, SAY | {"weight": 0} | more, ASK, SAY | {"content": "5"} | more]}
        rows = iter([RawRow(row, "s", 1)])
        config = SourceConfig(name="s", path="s")
        (item,) = examples_of(rows, config)
        samples = training_samples(item.example, template)
        assert [(s.turn, list(s.trained_messages)) for s in samples] == turns
        trained = "".join(s.text for s in samples[0].segments if s.trained)
        assert trained.endswith("5<|im_end|>\n")
        assert "4" not in trained


def test_a_mask_survives_storage_and_tells_no_messages_apart() -> None:
    message = Message("assistant", "4", trained=False)
    assert not message_from_row(message_to_row(message)).trained
    assert message == Message("assistant", "4")


READ = {
    "plain": [ASK, SAY],
    "reasoned": [ASK, SAY | {"reasoning": "2 and 2"}],
    "brief": [{"role": "system", "content": "Be brief."}, ASK, SAY],
    "masked": [ASK, SAY | {"trained": False}, ASK, SAY],
}
VARIANTS = (Path(__file__).parent / "variants.yaml").read_text("utf-8")
CASES = yaml.load(VARIANTS, Loader=yaml.CSafeLoader)["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_row_is_read_or_refused_by_name(case: dict[str, Any]) -> None:
    raw = iter([RawRow(case["row"], "s.jsonl", 1)])
    config = SourceConfig(name="s", path="s.jsonl")
    (item,) = examples_of(raw, config)
    if "refused" in case:
        reason, field = case["refused"]
        assert item.reason == reason
        assert field in item.detail
        return
    assert isinstance(item, PlacedExample), item
    example = item.example
    expected = case.get("read", "plain")
    expected = READ[expected] if isinstance(expected, str) else expected
    assert [message_to_row(m) for m in example.messages] == expected
    assert load_json(example.tools or "null") == ([WEATHER] if case.get("tools") else None)
