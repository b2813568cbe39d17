"""Environments on many tasks: gold replay, data sets, NeMo Gym's rows, HumanEval's mutants, load.

    python benchmarks/environments.py gold [--count 200]
    python benchmarks/environments.py data ../shared/data        # GSM8K, MMLU, BFCL
    python benchmarks/environments.py gym ../shared/data/nemo_gym_example_tasks.jsonl
    python benchmarks/environments.py humaneval ../shared/data/humaneval.jsonl [--count 3]
    python benchmarks/environments.py load [--count 100000]

`data` and `humaneval` are benchmarks or their kin: measured here, never trained on. A mutant that
passes its task's own test when that is simply run is no wrong answer, and is counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.environments.sandbox import Limits, run_sandboxed
from posttrain.errors import ConfigError
from reward.environments import ENVIRONMENTS
from reward.environments.base import Admitted, admit, replay, says
from reward.environments.gym_rows import gym_row, server_of
from tests.reward.environments.attacks.programs import mutants
from tests.reward.environments.generated_tasks import rows

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def report(name: str, number: int, admitted: Admitted) -> None:
    """One line, and the reasons of what was dropped."""
    kept, reasons = len(admitted.prompts), Counter(r.split(" ")[0] for _, r in admitted.dropped)
    gold = f"{kept - admitted.without_gold} gold verified, {admitted.without_gold} without gold"
    print(f"{name}: {number} rows, {kept} kept, {gold}; dropped {dict(reasons)}", flush=True)
    for reason in list(dict.fromkeys(reason for _, reason in admitted.dropped))[:4]:
        print(f"    {reason[:150]}")


async def gold(count: int) -> None:
    """Generated tasks: the gold passes, what is wrong and what is empty does not."""
    for name in ENVIRONMENTS:
        environment, generated = ENVIRONMENTS[name](), rows(name, seed=7, count=count)
        if not generated:
            print(f"{name}: its tasks come from data")
            continue
        admitted = await admit(iter(generated), {name: environment})
        report(name, len(generated), admitted)
        empty = [
            await environment.verify(p, await replay(environment, p, says(text)))
            for p in admitted.prompts
            for text in ("", "OK.")
        ]
        print(f"    empty and mute answers that pass: {sum(map(environment.passes, empty))}")


async def data(folder: Path) -> None:
    """Rows made of other people's data sets."""
    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    for name, own in {
        "GSM8K": map(_gsm8k, read(folder / "gsm8k_train.jsonl")),
        "MMLU": map(_mmlu, read(folder / "mmlu_dev_val.jsonl")),
        "BFCL": map(_bfcl, read(folder / "bfcl_nonlive.jsonl")),
    }.items():
        listed = list(own)
        report(name, len(listed), await admit(iter(listed), environments))


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
        given = {k: _first(v[0]) for k, v in arguments.items() if v[0] != ""}
        accepts = {k: [_first(one) for one in v if one != ""] for k, v in arguments.items()}
        optional = [k for k, v in arguments.items() if "" in v]
        calls.append({"name": name, "arguments": given, "accepts": accepts, "optional": optional})
    tools = [{"type": "function", "function": function} for function in row["function"]]
    expected: Row = {"calls": calls} if calls else {"message": ""}
    messages = row["question"][0]
    return {"environment": "tool_call", "messages": messages, "tools": tools, "gold": expected}


def _first(value: Any) -> Any:
    """BFCL lists what is right for each field of an object, too."""
    if isinstance(value, dict):
        return {k: _first(v[0]) for k, v in value.items() if v and v[0] != ""}
    return [_first(one) for one in value] if isinstance(value, list) else value


async def gym(path: Path) -> None:
    """Per server: read, dropped with a reason, gold verified."""
    servers: defaultdict[str, list[Row]] = defaultdict(list)
    for row in read(path):  # either a Gym row, or {"env": server, "task": Gym row}
        servers[row["env"] if "env" in row else server_of(row)].append(row.get("task", row))
    totals, environments = Counter[str](), {name: make() for name, make in ENVIRONMENTS.items()}
    for server, listed in sorted(servers.items()):
        convert = functools.partial(gym_row, server=server)
        try:
            admitted = await admit(iter(listed), environments, convert=convert)
        except ConfigError as error:
            print(f"{server}: {len(listed)} rows, {error}")
            totals["needs a judge or a package"] += len(listed)
            continue
        totals.update(reason.split(":")[0] for _, reason in admitted.dropped)
        totals["kept"] += len(admitted.prompts)
        if not all(r.startswith(("unknown", "evaluation")) for _, r in admitted.dropped) or (
            admitted.prompts
        ):
            report(server, len(listed), admitted)
    print(f"{sum(totals.values())} rows: {dict(totals)}")


async def humaneval(path: Path, per_task: int) -> None:
    """Canonical solutions pass; mutants fail where the task's own test fails them."""
    environment, tasks = ENVIRONMENTS["code"](), read(path)
    own = [
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
    admitted = await admit(iter(own), {"code": environment})
    report("canonical solutions", len(own), admitted)
    gate, counts = asyncio.Semaphore(2), Counter[str]()
    limits = Limits(seconds=6, cpu_seconds=4)

    async def one(task: Row, program: str, prompt: Any) -> None:
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
        changed = mutants(prompt.gold or "")
        rng = random.Random(task["task_id"])
        jobs += [one(task, m, prompt) for m in rng.sample(changed, min(per_task, len(changed)))]
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
    return [
        ({"environment": "structured_output", "question": "x", "metadata": stalls},
         json.dumps({"a": "a" * 60 + "b"})),
        ({"environment": "multiple_choice", "question": "x", "gold": "A", "metadata": choice},
         "x" * 60),
        (math, "\\boxed{9^{9^{9^{9}}}}"),
        *((math, text) for text in ("\\boxed{" + "(" * 900 + ")" * 900 + "}", "\\boxed{" * 50_000,
                                    "\\boxed{" + "x+" * 900 + "1}", "9" * 500_000)),
        *(({"environment": "structured_output", "question": "x", "metadata": person}, text)
          for text in ("a: &a [x]\nb: [*a, *a]", "[" * 20_000, "- " * 20_000, "a: " * 5_000,
                       "{" * 3_000 + "}" * 3_000)),
        *(({"environment": "instruction_following", "question": "x",
            "metadata": {"constraints": [{"kind": kind}]}}, text)
          for kind in ("json", "no_repeats", "title") for text in ("<" * 150_000, "*a " * 60_000)),
        *(({"environment": "code", "question": "x", "metadata": code}, f"```python\n{program}\n```")
          for program in programs),
    ]  # fmt: skip


async def load(count: int) -> None:
    """Many answers, 1 % of them hostile: rate, latency, unscored by kind."""
    environments = {name: make() for name, make in ENVIRONMENTS.items()}
    rng, pool = random.Random(0), list[tuple[Any, Any, Any]]()
    names = ("math", "multiple_choice", "structured_output", "instruction_following", "tool_call")
    for name in names:
        for row in rows(name, seed=3, count=100):
            prompt = environments[name].prompt(row)
            answers = [environments[name].gold(prompt), *environments[name].wrong(prompt)]
            pool += [(environments[name], prompt, answer) for answer in answers]
    # the first three run into the limit of 5 CPU seconds: they are a quarter as frequent
    dealt = _hostile()[:3] + 4 * _hostile()[3:]
    bad = [(environments[r["environment"]], environments[r["environment"]].prompt(r), says(text))
           for r, text in dealt]  # fmt: skip
    gate, kinds, seconds = asyncio.Semaphore(8), Counter[str](), list[float]()
    slow = list[float]()

    async def one(environment: Any, prompt: Any, script: Any, hostile: bool) -> None:
        completion = await replay(environment, prompt, script)
        async with gate:
            start = time.perf_counter()
            score = await environment.verify(prompt, completion)
            (slow if hostile else seconds).append(time.perf_counter() - start)
        outcome = score.failure or f"scored {score.value:g}"
        kinds[f"{'hostile' if hostile else 'usual'}: {outcome}"] += 1

    start = time.perf_counter()
    for begin in range(0, count, 2000):
        part: Iterable[int] = range(begin, min(count, begin + 2000))
        picks = [(k, k % 100 == 0) for k in part]
        await asyncio.gather(*(
            one(*(bad[k // 100 % len(bad)] if hostile else rng.choice(pool)), hostile)
            for k, hostile in picks
        ))  # fmt: skip
    wall = time.perf_counter() - start
    print(f"{count} verifications in {wall:.0f} s: {count / wall:.0f}/s on two cores, 8 at once")
    for name, own in (("usual", sorted(seconds)), ("hostile", sorted(slow))):
        shares = {p: own[min(len(own) - 1, int(len(own) * p / 100))] for p in (50, 99)}
        print(f"{name}: p50 {shares[50] * 1e3:.1f} ms, p99 {shares[99] * 1e3:.0f} ms, "
              f"longest {own[-1]:.1f} s")  # fmt: skip
    print(dict(sorted(kinds.items())))


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("gold", "data", "gym", "humaneval", "load"))
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--count", type=int)
    options = parser.parse_args()
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


if __name__ == "__main__":
    main()
