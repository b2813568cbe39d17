"""Tasksets of the `verifiers` package; what needs the package skips without it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from posttrain.errors import ConfigError, DataError
from reward.environments import find_environment, outside
from reward.environments.base import RLVREnvironment, admit, replay, says
from reward.graders.workers import Workers

MODULE = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Task(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.8)
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "crash":
            raise ValueError("a bug")
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.2)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 4)

class Letters(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        for word in ("apple", "banana", "fig"):
            data = Data(prompt=f"Letters of {word}?", system_prompt="A number.", answer=str(len(word)))
            yield Task(data, self.config.task)

__all__ = ["Letters"]
"""
RUNTIME = MODULE.replace("right(self, trace: vf.Trace)", "right(self, trace: vf.Trace, runtime)")
CONTAINER = MODULE.replace(
    "    @vf.reward(weight=0.8)", "    NEEDS_CONTAINER = True\n    @vf.reward(weight=0.8)"
)
SEVERAL = MODULE.replace("__all__ = [", "class Own(vf.SingleAgentEnv): pass\n\n__all__ = ['Own', ")
MODULES = {"vf_letters": MODULE, "vf_runtime": RUNTIME, "vf_box": CONTAINER, "vf_several": SEVERAL}


@pytest.fixture
def package(tmp_path: Path) -> Iterator[None]:
    pytest.importorskip("verifiers.v1", reason="the verifiers package is not installed")
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    workers = Workers(size=1, cpu_seconds=60.0)
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        patch.setenv("PYTHONPATH", path)
        patch.syspath_prepend(str(tmp_path))
        patch.setattr(outside, "OUTSIDE_WORKERS", workers)
        yield
    workers.close()
    for name in MODULES:
        sys.modules.pop(name, None)


def environment_of(name: str) -> RLVREnvironment:
    environment = find_environment(f"verifiers:{name}")
    assert environment is not None
    return environment


@pytest.mark.usefixtures("package")
def test_tasks_are_rows_and_their_weighted_rewards_the_score():
    environment = environment_of("vf-letters")
    rows = environment.rows(seed=1, count=3)
    assert rows == environment.rows(seed=1, count=3)
    admitted = asyncio.run(admit(iter(rows), {environment.name: environment}))
    assert (len(admitted.prompts), admitted.dropped) == (3, [])
    [fig] = [p for p in admitted.prompts if "fig" in p.messages[-1].content]
    assert [message.role for message in fig.messages] == ["system", "user"]

    async def scores() -> list[float | None]:
        answers = ("3", "It is 3, I think", "4", "crash")
        made = [await replay(environment, fig, says(text)) for text in answers]
        return [(await environment.verify(fig, completion)).value for completion in made]

    assert asyncio.run(scores()) == [1.0, 0.0, 0.2, None]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vf-box", "needs a container"),
        ("vf-several", "needs further turns"),
        ("vf-nowhere", "cannot be made: ModuleNotFoundError"),
    ],
)
def test_what_this_loop_cannot_run_is_refused(name: str, why: str):
    with pytest.raises(ConfigError, match=why):
        environment_of(name)


@pytest.mark.usefixtures("package")
def test_a_reward_that_needs_a_runtime_is_refused_and_not_left_out():
    with pytest.raises(DataError, match="reward right needs a runtime"):
        environment_of("vf-runtime").rows(seed=0, count=1)


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="the package is installed")
def test_without_the_package_it_says_what_to_install():
    with pytest.raises(ConfigError, match=r"pip install 'verifiers>=0\.4'"):
        find_environment("verifiers:gsm8k")
