"""SFT preparation: ours with either library against TRL's and against the tokenizer alone.

    python -m benchmarks sft_preparation                      # the tiny world, written anew
    python -m benchmarks sft_preparation --tokenizer DIR --rows long.jsonl --rows short.jsonl:2532
    python -m benchmarks sft_preparation --model DIR --rows gsm8k_train.jsonl --counts 5 1500 7473

Ours reads, converts, filters (structure, repetition, narratives), controls reasoning, renders,
tokenises, masks, packs and writes. TRL's is `SFTTrainer._prepare_dataset` on the rows that ours
ends with: the same texts, one template and tokenizer, packs of one capacity, the loss on assistants
alone; without masks as well, which is less than ours does. (Of several turns with reasoning ours
makes a sequence each, TRL one in all: compare rows of one turn.) It is given a data set that was
read already, and nothing of it is written but what `datasets` writes itself. The floor is the
library's batch call on the rendered texts. Every run is a process of its own with one thread;
figures are of the run with the fewest CPU seconds.

With `--model` it is what a user waits for: the command `posttrain build_sft` from its start to its
report, with a model's own tokenizer and template and nothing set but the length of packs, against
TRL's preparation, without the start of its process and with it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from data_builders.rows.read import read_examples
from data_builders.sft.prepare import Preparer, prepare
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.config.source import SourceConfig
from posttrain.records import Example, message_to_template
from posttrain.tokens.renderer import load_data_renderer
from posttrain.tokens.tokenizer import load_any_tokenizer
from posttrain.versions import package_versions

NARRATIVES = ROOT / "recipes" / "nemotron-3-nano" / "narratives.yaml"
Stats = dict[str, Any]
_TINY_ROWS = 500  # of each family
COMPARED = (
    "ours, tiktoken",
    "ours, tokenizers",
    "TRL",
    "TRL, no masks",
    "floor, tiktoken",
    "floor, tokenizers",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", action="append", help="FILE or FILE:COUNT, in any dialect")
    parser.add_argument("--tokenizer", help="a directory or a hub id")
    parser.add_argument("--capacity", type=int, default=32_768, help="tokens of a pack")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", help="a model's directory: the whole command, on --rows")
    parser.add_argument("--pad-token", help="of --model, where its pad ends a turn")
    parser.add_argument("--counts", type=int, nargs="+", default=[5, 1500], help="rows, of --model")


def main(options: Namespace) -> None:
    if options.model and not options.rows:
        sys.exit("--model needs --rows")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.model:
            print("\n".join(whole_commands(work, options)))
            return
        rows = options.rows
        tokenizer = options.tokenizer
        if not rows:
            rows, tokenizer = tiny_world(work / "world")
        make_inputs(work, rows, tokenizer, options.capacity)
        print("\n".join(tables(work, options.repeats, rows)))


def whole_commands(work: Path, options: Namespace) -> Iterator[str]:
    """Lines of a table of the command and of TRL's preparation, by the number of rows."""
    yield "| rows | tokens | ours: the command | TRL's preparation | ours ÷ TRL's | its process |"
    yield "|---|---|---|---|---|---|"
    for count in options.counts:
        folder = work / str(count)
        folder.mkdir()
        tokens = make_plain_inputs(folder, options, count)
        command_seconds: list[float] = []
        trl_stats: list[Stats] = []
        for _ in range(options.repeats):
            shutil.rmtree(folder / "out", ignore_errors=True)
            before = sum(os.times()[2:4])  # of finished child processes
            run("scripts/build_sft.py", "--config", str(folder / "recipe.yaml"))
            command_seconds.append(sum(os.times()[2:4]) - before)
            trl_stats.append(run_arm("TRL, no masks", folder))
        command = min(command_seconds)
        preparation = min(stats["cpu"] for stats in trl_stats)
        process = min(stats["process"] for stats in trl_stats)
        yield (
            f"| {count:,} | {tokens:,} | {command:.2f} | {preparation:.2f} "
            f"| {command / preparation:.2f} | {process:.2f} |"
        )


def make_plain_inputs(folder: Path, options: Namespace, count: int) -> int:
    """Write rows of messages for both, a recipe that sets nothing else, and the model's template.

    Returns:
        Number of tokens of all rows.
    """
    tokenizer = load_any_tokenizer(options.model)
    (folder / "template.jinja").write_text(str(tokenizer.chat_template), "utf-8")
    files = [f"{name}:{count}" for name in options.rows]
    rows = [row for _, row in original_rows(files)][:count]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("rows.jsonl", "trl.jsonl"):
        (folder / name).write_text(lines, "utf-8")
    recipe = {
        "out": str(folder / "out"),
        "tokenizer": {"path": options.model},
        "packing": {"max_length": options.capacity},
        "sources": [{"name": "rows", "path": str(folder / "rows.jsonl"), "license": "MIT"}],
    }
    if options.pad_token is not None:
        recipe["tokenizer"]["pad_token"] = options.pad_token
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    rendered: list[Any] = [
        tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows
    ]
    return sum(map(len, tokenizer(rendered, add_special_tokens=False)["input_ids"]))


def tiny_world(out: Path) -> tuple[list[str], str]:
    """Write the tiny world. Returns files with a few rows of each family, and its tokenizer."""
    command = [sys.executable, "scripts/tiny_world.py", "--config", "recipes/tiny/world.yaml"]
    subprocess.run([*command, f"out={out}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    families = sorted((out / "train").glob("*.jsonl"))
    return [f"{path}:{_TINY_ROWS}" for path in families], str(out / "tokenizer")


def make_inputs(work: Path, rows: Sequence[str], tokenizer: str, capacity: int) -> None:
    """Write rows.jsonl and recipe.yaml for ours, and what ours makes of them for the others.

    trl.jsonl holds the examples as rows for TRL, texts.json the rendered texts for the floors.
    """
    path = Path(tokenizer)
    recipe: Stats = {
        "out": str(work / "out"),
        "tokenizer": {
            "path": str(path.resolve()) if path.is_dir() else tokenizer,
            "chat_template": "nemotron_3_nano",
        },
        "reasoning": {"strip": 0.10, "truncate": 0.03},
        "packing": {"max_length": capacity},
        "sources": [
            {
                "name": "rows",
                "path": str(work / "rows.jsonl"),
                "license": "MIT",
                "filters": {"narratives": str(NARRATIVES)},
            }
        ],
    }
    (work / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    config = load_recipe(work / "recipe.yaml", BuildSftConfig, [])
    renderer = load_data_renderer(config.tokenizer)
    (work / "template.jinja").write_text(renderer.template.source, "utf-8")
    preparer = Preparer(config, config.sources[0], renderer)
    texts: list[str] = []
    with (work / "rows.jsonl").open("w") as our_rows, (work / "trl.jsonl").open("w") as trl_rows:
        for example, row in original_rows(rows):
            prepared = prepare([example], preparer)[0]
            if prepared.drop is not None:
                continue
            our_rows.write(json.dumps(row) + "\n")
            for sequence in prepared.sequences:
                texts.append("".join(part.text for part in sequence.sample.segments))
            trl_rows.write(json.dumps(_trl_row(prepared.example)) + "\n")
    (work / "texts.json").write_text(json.dumps(texts))


def original_rows(files: Sequence[str]) -> Iterator[tuple[Example, Stats]]:
    """Records of the files that pass the checks of structure, each with its row of messages.

    Args:
        files: `FILE` or `FILE:COUNT`.
    """
    for file_and_count in files:
        file, _, count = file_and_count.partition(":")
        with open(file, encoding="utf-8") as handle:
            first = json.loads(handle.readline())
        fields: Any = {"prompt": "question", "completion": "answer"} if "question" in first else {}
        source = SourceConfig(name="rows", path=str(Path(file).resolve()), fields=fields)
        for number, item in enumerate(read_examples(source, Path("."))):
            if isinstance(item, Example) and (not count or number < int(count)):
                yield item, _message_row(item)


def _message_row(example: Example) -> Stats:
    messages = [message_to_template(message) for message in example.messages]
    for message in messages:
        message.pop("thinking", None)  # the trace under its second name
    tools = None if example.tools is None else json.loads(example.tools)
    return {"messages": messages} | ({"tools": tools} if tools else {})


def _trl_row(example: Example) -> Stats:
    row = _message_row(example)
    if "tools" in row:
        row["tools"] = json.dumps(row["tools"])  # as text, or Arrow would unify the schemas
    thinking = example.reasoning_mode == "on"
    return row | {"chat_template_kwargs": {"enable_thinking": thinking}}


def run_arm(arm: str, work: Path) -> Stats:
    """Stats of an arm, run once in a process of its own."""
    output = run("-m", "benchmarks", "sft_preparation_arms", arm, str(work))
    return json.loads(output.splitlines()[-1])


def run(*arguments: str) -> str:
    """Run Python with one thread. Returns what it prints."""
    threads = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {
        **os.environ,
        **dict.fromkeys(threads, "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def best(work: Path, arms: Sequence[str], repeats: int) -> dict[str, Stats]:
    """Stats of the cheapest run of each arm.

    The arms take turns, so that a busy minute meets all of them.
    """
    cheapest: dict[str, Stats] = {}
    for _ in range(repeats):
        for arm in arms:
            stats: Stats = run_arm(arm, work)
            if arm not in cheapest or stats["cpu"] < cheapest[arm]["cpu"]:
                cheapest[arm] = stats
    return cheapest


def tables(work: Path, repeats: int, rows: Sequence[str]) -> Iterator[str]:
    """Lines of all that is printed about the arms."""
    stats_by_arm = best(work, COMPARED, repeats)
    names = ", ".join(f"`{Path(row.partition(':')[0]).name}`" for row in rows)
    ours = stats_by_arm["ours, tiktoken"]
    yield f"{ours['sequences']:,} sequences, {ours['tokens']:,} tokens of {names};"
    versions = package_versions(("trl", "transformers", "datasets", "tokenizers", "tiktoken"))
    yield (
        f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f"; one thread, fewest CPU seconds of {repeats} runs."
    )
    yield ""
    yield from arm_table(stats_by_arm)


def arm_table(stats_by_arm: Mapping[str, Stats]) -> Iterator[str]:
    """Lines of a table of the arms side by side."""
    yield "| arm | CPU s | wall s | M tokens/CPU s | TRL's CPU s ÷ this | peak MB (at the start) |"
    yield "|---|---|---|---|---|---|"
    reference = stats_by_arm["TRL"]["cpu"]
    for arm, stats in stats_by_arm.items():
        yield (
            f"| {arm} | {stats['cpu']:.2f} | {stats['wall']:.2f} "
            f"| {stats['tokens'] / stats['cpu'] / 1e6:.2f} | {reference / stats['cpu']:.2f} "
            f"| {stats['peak']:.0f} ({stats['start']:.0f}) |"
        )
