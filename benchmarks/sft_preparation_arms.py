"""One arm of `sft_preparation` in a process of its own: runs it once, prints its cost.

    {"cpu": 1.71, "wall": 1.74, "setup": 2.9, "start": 412.1, "peak": 520.8, "sequences": 2991, …}

`setup` is CPU seconds for tokenizer and template, before the first row; `start` and `peak` are MB
of the resident set then and at its largest. One thread each: every library is told so.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import datasets
import pyarrow as pa
from rich.console import Console

from data_builders.rows.inputs import PART_BYTES, scan_inputs
from data_builders.sft.build import audit_sources
from data_builders.sft.part import WorkerState, prepare_sources
from data_builders.sft.plan import plan_build
from data_builders.sft.preflight import first_texts
from data_builders.sft.shards import write_splits
from data_builders.workers import Serial, Stages
from posttrain.chat import profile_of
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.tokens.renderer import load_data_renderer
from posttrain.tokens.supervision import Marks
from posttrain.tokens.tokenizer import Backend, encoder_of, load_any_tokenizer

Stats = dict[str, Any]
# sets up and returns a function to measure, which returns a function that counts its result
Arm = Callable[[Path], Callable[[], Callable[[], Stats]]]
_BATCH = 128  # texts encoded in one call by the floors


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("arm", choices=sorted(ARMS))
    parser.add_argument("work", type=Path)


def main(options: Namespace) -> None:
    pa.set_cpu_count(1)
    datasets.disable_caching()
    datasets.disable_progress_bars()
    before_setup = time.process_time()
    run = ARMS[options.arm](options.work)
    cpu_start = time.process_time()
    memory_start = _resident()
    wall_start = time.perf_counter()
    count = run()
    cost = {
        "cpu": time.process_time() - cpu_start,
        "wall": time.perf_counter() - wall_start,
        "setup": cpu_start - before_setup,
        "start": memory_start,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "process": time.process_time(),  # imports, too
    }
    print(json.dumps({**cost, **count()}))


def _resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def ours(backend: Backend) -> Arm:
    """Arm of the work of `scripts/build_sft.py` between the tokenizer and the manifest."""

    def set_up(work: Path) -> Callable[[], Callable[[], Stats]]:
        recipe = load_recipe(work / "recipe.yaml", BuildSftConfig)
        renderer = load_data_renderer(
            recipe.tokenizer, first_texts(recipe, Path(".")), backend=backend
        )
        profile_of(renderer.template)
        state = WorkerState(recipe, lambda: (renderer, None))
        for source in recipe.sources:
            state.preparer(source)
        out = work / f"out-{backend}"
        shutil.rmtree(out, ignore_errors=True)
        (out / "work").mkdir(parents=True)
        return lambda: build(out, recipe, renderer.marks, state)

    return set_up


def build(
    out: Path, recipe: BuildSftConfig, marks: Marks, state: WorkerState
) -> Callable[[], Stats]:
    """Run all stages of a build, from hashing the input to the last shard."""
    with Stages(Console(quiet=True)) as stages:
        executor = Serial(state)
        _, parts = scan_inputs(
            recipe.sources, Path("."), part_bytes=PART_BYTES, threads=recipe.workers
        )
        sources = prepare_sources(
            recipe,
            parts,
            out / "work" / "parts",
            tokens={},
            build_id="benchmark",
            executor=executor,
            stages=stages,
        )
        plan = plan_build(sources, recipe)
        audit_sources(sources, None, marks)
        scratch = out / "work" / "plan"
        write_splits(out, sources, plan, recipe, scratch=scratch, executor=executor, stages=stages)
    split = plan.train.stats.stats()
    return lambda: {"out": str(out), **{k: split[k] for k in _COUNTED}}


_COUNTED = ("sequences", "tokens", "trained", "packs")


def trl(*, masks: bool) -> Arm:
    """Arm of `SFTTrainer._prepare_dataset`, with what its trainer would set up around it.

    The rows come from a JSON file through `datasets`, as a trainer's do; reading them is not
    counted. Caching is off, so that every map runs.
    """

    def set_up(work: Path) -> Callable[[], Callable[[], Stats]]:
        # imported here, so that the memory of the other arms is theirs
        from trl.chat_template_utils import get_training_chat_template
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        recipe = load_recipe(work / "recipe.yaml", BuildSftConfig, [])
        tokenizer = load_any_tokenizer(recipe.tokenizer.path)
        tokenizer.chat_template = (work / "template.jinja").read_text("utf-8")
        args = SFTConfig(
            output_dir=str(work / "trl"),
            use_cpu=True,
            bf16=False,
            packing=True,
            max_length=recipe.packing.max_length,
            assistant_only_loss=masks,
        )
        template = get_training_chat_template(tokenizer) if masks else None
        owner = SimpleNamespace(
            _tokenizer=tokenizer, chat_template=template, completion_only_loss=False
        )
        rows = datasets.load_dataset(
            "json",
            data_files=str(work / "trl.jsonl"),
            split="train",
            cache_dir=str(work / "datasets"),
        )

        def run() -> Callable[[], Stats]:
            packs = SFTTrainer._prepare_dataset(
                cast(Any, owner), cast(Any, rows), tokenizer, args, True, None, "train"
            )
            return lambda: _count_packs(packs.with_format("numpy"))

        return run

    return set_up


def _count_packs(packs: Any) -> Stats:
    return {
        "sequences": sum(len(lengths) for lengths in packs["seq_lengths"]),
        "tokens": sum(len(ids) for ids in packs["input_ids"]),
        "trained": sum(int((labels != -100).sum()) for labels in packs["labels"]),
        "packs": len(packs),
    }


def floor(backend: Literal["tokenizers", "tiktoken"]) -> Arm:
    """Arm that makes the ids of the rendered texts and nothing else, `_BATCH` texts in a call."""

    def set_up(work: Path) -> Callable[[], Callable[[], Stats]]:
        recipe = load_recipe(work / "recipe.yaml", BuildSftConfig, [])
        encoder = encoder_of(load_any_tokenizer(recipe.tokenizer.path), backend=backend)
        texts: list[str] = json.loads((work / "texts.json").read_text("utf-8"))
        batches = [texts[k : k + _BATCH] for k in range(0, len(texts), _BATCH)]

        def run() -> Callable[[], Stats]:
            encode: Callable[[list[str]], Any] = encoder.arrays
            if encoder.fast is None:
                encode = partial(encoder.backend.encode_batch_fast, add_special_tokens=False)
            tokens = sum(len(ids) for batch in batches for ids in encode(batch))
            return lambda: {"sequences": len(texts), "tokens": tokens}

        return run

    return set_up


ARMS: dict[str, Arm] = {
    "ours, tiktoken": ours("tiktoken"),
    "ours, tokenizers": ours("tokenizers"),
    "TRL": trl(masks=True),
    "TRL, no masks": trl(masks=False),
    "floor, tiktoken": floor("tiktoken"),
    "floor, tokenizers": floor("tokenizers"),
}
