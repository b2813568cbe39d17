"""Sound data of every template that can be split raises no alarm, whatever its tokens are called."""

from __future__ import annotations

import re

import numpy as np
import pytest

from posttrain.chat import ChatTemplate, left_out, profile_of, training_samples
from posttrain.chat.template import trl_templates
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall, make_example
from posttrain.tokens.supervision import Flag, batch_of, marks_of, supervision_flags

_TOKEN = re.compile(
    r"<\|[a-zA-Z0-9_]+\|?>|<[a-z]+_of_[a-z]+>|<｜[^｜]+｜>|\[/?[A-Z_]+\]|</?s>|</?think>|<bos>|<eos>"
)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 Jan 2026"}


def _chats() -> list[tuple[Message, ...]]:
    user, answer = Message("user", "What is 2+2?"), Message("assistant", "It is 4.")
    call = ToolCall("add", '{"a":2}', id="call00000")
    result = Message("tool", "four", tool_call_id="call00000", name="add")
    return [
        (user, answer),
        (Message("system", "Be brief."), user, answer, user, Message("assistant", "Still 4.")),
        (user, Message("assistant", "4.", reasoning="2 and 2.")),
        (user, Message("assistant", tool_calls=(call,)), result, answer),
        (user, Message("assistant", reasoning="Add.", tool_calls=(call,)), result, answer),
    ]


@pytest.mark.parametrize("name", sorted(trl_templates()))
def test_sound_data_raises_no_alarm(name: str):
    source = trl_templates()[name]
    special = {token: 300 + k for k, token in enumerate(sorted(set(_TOKEN.findall(source))))}
    special |= {"</s>": 299} if "</s>" not in special else {}
    template = ChatTemplate(
        source, name=name, variables=VARIABLES, special_tokens=tuple(sorted(special))
    )
    try:
        profile_of(template)
    except RenderError:
        pytest.skip("no mask can be determined for it")

    def encode(texts):
        cut = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len)[::-1])) + ")")
        return [
            [i for part in cut.split(text)
             for i in ([special[part]] if part in special else part.encode())]
            for text in texts
        ]  # fmt: skip

    marks = marks_of(
        encode, special=special, stop_ids=[special["</s>"]], pad_id=None, template=template
    )
    sequences = []
    for chat in _chats():
        example = make_example(chat, source="", dialect="")
        try:
            samples = training_samples(example, template)
        except RenderError:
            continue
        if left_out(example, template):
            continue  # an answer that is not written is an alarm with a reason
        for sample in samples:
            parts = list(
                zip(encode([s.text for s in sample.segments]), sample.segments, strict=True)
            )
            ids = [i for own, _ in parts for i in own]
            sequences.append((ids, [s.trained for own, s in parts for _ in own]))
    flags = supervision_flags(batch_of(sequences), marks)
    alarms = Flag.TURN_TOKEN | Flag.PROMPT | Flag.EMPTY_ANSWER | Flag.THINK_HEADER | Flag.EVERYTHING
    if not sequences:
        pytest.skip("it writes none of these chats whole")
    assert not (flags & np.uint16(alarms)).any(), [Flag(int(f)) for f in flags]
    assert (flags & np.uint16(Flag.TRAINED)).all()
