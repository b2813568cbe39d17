"""Records: identity by content, and a flat row that loses nothing."""

from __future__ import annotations

import dataclasses
import hashlib

from posttrain.records import (
    Message,
    ToolCall,
    content_id,
    json_text,
    make_example,
    message_from_row,
    message_to_row,
    message_to_template,
)

MESSAGES = (
    Message("user", "q é 漢"),
    Message("assistant", "", reasoning="r", tool_calls=(ToolCall("f", '{"x":null}', id="1"),)),
    Message("tool", "t", tool_call_id="1", name="f"),
    Message("assistant", "a"),
)


def record(**changes):
    fields = {"tools": '[{"name":"f"}]', "source": "s", "license": "MIT", "dialect": "openai"}
    return make_example(MESSAGES, metadata='{"reward":1}', **{**fields, **changes})


def test_row_round_trip():
    for message in MESSAGES:
        assert message_from_row(message_to_row(message)) == message


def test_id_is_of_the_content_alone():
    assert record().id == record(source="other", license="x", dialect="y").id
    assert record().id != record(tools=None).id
    changed = (dataclasses.replace(MESSAGES[0], content="q"), *MESSAGES[1:])
    assert make_example(changed, source="s", dialect="openai").id != record().id
    # pinned: a changed derivation would silently reshuffle every mixture
    assert record().id == "8f6a30ee1054ff23217792c1c5159f91"


def test_template_rows_decode_arguments_and_leave_absent_fields_out():
    assert message_to_template(MESSAGES[0]) == {"role": "user", "content": "q é 漢"}
    call = message_to_template(MESSAGES[1])["tool_calls"][0]
    assert call == {
        "type": "function",
        "id": "1",
        "function": {"name": "f", "arguments": {"x": None}},
    }


def test_ids_are_hashes_of_plain_json_whatever_the_text():
    """Ids are in every artifact: a quicker encoder may not change one."""
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    for text in (every, '\x00\x1f\x7f"\\/', "half \ud83d a pair"):
        message = Message("assistant", text, reasoning=text[:9], name="n")
        payload = [[["assistant", text, text[:9], [], None, "n"]], None]
        plain = json_text(payload).encode("utf-8", "surrogatepass")
        assert content_id([message], None) == hashlib.blake2b(plain, digest_size=16).hexdigest()
