"""Loss masks of rows, messages and parts: honoured where clear, else the row is refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data_builders.dialects.columns import (
    IGNORED_LABEL,
    SYSTEM_KEYS,
    TOOL_KEYS,
    is_more_than_a_switch,
    is_verdict,
    kind_of,
    says_answer_is_bad,
)
from data_builders.dialects.reading import Reading, Row, RowProblem
from posttrain.jsontext import load_json

# under these names 1 puts an answer into the loss, under those of `_UNTRAINED` 1 takes it out
_TRAINED = (
    "weight",
    "loss_weight",
    "loss",
    "train",
    "training",
    "train_on_turn",
    "trainable",
    "requires_grad",
)
_UNTRAINED = ("masked", "no_grad", "context_only")
# one number for each message of the row, or for each of the assistant's; 1 is in the loss
_MESSAGE_WEIGHTS = frozenset(
    [
        "weights",
        "message_weights",
        "turn_weights",
        "loss_weights",
        "loss_mask",
        "loss_masks",
        "train_mask",
        "train_masks",
        "assistant_loss_mask",
        "assistant_loss_masks",
    ]
)
_ON_PROMPT = frozenset({"train_on_input", "train_on_inputs", "train_on_prompt", "train_on_prompts"})
_PROMPT_ROLES = ("user", "human", "system")  # NeMo's rows name the role to mask
_TRUTH_WORDS = {"true": True, "false": False, "1": 1, "1.0": 1, "0": 0, "0.0": 0}
# texts under a name with `train` that make it a mask; others are names of data sets
_SWITCH_WORDS = frozenset(
    [
        "yes",
        "no",
        "on",
        "off",
        "all",
        "none",
        "last",
        "first",
        "full",
        "final",
        "assistant",
        "gpt",
        "model",
        "user",
        "human",
        "system",
        "prompt",
        "completion",
        "response",
        "answer",
        "output",
    ]
)
_OVER_TURNS = re.compile(r"mask|turns?|messages?|trainable")
# a mask inside the JSON text of a column
_MASK_IN_TEXT = re.compile(r'"\w{0,40}(?:loss|mask|train|weight)\w{0,40}"\s*:')
# columns that hold the conversation itself
_CONVERSATION = frozenset(
    [
        "messages",
        "conversations",
        "conversation",
        "instruction",
        "input",
        "output",
        "response",
        "context",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "history",
    ]
).union(SYSTEM_KEYS, TOOL_KEYS)
# keys of a message whose values have a reading of their own, with masks of their own
_READ_ELSEWHERE = frozenset({"content", "value", "tool_calls", "function_call"})


def trained_by_masks(
    item: Mapping[str, Any], location: str, *, mapped: Collection[str | None] = ()
) -> bool:
    """True if the loss masks of an assistant's message, or of a part of one, train it.

    Args:
        mapped: keys that the recipe reads as something else.

    Raises:
        RowProblem: `malformed_message`, a mask that cannot be honoured, or two that disagree.
    """
    flags: dict[str, bool] = {}
    for path, key, value in _masks_of_message(item):
        if key in mapped or (key == "labels" and not isinstance(value, list)):
            continue  # `labels` that is no list is a class of the message
        trained = _is_trained(key, value)
        if trained is None:
            detail = f"{value!r:.80} is no loss mask that is understood: write train: true or false"
            raise RowProblem("malformed_message", f"{location}.{path:.80}", detail)
        flags[path] = trained
    if len(set(flags.values())) > 1:
        raise RowProblem(
            "malformed_message", f"{location}.{min(flags)}", "loss masks that disagree"
        )
    return all(flags.values())


def mask_key(item: Mapping[str, Any]) -> str:
    """Path of the first loss mask of a message, for an error that names it."""
    return next((path for path, _, _ in _masks_of_message(item)), "")


def _masks_of_message(item: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(path, key, value) of each mask of a message, also inside its metadata."""
    for key, value in item.items():
        if value is None:
            continue
        if kind_of(key) == "mask":
            yield key, key, value
        elif type(value) is dict and key not in _READ_ELSEWHERE:
            for inner, nested in value.items():
                if nested is not None and kind_of(inner) == "mask":
                    yield f"{key}.{inner}", inner, nested


def _is_trained(key: str, value: Any) -> bool | None:
    """True if an answer with this mask is trained; `None` for an ambiguous mask."""
    if isinstance(value, str):
        value = _TRUTH_WORDS.get(value.strip().lower())
    if value not in (0, 1):
        return None
    if key in _TRAINED:
        return bool(value)
    # as a number, 1 under `mask` is "masked" to some and "in the loss" to others
    is_untrained = key in _UNTRAINED or (key == "mask" and isinstance(value, bool))
    return not value if is_untrained else None


def has_row_masks(row: Row, reading: Reading) -> bool:
    """True if a row has loss masks of its own, beside those of its messages.

    Raises:
        RowProblem: `rejected_answer`, a label that says that its one answer is a bad one.
    """
    _refuse_bad_answer(row, reading)
    return next(_masks_of_row(row, reading), None) is not None


def row_masks(row: Row, reading: Reading, *, roles: Sequence[str | None] = ()) -> list[bool] | None:
    """Flags, one a message, True where the row's own masks train it; `None` if they allow all.

    Args:
        roles: our role of each message of the row's list; empty where the row has no list.

    Raises:
        RowProblem: `untrained_turn`, a row not to train; `malformed_message`, a mask that cannot
            be honoured, or two that disagree.
    """
    trained: list[bool] | None = None
    for path, key, value in _masks_of_row(row, reading):
        flags = _message_flags(path, key, value, roles)
        if flags is None:
            continue
        if trained is not None and flags != trained:
            raise RowProblem("malformed_message", path, "loss masks that disagree")
        trained = flags
    return trained


def is_row_mask(key: str, value: Any) -> bool:
    """True if a column is a loss mask of the row; such a mask is honoured or refused."""
    return kind_of(key) == "mask" and not _is_name_or_prose(key, value)


def _masks_of_row(row: Row, reading: Reading) -> Iterator[tuple[str, str, Any]]:
    """(path, key, value) of each mask of a row that the recipe does not name."""
    columns = _sort_columns(tuple(row))
    for key in columns.masks:
        value = row[key]
        if value is None or value in ("", [], {}) or key in reading.used_columns:
            continue
        if is_row_mask(key, value):
            yield key, key, value
    for key in columns.unmarked:
        value = row[key]
        if type(value) is list:
            if value and key not in reading.used_columns and _is_nameless_mask(key, value):
                yield key, key, value
        elif value and type(value) in (dict, str) and key not in reading.used_columns:
            yield from _masks_inside(value, key)


class _Columns(NamedTuple):
    """Columns of a row by their names.

    Attributes:
        masks: names of loss masks.
        verdicts: names of labels that say whether the answer is a good one.
        unmarked: columns that are neither masks nor a part of the conversation; a mask may stand
            inside them.
    """

    masks: tuple[str, ...]
    verdicts: tuple[str, ...]
    unmarked: tuple[str, ...]


@functools.lru_cache(maxsize=1024)  # a source's rows have the same columns
def _sort_columns(names: tuple[str, ...]) -> _Columns:
    masks = tuple(name for name in names if kind_of(name) == "mask")
    verdicts = tuple(name for name in names if is_verdict(name))
    unmarked = tuple(name for name in names if name not in masks and name not in _CONVERSATION)
    return _Columns(masks, verdicts, unmarked)


def _masks_inside(value: Any, path: str, *, depth: int = 3) -> Iterator[tuple[str, str, Any]]:
    """(path, key, value) of the unambiguous masks in a column's object, or in its JSON text."""
    members = _read_object(value)
    if members is None or not depth:
        return
    for key, nested in members.items():
        if _is_clear_mask(key, nested):
            yield f"{path}.{key}", key, nested
        elif type(nested) is dict:
            yield from _masks_inside(nested, f"{path}.{key}", depth=depth - 1)


def _is_nameless_mask(key: str, values: list[Any]) -> bool:
    """True if a list is a mask by its values: ignored labels, or flags under a non-English name."""
    if type(values[0]) not in (int, float, bool):
        return False
    return IGNORED_LABEL in values or (not key.isascii() and _flags_of(values) is not None)


def _is_name_or_prose(key: str, value: Any) -> bool:
    """True if a text under a mask's name is prose (`learning_goal`) or the name of a data set."""
    if not isinstance(value, str) or _flags_of(value) is not None:
        return False
    if is_more_than_a_switch(value):
        return True
    word = value.strip().lower()
    is_weak_name = "loss" not in key.lower() and "mask" not in key.lower() and key not in _TRAINED
    is_switch = word in _TRUTH_WORDS or not _SWITCH_WORDS.isdisjoint(re.split(r"[\W_]+", word))
    return is_weak_name and not is_switch


def _read_object(value: Any) -> Mapping[str, Any] | None:
    """An object that may hold masks, also as JSON text; `None` for anything else."""
    if type(value) is dict:
        return value
    if isinstance(value, str) and value[:1] == "{" and _MASK_IN_TEXT.search(value):
        try:
            decoded = load_json(value)
        except ValueError:
            return None
        return decoded if isinstance(decoded, dict) else None
    return None


def _is_clear_mask(key: str, value: Any) -> bool:
    """True if a value inside a column's object is a mask over turns and nothing else."""
    if not _has_mask_name(key):
        return False
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, int) for item in value)
    if _is_trained(key, value) is not None:
        return True
    return (_is_last_only(key) or key in _ON_PROMPT) and isinstance(value, bool)


@functools.lru_cache(maxsize=4096)
def _has_mask_name(key: str) -> bool:
    """True if a key inside a column's object names a mask over turns."""
    if key in _TRAINED or key in _UNTRAINED or key in _MESSAGE_WEIGHTS or key in _ON_PROMPT:
        return True
    return _is_last_only(key) or (kind_of(key) == "mask" and _OVER_TURNS.search(key) is not None)


def _message_flags(
    path: str, key: str, value: Any, roles: Sequence[str | None]
) -> list[bool] | None:
    """Flags of the messages that one mask of a row trains; `None` if it changes nothing."""
    trained = _is_trained(key, value)
    if trained is not None:
        if not trained:
            raise RowProblem("untrained_turn", path, f"{value!r:.80}: a row not to train")
        return None
    switch = _TRUTH_WORDS.get(str(value).strip().lower())
    if key == "labels" and not (isinstance(value, list) and IGNORED_LABEL in value):
        return None  # classes, and not one label a token
    if key in _ON_PROMPT and switch == 0:
        return None
    if _is_last_only(key) and switch is not None:
        return _last_answer_flags(path, roles) if switch else None
    if key == "mask" and str(value).lower() in _PROMPT_ROLES:
        return None
    flags = _flags_of(value)
    if key in _MESSAGE_WEIGHTS and flags is not None:
        if len(flags) == len(roles):
            return [role != "assistant" or flag for role, flag in zip(roles, flags, strict=True)]
        answers = [index for index, role in enumerate(roles) if role == "assistant"]
        if len(flags) == len(answers) and ("turn" in key or "assistant" in key):
            flag_by_index = dict(zip(answers, flags, strict=True))
            return [flag_by_index.get(index, True) for index in range(len(roles))]
    detail = f"{value!r:.60} is a loss mask of the row that is not honoured; name the column under "
    raise RowProblem("malformed_message", path, f"{detail}metadata to leave it out")


def _is_last_only(key: str) -> bool:
    """True if a key says that only the last answer is trained."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower().split("_")
    return key == "mask_history" or ("last" in words and "only" in words)


def _last_answer_flags(path: str, roles: Sequence[str | None]) -> list[bool]:
    """Flags that train the last answer alone.

    Raises RowProblem where the last turn has several answers: the mask may mean any of them.
    """
    answers = [index for index, role in enumerate(roles) if role == "assistant"]
    users = [index for index, role in enumerate(roles) if role == "user"]
    if not roles:
        raise RowProblem("malformed_message", path, "a mask over turns, and the row has no list")
    if answers and users and any(users[-1] < index < answers[-1] for index in answers):
        detail = "the last turn has several steps: mark the messages to train with train: true"
        raise RowProblem("malformed_message", path, detail)
    return [role != "assistant" or index == answers[-1] for index, role in enumerate(roles)]


def _flags_of(value: Any) -> list[bool] | None:
    """A list of zeros and ones, or its JSON text, as truth values; `None` for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = load_json(value)
        except ValueError:
            return None
    if not isinstance(value, list) or not value or not all(item in (0, 1) for item in value):
        return None
    return [bool(item) for item in value]


def _refuse_bad_answer(row: Row, reading: Reading) -> None:
    """Refuse a row whose label says that its one answer is a bad one."""
    if "chosen" in row:
        return
    for name in _sort_columns(tuple(row)).verdicts:
        value = row[name]
        if says_answer_is_bad(name, value) and name not in reading.used_columns:
            detail = f"{value!r}: a bad answer; a recipe that names the column keeps it"
            raise RowProblem("rejected_answer", name, detail)
