"""One arm of `sft_preparation.py` in a process of its own: does it once, prints what it cost.

    {"cpu": 1.71, "wall": 1.74, "setup": 2.9, "start": 412.1, "peak": 520.8, "sequences": 2991, …}

`setup` is CPU seconds for tokenizer and template, before the first row; `start` and `peak` are MB
of the resident set then and at its largest. One thread each: every library is told so.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import datasets
import pyarrow as pa
from rich.console import Console

from data_builders.filters.screen import Screen
from data_builders.progress import Stages
from data_builders.rows import read
from data_builders.rows.inputs import scan_inputs
from data_builders.sft import part, prepare, shards
from data_builders.sft.audit import audit_sources
from data_builders.sft.part import WorkerState, prepare_sources
from data_builders.sft.plan import plan_build
from data_builders.sft.preflight import first_texts
from data_builders.sft.prepared import PartWriter
from data_builders.sft.shards import write_splits
from data_builders.workers import Serial
from posttrain.chat import profile_of
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.tokens.renderer import DataRenderer, load_data_renderer
from posttrain.tokens.supervision import Marks
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer

Stats = dict[str, Any]
# what is set up, then what is measured, then what is counted of its result
Arm = Callable[[Path], Callable[[], Callable[[], Stats]]]
_BATCH = 128  # texts encoded in one call by the floors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm", choices=sorted(ARMS))
    parser.add_argument("work", type=Path)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    datasets.disable_caching()
    datasets.disable_progress_bars()
    began = time.process_time()
    run = ARMS[options.arm](options.work)
    setup = time.process_time() - began
    start = _resident()
    cpu, wall = time.process_time(), time.perf_counter()
    count = run()
    took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    whole = time.process_time()  # imports, too
    counted = {**took, "setup": setup, "start": start, "peak": peak, **count()}
    print(json.dumps({**counted, "process": whole}))


def _resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def ours(backend: str, *, steps: bool = False) -> Arm:
    """What `scripts/build_sft.py` does between the tokenizer and the manifest."""

    def prepared(work: Path) -> Callable[[], Callable[[], Stats]]:
        recipe = load_recipe(work / "recipe.yaml", BuildSftConfig, [f"tokenizer.backend={backend}"])
        renderer = load_data_renderer(recipe.tokenizer, first_texts(recipe, Path(".")))
        profile_of(renderer.template)
        clock = Clock() if steps else None
        if clock is not None:
            clock.watch(type(renderer))
        state = WorkerState(recipe, lambda: (renderer, None))
        for source in recipe.sources:
            state.preparer(source)
        out = work / f"out-{backend}"
        shutil.rmtree(out, ignore_errors=True)
        (out / "work").mkdir(parents=True)
        if clock is None:
            return lambda: build(out, recipe, renderer.marks, state)
        clock.start()
        return lambda: clock.stopped(build(out, recipe, renderer.marks, state))

    return prepared


def build(
    out: Path, recipe: BuildSftConfig, marks: Marks, state: WorkerState
) -> Callable[[], Stats]:
    """All stages of a build, from hashing the input to the last shard."""
    with Stages(Console(quiet=True)) as stages:
        executor = Serial(state)
        _, parts = scan_inputs(
            recipe.sources, Path("."), part_bytes=recipe.part_bytes, threads=recipe.workers
        )
        sources = prepare_sources(
            recipe,
            parts,
            out / "work" / "parts",
            tokens={},
            scratch="benchmark",
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


class Clock:
    """CPU seconds of each step by itself, from functions wrapped where they are called.

    A step that runs inside another is taken out of it. Two clock calls a function are measured
    along: the steps of a run add up to a little more than one without the clock.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack = ["other"]
        self._since = 0.0

    def start(self) -> None:
        """Forget what was before."""
        self.seconds, self._since = {}, time.process_time()

    def stopped(self, count: Callable[[], Stats]) -> Callable[[], Stats]:
        """The count with the seconds by step."""
        self.turn("end")
        return lambda: {**count(), "steps": self.seconds}

    def turn(self, step: str | None) -> None:
        """Book the time since the last turn; go into a step, or out of it (`None`)."""
        now = time.process_time()
        top = self._stack[-1]
        self.seconds[top] = self.seconds.get(top, 0.0) + now - self._since
        self._since = now
        self._stack.append(step) if step is not None else self._stack.pop()

    def wrap(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.turn(step)
            try:
                return function(*args, **kwargs)
            finally:
                self.turn(None)

        return timed

    def wrap_rows(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that gives an iterator, timed while it makes each item."""

        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = iter(function(*args, **kwargs))
            while True:
                self.turn(step)
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    self.turn(None)
                yield item

        return timed

    def watch(self, renderer: type[DataRenderer]) -> None:
        """Wrap every step of a build."""
        here = sys.modules[__name__]
        for module, name, step in (
            (here, "scan_inputs", "hash the input"),
            (read, "structural_drop", "filters"),
            (Screen, "__call__", "filters"),
            (prepare, "control_reasoning", "reasoning control"),
            (prepare, "_render", "render"),
            (prepare, "encode_samples", "mask"),
            (renderer, "encode", "tokenise"),
            (PartWriter, "write", "write parts"),
            (here, "plan_build", "plan and audit"),
            (here, "audit_sources", "plan and audit"),
            (shards, "pack_split", "pack"),
            (here, "write_splits", "write"),
        ):
            setattr(module, name, self.wrap(step, getattr(module, name)))
        for module, name, step in (
            (part, "open_part", "read"),
            (part, "examples_of", "convert"),
        ):
            setattr(module, name, self.wrap_rows(step, getattr(module, name)))


def trl(*, masks: bool) -> Arm:
    """`SFTTrainer._prepare_dataset`, with what its trainer would set up around it.

    The rows come from a JSON file through `datasets`, as a trainer's do; reading them is not
    counted. Caching is off, so that every map runs.
    """

    def prepared(work: Path) -> Callable[[], Callable[[], Stats]]:
        # here, so that the memory of the other arms is theirs
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
        files, cache = str(work / "trl.jsonl"), str(work / "datasets")
        rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=cache)

        def run() -> Callable[[], Stats]:
            made = SFTTrainer._prepare_dataset(
                cast(Any, owner), cast(Any, rows), tokenizer, args, True, None, "train"
            )
            return lambda: _counted(made.with_format("numpy"))

        return run

    return prepared


def _counted(made: Any) -> Stats:
    return {
        "sequences": sum(len(found) for found in made["seq_lengths"]),
        "tokens": sum(len(ids) for ids in made["input_ids"]),
        "trained": sum(int((labels != -100).sum()) for labels in made["labels"]),
        "packs": len(made),
    }


def floor(backend: Literal["tokenizers", "tiktoken"]) -> Arm:
    """Ids of the rendered text and nothing else, `_BATCH` texts in a call."""

    def prepared(work: Path) -> Callable[[], Callable[[], Stats]]:
        recipe = load_recipe(work / "recipe.yaml", BuildSftConfig, [])
        encoder = encoder_of(load_any_tokenizer(recipe.tokenizer.path), backend=backend)
        texts: list[str] = json.loads((work / "texts.json").read_text("utf-8"))
        batches = [texts[k : k + _BATCH] for k in range(0, len(texts), _BATCH)]

        def run() -> Callable[[], Stats]:
            if encoder.fast is not None:
                tokens = sum(len(ids) for batch in batches for ids in encoder.arrays(batch))
            else:
                encode = partial(encoder.backend.encode_batch_fast, add_special_tokens=False)
                tokens = sum(len(found) for batch in batches for found in encode(batch))
            return lambda: {"sequences": len(texts), "tokens": tokens}

        return run

    return prepared


ARMS: dict[str, Arm] = {
    "ours, tiktoken": ours("tiktoken"),
    "ours, tokenizers": ours("tokenizers"),
    "steps, tiktoken": ours("tiktoken", steps=True),
    "steps, tokenizers": ours("tokenizers", steps=True),
    "TRL": trl(masks=True),
    "TRL, no masks": trl(masks=False),
    "floor, tiktoken": floor("tiktoken"),
    "floor, tokenizers": floor("tokenizers"),
}

if __name__ == "__main__":
    main()
