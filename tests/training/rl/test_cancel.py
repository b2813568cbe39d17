"""A run that ends early leaves no request behind: to the policy's server, to judges, to teachers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, TrainerCallback

from posttrain.config.backend import Server
from posttrain.config.grpo import GroupTraining
from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.config.load import validate
from posttrain.errors import ConfigError
from posttrain.group_rewards import GroupReward
from posttrain.rollouts import Parameters
from posttrain.sampling.engines.http import Client, ServerDown
from posttrain.sampling.engines.transformers import decode_in_thread, score_in_thread
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import EngineRequest, ScoreRequest
from posttrain.training.rl.policy import UNLOAD, LoraServed
from posttrain.training.rl.stage import GroupStage, reward_loop
from posttrain.training.rl.trainer import GroupTrainer
from reward.distill import DistillationReward
from reward.judge.judge import GenRmJudge, open_judges
from reward.rlhf import JudgedReward
from tests.held_server import LIMIT, HeldServer, held_servers
from tests.sampling.test_endpoint import free_port
from tests.training.forks import forked
from tests.training.rl.policy import Scripted, make_prompts, make_recipe, words_of
from tests.training.rl.servers import policy_server, verdict
from tests.training.rl.test_lag import outcome

PROMPTS = make_prompts(24)
ADAPTER: dict[str, Any] = {"adapter": {"rank": 4, "preset": "attention"}}
REFUSED = 401, "no such key"
# rollouts of a step
STEP = 12


async def held() -> tuple[int, str]:
    """Never answer; if nobody hangs up, late, so that a test fails and does not hang."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), LIMIT)
    return 400, "nobody has hung up"


async def answered(
    ends: Callable[[], tuple[int, Any] | None] | None, *, after: asyncio.Event
) -> tuple[int, Any]:
    """Answer that `ends` gives once an event is set; held without one."""
    answer = None
    if ends is not None:
        await asyncio.wait_for(after.wait(), LIMIT)
        answer = ends()
    return await held() if answer is None else answer


@dataclass
class Servers:
    """A policy's server and a judge's or teacher's.

    The last rollout of a step, or its first judgement or score, may end the run. Otherwise that
    rollout and all judgements and scores of the step are held.

    Attributes:
        step: the step, from 0; those before it are answered.
        rollout_ends: called when the other server holds three requests; returns the answer to the
            last rollout, None to hold it as well.
        other_ends: likewise of each request to the other server, once the last rollout is held.
    """

    step: int
    rollout_ends: Callable[[], tuple[int, Any] | None] | None = None
    other_ends: Callable[[], tuple[int, Any] | None] | None = None
    policy: HeldServer = field(init=False)
    other: HeldServer = field(init=False)
    _rollouts: int = 0
    _last_rollout: asyncio.Event = field(default_factory=asyncio.Event)
    _others: int = 0
    _three_others: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer_policy(self, path: str, _body: Any) -> tuple[int, Any]:
        if path != "/completions":
            return 200, {"data": []}
        self._rollouts += 1
        if self._rollouts == (self.step + 1) * STEP:
            self._last_rollout.set()
            return await answered(self.rollout_ends, after=self._three_others)
        choice = {"token_ids": [10, 2], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
        return 200, {"choices": [choice | {"finish_reason": "stop"}]}

    async def answer_other(self, path: str, body: Any) -> tuple[int, Any]:
        if path not in ("/completions", "/chat/completions"):
            return 200, {"data": []}
        if self._rollouts <= self.step * STEP:
            return 200, judged(body) if "messages" in body else scored(body)
        self._others += 1
        if self._others == 3:
            self._three_others.set()
        return await answered(self.other_ends, after=self._last_rollout)

    def all_cut(self) -> bool:
        """Wait until no request is under way at either server."""
        return all(
            server.wait_for(lambda server=server: not server.open)
            for server in (self.policy, self.other)
        )


def judged(body: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": verdict(body["messages"][-1]["content"], 0)}
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def scored(body: dict[str, Any]) -> dict[str, Any]:
    entries: list[Any] = [{str(token): {"logprob": -2.0}} for token in body["prompt"]]
    return {"choices": [{"prompt_token_ids": body["prompt"], "prompt_logprobs": entries}]}


@contextlib.contextmanager
def opened(servers: Servers) -> Iterator[Servers]:
    with held_servers() as open_server:
        servers.policy = open_server(servers.answer_policy)
        servers.other = open_server(servers.answer_other)
        yield servers


def recipe_of(policy: Path, out: Path, url: str, *, lag: int) -> GroupTraining:
    """Steps of 4 prompts × 3 rollouts, all of which a server is sent at the same time."""
    served = {"engine": "lora_server", "url": url, "lag": lag, "retries": 0}
    trainer = {"per_device_train_batch_size": 4}
    sizes = {"prompts_per_step": 4, "num_generations": 3}
    return make_recipe(policy, out, trainer, **sizes, **ADAPTER, rollouts=served)


class Watched(GroupStage):
    """Calls back at the end of each step's training."""

    on_step_end: Callable[[], None]

    def make_trainer(self, *args: Any, **parts: Any) -> GroupTrainer:
        trainer = super().make_trainer(*args, **parts)
        stage = self

        class AtEnd(TrainerCallback):
            def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
                stage.on_step_end()

        trainer.add_callback(AtEnd())
        return trainer


def train(
    recipe: GroupTraining,
    servers: Servers,
    *,
    teacher: Server | None = None,
    on_step_end: Callable[[], None] = lambda: None,
) -> None:
    """Train with the other server as a judge, or with a teacher; nothing is left when it ends."""
    judge = {"kind": "chat", "url": servers.other.url, "model": "judge"}
    raw = {"models": [{"backend": judge, "layout": "compact"}], "retries": 0}
    config = validate(raw, JudgeConfig, where="test")
    with reward_loop() as (runner, stack):
        reward: GroupReward
        if teacher is None:
            models = runner.run(open_judges(config.models, stack))
            reward = JudgedReward(
                GenRmJudge(models, config),
                config=config,
                pairing=PairingConfig(),
                length=LengthConfig(),
            )
        else:
            client = Client(teacher, first_wait=0.001, tell=lambda line: None)
            stack.push_async_callback(client.close)
            scorer = CompletionsEngine(client, model="teacher", identity={})
            reward = DistillationReward({"t": scorer}, teacher_of={"": "t"}, max_failure_rate=0.5)
        stage = Watched(recipe, prompts=PROMPTS, reward=reward, runner=runner)
        stage.on_step_end = on_step_end
        try:
            stage.run(dry_run=False)
        finally:
            pending = [repr(task.get_coro()) for task in asyncio.all_tasks(runner.get_loop())]
            # the probe of a server that is out ends with its client
            assert all("Client._bring_back" in coroutine for coroutine in pending)
            assert "rollouts" not in [thread.name for thread in threading.enumerate()]
            assert servers.all_cut()


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", ["judge", "teacher"])
def test_a_rollout_that_ends_the_run_cuts_what_judges_and_teachers_were_asked(
    policy: Path, tmp_path: Path, kind: str, lag: int
):
    cut_in_training: list[bool] = []
    with opened(Servers(step=lag, rollout_ends=lambda: REFUSED)) as servers:
        recipe = recipe_of(policy, tmp_path / "out", servers.policy.url, lag=lag)
        teacher = None
        if kind == "teacher":
            teacher = Server(url=servers.other.url, model="teacher", retries=0)
        with pytest.raises(ConfigError, match=f"{servers.policy.url} refuses the key"):
            train(
                recipe,
                servers,
                teacher=teacher,
                on_step_end=lambda: cut_in_training.append(servers.all_cut()),
            )
    # with lag 1 another step still trains, which takes as long as it takes
    assert cut_in_training == [True] * lag
    assert len(servers.other.cut) >= 3
    assert servers.policy.cut == []


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", ["judge", "teacher"])
def test_a_judge_or_teacher_that_ends_the_run_cuts_the_rollouts(
    policy: Path, tmp_path: Path, kind: str, lag: int
):
    with opened(Servers(step=lag, other_ends=lambda: REFUSED)) as servers:
        recipe = recipe_of(policy, tmp_path / "out", servers.policy.url, lag=lag)
        teacher = None
        if kind == "teacher":
            teacher = Server(url=servers.other.url, model="teacher", retries=0)
        with pytest.raises(ConfigError, match=f"{servers.other.url} refuses the key"):
            train(recipe, servers, teacher=teacher)
    assert [path for path, _ in servers.policy.cut] == ["/completions"]


def test_a_teacher_that_is_gone_for_longer_than_the_run_waits_cuts_the_rollouts(
    policy: Path, tmp_path: Path
):
    """Every other request to it would wait and fail as well."""
    teacher = Server(url=f"http://127.0.0.1:{free_port()}/v1", model="t", wait=0.02)
    with opened(Servers(step=0)) as servers:
        recipe = recipe_of(policy, tmp_path / "out", servers.policy.url, lag=0)
        with pytest.raises(ServerDown, match=r"refused connections for 0\.02 s"):
            train(recipe, servers, teacher=teacher)
    assert [path for path, _ in servers.policy.cut] == ["/completions"]


def heed_ctrl_c() -> None:
    """Raise KeyboardInterrupt for Ctrl-C in a process of a test's own."""
    # a shell has the jobs that it begins in the background ignore it, and their children do
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("while_training", [False, True])
def test_ctrl_c_cuts_all_that_is_under_way(
    policy: Path, tmp_path: Path, lag: int, while_training: bool
):
    """While the run waits for its rollouts, and with lag 1 also while it trains."""

    def interrupted() -> None:
        heed_ctrl_c()
        ends = None if while_training else interrupt
        with opened(Servers(step=lag, rollout_ends=ends)) as servers:

            def on_step_end() -> None:
                if while_training:
                    servers.other.wait_for(lambda: servers.other.open >= 3)
                    interrupt()

            recipe = recipe_of(policy, tmp_path / "out", servers.policy.url, lag=lag)
            with pytest.raises(KeyboardInterrupt):
                train(recipe, servers, on_step_end=on_step_end)
            assert len(servers.policy.cut) == 1
            assert len(servers.other.cut) >= 3

    if lag or not while_training:
        # in a process of its own, which has this thread alone to interrupt
        forked(interrupted)


def test_a_run_that_was_interrupted_while_it_sampled_ahead_ends_with_the_same_bytes(
    policy: Path, tmp_path: Path
):
    """The checkpoint behind the second step holds the third one's rollouts; the fourth's are cut."""
    with policy_server(policy) as server:

        def run(name: str, *, interrupted: bool) -> list[int]:
            served = {"engine": "lora_server", "url": server.url, "retries": 0, "lag": 1}
            trainer = {"max_steps": 4, "save_steps": 1, "per_device_train_batch_size": 4}
            sizes = {"prompts_per_step": 4, "num_generations": 3}
            recipe = make_recipe(
                policy, tmp_path / name, trainer, **sizes, **ADAPTER, rollouts=served
            )
            steps: list[int] = []

            def on_step_end() -> None:
                steps.append(len(steps))
                if interrupted and len(steps) == 3:
                    interrupt()

            def stage() -> None:
                heed_ctrl_c()
                watched = Watched(recipe, prompts=PROMPTS, reward=Scripted(words_of))
                watched.on_step_end = on_step_end
                watched.run(dry_run=False)

            return forked(stage, check=not interrupted).codes

        run("whole", interrupted=False)
        assert run("cut", interrupted=True) == [1]
        run("cut", interrupted=False)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_request_that_no_other_can_survive_cuts_those_of_the_same_call():
    """As of a teacher that is asked for all its scores at once."""

    async def answer(_path: str, body: Any) -> tuple[int, Any]:
        return REFUSED if body["prompt"] == [0, 5] else await held()

    async def ask(server: HeldServer) -> None:
        client = Client(Server(url=server.url, model="m", retries=0))
        engine = CompletionsEngine(client, model="m", identity={})
        requests = [ScoreRequest((0, k), (False, True)) for k in range(6)]
        try:
            with pytest.raises(ConfigError, match="refuses the key"):
                await engine.score(requests)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        finally:
            await client.close()

    with held_servers() as open_server:
        server = open_server(answer)
        asyncio.run(ask(server))
        assert server.wait_for(lambda: not server.open)


@pytest.mark.parametrize("kind", ["decode", "score"])
def test_a_model_in_this_process_is_left_alone_when_its_call_has_ended(policy: Path, kind: str):
    """A cancelled call waits for its thread: the weights may be sharded again after it."""
    model: Any = AutoModelForCausalLM.from_pretrained(str(policy)).eval()
    going_on = threading.Event()
    left: list[str] = []

    async def cancelled() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            loop.call_soon_threadsafe(started.set)
            going_on.wait(LIMIT)
            try:
                yield
            finally:
                left.append(kind)

        parameters = Parameters(max_tokens=4)
        if kind == "decode":
            requests = [EngineRequest((3, 4), parameters, seed=0, stop_ids=())]
            call = decode_in_thread(model, requests, batch_size=1, around=around)
        else:
            call = score_in_thread(model, [ScoreRequest((3, 4), (False, True))], around=around)
        task = asyncio.ensure_future(call)
        await started.wait()
        task.cancel()
        for _ in range(9):
            await asyncio.sleep(0)
        assert not task.done()
        going_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left == [kind]

    asyncio.run(cancelled())


def served_engine(tmp_path: Path, url: str) -> LoraServed:
    """Engine of a server that has the adapter of step 3."""
    served = {"engine": "lora_server", "url": url, "retries": 2}
    recipe = make_recipe(tmp_path, tmp_path, **ADAPTER, rollouts=served)
    trainer: Any = SimpleNamespace(recipe=recipe, is_world_process_zero=lambda: True)
    engine = LoraServed(trainer)
    engine._loaded = ("policy-00003", tmp_path)
    return engine


def test_a_server_that_does_not_unload_its_adapter_does_not_hold_up_the_end(tmp_path: Path):
    async def answer(_path: str, _body: Any) -> tuple[int, Any]:
        return await held()

    with held_servers() as open_server, asyncio.Runner() as runner:
        server = open_server(answer)
        engine = served_engine(tmp_path, server.url)
        engine.unload_seconds = 0.05
        runner.run(engine.close())
        assert server.wait_for(lambda: not server.open)
    assert [path for path, _ in server.begun] == [UNLOAD]


def test_a_server_that_refuses_to_unload_an_adapter_is_asked_again(tmp_path: Path):
    refusals = [429, 500]

    async def answer(_path: str, _body: Any) -> tuple[int, Any]:
        return (refusals.pop(0), "busy") if refusals else (200, "removed")

    with held_servers() as open_server, asyncio.Runner() as runner:
        server = open_server(answer)
        runner.run(served_engine(tmp_path, server.url).close())
    assert [path for path, _ in server.begun] == [UNLOAD] * 3
