"""How fast a model in this process samples: slices of its own prompts, timed and scaled up."""

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
# of the prompts by length: they stand for all of them
_QUANTILES = (0.125, 0.375, 0.625, 0.875)
_FIRST_TOKENS = 32
# a prompt is cut to so many tokens; what it has beyond them is scaled up
_MOST_TOKENS = 512
# the first token of a completion comes with its prompt, and no pass follows the last
_TOKENS = 6
_COUNTED = 64  # prompts whose lengths are known
_LEAST = 1e-6  # seconds, where a clock sees none
GIB = 1 << 30
_NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class SamplingSpeed:
    """Seconds of the parts of sampling, as far as they were measured.

    Attributes:
        prompt_length: tokens of a prompt in the mean.
        prompt_token: seconds of one token of a prompt.
        prompt_tokens: of the largest pass over prompts that was timed.
        steps: (completions at a time, seconds in which each of them gets a token), rising.
    """

    prompt_length: float
    prompt_token: float
    prompt_tokens: int
    steps: tuple[tuple[int, float], ...]

    def token_seconds(self, rows: int) -> float:
        """Seconds of one token while so many completions are written at a time."""
        measured = [step for step in self.steps if step[0] <= rows]
        if not measured:
            measured = [self.steps[0]]
            rows = measured[0][0]
        return scale_up(measured, rows) / rows

    def seconds(self, *, prompts: int, tokens: float, rows: int) -> float:
        """Seconds for reading all prompts once and writing all tokens behind them."""
        reading = prompts * self.prompt_length * self.prompt_token
        return reading + tokens * self.token_seconds(rows)

    def text(self, rows: int) -> str:
        """Describe what was measured and what was scaled up."""
        most = self.steps[-1][0]
        shown = min(most, rows)
        speed = f"{1 / self.token_seconds(shown):,.0f} tokens a second, {shown:,} at a time"
        if rows > most:
            speed += f"; scaled up to {rows:,} at a time"
        return (
            f"measured on this device: {1 / self.prompt_token:,.0f} prompt tokens a second (of "
            f"{self.prompt_tokens:,}), then {speed}"
        )


def why_not_measured(backend: BackendConfig, checkpoint: str | None) -> str | None:
    """Why a dry run measures no speed; None where it can."""
    if isinstance(backend, ScriptedBackend):
        return "no model runs"
    if isinstance(backend, Server):
        return "a dry run sends no request to a server; a run shows the time left"
    if isinstance(backend, VllmBackend):
        return "a dry run does not start vLLM; a run shows the time left"
    folder = Path(checkpoint or "")
    if not folder.is_dir():
        return f"{checkpoint} is not in a directory of this machine"
    return _too_large(backend, folder)


def _too_large(backend: TransformersBackend, folder: Path) -> str | None:
    import torch

    if backend.device != "cpu" and torch.cuda.is_available():
        return None
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    held = "bfloat16" if backend.dtype == "bfloat16" else "float32"
    each = _NUMBER_BYTES.get(checkpoint_dtype(folder) or "", 4)
    needed = stored * _NUMBER_BYTES[held] // each
    free = psutil.virtual_memory().available
    if needed < free:
        return None
    return f"its weights take {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free here"


def measure_speed(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    *,
    parameters: Parameters,
    rows: int,
    limit: float = MEASURING_SECONDS,
) -> SamplingSpeed | None:
    """Time ever more completions of a few prompts, up to `rows` at a time; None for a sampler that
    is no model in this process.

    Args:
        limit: no slice is begun that would probably end later, in seconds.
    """
    if not isinstance(sampler, RenderedSampler):
        return None
    engine = sampler.engine
    if not isinstance(engine, TransformersEngine):
        return None
    sample = prompts[:: max(1, len(prompts) // _COUNTED)]
    encoded = sampler.encoder.encode([prompt_text(one, sampler.template) for one in sample])
    by_length = sorted(encoded, key=len)
    most = min(_MOST_TOKENS, positions(engine.model.config) - _TOKENS)
    chosen = [by_length[int(share * len(by_length))][-most:] for share in _QUANTILES]
    parameters = replace(parameters, max_tokens=_TOKENS)

    def timed(slices: Sequence[Ids]) -> tuple[float, float, float]:
        """Seconds in all, of the prompts, and of a step behind them."""
        requests = [EngineRequest(tuple(ids), parameters, k, ()) for k, ids in enumerate(slices)]
        ends: list[float] = []
        started = time.perf_counter()
        decode(
            engine.model,
            requests,
            batch_size=len(requests),
            on_step=lambda _: ends.append(time.perf_counter()),
        )
        # the first step is that of the prompts; behind the last there is no pass
        step = (ends[-2] - ends[0]) / (_TOKENS - 2)
        return ends[-1] - started, max(ends[0] - started - step, 0.0), step

    # the first pass after a start is slower than all that follow
    spent, *_ = timed([chosen[0][-_FIRST_TOKENS:]])
    seconds, reading, step = timed(chosen[:1])
    tokens, count, middle = len(chosen[0]), 1, chosen[len(chosen) // 2]
    steps = [(count, step)]
    spent += seconds
    if spent + len(chosen) * seconds < limit:
        seconds, reading, step = timed(chosen[:rows])
        # equal prompts are read once
        tokens = sum(map(len, dict.fromkeys(map(tuple, chosen[:rows]))))
        count = min(len(chosen), rows)
        steps.append((count, step))
        spent += seconds
    # more completions of one prompt: what a token takes depends on how many there are
    while count < rows and spent + 2 * seconds < limit:
        count = min(2 * count, rows)
        seconds, _, step = timed([middle] * count)
        steps.append((count, step))
        spent += seconds
    mean = sum(map(len, encoded)) / len(encoded)
    return SamplingSpeed(mean, max(reading, _LEAST) / tokens, tokens, tuple(steps))
