"""The speed of a model in this process, from slices of its prompts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from posttrain.config.backend import (
    ChatBackend,
    ScriptedBackend,
    TransformersBackend,
    VllmBackend,
)
from posttrain.records import Message
from posttrain.rollouts import Parameters, Prompt
from posttrain.sampling.engines.transformers import TransformersEngine
from posttrain.sampling.measure import SamplingSpeed, measure_speed, why_not_measured
from posttrain.sampling.render import RenderedSampler
from posttrain.tokens.renderer import chat_template_of
from posttrain.tokens.tokenizer import encoder_of
from tests.sampling.scripted import Scripted
from tests.sampling.small_models import byte_tokenizer, small_model
from tests.sampling.small_stage import answer, sample, write_recipe

PROMPTS = [
    Prompt(f"p{n}", f"t{n}", "plain", (Message("user", "x" * n),), thinking=False)
    for n in (30, 10, 20, 40)
]


@pytest.fixture(scope="module")
def tiny() -> RenderedSampler:
    tokenizer = byte_tokenizer()
    engine = TransformersEngine(small_model("attention", vocabulary=300), weights="tiny")
    template = chat_template_of(tokenizer, choice="chatml")
    return RenderedSampler(engine, template=template, encoder=encoder_of(tokenizer))


def test_slices_grow_up_to_the_batch(tiny: RenderedSampler):
    # whatever else the machine does
    limit = float("inf")
    speed = measure_speed(tiny, PROMPTS, parameters=Parameters(), rows=12, limit=limit)
    assert speed is not None
    assert [rows for rows, _ in speed.steps] == [1, 4, 8, 12]
    lengths = [len(ids) for ids in tiny.encoder.encode(["x" * n for n in (30, 10, 20, 40)])]
    frame = speed.prompt_length - sum(lengths) / 4
    assert frame > 0
    assert speed.prompt_tokens == sum(lengths) + 4 * frame
    assert all(seconds > 0 for _, seconds in speed.steps)
    assert "scaled up" not in speed.text(12)
    assert "12 at a time; scaled up to 64 at a time" in speed.text(64)


def test_no_slice_is_begun_beyond_the_limit(tiny: RenderedSampler):
    speed = measure_speed(tiny, PROMPTS, parameters=Parameters(), rows=12, limit=0)
    assert speed is not None
    assert [rows for rows, _ in speed.steps] == [1]


def test_a_sampler_without_a_model_is_not_measured():
    assert measure_speed(Scripted(answer), PROMPTS, parameters=Parameters(), rows=2) is None


def test_what_was_measured_is_scaled_to_the_run():
    speed = SamplingSpeed(100.0, 0.01, 400, ((1, 0.1), (4, 0.16), (8, 0.24)))
    # 2 prompts of 100 tokens at 10 ms, 80 tokens at 30 ms
    assert speed.seconds(prompts=2, tokens=80, rows=8) == pytest.approx(2 + 2.4)
    # each further completion costs what the last four did, 20 ms
    assert speed.token_seconds(16) == pytest.approx((0.24 + 8 * 0.02) / 16)
    assert speed.token_seconds(4) == pytest.approx(0.04)


def test_why_a_dry_run_measures_nothing(tmp_path: Path):
    server = ChatBackend(kind="chat", url="http://localhost:1/v1", model="m")
    assert "sends no request to a server" in str(why_not_measured(server, None))
    assert "does not start vLLM" in str(why_not_measured(VllmBackend(kind="vllm"), "x"))
    scripted = ScriptedBackend(kind="scripted", policy="oracle")
    assert why_not_measured(scripted, None) == "no model runs"
    backend = TransformersBackend(kind="transformers", device="cpu")
    assert "no-model is not in a directory" in str(why_not_measured(backend, "no-model"))
    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert why_not_measured(backend, str(tmp_path)) is None


def test_weights_beyond_the_free_memory_are_not_loaded(tmp_path: Path, monkeypatch):
    backend = TransformersBackend(kind="transformers", device="cpu")
    save_file({"w": torch.zeros(1000, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    for free, fits in ((3000, False), (5000, True)):  # held in float32 they are twice as large
        memory = SimpleNamespace(available=free)
        monkeypatch.setattr("posttrain.sampling.measure.psutil.virtual_memory", lambda m=memory: m)
        reason = why_not_measured(backend, str(tmp_path))
        assert (reason is None) == fits
        assert fits or "its weights take" in str(reason)


def test_the_dry_run_says_how_long_it_takes_at_most(tmp_path, capsys, tiny: RenderedSampler):
    sample(write_recipe(tmp_path), "--dry-run", sampler=tiny)
    shown = capsys.readouterr().out
    assert "if every completion runs to its limit; 1,000 tokens take" in shown
    assert "measured on this device" in shown
    sample(write_recipe(tmp_path), "--dry-run")
    assert "time: not measured: the sampler is no model in this process" in capsys.readouterr().out
