"""The evaluation suite: errors of its gate, and its throughput against `inspect eval`.

    python -m benchmarks evaluation_suite gate                    # simulated checkpoints
    python -m benchmarks evaluation_suite throughput              # needs inspect-ai and openai

`gate`: two checkpoints answer the same questions, whose difficulties differ; the second is equal or
worse. `throughput`: 500 questions with one sample each of the same local server, 32 at a time,
graded by equality; each arm twice, in turn, in a process of its own, imports not counted.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import COMMAND

QUESTIONS = 500
CONNECTIONS = 32
REPEATS = 2
DELAY = 0.02  # seconds until the server answers


def gate() -> None:
    """Print how often the gate passes a checkpoint that is equal or worse."""
    from posttrain.chat.detect import CallDetection
    from posttrain.config.eval import GateConfig, GateRule
    from posttrain.evaluation.compare import gate_rows, passes
    from posttrain.evaluation.run import Record
    from posttrain.records import Message, Score
    from posttrain.rollouts import Completion, Prompt

    def record(name: str, question: int, index: int, value: float) -> Record:
        prompt = Prompt(f"q{question}", f"q{question}", "s", (Message("user", "?"),), source="t")
        completion = Completion(prompt.id, index, (), "stop")
        return Record(name, prompt, completion, Score(value, None, ""), CallDetection(()))

    rng = np.random.default_rng(2026)
    for questions, samples in ((30, 64), (198, 8), (500, 1)):
        for margin, shift in ((0.0, 0.0), (0.0, -0.1), (0.03, 0.0), (0.03, -0.1), (0.03, -0.03)):
            passed = 0
            rule = GateConfig(rules=(GateRule(margin=margin),))
            for _ in range(100):
                pass_rates = rng.beta(1, 1, questions)
                sides: list[list[Record]] = []
                for name, rates in (("a", pass_rates), ("b", np.clip(pass_rates + shift, 0, 1))):
                    values = rng.binomial(samples, rates) / samples
                    sides.append([record(name, q, 0, value) for q, value in enumerate(values)])
                passed += passes(rule, gate_rows(rule, *sides))
            case = f"{questions} questions × {samples}, margin {margin}, shift {shift}"
            print(f"{case}: {passed} of 100 pass", flush=True)


def serve() -> None:
    """Print the server's address, then answer every chat after a fixed delay."""
    from aiohttp import web

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(DELAY)
        answer = {"role": "assistant", "content": body["messages"][-1]["content"][-1]}
        usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
        choices = [{"index": 0, "message": answer, "finish_reason": "stop"}]
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "stub"}
        return web.json_response(reply | {"choices": choices, "usage": usage})

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


def arm(name: str, url: str, folder: Path) -> None:
    """Evaluate all questions once. Prints wall and CPU seconds, and the accuracy."""
    rows = [{"question": f"question {n}: {n % 10}", "answer": f"{n % 7}"} for n in range(QUESTIONS)]
    evaluate = {"ours": _ours, "inspect": _inspect}[name](url, folder, rows)
    wall_start = time.perf_counter()
    cpu_start = _cpu()
    accuracy = evaluate()
    seconds = time.perf_counter() - wall_start
    cpu = _cpu() - cpu_start
    print(json.dumps({"arm": name, "seconds": seconds, "cpu": cpu, "accuracy": accuracy}))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _ours(url: str, folder: Path, rows: list[dict[str, Any]]) -> Any:
    import yaml

    from posttrain.evaluation import stage  # noqa: F401 - imports are not counted
    from posttrain.evaluation.run import read_run
    from scripts import eval as script

    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"name": "q", "format": "question", "path": str(folder / "rows.jsonl")}
    backend = {"kind": "chat", "url": url, "model": "stub", "concurrency": CONNECTIONS}
    recipe = {
        "out": str(folder / "out"),
        "checkpoints": {"stub": {"backend": backend}},
        "prompts": [{**source, "grader": "exact", "template": "{question}"}],
        "settings": [{"name": "plain", "thinking": 0}],
        "sampling": {"temperature": 0, "max_tokens": 16},
    }
    (folder / "eval.yaml").write_text(yaml.safe_dump(recipe))

    def evaluate() -> float:
        script.main(["--config", str(folder / "eval.yaml")])
        records = read_run(folder / "out")[1]["stub"]
        return sum(record.score.value or 0 for record in records) / len(records)

    return evaluate


def _inspect(url: str, folder: Path, rows: list[dict[str, Any]]) -> Any:
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate

    samples = [Sample(input=row["question"], target=row["answer"]) for row in rows]

    def evaluate() -> float:
        (log,) = inspect_ai.eval(
            inspect_ai.Task(dataset=MemoryDataset(samples), solver=generate(), scorer=exact()),
            model="openai-api/stub/stub",
            model_base_url=url,
            model_args={"api_key": "none"},
            max_connections=CONNECTIONS,
            max_samples=CONNECTIONS * 2,
            temperature=0,
            max_tokens=16,
            display="none",
            log_dir=str(folder / "logs"),
            log_realtime=False,
            ctl_server=False,
        )
        assert log.status == "success", log.error
        return log.results.scores[0].metrics["mean"].value if log.results else -1.0

    return evaluate


def throughput() -> None:
    server = subprocess.Popen(
        [*COMMAND, "evaluation_suite", "serve"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        for name in ("ours", "inspect") * REPEATS:
            with tempfile.TemporaryDirectory() as folder:
                command = [*COMMAND, "evaluation_suite", "arm", name, url, folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                print(done.stdout.strip().splitlines()[-1], flush=True)
    finally:
        server.terminate()


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=("gate", "throughput", "serve", "arm"))
    parser.add_argument("rest", nargs="*")


def main(options: Namespace) -> None:
    if options.what == "arm":
        arm(options.rest[0], options.rest[1], Path(options.rest[2]))
    else:
        {"gate": gate, "throughput": throughput, "serve": serve}[options.what]()
