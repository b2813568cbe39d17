"""Keys that change what a row says: kinds by name, media, and what would be lost unread."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from data_builders.dialects.reading import REASONING_KEYS, Reading, Row, RowProblem
from posttrain.jsontext import encode_json
from posttrain.records import Message

SYSTEM_KEYS = ("system", "system_prompt", "system_message", "instructions", "developer")
TOOL_KEYS = ("tools", "functions", "available_tools", "function")
# columns that hold arguments of a chat template (smoltalk2), and what of them is read
TEMPLATE_ARGUMENTS = "chat_template_kwargs"
CUSTOM_INSTRUCTIONS = "custom_instructions"
TOOLS_IN_ARGUMENTS = ("xml_tools", "python_tools", *TOOL_KEYS)
CALL_ID_KEYS = ("tool_call_id", "call_id", "tool_use_id")
_READ_IN_MESSAGE = frozenset(
    {
        "role", "from", "content", "value", "name", "tools", "functions",
        "tool_calls", "function_call", *CALL_ID_KEYS, *REASONING_KEYS,
    }
)  # fmt: skip
MEDIA_KEYS = (
    "images", "image", "videos", "video", "audios", "audio",
    "image_url", "video_url", "audio_url", "input_audio",
)  # fmt: skip
_MEDIA = frozenset(MEDIA_KEYS)
Kind = Literal["mask", "reasoning", "calls", "system", "tools"]
_KINDS: dict[Kind, re.Pattern[str]] = {
    # at the start of a word, so that neither `constraint` nor `glossary` is a mask; words that are
    # said of much else (`skip_special_tokens`) only beside what a loss is taken over
    "mask": re.compile(
        r"(?:^|[^a-z])(?:un|non)?(?:loss|mask|train|supervis|weight|backprop)"
        r"|^(?:is_|to_|should_)?(?:ignor|skip|exclud|learn)[a-z]*(?:_(?:from|in|on|for|the|this|loss"
        r"|losses|train[a-z]*|grad[a-z]*|turns?|messages?|labels?|tokens?|steps?|roles?|prompt"
        r"|history|answers?|responses?|assistant|user))*$"
        r"|^labels$|^is_target$|^no_?grad$|^context_only$|(?:^|_)last_[a-z]+_only$"
        # the same in the languages of much public data
        r"|掩码|掩膜|遮罩|损失|訓練|训练|マスク|損失|마스크|학습|маск|обуча|тренир|entrena|entraîn"
    ),
    "reasoning": re.compile(
        r"(?:^|_)(?:reasoning|think(?:ing)?|thoughts?|rationale|chain_of_thought|cot|scratch_?pad"
        r"|reflection|monologue|deliberation)(?:_|$)|^analysis$"
        r"|思考|思维|思維|推理|推論|생각|추론|рассужд|размышл|تفكير|استدلال|begr(?:ü|ue)ndung|gedanken"
        r"|raisonnement|razonamiento|ragionamento|racioc[ií]nio|การให้เหตุผล"
    ),
    "calls": re.compile(r"(?:^|_)(?:tool|function)s?_?(?:calls?|uses?)(?:_|$)"),
    "system": re.compile(
        r"(?:^|_)sys(?:tem)?_?(?:prompt|message|msg|text|instruction|content)s?$|^system$"
    ),
    "tools": re.compile(r"(?:^|_)(?:tool|function|plugin|api)s?(?:_|$)"),
}
# whether a row was part of some training set is no mask
_MEMBER = re.compile(r"(?:^|_)in_(?:[a-z0-9]+_)*train(?:ing|ed)?(?:_(?:set|split|data))?$")
_SCHEMA = re.compile(r'"(?:parameters|input_?[sS]chema|function|functionDeclarations)"')
_CALL = re.compile(
    r'"(?:arguments|args|functionCall|function_call|tool_?calls?|toolName|tool_name|tool_input)"'
)
# scripts that put no blanks between words: kana, ideographs, Thai, Lao, Myanmar, Khmer
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_SWITCH_UNSPACED = 4  # characters of a switch in such a script (思考模式), ours
_SWITCH = 40  # characters of a name or a switch in any other, ours
# keys of a message that hold a part of what was asked, however short
_ASKED_IN_MESSAGE = frozenset(
    {"context", "contexts", "input", "question", "query", "document", "documents", "passage",
     "passages", "instruction", "quote", "reply_to"}
)  # fmt: skip
# and those of an assistant's message under which an agent's step is stored beside its text
_ACTS_IN_MESSAGE = frozenset(
    {"action", "actions", "action_input", "command", "commands", "tool", "tool_name", "tool_input",
     "code_action", "execute"}
)  # fmt: skip
IGNORED_LABEL = -100  # what a loss leaves out, under whatever key
_MIME_KEYS = ("mime_type", "media_type", "content_type", "mimeType", "mediaType", "contentType")
# why a model stopped, where its answer is not at its end
_STOP_KEYS = frozenset(
    {"finish_reason", "stop_reason", "done_reason", "finishReason", "stopReason", "status"}
)
_CUT = frozenset(
    {"length", "max_tokens", "max_output_tokens", "max_length", "model_length", "incomplete",
     "truncated", "token_limit", "model_context_window_exceeded"}
)  # fmt: skip
_CUT_FLAGS = frozenset({"truncated", "is_truncated", "was_truncated"})
# whether an answer is a good one (KTO); other texts are classes
_VERDICT = re.compile(
    r"^label$|^kto_tag$|^(?:user_|human_)?(?:feedback|votes?|thumbs?)$"
    r"|^(?:(?:is|was|answer|response|solution|output|generation|completion|final)_)*"
    r"(?:correct|safe|valid|accepted|acceptable|approved|desirable)$"
)
# whether anybody checked it, which an answer that nobody did is not the worse for
_CHECKED = re.compile(r"^(?:(?:is|was|answer|response|solution|output)_)*verified$")
_BAD = frozenset(
    {"false", "0", "0.0", "rejected", "reject", "bad", "undesirable", "negative", "dispreferred",
     "incorrect", "wrong", "unsafe", "invalid", "thumbs_down", "thumbsdown", "thumbs down", "down",
     "downvote", "dislike", "👎"}
)  # fmt: skip
_SHORT_PROSE = 60  # characters of a remark under a key that is not read, ours
_LONG_WORD = 300  # an address or a digest is one long word, ours


@functools.lru_cache(maxsize=4096)  # few keys, looked up in every row and message
def kind_of(key: str) -> Kind | None:
    """What a key speaks of, by its name."""
    plain = key.lower()
    # `CoT` is one word, `lossMask` are two
    names = {plain, _snake(key)}
    if any(_MEMBER.search(name) for name in names):
        return None
    for kind, pattern in _KINDS.items():
        if any(pattern.search(name) for name in names):
            return kind
    return None


def refuse_media(item: Mapping[str, Any], where: str = "") -> None:
    """Rows, messages and parts (at `where`) with pictures or sound say less without them."""
    for name in () if _MEDIA.isdisjoint(item) else MEDIA_KEYS:
        if item.get(name):
            raise RowProblem("unsupported_content", where + name, "it comes with media; text only")


def refuse_lost_in_message(
    raw: Mapping[str, Any], message: Message, reading: Reading, at: str
) -> dict[str, Any]:
    """The keys of a message that are not read, with their values.

    Raises:
        RowProblem: `malformed_message`, a trace, calls or more than a remark under such a key.
    """
    if raw.keys() <= _READ_IN_MESSAGE and (message.role == "tool" or not raw.get("name")):
        return {}
    unread: dict[str, Any] = {}
    mapped = (reading.role, reading.content, reading.reasoning)
    for key, value in raw.items():
        if key in mapped or value in (None, "", [], {}):
            continue
        if key == "name" and message.role != "tool":  # who of several users or experts speaks
            unread[key] = value
        if key in _READ_IN_MESSAGE:
            continue
        if key in reading.ignored:
            continue
        kind = kind_of(key)
        if kind == "mask":
            continue
        if kind == "reasoning":
            lost = speaks(value) and not message.reasons
        elif kind == "calls" or (key in _ACTS_IN_MESSAGE and message.role == "assistant"):
            lost = speaks(value) and not message.tool_calls
        else:
            asked = key in _ASKED_IN_MESSAGE or kind == "system"
            lost = speaks(value) if asked else _is_content(value)
        if reading.trains and message.role == "assistant" and message.trained:
            refuse_cut(key, value, f"{at}.{key:.80}")
            if value == IGNORED_LABEL or calls_bad(key, value):
                what = f"{value!r:.60}: an answer not to train; write train: false"
                raise RowProblem("rejected_answer", f"{at}.{key:.80}", what)
        if _attaches(value):
            raise RowProblem("unsupported_content", f"{at}.{key:.80}", "a file; text only")
        if lost and not _repeats(value, message):
            what = f"{kind or 'a key'} that is not read: {value!r:.60}; ignored_keys leaves it out"
            raise RowProblem("malformed_message", f"{at}.{key:.80}", what)
        unread[key] = value
    return unread


def unread_columns(row: Row, read: Collection[str], reading: Reading) -> dict[str, Any]:
    """Columns that hold something and are neither read nor named by the recipe."""
    return {
        key: value
        for key, value in row.items()
        if key not in read
        and key not in reading.named
        and key not in SYSTEM_KEYS
        and key not in TOOL_KEYS
        and value not in (None, "", [], {})
    }


def refuse_lost(
    unread: Mapping[str, Any],
    messages: tuple[Message, ...],
    tools: str | None,
    reading: Reading,
    parts_of_prompt: Collection[str],
) -> None:
    """Refuse a row of which a column is not read that would change the conversation.

    A column whose text stands in the conversation is not lost; one carried as metadata is left.

    Raises:
        RowProblem: `unread_column` or `unsupported_content`.
    """
    for key, value in unread.items():
        kind = kind_of(key)
        if reading.trains:
            refuse_cut(key, value, key)
        if key == "documents":  # templates take them as an argument of their own
            lost = isinstance(value, list)
        elif key == TEMPLATE_ARGUMENTS:
            lost = isinstance(value, Mapping) and _arguments_are_lost(value)
        elif key in parts_of_prompt or (kind == "reasoning" and reading.trains) or kind == "system":
            lost = speaks(value) or key in parts_of_prompt
            lost = lost and not (isinstance(value, str) and _stands_in(value, messages))
        elif kind == "calls":
            calls = any(message.tool_calls for message in messages)
            lost = reading.trains and not calls and _matches(_CALL, value)
        else:
            lost = kind == "tools" and tools is None and _matches(_SCHEMA, value)
        if lost:
            what = f"not read, and it would be lost: {value!r:.60}; map it under fields, or name it"
            raise RowProblem("unread_column", key, f"{what} under metadata to leave it out")


def refuse_cut(key: str, value: Any, where: str, *, depth: int = 2) -> None:
    """Refuse an answer that its own row says was cut off: a model would learn to stop there.

    Looks into objects, such as a response's metadata, and into lists of choices.
    """
    if isinstance(value, str):
        if key in _STOP_KEYS and value.lower() in _CUT:
            raise RowProblem("truncated_answer", where, f"{value!r}: the answer was cut off")
    elif value is True:
        if key in _CUT_FLAGS:
            raise RowProblem("truncated_answer", where, "the answer was cut off")
    elif type(value) is dict and depth:
        for inner, nested in value.items():
            if inner in _STOP_KEYS or inner in _CUT_FLAGS or type(nested) is dict:
                refuse_cut(inner, nested, f"{where}.{inner:.80}", depth=depth - 1)
    elif key == "choices" and isinstance(value, list):
        for index, choice in enumerate(value):
            refuse_cut("", choice, f"{where}[{index}]", depth=depth)


def calls_bad(name: str, value: Any) -> bool:
    """Whether a column, or a key of an answer, says that the answer is a bad one."""
    return value is not None and is_verdict(name) and str(value).strip().lower() in _BAD


def listed_names(path: str, value: Any) -> list[str]:
    """The names under which a column or key is listed as not read: with its value too, where that
    says that nobody checked the answer."""
    unchecked = _CHECKED.search(_snake(path.rpartition(".")[2])) is not None
    if unchecked and str(value).strip().lower() in _BAD:
        return [path, f"{path}: {value}"]
    return [path]


@functools.lru_cache(maxsize=4096)
def is_verdict(name: str) -> bool:
    """Whether a column says of the row's answer whether it is a good one."""
    return _VERDICT.search(_snake(name)) is not None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _attaches(value: Any) -> bool:
    """Whether a value under a key that is not read holds a file, by its type and its place."""
    if isinstance(value, list):
        return any(_attaches(item) for item in value if isinstance(item, Mapping))
    if not isinstance(value, Mapping):
        return False
    return any(key in value for key in _MIME_KEYS) and any(
        value.get(key) for key in ("url", "data", "path", "bytes", "base64", "file_id")
    )


def _arguments_are_lost(arguments: Mapping[str, Any]) -> bool:
    """Whether a template would write more of its arguments than what is read of them."""
    read = {CUSTOM_INSTRUCTIONS, *TOOLS_IN_ARGUMENTS}
    return any(_is_content(value) for key, value in arguments.items() if key not in read)


def speaks(value: Any) -> bool:
    """Whether a value holds more than a switch or a name: a phrase, a list or an object."""
    if isinstance(value, str):
        text = value.strip()
        if len(text.split(None, 1)) > 1 or len(text) > _SWITCH:
            return True
        return len(_UNSPACED.findall(text)) > _SWITCH_UNSPACED
    return isinstance(value, list | Mapping) and bool(value)


def _is_content(value: Any) -> bool:
    """Whether a value under a key that is not read is more than a remark: long text, or calls."""
    if isinstance(value, str):
        text = value.strip()
        if len(_UNSPACED.findall(text)) > _SHORT_PROSE // 3:
            return True
        return len(text) > (_SHORT_PROSE if len(text.split(None, 1)) > 1 else _LONG_WORD)
    if isinstance(value, Mapping):
        return _matches(_CALL, value) or any(_is_content(inner) for inner in value.values())
    if isinstance(value, list):
        return _matches(_CALL, value) or any(_is_content(inner) for inner in value)
    return False


def _repeats(value: Any, message: Message) -> bool:
    """Whether a text under a key that is not read stands in the message as it is read."""
    return isinstance(value, str) and _stands_in(value, (message,))


def _stands_in(text: str, messages: tuple[Message, ...]) -> bool:
    text = text.strip()
    return any(text in m.content or text in (m.reasoning or "") for m in messages)


def has_schema(value: Any) -> bool:
    """Whether a value holds the schema of a tool."""
    return _matches(_SCHEMA, value)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    if isinstance(value, str):
        return value.lstrip()[:1] in ("[", "{") and pattern.search(value) is not None
    try:
        return isinstance(value, list | Mapping) and bool(pattern.search(encode_json(value)))
    except ValueError:
        return False
