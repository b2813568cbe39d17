"""Speed of sampling by a model in this process: slices of its own prompts, timed and scaled up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from posttrain.config.backend import (
    BackendConfig,
    ScriptedBackend,
    Server,
    TransformersBackend,
    VllmBackend,
)
from posttrain.config.paths import checkpoint_dtype
from posttrain.models.room import positions
from posttrain.rollouts import Parameters, Prompt
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.engines.transformers import TransformersEngine
from posttrain.sampling.render import RenderedSampler
from posttrain.sampling.sampler import EngineRequest, Ids, Sampler
from posttrain.timing import scale_up
from posttrain.tokens.renderer import prompt_text

# a dry run takes less than a minute, loading the models included
MEASURING_SECONDS = 15.0
# quantiles, by length, of the prompts that are timed: they stand for all of them
_QUANTILES = (0.125, 0.375, 0.625, 0.875)
# tokens of the prompt of the first pass, which is not among the results
_FIRST_TOKENS = 32
# tokens to which a prompt is cut; the time of longer ones is scaled up
_MOST_TOKENS = 512
# tokens of a timed completion: the first comes with its prompt, and no pass follows the last
_TOKENS = 6
# prompts that are tokenised, for the mean length
_COUNTED_PROMPTS = 64
# seconds, in place of 0, which a coarse clock may show
_LEAST_SECONDS = 1e-6
GIB = 1 << 30
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class SamplingSpeed:
    """Measured seconds of the parts of sampling.

    Attributes:
        prompt_length: Tokens of a prompt in the mean.
        prompt_token: Seconds of one token of a prompt.
        prompt_tokens: Tokens of the largest pass over prompts that was timed.
        steps: (completions at a time, seconds in which each of them gets a token), rising.
    """

    prompt_length: float
    prompt_token: float
    prompt_tokens: int
    steps: tuple[tuple[int, float], ...]

    def token_seconds(self, rows: int) -> float:
        """Seconds of one token while `rows` completions are written at a time."""
        measured = [step for step in self.steps if step[0] <= rows]
        if not measured:
            measured = [self.steps[0]]
            rows = measured[0][0]
        return scale_up(measured, rows) / rows

    def seconds(self, *, prompts: int, tokens: float, rows: int) -> float:
        """Seconds of reading all prompts once and writing `tokens` tokens, `rows` at a time."""
        reading = prompts * self.prompt_length * self.prompt_token
        return reading + tokens * self.token_seconds(rows)

    def text(self, rows: int) -> str:
        """Describe what was measured and what was scaled up."""
        measured_rows = self.steps[-1][0]
        shown_rows = min(measured_rows, rows)
        speed = (
            f"{1 / self.token_seconds(shown_rows):,.0f} tokens a second, {shown_rows:,} at a time"
        )
        if rows > measured_rows:
            speed += f"; scaled up to {rows:,} at a time"
        return (
            f"measured on this device: {1 / self.prompt_token:,.0f} prompt tokens a second (of "
            f"{self.prompt_tokens:,}), then {speed}"
        )


def why_not_measured(backend: BackendConfig, checkpoint: str | None) -> str | None:
    """Reason why a dry run measures no speed; None where it can."""
    if isinstance(backend, ScriptedBackend):
        return "no model runs"
    if isinstance(backend, Server):
        return "a dry run sends no request to a server; a run shows the time left"
    if isinstance(backend, VllmBackend):
        return "a dry run does not start vLLM; a run shows the time left"
    folder = Path(checkpoint or "")
    if not folder.is_dir():
        return f"{checkpoint} is not in a directory of this machine"
    return _why_too_large(backend, folder)


def _why_too_large(backend: TransformersBackend, folder: Path) -> str | None:
    """Sentence about weights that do not fit this machine's memory; None where they do."""
    import torch

    if backend.device != "cpu" and torch.cuda.is_available():
        return None
    bytes_on_disk = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    bytes_per_element = _ELEMENT_BYTES.get(checkpoint_dtype(folder) or "", 4)
    # `auto` on a CPU is float32
    dtype = "bfloat16" if backend.dtype == "bfloat16" else "float32"
    needed_bytes = bytes_on_disk * _ELEMENT_BYTES[dtype] // bytes_per_element
    free_bytes = psutil.virtual_memory().available
    if needed_bytes < free_bytes:
        return None
    return (
        f"its weights take {needed_bytes / GIB:.1f} GiB, {free_bytes / GIB:.1f} GiB are free here"
    )


def measure_speed(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    *,
    parameters: Parameters,
    rows: int,
    limit: float = MEASURING_SECONDS,
) -> SamplingSpeed | None:
    """Time ever more completions of a few prompts; None unless the model runs in this process.

    Args:
        rows: most completions at a time.
        limit: seconds; no slice is begun that would probably end later.
    """
    if not isinstance(sampler, RenderedSampler):
        return None
    engine = sampler.engine
    if not isinstance(engine, TransformersEngine):
        return None
    sample = prompts[:: max(1, len(prompts) // _COUNTED_PROMPTS)]
    encoded = sampler.encoder.encode([prompt_text(prompt, sampler.template) for prompt in sample])
    by_length = sorted(encoded, key=len)
    most_tokens = min(_MOST_TOKENS, positions(engine.model.config) - _TOKENS)
    timed_prompts: list[Ids] = []
    for quantile in _QUANTILES:
        ids = by_length[int(quantile * len(by_length))]
        # the end, as far as it fits: the generation prompt belongs to it
        timed_prompts.append(ids[-most_tokens:])
    parameters = replace(parameters, max_tokens=_TOKENS)

    def time_completions(batch: Sequence[Ids]) -> tuple[float, float, float]:
        """Seconds of one completion of each prompt: in all, of the prompts, of a later step."""
        requests: list[EngineRequest] = []
        for seed, ids in enumerate(batch):
            requests.append(EngineRequest(tuple(ids), parameters, seed, ()))
        step_ends: list[float] = []
        start = time.perf_counter()
        decode(
            engine.model,
            requests,
            batch_size=len(requests),
            on_step=lambda _: step_ends.append(time.perf_counter()),
        )
        # the first step is that of the prompts; behind the last there is no pass
        step = (step_ends[-2] - step_ends[0]) / (_TOKENS - 2)
        return step_ends[-1] - start, max(step_ends[0] - start - step, 0.0), step

    # not among the results: the first pass after a start is slower than all that follow
    seconds_spent, *_ = time_completions([timed_prompts[0][-_FIRST_TOKENS:]])
    seconds, reading_seconds, step_seconds = time_completions(timed_prompts[:1])
    seconds_spent += seconds
    tokens_read = len(timed_prompts[0])
    count = 1
    steps = [(count, step_seconds)]
    if seconds_spent + len(timed_prompts) * seconds < limit:
        batch = timed_prompts[:rows]
        seconds, reading_seconds, step_seconds = time_completions(batch)
        seconds_spent += seconds
        # the decoder reads equal prompts once
        distinct_prompts = {tuple(ids) for ids in batch}
        tokens_read = sum(len(ids) for ids in distinct_prompts)
        count = len(batch)
        steps.append((count, step_seconds))
    # more completions of one prompt: the seconds of a step depend on the number of completions
    middle_prompt = timed_prompts[len(timed_prompts) // 2]
    while count < rows and seconds_spent + 2 * seconds < limit:
        count = min(2 * count, rows)
        seconds, _, step_seconds = time_completions([middle_prompt] * count)
        seconds_spent += seconds
        steps.append((count, step_seconds))
    return SamplingSpeed(
        prompt_length=sum(map(len, encoded)) / len(encoded),
        prompt_token=max(reading_seconds, _LEAST_SECONDS) / tokens_read,
        prompt_tokens=tokens_read,
        steps=tuple(steps),
    )
