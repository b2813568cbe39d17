"""What the sampling stage keeps on disk beside the samples: prompts, what made them, speed.

prompts.jsonl        a prompt a line
work/made_by.json    prompts, sampler and settings that unfinished samples belong to
speed.jsonl          a line a run of the command; not part of the artifact
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts import atomic_write_json, differing_keys
from posttrain.errors import ConfigError
from posttrain.records import json_text
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.sampling.journal import row_line
from posttrain.sampling.loop import Task

MADE_BY = "made_by.json"


def tasks_of(prompts: Sequence[Prompt], samples: Callable[[str], int], *, seed: int) -> list[Task]:
    """Every completion to make, prompt by prompt; `samples` says how many in a setting."""
    return [
        Task(prompt, index, seed) for prompt in prompts for index in range(samples(prompt.setting))
    ]


def prompt_lines(prompts: Sequence[Prompt]) -> str:
    """What `prompts.jsonl` holds: a row a line."""
    return "".join(row_line(prompt_to_row(prompt)) for prompt in prompts)


def bind(work: Path, made_by: Mapping[str, Any]) -> None:
    """Note what unfinished samples are made by, or refuse to mix them with others.

    Args:
        made_by: JSON-able; digests of prompts and model.

    Raises:
        ConfigError: the samples that are there were made by something else.
    """
    path, now = work / MADE_BY, json.loads(json.dumps(made_by))
    if not path.is_file():
        atomic_write_json(path, now)
        return
    before = json.loads(path.read_text("utf-8"))
    if before != now:
        changed = ", ".join(differing_keys(before, now))
        raise ConfigError(
            f"{work.parent} holds unfinished samples that were made by something else (they differ "
            f"in: {changed}); choose another out=, or delete the directory to start over"
        )


def append_speed(path: Path, row: Mapping[str, Any]) -> None:
    """Note how fast one run of the command was."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json_text(row) + "\n")
