"""A tokenised data set of forty sound sequences, and ways to plant one defect into some of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.chat import nemotron_3_nano_template
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer
from tests.data_builders.small_build import write_tokenizer

IGNORED = -100
SPECIAL = {"<|pad|>": 256, "<|im_start|>": 257, "<|im_end|>": 258, "<think>": 259, "</think>": 260}


@dataclass(frozen=True)
class Sound:
    """One sequence: ids, and for each whether it is trained."""

    ids: list[int]
    mask: list[bool]

    @property
    def labels(self) -> list[int]:
        return [i if m else IGNORED for i, m in zip(self.ids, self.mask, strict=True)]


def sound(folder: Path, count: int = 40) -> list[Sound]:
    """Sequences as they should be, all different; every other one reasons."""
    path = write_tokenizer(folder / "tokenizer")
    (path / "chat_template.jinja").write_text(nemotron_3_nano_template().source)
    encode = encoder_of(load_any_tokenizer(str(path))).encode
    found: list[Sound] = []
    for k in range(count):
        think = "<think>\n" if k % 2 else "<think></think>"
        trace = f"{k} is a number.\n</think>\n" if k % 2 else ""
        prompt = f"<|im_start|>system\n<|im_end|>\n<|im_start|>user\nSay {k}<|im_end|>\n<|im_start|>assistant\n{think}"
        asked, said = encode([prompt, f"{trace}{'so ' * (1 + k % 7)}{k}<|im_end|>\n"])
        found.append(Sound(asked + said, [False] * len(asked) + [True] * len(said)))
    return found


def unmasked(one: Sound) -> Sound:
    return replace(one, mask=[True] * len(one.ids))


def all_masked(one: Sound) -> Sound:
    return replace(one, mask=[False] * len(one.ids))


def end_masked(one: Sound) -> Sound:
    """The end token and the line end behind it are left out of the loss."""
    return replace(one, mask=[*one.mask[:-2], False, False])


def cut_off(one: Sound) -> Sound:
    """The end of the answer is gone."""
    return Sound(one.ids[:-3], one.mask[:-3])


def end_missing(one: Sound) -> Sound:
    """The answer is whole, but for its end token."""
    return Sound([*one.ids[:-2], one.ids[-1]], [*one.mask[:-2], one.mask[-1]])


def end_masked_before_its_line_end(one: Sound) -> Sound:
    """The end token alone is left out of the loss, the line end behind it is not."""
    return replace(one, mask=[*one.mask[:-2], False, True])


def only_the_end(one: Sound) -> Sound:
    """The words of the answer are left out of the loss."""
    return replace(one, mask=[False] * (len(one.mask) - 2) + [True, True])


def empty_answer(one: Sound) -> Sound:
    """The answer behind the trace, if there is one, is nothing but its end."""
    first = one.mask.index(True)
    close = one.ids.index(SPECIAL["</think>"]) + 1 if SPECIAL["</think>"] in one.ids[first:] else 0
    keep = max(first, close)
    return Sound(one.ids[:keep] + one.ids[-2:], one.mask[:keep] + one.mask[-2:])


def think_header(one: Sound) -> Sound:
    """The loss begins at the trace that the generation prompt opens."""
    first = one.mask.index(True)
    opened = len(one.ids) - 1 - one.ids[::-1].index(SPECIAL["<think>"])
    return replace(one, mask=[k >= min(first, opened) for k in range(len(one.ids))])


def user_trained(one: Sound) -> Sound:
    """The words of the user are in the loss, the markers around them are not."""
    say = one.ids.index(ord("S"))
    mask = list(one.mask)
    mask[say : say + 3] = [True] * 3
    return replace(one, mask=mask)


def padded(one: Sound) -> Sound:
    """Padding in the loss."""
    return Sound([*one.ids, SPECIAL["<|pad|>"]], [*one.mask, True])


def write_sources(path: Path, sources: dict[str, list[Sound]]) -> Path:
    """One sequence a row, with labels and its source."""
    rows = [(name, one) for name, own in sources.items() for one in own]
    columns = {"source": [name for name, _ in rows]}
    columns["input_ids"] = [one.ids for _, one in rows]
    columns["labels"] = [one.labels for _, one in rows]
    pq.write_table(pa.table(columns), path)
    return path


def figures(manifest: Path) -> dict[str, dict[str, int]]:
    """The figures of a written audit."""
    return json.loads((manifest / "manifest.json").read_text("utf-8"))["stats"]["supervision"]
