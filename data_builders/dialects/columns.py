"""Keys that change what a row says: loss masks, media; reasoning, system text and tools unread."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from data_builders.dialects.reading import REASONING_KEYS, Reading, Row, RowProblem
from posttrain.jsontext import encode_json
from posttrain.records import Message

SYSTEM_KEYS = ("system", "system_prompt", "system_message", "instructions")
TOOL_KEYS = ("tools", "functions", "available_tools", "function")
_READ_IN_MESSAGE = frozenset({*REASONING_KEYS, "tool_calls", "function_call", "tool_call_id"})
MEDIA_KEYS = (
    "images", "image", "videos", "video", "audios", "audio",
    "image_url", "video_url", "audio_url", "input_audio",
)  # fmt: skip
_MEDIA = frozenset(MEDIA_KEYS)
_TRAINED = ("weight", "loss_weight", "loss", "train", "training", "train_on_turn", "trainable")
_ROW_MASKS = (
    "loss_mask", "loss_masks", "loss_weights", "completion_mask",
    "assistant_mask", "assistant_masks", "labels",
    "train_on_input", "train_on_inputs", "train_on_prompt", "train_on_prompts",
)  # fmt: skip
_MASKS = frozenset({*_TRAINED, *_ROW_MASKS, "masked", "mask"})
_WORDS = {"true": True, "false": False, "1": 1, "1.0": 1, "0": 0, "0.0": 0}
_KTO_LABELS = ("label", "kto_tag")  # whether the row's answer is a good one
Kind = Literal["mask", "reasoning", "calls", "system", "tools"]
_KINDS: dict[Kind, re.Pattern[str]] = {
    # at the start of a word, so that neither `constraint` nor `glossary` is a mask
    "mask": re.compile(
        r"(?:^|[^a-z])(?:un|non)?(?:loss|mask|train|supervis|weight|backprop|ignore|skip|exclud|learn)"
        r"|^labels$|^is_target$"
    ),
    "reasoning": re.compile(
        r"(?:^|_)(?:reasoning|think(?:ing)?|thoughts?|rationale|chain_of_thought|cot|scratchpad|reflection)"
        r"(?:_|$)|^analysis$"
    ),
    "calls": re.compile(r"(?:^|_)(?:tool|function)s?_?(?:calls?|uses?)(?:_|$)"),
    "system": re.compile(
        r"(?:^|_)sys(?:tem)?_?(?:prompt|message|msg|text|instruction|content)s?$|^system$"
    ),
    "tools": re.compile(r"(?:^|_)(?:tool|function|plugin|api)s?(?:_|$)"),
}
_SCHEMA = re.compile(r'"(?:parameters|input_?[sS]chema|function|functionDeclarations)"')


@functools.lru_cache(maxsize=4096)  # few keys, looked up in every row and message
def kind_of(key: str) -> Kind | None:
    """What a key speaks of, by its name."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(snake)), None)


def refuse_media(item: Mapping[str, Any], where: str = "") -> None:
    """Rows, messages and parts (at `where`) with pictures or sound say less without them."""
    for name in () if _MEDIA.isdisjoint(item) else MEDIA_KEYS:
        if item.get(name):
            raise RowProblem("unsupported_content", where + name, "it comes with media; text only")


def trained_by_masks(
    item: Mapping[str, Any], where: str, *, mapped: Collection[str | None] = ()
) -> bool:
    """Whether the loss masks of an assistant's message, or of a part of one, let it be trained.

    Args:
        mapped: keys that the recipe reads as something else.

    Raises:
        RowProblem: `malformed_message`, a mask that cannot be honoured, or two that disagree.
    """
    flags: dict[str, bool] = {}
    for key, value in item.items():
        if value is None or kind_of(key) != "mask" or key in mapped:
            continue
        if key == "labels" and not isinstance(value, list):
            continue  # a class of the message, not one label a token
        trained = _trained(key, value)
        if trained is None:
            what = f"{value!r:.80} is no loss mask that is understood: write train: true or false"
            raise RowProblem("malformed_message", f"{where}.{key:.80}", what)
        flags[key] = trained
    if len(set(flags.values())) > 1:
        raise RowProblem("malformed_message", f"{where}.{min(flags)}", "loss masks that disagree")
    return all(flags.values())


def _trained(key: str, value: Any) -> bool | None:
    """Whether an answer with this mask is trained; `None` where nobody can say."""
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower())
    if value not in (0, 1):
        return None
    if key in _TRAINED:
        return bool(value)
    # as a number, 1 under `mask` is "masked" to some and "in the loss" to others
    known = key == "masked" or (key == "mask" and isinstance(value, bool))
    return not value if known else None


def refuse_lost_in_message(
    raw: Mapping[str, Any], message: Message, reading: Reading, at: str
) -> None:
    """Refuse an assistant's message with a trace or calls under keys that are not read."""
    for key, value in raw.items():
        kind = kind_of(key)
        if kind not in ("reasoning", "calls") or key in _READ_IN_MESSAGE or not _speaks(value):
            continue
        if not (message.reasons if kind == "reasoning" else message.tool_calls):
            what = f"{kind} that is not read: {value!r:.60}"
            raise RowProblem("malformed_message", f"{at}.{key:.80}", what)


def unread_columns(row: Row, read: Collection[str], reading: Reading) -> tuple[str, ...]:
    """Columns that hold something and are neither read nor named by the recipe."""
    return tuple(
        key
        for key, value in row.items()
        if key not in read
        and key not in reading.named
        and key not in SYSTEM_KEYS
        and key not in TOOL_KEYS
        and value not in (None, "", [], {})
    )


def refuse_lost(
    row: Row,
    unread: Collection[str],
    messages: tuple[Message, ...],
    tools: str | None,
    reading: Reading,
    parts_of_prompt: Collection[str],
) -> None:
    """Refuse a row of which a column is not read that would change the conversation or its loss.

    A column whose text stands in the conversation is not lost; one carried as metadata is left.

    Raises:
        RowProblem: `unread_column`, `unsupported_content`, `untrained_turn`, `malformed_message`,
            `rejected_answer`.
    """
    refuse_media(row)
    if reading.trains:
        _refuse_row_masks(row, reading)
    for key in unread:
        kind, value = kind_of(key), row[key]
        if key in parts_of_prompt or (kind == "reasoning" and reading.trains) or kind == "system":
            lost = _speaks(value) or key in parts_of_prompt
            lost = lost and not (isinstance(value, str) and _stands_in(value, messages))
        else:
            lost = kind == "tools" and tools is None and _is_schema(value)
        if lost:
            what = f"not read, and it would be lost: {value!r:.60}; map it under fields, or name it"
            raise RowProblem("unread_column", key, f"{what} under metadata to leave it out")


def _refuse_row_masks(row: Row, reading: Reading) -> None:
    """A mask over the whole row, but for one that asks for what is done anyway; a bad answer.

    Under a key of an answer's mask only a plain "not to train" counts: a row may hold any `weight`.
    """
    for name in (label for label in _KTO_LABELS if label in row):
        good = _WORDS.get(str(row.get(name)).lower(), True)
        if not good and name not in reading.named and "chosen" not in row:
            what = f"{row[name]!r}: a bad answer; a recipe that names the column keeps it"
            raise RowProblem("rejected_answer", name, what)
    if _MASKS.isdisjoint(row):
        return
    for name in (*_TRAINED, "masked", "mask"):
        value = row.get(name)
        if value is not None and _trained(name, value) is False:
            raise RowProblem("untrained_turn", name, f"{value!r:.80}: a row not to train")
    for name in _ROW_MASKS:
        value = row.get(name)
        if name == "labels" and not (isinstance(value, list) and -100 in value):
            continue  # classes, and not one label a token
        asks_no_more = name.startswith("train_on") and _trained("train", value) is False
        if value is not None and not asks_no_more:
            raise RowProblem("malformed_message", name, "a loss mask of the row is not honoured")


def _speaks(value: Any) -> bool:
    """Whether a value holds more than a switch or a name: several words, a list or an object."""
    if isinstance(value, str):
        return len(value.split(None, 1)) > 1
    return isinstance(value, list | Mapping) and bool(value)


def _stands_in(text: str, messages: tuple[Message, ...]) -> bool:
    text = text.strip()
    return any(text in m.content or text in (m.reasoning or "") for m in messages)


def _is_schema(value: Any) -> bool:
    if isinstance(value, str):
        return value.lstrip()[:1] in ("[", "{") and _SCHEMA.search(value) is not None
    try:
        return isinstance(value, list | Mapping) and bool(_SCHEMA.search(encode_json(value)))
    except ValueError:
        return False
