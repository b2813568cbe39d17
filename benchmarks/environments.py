"""Environments on many tasks: gold replay, data sets, NeMo Gym's rows, HumanEval's mutants, load.

    python -m benchmarks environments gold [--count 200]
    python -m benchmarks environments data ../shared/data        # GSM8K, MMLU, BFCL
    python -m benchmarks environments gym ../shared/data/nemo_gym_example_tasks.jsonl
    python -m benchmarks environments humaneval ../shared/data/humaneval.jsonl [--count 3]
    python -m benchmarks environments load [--count 100000]

`data` and `humaneval` are benchmarks or their kin: measured here, never trained on. A mutant that
passes its task's own test when that is simply run is no wrong answer, and is counted apart.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
import time
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from posttrain.environments.sandbox import Limits, run_sandboxed
from posttrain.errors import ConfigError
from reward.environments import ENVIRONMENTS
from reward.environments.base import Admitted, admit, replay, says
from reward.environments.gym_rows import gym_row, server_of
from tests.reward.environments.attacks.programs import mutants
from tests.reward.environments.generated_tasks import rows

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def report(name: str, number: int, admitted: Admitted) -> None:
    """Print a line of counts, and the first reasons to drop a row."""
    kept = len(admitted.prompts)
    reasons = [reason for _, reason in admitted.dropped]
    counts = Counter(reason.split(" ")[0] for reason in reasons)
    gold = f"{kept - admitted.without_gold} gold verified, {admitted.without_gold} without gold"
    print(f"{name}: {number} rows, {kept} kept, {gold}; dropped {dict(counts)}", flush=True)
    for reason in list(dict.fromkeys(reasons))[:4]:
        print(f"    {reason[:150]}")


async def gold(count: int) -> None:
    """Generated tasks: the gold passes, what is wrong and what is empty does not."""
    for name in ENVIRONMENTS:
        environment = ENVIRONMENTS[name]()
        generated = rows(name, seed=7, count=count)
        if not generated:
            print(f"{name}: its tasks come from data")
            continue
        admitted = await admit(iter(generated), {name: environment})
        report(name, len(generated), admitted)
        passing = 0
        for prompt, text in itertools.product(admitted.prompts, ("", "OK.")):
            completion = await replay(environment, prompt, says(text))
            passing += environment.passes(await environment.verify(prompt, completion))
        print(f"    empty and mute answers that pass: {passing}")


async def data(folder: Path) -> None:
    """Rows made of other people's data sets."""
    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    for name, file, convert in (
        ("GSM8K", "gsm8k_train.jsonl", _gsm8k),
        ("MMLU", "mmlu_dev_val.jsonl", _mmlu),
        ("BFCL", "bfcl_nonlive.jsonl", _bfcl),
    ):
        converted = [convert(row) for row in read(folder / file)]
        report(name, len(converted), await admit(iter(converted), environments))


def _gsm8k(row: Row) -> Row:
    question = f"{row['question']}\nPut the answer in \\boxed{{}}."
    gold = row["answer"].rsplit("####", 1)[1].strip()
    return {"environment": "math", "question": question, "gold": gold}


def _mmlu(row: Row) -> Row:
    options = {letter: row[letter] for letter in "ABCD"}
    listed = "\n".join(f"{letter}: {text}" for letter, text in options.items())
    question = f"{row['question']}\n{listed}\nAnswer with \\boxed{{LETTER}}."
    metadata = {"options": options}
    gold = row["answer"]
    row = {"environment": "multiple_choice", "question": question, "gold": gold}
    return row | {"metadata": metadata}


def _bfcl(row: Row) -> Row:
    calls: list[Row] = []
    for call in row.get("ground_truth", []):
        [(name, arguments)] = call.items()
        gold: Row = {}
        accepted: Row = {}
        # an empty text among the right values says that the argument may be left out
        for argument, right_values in arguments.items():
            if right_values[0] != "":
                gold[argument] = _first(right_values[0])
            accepted[argument] = [_first(value) for value in right_values if value != ""]
        optional = [argument for argument, values in arguments.items() if "" in values]
        calls.append({"name": name, "arguments": gold, "accepts": accepted, "optional": optional})
    tools = [{"type": "function", "function": function} for function in row["function"]]
    expected: Row = {"calls": calls} if calls else {"message": ""}
    messages = row["question"][0]
    return {"environment": "tool_call", "messages": messages, "tools": tools, "gold": expected}


def _first(value: Any) -> Any:
    """First right value; BFCL lists right values for each field of an object too."""
    if isinstance(value, dict):
        return {k: _first(v[0]) for k, v in value.items() if v and v[0] != ""}
    return [_first(item) for item in value] if isinstance(value, list) else value


async def gym(path: Path) -> None:
    """Rows of NeMo Gym's servers: read, dropped with a reason, gold verified."""
    servers: defaultdict[str, list[Row]] = defaultdict(list)
    for row in read(path):  # either a Gym row, or {"env": server, "task": Gym row}
        server = row["env"] if "env" in row else server_of(row) or ""
        servers[server].append(row.get("task", row))
    totals = Counter[str]()
    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    for server, server_rows in sorted(servers.items()):
        convert = functools.partial(gym_row, server=server)
        try:
            admitted = await admit(iter(server_rows), environments, convert=convert)
        except ConfigError as error:
            print(f"{server}: {len(server_rows)} rows, {error}")
            totals["needs a judge or a package"] += len(server_rows)
            continue
        reasons = [reason for _, reason in admitted.dropped]
        totals.update(reason.split(":")[0] for reason in reasons)
        totals["kept"] += len(admitted.prompts)
        expected = all(reason.startswith(("unknown", "evaluation")) for reason in reasons)
        if admitted.prompts or not expected:
            report(server, len(server_rows), admitted)
    print(f"{sum(totals.values())} rows: {dict(totals)}")


async def humaneval(path: Path, per_task: int) -> None:
    """Canonical solutions pass; mutants fail where the task's own test fails them."""
    environment = ENVIRONMENTS["code"]()
    tasks = read(path)
    environment_rows = [
        {
            "environment": "code",
            "id": task["task_id"],
            "question": f"Complete this function.\n```python\n{task['prompt']}\n```",
            "gold": task["prompt"] + task["canonical_solution"],
            "metadata": {
                "function": task["entry_point"],
                "check": task["test"],
                "setup": task["prompt"],
                "seconds": 2,
            },
        }
        for task in tasks
    ]
    admitted = await admit(iter(environment_rows), {"code": environment})
    report("canonical solutions", len(tasks), admitted)
    gate = asyncio.Semaphore(2)
    counts = Counter[str]()
    limits = Limits(seconds=6, cpu_seconds=4)

    async def verify_mutant(task: Row, program: str, prompt: Any) -> None:
        async with gate:
            text = f"{program}\n{task['test']}\ncheck({task['entry_point']})\n"
            files = {"a.py": text.encode()}
            direct = await run_sandboxed(["python3", "a.py"], files=files, limits=limits)
        answer = await replay(environment, prompt, says(f"```python\n{program}\n```"))
        score = await environment.verify(prompt, answer)
        verdict = "unscored" if score.value is None else "passes" if score.value else "fails"
        counts[f"{verdict}; its own test {'passes' if direct.ok else 'fails'}"] += 1
        if direct.ok != (score.value == 1.0):
            print(f"    {task['task_id']}: {score} {direct.stderr[-100:]!r}")

    jobs: list[Any] = []
    for task, prompt in zip(tasks, admitted.prompts, strict=True):
        programs = mutants(prompt.gold or "")
        rng = random.Random(task["task_id"])
        for program in rng.sample(programs, min(per_task, len(programs))):
            jobs.append(verify_mutant(task, program, prompt))
    await asyncio.gather(*jobs)
    print(f"mutants: {sum(counts.values())}, {dict(counts)}")


def _hostile() -> list[tuple[Row, str]]:
    """Rows and answers that stall, hog or flood a verifier."""
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    stalls = {"schema": pattern, "format": "json"}
    options = {"A": "1", "B": "2"}
    choice = {"options": options, "output_regex": "(x+x+)+y"}
    person = {"schema": {"type": "object"}, "format": "yaml"}
    box = "Use \\boxed{}."
    code = {"tests": [{"input": "", "output": "1"}], "seconds": 1}
    programs = (
        "while True: pass", "while True: print('9' * 9999)", "import time; time.sleep(99)",
        "x = []\nwhile True: x.append(bytearray(10**7))", "import os\nwhile True: os.fork()",
        "import os\nos.kill(os.getppid(), 9)", "import os\nos._exit(0)",
    )  # fmt: skip
    math = {"environment": "math", "question": box, "gold": "\\pi"}
    schema = {"environment": "structured_output", "question": "x"}
    letters = {"environment": "multiple_choice", "question": "x", "gold": "A", "metadata": choice}
    cases: list[tuple[Row, str]] = [
        (schema | {"metadata": stalls}, json.dumps({"a": "a" * 60 + "b"})),
        (letters, "x" * 60),
        (math, "\\boxed{9^{9^{9^{9}}}}"),
        (math, "\\boxed{" + "(" * 900 + ")" * 900 + "}"),
        (math, "\\boxed{" * 50_000),
        (math, "\\boxed{" + "x+" * 900 + "1}"),
        (math, "9" * 500_000),
    ]
    for text in (
        "a: &a [x]\nb: [*a, *a]",
        "[" * 20_000,
        "- " * 20_000,
        "a: " * 5_000,
        "{" * 3_000 + "}" * 3_000,
    ):
        cases.append((schema | {"metadata": person}, text))
    for kind in ("json", "no_repeats", "title"):
        constraints = {"constraints": [{"kind": kind}]}
        row = {"environment": "instruction_following", "question": "x", "metadata": constraints}
        cases += [(row, "<" * 150_000), (row, "*a " * 60_000)]
    for program in programs:
        row = {"environment": "code", "question": "x", "metadata": code}
        cases.append((row, f"```python\n{program}\n```"))
    return cases


async def load(count: int) -> None:
    """Many answers, 1 % of them hostile: rate, latency, unscored by kind."""
    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    rng = random.Random(0)
    usual_cases: list[tuple[Any, Any, Any]] = []
    names = ("math", "multiple_choice", "structured_output", "instruction_following", "tool_call")
    for name in names:
        for row in rows(name, seed=3, count=100):
            prompt = environments[name].prompt(row)
            answers = [environments[name].gold(prompt), *environments[name].wrong(prompt)]
            usual_cases += [(environments[name], prompt, answer) for answer in answers]
    hostile_cases: list[tuple[Any, Any, Any]] = []
    # the first three run into the limit of 5 CPU seconds: they are a quarter as frequent
    for row, text in _hostile()[:3] + 4 * _hostile()[3:]:
        environment = environments[row["environment"]]
        hostile_cases.append((environment, environment.prompt(row), says(text)))
    gate = asyncio.Semaphore(8)
    outcomes = Counter[str]()
    seconds: dict[str, list[float]] = {"usual": [], "hostile": []}

    async def verify(kind: str, environment: Any, prompt: Any, script: Any) -> None:
        completion = await replay(environment, prompt, script)
        async with gate:
            start = time.perf_counter()
            score = await environment.verify(prompt, completion)
            seconds[kind].append(time.perf_counter() - start)
        outcomes[f"{kind}: {score.failure or f'scored {score.value:g}'}"] += 1

    start = time.perf_counter()
    for batch_start in range(0, count, 2000):
        jobs: list[Any] = []
        for k in range(batch_start, min(count, batch_start + 2000)):
            if k % 100 == 0:
                jobs.append(verify("hostile", *hostile_cases[k // 100 % len(hostile_cases)]))
            else:
                jobs.append(verify("usual", *rng.choice(usual_cases)))
        await asyncio.gather(*jobs)
    wall = time.perf_counter() - start
    print(f"{count} verifications in {wall:.0f} s: {count / wall:.0f}/s on two cores, 8 at once")
    for kind, latencies in seconds.items():
        ordered = sorted(latencies)
        last = len(ordered) - 1
        median = ordered[min(last, len(ordered) // 2)]
        percentile_99 = ordered[min(last, int(len(ordered) * 0.99))]
        print(
            f"{kind}: p50 {median * 1e3:.1f} ms, p99 {percentile_99 * 1e3:.0f} ms, "
            f"longest {ordered[-1]:.1f} s"
        )
    print(dict(sorted(outcomes.items())))


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=("gold", "data", "gym", "humaneval", "load"))
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--count", type=int)


def main(options: Namespace) -> None:
    """Run one measurement."""
    match options.what:
        case "gold":
            asyncio.run(gold(options.count or 200))
        case "data":
            asyncio.run(data(options.path))
        case "gym":
            asyncio.run(gym(options.path))
        case "humaneval":
            asyncio.run(humaneval(options.path, options.count or 3))
        case _:
            asyncio.run(load(options.count or 100_000))
