"""Where programs cannot be contained, nothing is run: each way of failing says what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.environments import sandbox
from posttrain.environments.sandbox import bubblewrap, check_sandbox, run_sandboxed
from posttrain.errors import ConfigError

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The check of this machine is made once a process: forget it, before and afterwards."""
    check_sandbox.cache_clear()
    yield
    check_sandbox.cache_clear()


@pytest.mark.usefixtures("unchecked")
def test_a_missing_bubblewrap_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        asyncio.run(run_sandboxed(["true"]))


@needs_bwrap
@pytest.mark.usefixtures("unchecked")
def test_a_kernel_without_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"No permissions to create new namespace.*sysctl"):
        check_sandbox()


@needs_bwrap
@pytest.mark.usefixtures("unchecked")
def test_an_interpreter_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch):
    broken = bubblewrap.Interpreter(None, "/usr/bin/false")
    monkeypatch.setattr(sandbox, "find_interpreter", lambda: broken)
    with pytest.raises(ConfigError, match="Python does not start in the sandbox"):
        check_sandbox()
