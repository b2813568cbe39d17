"""The rollouts of a group-relative run, read back: some of its steps, evenly spread.

batches = read_rollouts(node)     # a few steps: a run at scale has gigabytes of them
batches[0].step == 1, batches[0].groups[0]["rollouts"][0]["reward"] == 3.5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.report.lineage import Node, listed_rows

Row = Mapping[str, Any]
FOLDER = "rollouts/"
MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """All groups of one batch of rollouts."""

    step: int
    groups: Sequence[Row]

    @property
    def rollouts(self) -> Iterator[Row]:
        """Every rollout of every group."""
        return (rollout for group in self.groups for rollout in group["rollouts"])


def rollout_files(node: Node) -> list[str]:
    """The files of rollouts that the manifest lists, in order of their steps."""
    assert node.manifest is not None
    return sorted(file.path for file in node.manifest.files if file.path.startswith(FOLDER))


def read_rollouts(node: Node) -> list[Batch]:
    """At most `MOST_STEPS` batches, the first and the last among them.

    Raises:
        DataError: a file is gone, or is not what the manifest says.
    """
    files = rollout_files(node)
    if len(files) > MOST_STEPS:
        last = len(files) - 1
        files = [files[round(k * last / (MOST_STEPS - 1))] for k in range(MOST_STEPS)]
    found = [listed_rows(node, name) for name in files]
    return [Batch(rows[0]["step"], rows) for rows in found if rows]
