"""Columns and keys that change what a row says: their kinds, media, text that would be lost."""

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
    [
        "role",
        "from",
        "content",
        "value",
        "name",
        "tools",
        "functions",
        "tool_calls",
        "function_call",
    ]
).union(CALL_ID_KEYS, REASONING_KEYS)
_MEDIA_KEYS = (
    "images",
    "image",
    "videos",
    "video",
    "audios",
    "audio",
    "image_url",
    "video_url",
    "audio_url",
    "input_audio",
)
_MEDIA_KEY_SET = frozenset(_MEDIA_KEYS)
Kind = Literal["mask", "reasoning", "calls", "system", "tools"]
_KINDS: dict[Kind, re.Pattern[str]] = {
    # at the start of a word, so that neither `constraint` nor `glossary` is a mask; words with many
    # other uses (`skip_special_tokens`) only beside a word for what a loss is taken over
    "mask": re.compile(
        r"(?:^|[^a-z])(?:un|non)?(?:loss|mask|train|supervis|weight|backprop)"
        r"|^(?:is_|to_|should_)?(?:ignor|skip|exclud|learn)[a-z]*(?:_(?:from|in|on|for|the|this|loss"
        r"|losses|train[a-z]*|grad[a-z]*|turns?|messages?|labels?|tokens?|steps?|roles?|prompt"
        r"|history|answers?|responses?|assistant|user))*$"
        r"|^labels$|^is_target$|^(?:no|stop|requires?)_?grad(?:ient)?s?$|^context_only$"
        r"|(?:^|_)last_[a-z]+_only$"
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
# a column that says whether a row belongs to some training set is no mask
_TRAINING_SET = re.compile(
    r"(?:^|(?<!include)(?<!included)(?<!use)_)in_(?:[a-z0-9]+_)*train(?:ing|ed)?(?:_(?:set|split|data))?$"
)
_SCHEMA = re.compile(r'"(?:parameters|input_?[sS]chema|function|functionDeclarations)"')
_CALL = re.compile(
    r'"(?:arguments|args|functionCall|function_call|tool_?calls?|toolName|tool_name|tool_input)"'
)
# a call under keys of nobody's standard: one that names what is called, beside one with its input
_CALLED = frozenset({"tool", "function", "api", "action", "plugin", "skill"})
_INPUT = frozenset({"input", "inputs", "parameters", "params", "kwargs", "payload", "query"})
# scripts that put no blanks between words: kana, ideographs, Thai, Lao, Myanmar, Khmer
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_LONGEST_UNSPACED_SWITCH = 4  # characters of a switch in such a script (思考模式), ours
_LONGEST_SWITCH = 40  # characters of a name or a switch in any other script, ours
# keys of a message that hold a part of the question, however short
_QUESTION_KEYS = frozenset(
    [
        "context",
        "contexts",
        "input",
        "question",
        "query",
        "document",
        "documents",
        "passage",
        "passages",
        "instruction",
        "quote",
        "reply_to",
    ]
)
# keys of an assistant's message under which an agent's step is stored beside its text
_ACTION_KEYS = frozenset(
    [
        "action",
        "actions",
        "action_input",
        "command",
        "commands",
        "tool",
        "tool_name",
        "tool_input",
        "code_action",
        "execute",
    ]
)
IGNORED_LABEL = -100  # the label that a loss ignores, under whatever key
_MIME_KEYS = ("mime_type", "media_type", "content_type", "mimeType", "mediaType", "contentType")
# keys that say why a model stopped, and the values of an answer that was cut off
_STOP_KEYS = frozenset(
    {"finish_reason", "stop_reason", "done_reason", "finishReason", "stopReason", "status"}
)
_CUT_REASONS = frozenset(
    [
        "length",
        "max_tokens",
        "max_output_tokens",
        "max_length",
        "model_length",
        "incomplete",
        "truncated",
        "token_limit",
        "model_context_window_exceeded",
    ]
)
_CUT_FLAGS = frozenset({"truncated", "is_truncated", "was_truncated"})
# columns that say whether an answer is a good one (KTO); other texts are classes
_VERDICT = re.compile(
    r"^label$|^kto_tag$|^(?:user_|human_)?(?:feedback|votes?|thumbs?)$"
    r"|^(?:(?:is|was|answer|response|solution|output|generation|completion|final)_)*"
    r"(?:correct|safe|valid|accepted|acceptable|approved|desirable)$"
    r"|^(?:should_)?keep$"
)
# columns, and keys of an answer, whose name is the bad verdict: `is_rejected: true`
_FAULT = re.compile(
    r"^(?:(?:is|was|has|answer|response|solution|output|generation|completion|final)_)*"
    r"(?:rejected|incorrect|wrong|bad|invalid|unsafe|undesirable|deleted|retracted|discarded"
    r"|failed|error|garbage|hallucinated)$"
    r"|^(?:bad|wrong|incorrect|invalid)_(?:answer|response|solution|output|completion)$"
    r"|^(?:should_|to_)?(?:drop|discard|reject)$"
)
# a better version of the answer, beside the one that is read
_CORRECTION = re.compile(
    r"^(?:edited|corrected|revised|revision|fixed|rewritten|improved)_"
    r"(?:content|text|value|message|answer|response|output|completion)$"
)
# the same under a name with other uses, where it holds more than a word (`revision: main`)
_EDIT = re.compile(
    r"^(?:(?:human|user|annotator|expert|reviewer|editor|manual|post)_?)?"
    r"(?:edit|correction|revision|rewrite)$"
)
# columns that say whether an answer was checked, or a task solved: such a row is not a bad one yet
_CHECKED = re.compile(
    r"^(?:(?:is|was|answer|response|solution|output|task|tests?)_)*"
    r"(?:verified|passed|passes|resolved|solved|success(?:ful)?)$"
)
_BAD_VERDICTS = frozenset(
    [
        "thumbs down",
        "👎",
        "false",
        "0",
        "0.0",
        "rejected",
        "reject",
        "bad",
        "undesirable",
        "negative",
        "dispreferred",
        "incorrect",
        "wrong",
        "unsafe",
        "invalid",
        "thumbs_down",
        "thumbsdown",
        "down",
        "downvote",
        "dislike",
    ]
)
_LONGEST_REMARK = 60  # characters of a remark under a key that is not read, ours
_LONGEST_WORD = 300  # characters of an address or a digest, which is one word; ours


@functools.lru_cache(maxsize=4096)  # few keys, looked up in every row and message
def kind_of(key: str) -> Kind | None:
    """Kind of content that the name of a column or key announces; `None` for any other name."""
    # both, since `CoT` is one word and `lossMask` two
    names = {key.lower(), _snake_case(key)}
    if any(_TRAINING_SET.search(name) for name in names):
        return None
    for kind, pattern in _KINDS.items():
        if any(pattern.search(name) for name in names):
            return kind
    return None


def refuse_media(item: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse a row, message or part with pictures or sound: its text is incomplete.

    Args:
        prefix: what precedes the key in its path, for errors: `messages[0].`.
    """
    if _MEDIA_KEY_SET.isdisjoint(item):
        return
    for key in _MEDIA_KEYS:
        if item.get(key):
            raise RowProblem("unsupported_content", prefix + key, "it comes with media; text only")


def unread_in_message(
    raw: Mapping[str, Any], message: Message, reading: Reading, location: str
) -> dict[str, Any]:
    """Keys of a message that are not read, with their values; refuse one that changes the message.

    Args:
        message: the message as it was read from `raw`.

    Raises:
        RowProblem: `malformed_message`, a trace, calls or more than a remark under such a key;
            `rejected_answer`, `truncated_answer` or `unsupported_content`.
    """
    if raw.keys() <= _READ_IN_MESSAGE and (message.role == "tool" or not raw.get("name")):
        return {}
    unread: dict[str, Any] = {}
    mapped = (reading.role, reading.content, reading.reasoning)
    is_trained_answer = reading.trains and message.role == "assistant" and message.trained
    for key, value in raw.items():
        if key in mapped or value in (None, "", [], {}):
            continue
        if key == "name" and message.role != "tool":  # tells several users or experts apart
            unread[key] = value
        if key in _READ_IN_MESSAGE or key in reading.ignored:
            continue
        kind = kind_of(key)
        if kind == "mask":  # read with the loss masks
            continue
        path = f"{location}.{key:.80}"
        if is_trained_answer:
            refuse_cut_answer(key, value, path)
            if value == IGNORED_LABEL or says_answer_is_bad(key, value):
                detail = f"{value!r:.60}: an answer not to train; write train: false"
                raise RowProblem("rejected_answer", path, detail)
        if _attaches_file(value):
            raise RowProblem("unsupported_content", path, "a file; text only")
        if _would_change_message(key, value, kind, message) and not _is_repeated_in(value, message):
            detail = (
                f"{kind or 'a key'} that is not read: {value!r:.60}; ignored_keys leaves it out"
            )
            raise RowProblem("malformed_message", path, detail)
        unread[key] = value
    return unread


def _would_change_message(key: str, value: Any, kind: Kind | None, message: Message) -> bool:
    """True if reading this key would make the message say something else."""
    if message.role == "assistant" and is_correction(key, value):
        return True
    if kind == "reasoning":
        return is_more_than_a_switch(value) and not message.reasons
    if kind == "calls" or (key in _ACTION_KEYS and message.role == "assistant"):
        return is_more_than_a_switch(value) and not message.tool_calls
    if key in _QUESTION_KEYS or kind == "system":
        return is_more_than_a_switch(value)
    return _is_more_than_a_remark(value)


def unread_columns(row: Row, read_columns: Collection[str], reading: Reading) -> dict[str, Any]:
    """Filled columns that are neither read nor named by the recipe."""
    unread: dict[str, Any] = {}
    for key, value in row.items():
        is_read = key in read_columns or key in SYSTEM_KEYS or key in TOOL_KEYS
        is_used = is_read or key in reading.used_columns
        if not is_used and value not in (None, "", [], {}):
            unread[key] = value
    return unread


def refuse_lost_columns(
    unread: Mapping[str, Any],
    messages: tuple[Message, ...],
    tools: str | None,
    reading: Reading,
    parts_of_prompt: Collection[str],
) -> None:
    """Refuse a row with an unread column that would change the conversation.

    A column whose text stands in the conversation is not lost. `unread` has no columns that the
    recipe carries as metadata.

    Raises:
        RowProblem: `unread_column` or `truncated_answer`.
    """
    for key, value in unread.items():
        kind = kind_of(key)
        if reading.trains:
            refuse_cut_answer(key, value, key)
        if key == "documents":  # templates take them as an argument of their own
            is_lost = isinstance(value, list)
        elif key == TEMPLATE_ARGUMENTS:
            is_lost = isinstance(value, Mapping) and _has_unread_arguments(value)
        elif key in parts_of_prompt or (kind == "reasoning" and reading.trains) or kind == "system":
            # a part of the prompt counts however short it is
            says_something = key in parts_of_prompt or is_more_than_a_switch(value)
            is_repeated = isinstance(value, str) and _stands_in(value, messages)
            is_lost = says_something and not is_repeated
        elif is_correction(key, value):
            is_lost = reading.trains and not _stands_in(str(value), messages)
        elif kind == "calls":
            has_calls = any(message.tool_calls for message in messages)
            is_lost = reading.trains and not has_calls and _json_matches(_CALL, value)
        else:
            is_lost = kind == "tools" and tools is None and _json_matches(_SCHEMA, value)
        if is_lost:
            detail = (
                f"not read, and it would be lost: {value!r:.60}; map it under fields, or name it"
            )
            raise RowProblem("unread_column", key, f"{detail} under metadata to leave it out")


def refuse_cut_answer(key: str, value: Any, location: str, *, depth: int = 2) -> None:
    """Refuse an answer that its own row says was cut off: a model would learn to stop there.

    Looks into objects, such as a response's metadata, and into lists of choices.

    Raises:
        RowProblem: `truncated_answer`.
    """
    if isinstance(value, str):
        if key in _STOP_KEYS and value.lower() in _CUT_REASONS:
            raise RowProblem("truncated_answer", location, f"{value!r}: the answer was cut off")
    elif value is True:
        if key in _CUT_FLAGS:
            raise RowProblem("truncated_answer", location, "the answer was cut off")
    elif type(value) is dict and depth:
        for inner, nested in value.items():
            if inner in _STOP_KEYS or inner in _CUT_FLAGS or type(nested) is dict:
                refuse_cut_answer(inner, nested, f"{location}.{inner:.80}", depth=depth - 1)
    elif key == "choices" and isinstance(value, list):
        for index, choice in enumerate(value):
            refuse_cut_answer("", choice, f"{location}[{index}]", depth=depth)


def says_answer_is_bad(name: str, value: Any) -> bool:
    """True if a column, or a key of an answer, says that the answer is a bad one."""
    if value is None or not is_verdict(name):
        return False
    word = str(value).strip().lower()
    if word == "no" and name != "label":  # a class of questions with yes and no
        word = "false"
    return word in ("true", "1") if _FAULT.search(_snake_case(name)) else word in _BAD_VERDICTS


def is_correction(key: str, value: Any) -> bool:
    """True if a column, or a key of an answer, holds a better version of the answer."""
    if not isinstance(value, str):
        return False
    name = _snake_case(key)
    is_edit = _EDIT.search(name) is not None and is_more_than_a_switch(value)
    return is_edit or _CORRECTION.search(name) is not None


def counted_names(path: str, value: Any) -> list[str]:
    """Names to count an unread column or key under: its path, and `path: value` if unchecked.

    A column such as `verified: false` says that nobody checked the answer, `resolved: false` that
    the task was not solved.
    """
    name = path.rpartition(".")[2]
    tells_of_check = _CHECKED.search(_snake_case(name)) is not None
    if tells_of_check and str(value).strip().lower() in _BAD_VERDICTS:
        return [path, f"{path}: {value}"]
    return [path]


@functools.lru_cache(maxsize=4096)
def is_verdict(name: str) -> bool:
    """True if a column of this name says how good the row's answer is."""
    name = _snake_case(name)
    return _VERDICT.search(name) is not None or _FAULT.search(name) is not None


def _snake_case(name: str) -> str:
    """Convert camel case to lower case with underscores: `lossMask` → `loss_mask`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _attaches_file(value: Any) -> bool:
    """True if a value holds a file: a media type beside an address or bytes."""
    if isinstance(value, list):
        return any(_attaches_file(item) for item in value if isinstance(item, Mapping))
    if not isinstance(value, Mapping):
        return False
    has_type = any(key in value for key in _MIME_KEYS)
    data_keys = ("url", "data", "path", "bytes", "base64", "file_id")
    return has_type and any(value.get(key) for key in data_keys)


def _has_unread_arguments(arguments: Mapping[str, Any]) -> bool:
    """True if a row's template arguments hold content that is not read."""
    read_arguments = {CUSTOM_INSTRUCTIONS, *TOOLS_IN_ARGUMENTS}
    for name, value in arguments.items():
        if name not in read_arguments and _is_more_than_a_remark(value):
            return True
    return False


def is_more_than_a_switch(value: Any) -> bool:
    """True if a value holds more than a switch or a name: a phrase, a list or an object."""
    if isinstance(value, str):
        text = value.strip()
        if len(text.split(None, 1)) > 1 or len(text) > _LONGEST_SWITCH:
            return True
        return len(_UNSPACED.findall(text)) > _LONGEST_UNSPACED_SWITCH
    return isinstance(value, list | Mapping) and bool(value)


def _is_more_than_a_remark(value: Any) -> bool:
    """True if the value of an unread key is more than a remark: a long text, or calls."""
    if isinstance(value, str):
        text = value.strip()
        # three characters to a word in scripts without blanks
        if len(_UNSPACED.findall(text)) > _LONGEST_REMARK // 3:
            return True
        is_phrase = len(text.split(None, 1)) > 1
        return len(text) > (_LONGEST_REMARK if is_phrase else _LONGEST_WORD)
    if isinstance(value, Mapping):
        if not _CALLED.isdisjoint(value) and not _INPUT.isdisjoint(value):
            return True
        items = list(value.values())
    elif isinstance(value, list):
        items = value
    else:
        return False
    return _json_matches(_CALL, value) or any(_is_more_than_a_remark(item) for item in items)


def _is_repeated_in(value: Any, message: Message) -> bool:
    """True if a text under an unread key stands in the message anyway."""
    return isinstance(value, str) and _stands_in(value, (message,))


def _stands_in(text: str, messages: tuple[Message, ...]) -> bool:
    """True if a message's content or trace contains the text."""
    text = text.strip()
    return any(text in message.content or text in (message.reasoning or "") for message in messages)


def holds_tool_schema(value: Any) -> bool:
    """True if a value holds the schema of a tool."""
    return _json_matches(_SCHEMA, value)


def _json_matches(pattern: re.Pattern[str], value: Any) -> bool:
    """True if a pattern is found in the JSON of a list or object, or in a text that may be JSON."""
    if isinstance(value, str):
        return value.lstrip()[:1] in ("[", "{") and pattern.search(value) is not None
    if not isinstance(value, list | Mapping):
        return False
    try:
        return pattern.search(encode_json(value)) is not None
    except ValueError:
        return False
