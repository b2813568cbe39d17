"""Loss masks that rows carry: every answer is trained here, so one that is not to be is refused.

refuse_untrained({"role": "assistant", "content": "4", "weight": 0}, "messages[1]")
    → RowProblem("untrained_turn", "messages[1].weight", …)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from data_builders.dialects.reading import Reading, Row, RowProblem

_TRAINED = frozenset(
    {"weight", "loss_weight", "loss", "train", "training", "train_on_turn", "trainable"}
)
_ANSWER_MASKS = (*sorted(_TRAINED), "masked", "mask")
_WORDS = {"true": True, "false": False, "1": 1, "1.0": 1, "0": 0, "0.0": 0}
# at the start of a word, so that neither `constraint` nor `glossary` is a mask
_LIKE_A_MASK = re.compile(r"(?:^|[^a-z])(?:un|non)?(?:loss|mask|train|supervis|weight|backprop)")
_ROW_MASKS = (
    "loss_mask", "loss_masks", "loss_weights", "completion_mask",
    "assistant_mask", "assistant_masks",
    "train_on_input", "train_on_inputs", "train_on_prompt", "train_on_prompts",
)  # fmt: skip


def refuse_untrained(
    item: Mapping[str, Any], where: str, *, mapped: Collection[str | None] = ()
) -> None:
    """Refuse an assistant's message, or a part of one, that a loss mask takes out of the loss.

    Args:
        mapped: keys that the recipe reads as something else.

    Raises:
        RowProblem: `untrained_turn`; `malformed_message` for a mask that cannot be honoured.
    """
    flags: dict[str, bool] = {}
    for key, value in item.items():
        if not _is_a_mask(key) or value is None or key in mapped:
            continue
        trained = _trained(key, value)
        if trained is None:
            what = f"{value!r:.80} is no loss mask that is understood: write train: true or false"
            # the key may be one that no report can be written with
            at = f"{where}.{key:.80}".encode("utf-8", "backslashreplace").decode()
            raise RowProblem("malformed_message", at, what)
        flags[key] = trained
    untrained = next((key for key, trained in flags.items() if not trained), None)
    if untrained is None:
        return
    at, value = f"{where}.{untrained}", item[untrained]
    if any(flags.values()):
        raise RowProblem("malformed_message", at, f"{value!r:.80}, and another mask trains it")
    raise RowProblem("untrained_turn", at, f"{value!r:.80}: an answer not to train")


def refuse_row_masks(row: Row, how: Reading) -> None:
    """Refuse a mask over the whole row, but for one that asks for what is done anyway.

    Under a key of an answer's mask only a plain "not to train" counts: a row may hold any `weight`.
    """
    if not how.trains:
        return
    for name in _ANSWER_MASKS:
        value = row.get(name)
        if value is not None and _trained(name, value) is False:
            raise RowProblem("untrained_turn", name, f"{value!r:.80}: a row not to train")
    for name in _ROW_MASKS:
        value = row.get(name)
        if value is not None and not (
            name.startswith("train_on") and _trained("train", value) is False
        ):
            raise RowProblem("malformed_message", name, "a loss mask of the row is not honoured")


@functools.lru_cache(maxsize=1024)  # few keys, asked of every message
def _is_a_mask(key: str) -> bool:
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    return _LIKE_A_MASK.search(snake) is not None


def _trained(key: str, value: Any) -> bool | None:
    """Whether an answer with this mask is trained; `None` where nobody can tell."""
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower())
    if value not in (0, 1):
        return None
    if key in _TRAINED:
        return bool(value)
    # as a number, 1 under `mask` is "masked" to some and "in the loss" to others
    told = key == "masked" or (key == "mask" and isinstance(value, bool))
    return not value if told else None
