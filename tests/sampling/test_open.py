"""A checkpoint on disk becomes a sampler: the right weights, template and stops, or a refusal."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tomllib
from importlib.machinery import ModuleSpec
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from posttrain.chat import nemotron_3_nano_template
from posttrain.config.backend import (
    BackendConfig,
    ChatBackend,
    CompletionsBackend,
    TransformersBackend,
    VllmBackend,
)
from posttrain.config.grpo import LoraServer
from posttrain.errors import ConfigError, DataError
from posttrain.models.inference import weights_digest
from posttrain.records import Message
from posttrain.rollouts import Parameters, Prompt
from posttrain.runs import Counts, Run
from posttrain.sampling.engines.transformers import TransformersEngine
from posttrain.sampling.engines.vllm import open_vllm
from posttrain.sampling.open import check_context, opened_sampler, refuse_beyond_context
from posttrain.sampling.render import RenderedSampler
from posttrain.sampling.sampler import Request, Sampler
from posttrain.tokens.renderer import renderer_of
from tests.sampling.small_models import byte_tokenizer, full_logps, small_model
from tests.training.rl.servers import stating

ON_CPU = TransformersBackend(kind="transformers", device="cpu", batch_size=4)
END = "<|im_end|>"


def write_checkpoint(folder: Path, *, template: str | None = None, vocabulary: int = 288) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template or nemotron_3_nano_template().source
    model = small_model("attention", vocabulary=vocabulary, spread=0.05)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids([END, "<|eot_id|>"])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def open_sampler(backend: BackendConfig, *, checkpoint: str | None) -> Sampler:
    """Opened, and a server's client closed again."""

    async def run() -> Sampler:
        async with opened_sampler(backend, checkpoint=checkpoint) as sampler:
            return sampler

    return asyncio.run(run())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def requests(count: int = 6) -> list[Request]:
    parameters = Parameters(max_tokens=12, logps=True)
    return [
        Request((Message("user", "?" * k),), None, k % 2 == 0, parameters, seed=k)
        for k in range(count)
    ]


def test_a_checkpoint_is_sampled(checkpoint):
    sampler = open_sampler(ON_CPU, checkpoint=str(checkpoint))
    assert isinstance(sampler, RenderedSampler)
    assert isinstance(sampler.engine, TransformersEngine)
    assert sampler.batched
    told: list[int] = []
    found = asyncio.run(sampler.sample(requests(), progress=told.append))
    again = asyncio.run(open_sampler(ON_CPU, checkpoint=str(checkpoint)).sample(requests()))
    assert found == again
    assert sum(told) == sum(len(one.step.ids) for one in found)
    step, prompt = found[1].step, found[1].prompt_ids
    truth = full_logps(sampler.engine.model, prompt, step.ids)
    truth = truth[range(len(step.ids)), list(step.ids)].tolist()
    assert step.logps == pytest.approx(truth, abs=1e-4)


def test_identity_follows_weights_and_template_and_nothing_else(checkpoint, tmp_path):
    first = open_sampler(ON_CPU, checkpoint=str(checkpoint)).identity
    assert json.loads(json.dumps(first)) == first
    assert first["dtype"] == "float32"
    ids = byte_tokenizer().convert_tokens_to_ids([END, "<|eot_id|>"])
    assert first["stop_ids"] == ids
    other_batch = ON_CPU.model_copy(update={"batch_size": 1})
    assert open_sampler(other_batch, checkpoint=str(checkpoint)).identity == first
    bfloat16 = ON_CPU.model_copy(update={"dtype": "bfloat16"})
    assert open_sampler(bfloat16, checkpoint=str(checkpoint)).identity["dtype"] == "bfloat16"
    same = write_checkpoint(tmp_path / "same")
    assert weights_digest(str(same)) == first["weights"]
    tuned = small_model("attention", vocabulary=288, spread=0.06)
    tuned.save_pretrained(same)
    assert weights_digest(str(same)) != first["weights"]


def test_an_artifact_is_known_by_its_digest_and_holds_to_its_template(tmp_path):
    folder = tmp_path / "sft"
    stage = Run.open(folder, kind="checkpoint", config={})
    write_checkpoint(folder)
    digest = nemotron_3_nano_template().digest
    files = {path.name: None for path in folder.iterdir() if path.name != "stage.json"}
    manifest = stage.finish(counts=Counts(0, 0), files=files, template_digest=digest)
    assert open_sampler(ON_CPU, checkpoint=str(folder)).identity["weights"] == manifest.digest
    other = tmp_path / "other.jinja"
    other.write_text(nemotron_3_nano_template().source + " ")
    changed = ON_CPU.model_copy(update={"chat_template": str(other)})
    with pytest.raises(ConfigError, match="was trained with chat template"):
        open_sampler(changed, checkpoint=str(folder))


def test_what_cannot_be_opened_is_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match="no such directory"):
        open_sampler(ON_CPU, checkpoint=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no tokenizer"):
        open_sampler(ON_CPU, checkpoint=str(tmp_path / "empty"))
    small = write_checkpoint(tmp_path / "small", vocabulary=256)
    with pytest.raises(ConfigError, match="256 rows"):
        open_sampler(ON_CPU, checkpoint=str(small))
    clock = write_checkpoint(
        tmp_path / "clock",
        template="{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{{ strftime_now('%Y') }}",
    )
    with pytest.raises(ConfigError, match="date_string"):
        open_sampler(ON_CPU, checkpoint=str(clock))
    weights = small / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        open_sampler(ON_CPU, checkpoint=str(small))
    # pickled weights are never read
    weights.unlink()
    torch.save(small_model("attention", vocabulary=288).state_dict(), small / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        open_sampler(ON_CPU, checkpoint=str(small))
    (small / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="LoRA adapter"):
        open_sampler(ON_CPU, checkpoint=str(small))


def test_servers_are_opened_without_asking_them(checkpoint, monkeypatch):
    server = {"url": "http://127.0.0.1:9/v1", "model": "m"}
    completions = CompletionsBackend(kind="completions", **server)
    rendered = open_sampler(completions, checkpoint=str(checkpoint))
    assert not rendered.batched
    assert rendered.identity["weights"] == "m"
    assert rendered.identity["stop_ids"][0] == byte_tokenizer().convert_tokens_to_ids(END)
    chat = open_sampler(ChatBackend(kind="chat", **server), checkpoint=None)
    assert chat.identity["backend"] == "chat"
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    keyed = ChatBackend(kind="chat", api_key_env="NO_SUCH_KEY", **server)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        open_sampler(keyed, checkpoint=None)

    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"posttrain\[vllm\]"):
        open_sampler(VllmBackend(kind="vllm"), checkpoint=str(checkpoint))


def test_a_cancelled_call_ends_and_the_engine_can_be_asked_again(checkpoint):
    sampler = open_sampler(ON_CPU, checkpoint=str(checkpoint))
    endless = Parameters(max_tokens=1500, temperature=0.0)

    async def run() -> int:
        begun = asyncio.Event()
        many = [Request(r.messages, None, True, endless, seed=0) for r in requests(4)]
        task = asyncio.create_task(sampler.sample(many, progress=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # the thread has one step left at most, and the next call waits for it
        return len(await sampler.sample(requests(2)))

    assert asyncio.run(run()) == 2


@pytest.mark.parametrize(("longest", "refused"), [(0, False), (20, True)])
def test_tokens_beyond_the_servers_context_are_refused(longest: int, refused: bool):
    with stating(100) as url:
        reached = ChatBackend(kind="chat", url=url, model="m")
        if not refused:
            refuse_beyond_context(reached, longest_prompt=longest, max_tokens=90)
            return
        with pytest.raises(ConfigError, match=r"max_tokens to at most 80, or serve with a larger"):
            refuse_beyond_context(reached, longest_prompt=longest, max_tokens=90)


def test_a_plan_says_where_the_positions_of_a_model_in_process_end_completions(checkpoint: Path):
    context = json.loads((checkpoint / "config.json").read_text())["max_position_embeddings"]
    renderer = renderer_of(ON_CPU, str(checkpoint))
    assert renderer is not None
    prompts = [
        Prompt(str(length), str(length), "plain", (Message("user", "?" * length),))
        for length in (3, 30)
    ]
    longest = len(renderer.tokenizer(renderer.text(prompts[1])).input_ids)
    room = context - longest

    def line(max_tokens: int) -> str | None:
        return check_context(ON_CPU, str(checkpoint), prompts, renderer, max_tokens=max_tokens)

    assert line(room) is None
    text = line(room + 1)
    assert text is not None
    assert f"({longest} tokens) completions end after {room:,}, " in text


def test_an_adapter_is_as_long_as_the_model_that_it_will_be_loaded_onto():
    with stating(100) as url:
        reached = LoraServer(engine="lora_server", url=url)
        with pytest.raises(ConfigError, match="does not fit the 100 tokens"):
            refuse_beyond_context(reached, longest_prompt=20, max_tokens=90)


def test_a_server_that_does_not_state_its_context_is_left_alone():
    with stating(None) as url:
        reached = ChatBackend(kind="chat", url=url, model="m")
        refuse_beyond_context(reached, longest_prompt=0, max_tokens=1 << 20)


def test_vllms_dtype_is_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: dict[str, Any] = {}
    library = ModuleType("vllm")
    library.__spec__ = ModuleSpec("vllm", None)
    library.LLM = lambda **keys: given.update(keys)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", library)
    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    engine = open_vllm(VllmBackend(kind="vllm"), checkpoint=tmp_path, weights="w")
    assert given["dtype"] == engine.identity["dtype"] == "float32"


def test_a_dry_run_with_vllm_that_is_not_installed_is_refused(checkpoint: Path):
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    with pytest.raises(ConfigError, match=r"pip install 'posttrain\[vllm\]'"):
        renderer_of(VllmBackend(kind="vllm"), str(checkpoint))


def test_the_extra_vllm_has_the_bounds_of_the_installed_trl():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    [ours] = project["project"]["optional-dependencies"]["vllm"]
    wanted = next(r for r in requires("trl") or [] if r.startswith("vllm"))
    trls, bounds = Requirement(wanted).specifier, Requirement(ours).specifier
    versions = [f"0.{minor}.{patch}" for minor in range(10, 60) for patch in (0, 1)]
    assert [v for v in versions if v in bounds] == [v for v in versions if v in trls]


@pytest.mark.parametrize(
    ("instructions", "dtype", "named"),
    [
        ("", "bfloat16", True),
        ("", "auto", False),
        ("amx_bf16", "bfloat16", False),
        ("avx512_bf16", "bfloat16", False),
    ],
)
def test_a_cpu_that_emulates_bfloat16_is_named(
    instructions: str, dtype: Any, named: bool, checkpoint: Path, monkeypatch, capsys
):
    capabilities = {"amx_bf16": False, "avx512_bf16": False, instructions: True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    open_sampler(
        TransformersBackend(kind="transformers", dtype=dtype, device="cpu"),
        checkpoint=str(checkpoint),
    )
    assert ("set dtype: float32" in capsys.readouterr().err) is named
