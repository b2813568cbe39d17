"""Turns composed from two renders are those that a render of each turn in full gives."""

from __future__ import annotations

import random

import pytest

from posttrain.chat import nemotron_3_nano_template, profile_of, training_samples
from posttrain.chat.locate import locate_prefix, sequences
from posttrain.chat.masks import cut_segments
from posttrain.chat.template import ChatTemplate
from posttrain.records import Example, Message, ToolCall, make_example, message_to_template

NANO = nemotron_3_nano_template()
UNCUT = ChatTemplate(NANO.source, name="no special tokens")


def conversation(seed: int) -> Example:
    rng = random.Random(seed)
    messages = [Message("system", "Be brief.")] if rng.random() < 0.5 else []
    for turn in range(rng.randrange(2, 7)):
        messages.append(Message("user", f"question {turn} " * rng.randrange(1, 4)))
        for call in range(rng.choice([0, 0, 1, 2])):
            made = ToolCall("look_up", f'{{"word":"w{call}"}}', id=f"call{call}")
            thought = rng.choice([None, f"look {turn}.{call}"])
            messages.append(Message("assistant", "", reasoning=thought, tool_calls=(made,)))
            messages.append(Message("tool", f"result {call}", tool_call_id=f"call{call}"))
        thought = rng.choice([None, f"thought {turn}", f" {turn}\n\nmore "])
        messages.append(Message("assistant", f"answer {turn}", reasoning=thought))
    messages.append(Message("user", "and now?"))
    messages.append(Message("assistant", "done", reasoning="the last thought"))
    return make_example(messages, source="s", dialect="openai")


@pytest.mark.parametrize("template", [NANO, UNCUT], ids=["cut at tokens", "cut nowhere"])
@pytest.mark.parametrize("seed", range(12))
def test_composed_turns_are_those_of_full_renders(template, seed):
    example = conversation(seed)
    assert profile_of(template).composable
    found = training_samples(example, template)
    plan = sequences(example.messages)
    assert len(found) == len(plan) > 1
    rows = [message_to_template(m) for m in example.messages]
    for sample, turn in zip(found, plan, strict=True):
        truth = locate_prefix(
            template, rows[: turn.stop], tools=None, wanted=turn.trained, enable_thinking=True
        )
        assert sample.text == truth.text
        trained = [truth.text[a:b] for _, (a, b) in sorted(truth.spans.items())]
        assert [s.text for s in sample.segments if s.trained] == trained
        if template is UNCUT:
            segments = cut_segments(truth, example.messages, template, frozenset())
            assert [s.text for s in sample.segments] == [s.text for s in segments]


def test_turns_share_the_segments_of_their_history():
    [*_, before, last] = training_samples(conversation(3), NANO)
    history = [s for s in before.segments if s.message_index < before.trained_messages[0]]
    assert len(history) > 2
    assert all(a is b for a, b in zip(history, last.segments, strict=False))
