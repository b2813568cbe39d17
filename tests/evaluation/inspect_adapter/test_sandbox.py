"""Our sandbox as inspect's: what commands see, and what a task can do with files."""

from __future__ import annotations

import pytest

pytest.importorskip("inspect_ai")

import inspect_ai
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match
from inspect_ai.solver import solver
from inspect_ai.util import SandboxUserUnsupportedError, sandbox

import posttrain.evaluation.inspect_adapter.sandbox  # noqa: F401 - registers it
from posttrain.environments.sandbox import check_sandbox
from posttrain.errors import ConfigError
from posttrain.evaluation.inspect_adapter.provider import inspect_model
from tests.evaluation.inspect_adapter.running import run_task
from tests.evaluation.scripted import ScriptedSampler, turn


@pytest.fixture(scope="module", autouse=True)
def _contained() -> None:
    try:
        check_sandbox()
    except ConfigError as error:
        pytest.skip(str(error))


def run(step) -> None:
    """One sample of a task, whose solver is `step`."""

    @solver
    def stepping():
        async def solve(state, generate):
            await step(sandbox())
            state.output.completion = "done"
            return state

        return solve

    task = inspect_ai.Task(
        dataset=MemoryDataset(
            [Sample(input="x", target="done", files={"given/a.txt": "from a\n"})]
        ),
        solver=stepping(),
        scorer=match(),
        sandbox="posttrain",
    )
    model = inspect_model(ScriptedSampler(lambda request: turn("56")), "tiny")
    assert run_task(task, model).status == "success"


def test_commands_share_files_and_see_nothing_of_the_machine(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")

    async def step(box) -> None:
        assert (await box.exec(["cat", "given/a.txt"])).stdout == "from a\n"
        found = await box.exec(["cat", str(secret)])
        assert not found.success
        assert "secret" not in found.stdout
        result = await box.exec(["sh", "-c", "wc -c; echo $A; pwd"], input="four", env={"A": "b c"},
                                cwd="given")  # fmt: skip
        assert result.stdout.split("\n") == ["4", "b c", "/scratch/given", ""]
        assert (await box.exec(["sh", "-c", "exit 3"])).returncode == 3

    run(step)


def test_files_and_the_errors_that_models_are_told():
    async def step(box) -> None:
        await box.write_file("deep/b.bin", b"\xff\x00")
        assert await box.read_file("deep/b.bin", text=False) == b"\xff\x00"
        await box.write_file("t.txt", "a\r\nb")
        assert await box.read_file("t.txt") == "a\r\nb"
        with pytest.raises(UnicodeDecodeError):
            await box.read_file("deep/b.bin")
        with pytest.raises(FileNotFoundError):
            await box.read_file("none.txt")
        with pytest.raises(IsADirectoryError):
            await box.read_file("deep")
        with pytest.raises(PermissionError):
            await box.write_file("/usr/x", "no")
        with pytest.raises(TimeoutError):
            await box.exec(["sleep", "20"], timeout=1)
        with pytest.raises(SandboxUserUnsupportedError):
            await box.exec(["true"], user="root")

    run(step)
