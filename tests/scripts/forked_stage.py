"""Stages of a chain as forks of the tests' process, which need not import transformers and torch.

How a chain starts real processes is shown by tests/test_chain.py and tests/docs/test_ci.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from posttrain import chain
from scripts.__main__ import dispatch
from tests.training.forks import forked


class ForkedStage:
    """A stage's process, which has ended when it is there."""

    def __init__(
        self,
        command: list[str],
        *,
        cwd: Path,
        env: dict[str, str],
        stdout: BinaryIO | None = None,
        **_others: int,
    ) -> None:
        assert cwd.samefile(".")
        self.ended = forked(lambda: dispatch(command[2:]), check=False)
        if stdout is None:
            print(self.ended.text)
        else:
            stdout.write(self.ended.text.encode())

    def wait(self) -> int:
        return self.ended.codes[0]


def fork_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have chains start their stages as forks, one after the other."""
    streams = {"DEVNULL": subprocess.DEVNULL, "STDOUT": subprocess.STDOUT}
    monkeypatch.setattr(chain, "subprocess", SimpleNamespace(Popen=ForkedStage, **streams))
