"""Judging a step's rollouts against a slow server: time against the ideal, cost of the client.

    python -m benchmarks judging                      # 2,048 rollouts, 2 s a call, 256 connections
    python -m benchmarks judging --rollouts 256 --latency 0.5 --out judging.json

A server in a process of its own answers every call after exactly `--latency` seconds with a verdict
of ordinary size. The client is the whole of RLHF's reward: prompts are written, sent, read, cached
on disk, and rewards are made of them. Ideal is the time in which the connections, never idle,
could wait for all calls. CPU seconds are the client process's, user and system.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks import COMMAND
from benchmarks.options import add_figures_file
from posttrain.chat import parse_completion
from posttrain.config.backend import ChatBackend
from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.group_rewards import Group
from posttrain.records import Message
from posttrain.rollouts import Completion, Prompt, Step
from posttrain.sampling.engines.chat import ChatSampler
from posttrain.sampling.engines.http import Client
from posttrain.versions import package_versions
from reward.judge.judge import GenRmJudge, judge_sampler
from reward.judge.prompt import verdict_text
from reward.judge.verdict import Verdict
from reward.judge.votes import VerdictCache
from reward.rlhf import JudgedReward

GROUP = 16
WORDS = (
    "the",
    "sum",
    "of",
    "two",
    "is",
    "not",
    "what",
    "was",
    "asked",
    "for",
    "so",
    "look",
    "again",
)


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a step's judging.

    Attributes:
        share: throughput as a share of the ideal one.
        cpu_ms: CPU milliseconds of the client for a call.
        grown_mib: growth of the client's peak memory while it judged.
    """

    rollouts: int
    calls: int
    failed: int
    connections: int
    latency: float
    seconds: float
    ideal_seconds: float
    share: float
    cpu_ms: float
    peak_mib: float
    grown_mib: float


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rollouts", type=int, default=2048)
    parser.add_argument("--latency", type=float, default=2.0, help="seconds a call")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--answer", type=int, default=1500, help="characters of a rollout's answer")
    parser.add_argument("--reasoning", type=int, default=4000, help="characters a judge reasons")
    add_figures_file(parser)
    parser.add_argument("--serve", action="store_true", help=SUPPRESS)


def main(options: Namespace) -> None:
    if options.rollouts % GROUP:
        sys.exit(f"--rollouts: whole groups of {GROUP}")
    if options.serve:
        asyncio.run(serve(options.latency, options.reasoning))
        return
    command = [*COMMAND, "judging", "--serve"]
    command += [f"--latency={options.latency}", f"--reasoning={options.reasoning}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            result = asyncio.run(measure(options, url))
        finally:
            server.terminate()
    figures = asdict(result) | {"versions": package_versions(["aiohttp"])}
    print(json.dumps(figures, indent=2))
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


async def measure(options: Namespace, url: str) -> Result:
    """Measure one step's judging, from rollouts to rewards."""
    groups = rollouts(options.rollouts // GROUP, options.answer)
    backend = {"kind": "chat", "url": url, "model": "judge", "concurrency": options.connections}
    model = {"backend": backend, "layout": "message"}
    config = JudgeConfig.model_validate({"models": (model,)})
    server = ChatBackend.model_validate(backend)
    client = Client(server)
    sampler = ChatSampler(client, server)
    with tempfile.TemporaryDirectory() as folder, VerdictCache(Path(folder)) as cache:
        judge = GenRmJudge(
            [judge_sampler(config.models[0], sampler, template=None)], config, cache=cache
        )
        reward = JudgedReward(
            judge, config=config, pairing=PairingConfig(), length=LengthConfig(), graders=None
        )
        peak_before = peak_mib()
        cpu_start = time.process_time()
        wall_start = time.perf_counter()
        group_rewards = await reward.reward(groups, seed=0)
        seconds = time.perf_counter() - wall_start
        cpu = time.process_time() - cpu_start
    await client.close()
    for rewards in group_rewards:
        assert None not in rewards.rewards
    calls = judge.ledger.calls
    ideal = calls / options.connections * options.latency
    return Result(
        rollouts=options.rollouts,
        calls=calls,
        failed=judge.ledger.failed,
        connections=options.connections,
        latency=options.latency,
        seconds=round(seconds, 3),
        ideal_seconds=ideal,
        share=round(ideal / seconds, 4),
        cpu_ms=round(1000 * cpu / calls, 3),
        peak_mib=round(peak_mib(), 1),
        grown_mib=round(peak_mib() - peak_before, 1),
    )


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rollouts(groups: int, characters: int) -> list[Group]:
    """Groups of rollouts that all differ."""
    rng = random.Random(0)

    def text(length: int) -> str:
        words: list[str] = []
        while sum(map(len, words)) + len(words) < length:
            words.append(rng.choice(WORDS))
        return " ".join(words)

    def completion(prompt: str, index: int) -> Completion:
        output = f"{text(400)}</think>{text(characters)}<|im_end|>"
        parsed = parse_completion(output, thinking=True)
        step = Step(output, parsed, "stop", rng.randint(50, 500), rng.randint(50, 500), 100)
        return Completion(prompt, index, (step,), "stop")

    all_groups: list[Group] = []
    for k in range(groups):
        prompt = Prompt(f"p{k}", f"p{k}", "rlhf", (Message("user", f"{k}: {text(300)}?"),))
        completions = tuple(completion(prompt.id, index) for index in range(GROUP))
        all_groups.append(Group(prompt, completions))
    return all_groups


async def serve(latency: float, reasoning: int) -> None:
    """Print the server's address, then answer calls until the client has ended."""
    verdict = verdict_text(Verdict(4, 2, 2))
    analysis = json.dumps({"response_1_analysis": "x" * 800}, separators=(",", ":"))[:-1]
    message = {
        "role": "assistant",
        "reasoning_content": "r" * reasoning,
        "content": f"```json\n{analysis},{verdict[1:]}\n```",
    }
    usage: dict[str, Any] = {"prompt_tokens": 900, "completion_tokens": reasoning // 4 + 200}
    usage["completion_tokens_details"] = {"reasoning_tokens": reasoning // 4}
    body = json.dumps(
        {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    ).encode()

    async def answer(request: web.Request) -> web.Response:
        start = time.monotonic()
        await request.read()
        await asyncio.sleep(latency - (time.monotonic() - start))
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    # nothing is ever written to it: it ends when the client does
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()
