"""Every engine samples from the weights of its step: in process, sharded, LoRA server, vLLM.

vLLM is behind TRL's own code: only vLLM itself is stood in for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl.distributed import DistributedBackend

from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.errors import ConfigError
from posttrain.hashing import digest_of
from posttrain.training.plan import GIB
from posttrain.training.rl.policy import LOAD, UNLOAD, LoraServed, VllmColocated, WeightSync
from posttrain.training.rl.stage import GroupStage
from posttrain.training.rl.trainer import compared_engines
from tests.training.forks import forked
from tests.training.rl.policy import (
    FailsAtTheSecond,
    Scripted,
    finish,
    make_prompts,
    raw_recipe,
    start,
    words_of,
)
from tests.training.rl.policy import make_recipe as make_any_recipe
from tests.training.rl.servers import policy_server, serving, stating
from tests.training.rl.vllm_stand_in import Llm, VllmServer, install_vllm, vllm_server
from tests.training.tiny import log_rows, rollout_groups

PROMPTS = make_prompts(24)
# steps that are large enough to tell one batch's weights from the next's
STEPS: dict[str, Any] = {"learning_rate": 0.05, "max_steps": 2}
STATE: dict[str, Any] = {
    "use_cpu": False, "accelerator_config": {"use_configured_state": True},
    "per_device_train_batch_size": 2,
}  # fmt: skip
ADAPTER: dict[str, Any] = {"adapter": {"rank": 4, "preset": "attention"}}
Alone = Callable[..., Path]


def make_recipe(policy: Path, out: Path, trainer: Any = None, **keys: Any) -> GroupTraining:
    """Steps of 4 prompts × 3 rollouts, which servers answer one by one, in 3 micro-batches."""
    micro = {"per_device_train_batch_size": 4, **(trainer or {})}
    sizes = {"prompts_per_step": 4, "num_generations": 3, "sampling": {"max_tokens": 4}}
    return make_any_recipe(policy, out, micro, **(sizes | keys))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The run with an engine in process, once for each policy and set of keys."""
    root = tmp_path_factory.mktemp("alone")

    def run(policy: Path, **keys: Any) -> Path:
        out = root / digest_of([policy.name, keys])
        if not out.exists():
            finish(make_recipe(policy, out, STEPS, **keys), PROMPTS, Scripted(words_of))
        return out

    return run


def run(recipe: GroupTraining, *, sharding: str | None = None, **options: Any) -> str:
    def stage() -> None:
        if recipe.rollouts.engine.startswith("vllm"):
            install_vllm()
        GroupStage(recipe, prompts=PROMPTS, reward=Scripted(words_of)).run(dry_run=False)
        print("calls", *Llm.log)

    return forked(stage, processes=2 if sharding else 1, sharding=sharding, **options).text


def rollouts(out: Path) -> list[tuple[Any, ...]]:
    """Every rollout, without what differs in its last digits."""
    return [
        (row["step"], row["position"], one["index"], one["text"], one["reward"], one["in_loss"])
        for row in rollout_groups(out)
        for one in row["rollouts"]
    ]


def check(out: Path, alone: Path) -> None:
    """The same rollouts as in process, and ratios of 1: the weights of each step have arrived."""
    assert len(rollouts(alone)) == 24
    assert rollouts(out) == rollouts(alone)
    rows, expected = (log_rows(run, of="loss") for run in (out, alone))
    assert [r["loss"] for r in rows] == pytest.approx([r["loss"] for r in expected], abs=1e-4)
    assert [r["strayed"] for r in rows] == pytest.approx([1] * 2, abs=1e-4)
    assert all(row["failed"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("sharding", "model"),
    [
        ("zero3", "hybrid"),
        ("fsdp2", "adapter"),
        pytest.param("fsdp2", "hybrid", marks=pytest.mark.matrix),
    ],
)
def test_sharded_weights_roll_out_as_whole_ones_do(
    policy: Path, hybrid: Path, alone: Alone, tmp_path: Path, sharding: str, model: str
):
    if sharding == "zero3":
        pytest.importorskip("deepspeed")
    path, keys = (policy, ADAPTER) if model == "adapter" else (hybrid, {})
    launch = {"world_size": 2, "sharding": sharding}
    recipe = make_recipe(path, tmp_path / "two", STEPS | STATE, launch=launch, **keys)
    run(recipe, sharding=sharding)
    check(tmp_path / "two", alone(path, **keys))


# ---- a server that is given the adapter ----


def served(url: str) -> dict[str, Any]:
    return ADAPTER | {"rollouts": {"engine": "lora_server", "url": url, "retries": 0}}


def test_a_lora_server_is_given_the_adapter_of_each_step(
    policy: Path, alone: Alone, tmp_path: Path
):
    with policy_server(policy) as server:
        recipe = make_recipe(policy, tmp_path / "out", STEPS, **served(server.url))
        finish(recipe, PROMPTS, Scripted(words_of))
    # the last adapter leaves the server when the run ends
    changes = ["+policy-00001", "-policy-00000"]
    assert server.log == ["+policy-00000", *changes, "-policy-00001"]
    check(tmp_path / "out", alone(policy, **ADAPTER))


def test_tokens_beyond_the_context_of_a_lora_server_are_refused(policy: Path, tmp_path: Path):
    with stating(10, str(policy)) as url:
        recipe = make_recipe(policy, tmp_path / "out", **served(url))
        with pytest.raises(ConfigError, match="does not fit the 10 tokens"):
            start(recipe, PROMPTS, Scripted())


def test_a_server_that_was_started_again_between_two_steps_is_given_the_adapter(
    policy: Path, tmp_path: Path
):
    refused: list[str] = []
    with policy_server(policy) as server:
        load = server.load

        def restarted(name: str, path: str, *, in_place: bool = False) -> tuple[int, Any]:
            if name == "policy-00001" and not refused:
                refused.append(name)
                server.loaded.clear()
                return 503, "a proxy in front of a server that starts"
            return load(name, path, in_place=in_place)

        server.load = restarted  # type: ignore[method-assign]  # as above
        keys = served(server.url)
        keys["rollouts"]["retries"] = 2
        finish(make_recipe(policy, tmp_path / "out", STEPS, **keys), PROMPTS, Scripted(words_of))
    assert refused
    assert server.loaded == {}


def test_a_server_that_takes_no_adapters_is_refused(policy: Path, tmp_path: Path):
    with policy_server(policy) as server:
        server.load = lambda *_: (404, "Not Found")  # type: ignore[method-assign]  # as above
        recipe = make_recipe(policy, tmp_path / "out", **served(server.url))
        with pytest.raises(ConfigError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
            start(recipe, PROMPTS, Scripted()).trainer.train()


def test_connections_that_the_server_dropped_while_the_policy_trained_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else the first request of a step is lost: of an adapter that a killed run has left."""
    calls: list[str] = []
    connections: list[socket.socket] = []
    accept = ThreadingHTTPServer.get_request

    def get_request(server: ThreadingHTTPServer) -> Any:
        connections.append((accepted := accept(server))[0])
        return accepted

    def answer(_method: str, path: str, _body: Any) -> tuple[int, Any]:
        calls.append(path.removeprefix("/v1"))
        return 200, {}

    monkeypatch.setattr(ThreadingHTTPServer, "get_request", get_request)
    with serving(answer) as url, asyncio.Runner() as runner:
        trainer: Any = SimpleNamespace(recipe=make_recipe(tmp_path, tmp_path, **served(url)))
        engine = LoraServed(trainer)
        runner.run(engine._client.post("/completions", {}, key=0))
        connections[0].shutdown(socket.SHUT_RDWR)
        runner.run(engine._load("policy-00001", tmp_path, None))
        runner.run(engine.close())
    assert calls == ["/completions", UNLOAD, LOAD]


def test_where_the_server_listens_is_no_part_of_the_run(policy: Path, tmp_path: Path):
    for port in (1, 2):
        recipe = make_recipe(policy, tmp_path / "out", **served(f"http://localhost:{port}/v1"))
        GroupStage(recipe, prompts=PROMPTS, reward=Scripted()).open()


# ---- vLLM, which is sent all weights ----


def by_server(server: VllmServer) -> dict[str, Any]:
    return {
        "engine": "vllm_server", "url": server.url, "model": "policy", "retries": 0,
        "group_port": server.group_port,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sharding", "keys"),
    [
        (None, {}),
        ("fsdp2", ADAPTER),
        ("zero3", {}),
        pytest.param("fsdp2", {}, marks=pytest.mark.matrix),
    ],
)
def test_a_server_is_sent_the_weights_of_every_step(
    policy: Path, alone: Alone, tmp_path: Path, sharding: str | None, keys: dict[str, Any]
):
    trainer = STEPS | (STATE if sharding else {})
    with vllm_server(policy) as server:
        engine = {"rollouts": by_server(server)}
        run(make_recipe(policy, tmp_path / "out", trainer, **keys, **engine), sharding=sharding)
    assert server.errors == []
    check(tmp_path / "out", alone(policy, **keys))
    posts = [path for method, path, _ in server.log if method == "POST"]
    update = ["start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"]
    step = [f"/{name}" for name in update] + ["/v1/completions"] * 12
    assert posts == ["/init_weight_transfer_engine", *step * 2]
    # each request its own seed and the ids that end a turn, and none asked for twice
    asked = [body for _, path, body in server.log if path == "/v1/completions"]
    assert len({body["seed"] for body in asked}) == 24
    assert all(2 in body["stop_token_ids"] for body in asked)
    # what was sent first is the checkpoint's own, by name, shape and value
    stored = load_file(policy / "model.safetensors")
    assert server.sent[0].keys() == stored.keys()
    assert all(torch.allclose(server.sent[0][k], stored[k], atol=1e-6) for k in stored)
    assert not all(torch.equal(server.sent[1][k], stored[k]) for k in stored)


def test_experts_and_their_biases_are_sent_under_the_names_of_a_checkpoint(
    hybrid: Path, tmp_path: Path
):
    with vllm_server(hybrid) as server:
        keys: dict[str, Any] = {"rollouts": by_server(server)}
        run(make_recipe(hybrid, tmp_path / "out", STEPS, **keys))
    stored, sent = load_file(hybrid / "model.safetensors"), server.sent[0]
    assert {k: v.shape for k, v in sent.items()} == {k: v.shape for k, v in stored.items()}
    assert all(torch.equal(sent[k], stored[k]) for k in stored)
    biases = [k for k in stored if k.endswith("e_score_correction_bias")]
    assert biases
    assert not all(torch.equal(server.sent[1][k], stored[k]) for k in biases)


def test_an_adapter_is_merged_on_the_way_and_not_in_place(policy: Path):
    """In bfloat16 merging and unmerging would leave other weights behind."""
    base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16)
    lora = LoraConfig(target_modules=["q_proj"], r=4, init_lora_weights=False)
    model: Any = get_peft_model(base, lora)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    sync: Any = object.__new__(WeightSync)
    sync.model, sync.accelerator = model, Accelerator()
    sync._dist = DistributedBackend(sync.accelerator)
    sent = dict(sync._iter_named_params())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert sent.keys() == load_file(policy / "model.safetensors").keys()
    merged = model.merge_and_unload().state_dict()
    assert all(torch.equal(v, merged[k]) for k, v in sent.items())


def test_vllm_in_the_training_process_sleeps_while_it_trains(
    policy: Path, alone: Alone, tmp_path: Path
):
    keys = {"rollouts": {"engine": "vllm_colocate", "gpu_memory": 0.01}}
    text = run(make_recipe(policy, tmp_path / "out", STEPS, **keys))
    check(tmp_path / "out", alone(policy))
    step = ["wake weights", "reset", "wake kv_cache", "generate", "sleep"]
    assert text.splitlines()[-1] == " ".join(["calls", "sleep", *step * 2])
    share = 0.01 * psutil.virtual_memory().total / GIB
    assert f"rollouts {share:.2f}" in next(x for x in text.splitlines() if x.startswith("memory"))


def test_a_run_that_goes_on_with_a_server_loses_and_repeats_nothing(policy: Path, tmp_path: Path):
    trainer = {"save_steps": 1, "max_steps": 2}
    with vllm_server(policy) as server:
        recipe = make_recipe(policy, tmp_path / "out", trainer, rollouts=by_server(server))
        stage = GroupStage(recipe, prompts=PROMPTS, reward=FailsAtTheSecond())
        assert forked(lambda: (install_vllm(), stage.run(dry_run=False)), check=False).codes == [1]
        server.transfer.listen()
        server.log.clear()
        server.log.append(("POST", "/init_weight_transfer_engine", {}))
        run(recipe)
    assert [row[:3] for row in rollouts(tmp_path / "out")] == [
        (step, k, n) for step in (1, 2) for k in range(4) for n in range(3)
    ]


LORA = {"engine": "lora_server", "url": "http://localhost:1/v1"}


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"rollouts": LORA}, "is sent the adapter: set adapter:"),
        ({"rollouts": LORA, "launch": {"sharding": "fsdp2"}, **ADAPTER}, "with sharding fsdp2"),
        ({"rollouts": {"engine": "vllm_colocate"}, "adapter": {"method": "qlora"}}, "in 4 bits"),
        ({"sampling": {"server": {"url": "x"}}}, r"'sampling.server' \(moved: 'rollouts'\)"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(keys: dict[str, Any], match: str):
    with pytest.raises(ConfigError, match=match):
        validate(raw_recipe(Path("policy"), Path("out"), **keys), GroupTraining, where="test")


def test_a_vllm_that_takes_no_weights_is_named():
    def sync_weights() -> None:
        raise AttributeError("'Parameter' object has no attribute 'weight_loader'")

    engine: Any = object.__new__(VllmColocated)
    engine.trainer = SimpleNamespace()
    engine._syncs = {"": SimpleNamespace(sync_weights=sync_weights)}
    with pytest.raises(ConfigError, match=r"vllm_colocate: .*use engine: in_process"):
        engine._send_weights("colocate")


@pytest.mark.parametrize(
    ("difference", "precision", "warned"),
    # as measured: float32 in both, a server in bfloat16, bfloat16 in both; then other weights
    [(7e-6, "float32", False), (0.038, "float32", True), (0.049, "bfloat16", False),
     (0.2, "bfloat16", True)],
)  # fmt: skip
def test_a_difference_of_another_engine_is_printed_and_a_large_one_warned_of(
    difference: float, precision: str, warned: bool
):
    logs = {"logp_difference": difference}
    assert compared_engines(logs, "in_process", precision=precision) == []
    first, *warning = compared_engines(logs, "lora_server", precision=precision)
    assert f"differ from the trainer's by {difference:.2g}" in first
    assert bool(warning) == warned
    assert all(f"--dtype {precision}" in line for line in warning)


def test_vllm_that_is_not_installed_is_named(policy: Path, tmp_path: Path):
    recipe = make_recipe(policy, tmp_path / "a", rollouts={"engine": "vllm_colocate"})
    with pytest.raises(ConfigError, match=r"needs vLLM .*: pip install"):
        start(recipe, PROMPTS, Scripted())


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_a_server_whose_log_probabilities_know_no_temperature_is_refused(
    policy: Path, tmp_path: Path, mode: str
):
    with vllm_server(policy, logprobs_mode=mode) as server:
        keys = {"sampling": {"max_tokens": 4, "temperature": 0.5}, "rollouts": by_server(server)}
        text = run(make_recipe(policy, tmp_path / "out", {"max_steps": 1}, **keys), check=False)
    assert ("--logprobs-mode processed_logprobs" in text) == (mode == "raw_logprobs")
    assert ("\ncalls" in text) == (mode != "raw_logprobs")
