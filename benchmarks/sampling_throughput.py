"""Sampling in process against transformers' own generate: new tokens a second, same model and load.

    python -m benchmarks sampling_throughput                      # a tiny random model
    python -m benchmarks sampling_throughput --checkpoint runs/tiny/sft --prompts …/prompts.jsonl
    python -m benchmarks sampling_throughput --checkpoint PATH --arms ours,generate --out a.json
    python -m benchmarks sampling_throughput --model DIR --threads 1 --repeat 2   # a real model

Arms: `ours` is the in-process backend; `generate` is transformers' generate in batches of the same
size, prompts in order, on the model as transformers loads it; `continuous` is its continuous
batching. All sample at temperature 1, with the same stop tokens and limit. Tokens are counted up to
the first stop token. `--model` asks a chat model 32 questions of uneven lengths, once each; arms
take turns, so that other work on the machine slows them alike.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
)

from benchmarks.options import add_figures_file
from benchmarks.shapes import SHAPES, peak_gib, random_model, write_figures
from posttrain.chat import render
from posttrain.config.backend import TransformersBackend
from posttrain.models.inference import generation_stops, load_for_inference
from posttrain.models.load import build_model
from posttrain.records import Message
from posttrain.rollouts import Parameters, prompt_from_row
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.open import rendering_of
from posttrain.sampling.sampler import EngineRequest, seed_of
from posttrain.tokens.renderer import renderer_of
from posttrain.tokens.tokenizer import encoder_of
from tests.models.tiny import TINY_ATTENTION, TINY_HYBRID

Ids = tuple[int, ...]
TINY = {"attention": TINY_ATTENTION, "hybrid": TINY_HYBRID}
VOCABULARY = 1024
STOP = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of all arms: prompts, some of them several times, and their limits."""

    prompts: list[Ids]
    stops: tuple[int, ...]
    max_tokens: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one arm.

    `cpu_seconds` tell more than `seconds` where other work shares the processor.
    """

    arm: str
    tokens: int
    seconds: float
    cpu_seconds: float
    mean_length: float
    peak_gib: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_speed(self) -> float:
        return self.tokens / self.cpu_seconds


def make_model(shape: str) -> PreTrainedModel:
    """A tiny model whose stop token is likely enough that lengths spread from 1 to about 200."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": STOP}
    if shape not in TINY:
        large: Any = random_model(shape)
        return large.to(torch.bfloat16).eval()
    model: Any = build_model({**TINY[shape], **sizes}).eval()
    head = torch.nn.Linear(model.config.hidden_size, VOCABULARY)
    head.weight = model.lm_head.weight
    with torch.no_grad():
        head.bias.zero_()
        head.bias[STOP] = 2.5
    model.lm_head = head
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def random_prompts(count: int) -> list[Ids]:
    """Prompts of 40 to 80 random tokens."""
    rng = random.Random(0)
    lengths = [rng.randint(40, 80) for _ in range(count)]
    return [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for length in lengths]


def uneven_questions(checkpoint: str) -> list[Ids]:
    """32 questions, in the model's chat template: half of them short, some with a long text."""
    template, encoder, _ = rendering_of(TransformersBackend(kind="transformers"), checkpoint)
    sentence = "A train leaves at {} o'clock with {} passengers, of whom {} get off on the way. "
    rng = random.Random(0)
    texts: list[str] = []
    for k in range(32):
        facts = ""
        for _ in range((1, 2, 4, 12)[k % 4]):
            facts += sentence.format(rng.randint(1, 12), rng.randint(40, 90), rng.randint(2, 30))
        question = "How many passengers arrive in all? Answer in one sentence."
        if k % 3:
            question = "How many passengers arrive in all? Explain every step of the calculation."
        messages = [Message("user", facts + question)]
        texts.append(render(messages, template, add_generation_prompt=True, enable_thinking=False))
    return [tuple(ids) for ids in encoder.encode(texts)]


def read_prompts(file: Path, checkpoint: str, count: int) -> list[Ids]:
    """Rendered prompts of a samples artifact's `prompts.jsonl`."""
    renderer = renderer_of(TransformersBackend(kind="transformers"), checkpoint)
    assert renderer is not None
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, count)]
    texts = [renderer.text(prompt_from_row(row)) for row in rows]
    return [tuple(ids) for ids in encoder_of(renderer.tokenizer).encode(texts)]


def ours(model: PreTrainedModel, load: Load) -> list[int]:
    """Decode with the in-process backend. Returns the lengths of the completions."""
    parameters = Parameters(max_tokens=load.max_tokens)
    requests = [
        EngineRequest(ids, parameters, seed_of(0, k), load.stops)
        for k, ids in enumerate(load.prompts)
    ]
    generations = decode(model, requests, batch_size=load.batch_size)
    return [len(generation.ids) for generation in generations]


def plain_generate(model: PreTrainedModel, load: Load) -> list[int]:
    """Decode batches padded on the left, each as long as its longest completion."""
    lengths: list[int] = []
    for start in range(0, len(load.prompts), load.batch_size):
        batch = load.prompts[start : start + load.batch_size]
        width = max(map(len, batch))
        ids = torch.tensor([(0,) * (width - len(p)) + p for p in batch], device=model.device)
        pads = torch.tensor([[width - len(p)] for p in batch], device=model.device)
        mask = (torch.arange(width, device=model.device) >= pads).long()
        generate: Any = model.generate
        out = generate(ids, attention_mask=mask, generation_config=generation_config(load))
        lengths += [length_to_stop(row, load.stops) for row in out[:, width:].tolist()]
    return lengths


def continuous(model: PreTrainedModel, load: Load) -> list[int]:
    """Decode with transformers' continuous batching; on a CPU its memory has to be named."""
    config = ContinuousBatchingConfig(seed=0, max_requests_per_batch=load.batch_size)
    if model.device.type == "cpu":
        longest = max(map(len, load.prompts)) + load.max_tokens
        config.page_size = 32
        config.num_blocks = load.batch_size * (longest // 32 + 1)
        config.max_batch_tokens = 4 * load.batch_size
    run: Any = model
    out = run.generate_batch(
        [list(ids) for ids in load.prompts],
        generation_config=generation_config(load),
        continuous_batching_config=config,
    )
    completions = [output.generated_tokens for output in out.values()]
    assert all(completions), "continuous batching failed"
    assert len(completions) == len(load.prompts), "continuous batching lost requests"
    return [length_to_stop(ids, load.stops) for ids in completions]


def generation_config(load: Load) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=load.max_tokens,
        eos_token_id=list(load.stops),
        pad_token_id=0,
    )


def length_to_stop(ids: Sequence[int], stops: Sequence[int]) -> int:
    """Number of tokens up to the first stop, or of all."""
    return next((k + 1 for k, token in enumerate(ids) if token in stops), len(ids))


ARMS: dict[str, Callable[[PreTrainedModel, Load], list[int]]] = {
    "ours": ours,
    "generate": plain_generate,
    "continuous": continuous,
}


def measure(arm: str, model: PreTrainedModel, load: Load) -> Result:
    """Run an arm once, after a short warm-up."""
    warm_up = Load(load.prompts[:4], load.stops, 4, load.batch_size)
    ARMS[arm](model, warm_up)
    torch.manual_seed(0)
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    with torch.no_grad():  # continuous batching works outside inference mode only
        lengths = ARMS[arm](model, load)
    if on_gpu:
        torch.cuda.synchronize()
    return Result(
        arm=arm,
        tokens=sum(lengths),
        seconds=time.perf_counter() - wall_start,
        cpu_seconds=time.process_time() - cpu_start,
        mean_length=sum(lengths) / len(lengths),
        peak_gib=peak_gib(model.device),
    )


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--checkpoint", help="a directory or hub id; default: random weights")
    parser.add_argument("--model", help="a chat model: 32 uneven questions in place of --prompts")
    parser.add_argument("--repeat", type=int, default=1, help="rounds in which the arms take turns")
    parser.add_argument("--prompts", type=Path, help="prompts.jsonl; default: random tokens")
    parser.add_argument("--shape", choices=sorted({**TINY, **SHAPES}), default="attention")
    parser.add_argument("--count", type=int, default=100, help="distinct prompts")
    parser.add_argument("--samples", type=int, default=16, help="completions a prompt")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, help="of the processor; default: torch's")
    parser.add_argument("--arms", default="ours,generate", help=f"of {', '.join(ARMS)}")
    add_figures_file(parser)


def main(options: Namespace) -> None:
    """Measure each arm; print a table, and write JSON if asked to."""
    if options.prompts and not options.checkpoint:
        sys.exit("--prompts are rendered with a checkpoint's template: give --checkpoint too")
    if options.threads:
        torch.set_num_threads(options.threads)
    path = options.model or options.checkpoint
    if path is None:
        model = make_model(options.shape)
        stops: tuple[int, ...] = (STOP,)
        models = dict.fromkeys(ARMS, model)
    else:
        loading = {"dtype": "auto", "device": "auto", "attention": "auto", "vocabulary": 0}
        model = load_for_inference(path, **loading)
        stops = generation_stops(path, model)
        as_loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=model.dtype)
        models = {**dict.fromkeys(ARMS, as_loaded.eval().to(model.device)), "ours": model}
    samples = options.samples
    if options.model:
        distinct = uneven_questions(options.model)
        samples = 1
    elif options.prompts:
        distinct = read_prompts(options.prompts, options.checkpoint, options.count)
    else:
        distinct = random_prompts(options.count)
    prompts = [ids for ids in distinct for _ in range(samples)]
    load = Load(prompts, stops, options.max_tokens, options.batch_size)
    print(
        f"{len(prompts):,} completions of prompts of {min(map(len, prompts))} to "
        f"{max(map(len, prompts))} tokens, batches of {options.batch_size}, {model.device}, "
        f"{model.dtype}, {torch.get_num_threads()} threads"
    )
    results: list[Result] = []
    for arm in options.arms.split(",") * options.repeat:
        result = measure(arm, models[arm], load)
        results.append(result)
        reference = results[0]
        cpu_ratio = result.cpu_speed / reference.cpu_speed
        print(
            f"{arm:<12}{result.speed:>10,.0f} tokens/s {result.cpu_speed:>10,.1f} tokens/CPU-s "
            f"{result.seconds:>8.1f} s  mean length {result.mean_length:.0f}  ratio "
            f"{result.speed / reference.speed:.2f}, of CPU {cpu_ratio:.2f}  "
            f"peak {result.peak_gib:.2f} GiB",
            flush=True,
        )
    write_figures(options.out, results)
