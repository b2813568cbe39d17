"""vLLM as the engine of rollouts, behind TRL's own code: only vLLM itself is stood in for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
from posttrain.training.rl.stage import GroupStage
from posttrain.training.rl.vllm import WeightSync
from tests.training.forks import forked
from tests.training.rl.policy import (
    Scripted,
    finish,
    make_prompts,
    make_recipe,
    raw_recipe,
    start,
    words_of,
    write_policy,
)
from tests.training.rl.test_sharded import ADAPTER, PROMPTS, STATE, rollouts
from tests.training.rl.vllm_stand_in import Llm, VllmServer, install_vllm, vllm_server
from tests.training.tiny import log_rows

pytestmark = pytest.mark.usefixtures("bare")

STEPS: dict[str, Any] = {"learning_rate": 0.05}


def by_server(server: VllmServer) -> dict[str, Any]:
    return {
        "engine": "vllm_server", "url": server.url, "model": "policy", "retries": 0,
        "group_port": server.group_port,
    }  # fmt: skip


def run(recipe: GroupTraining, *, processes: int = 1, sharding: str | None = None) -> str:
    def stage() -> None:
        install_vllm()
        GroupStage(recipe, prompts=PROMPTS, reward=Scripted(words_of)).run(dry_run=False)
        print("calls", *Llm.log)

    return forked(stage, processes=processes, sharding=sharding).text


def check(out: Path, alone: Path) -> None:
    """The same rollouts as in process, and ratios of 1: the weights of each step have arrived."""
    assert rollouts(out) == rollouts(alone)
    strayed = [row["strayed"] for row in log_rows(out) if "loss" in row]
    assert strayed == pytest.approx([1] * 3, abs=1e-4)


@pytest.fixture(scope="module")
def alone(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run with an engine in process, once for each set of keys."""
    root = tmp_path_factory.mktemp("alone")

    def run(**keys: Any) -> Path:
        out = root / digest_of(keys)
        if not out.exists():
            finish(make_recipe(policy, out, STEPS, **keys), PROMPTS, Scripted(words_of))
        return out

    return run


@pytest.mark.parametrize(
    ("sharding", "keys"), [(None, {}), ("fsdp2", {}), ("fsdp2", ADAPTER), ("zero3", {})]
)
def test_a_server_is_sent_the_weights_of_every_step(
    policy: Path,
    alone: Callable[..., Path],
    tmp_path: Path,
    sharding: str | None,
    keys: dict[str, Any],
):
    one = alone(**keys)
    with vllm_server(policy) as server:
        trainer = STEPS | (STATE if sharding else {})
        keys = keys | {"rollouts": by_server(server)}
        run(
            make_recipe(policy, tmp_path / "out", trainer, **keys),
            processes=2 if sharding else 1,
            sharding=sharding,
        )
    assert server.errors == []
    check(tmp_path / "out", one)
    posts = [path for method, path, _ in server.log if method == "POST"]
    update = ["start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"]
    step = [f"/{name}" for name in update] + ["/v1/completions"] * 24
    assert posts == ["/init_weight_transfer_engine", *step * 3]
    # each request its own seed and the ids that end a turn, and none asked for twice
    asked = [body for _, path, body in server.log if path == "/v1/completions"]
    assert len({body["seed"] for body in asked}) == 72
    assert all(2 in body["stop_token_ids"] for body in asked)
    # what was sent first is the checkpoint's own, by name, shape and value
    stored = load_file(policy / "model.safetensors")
    assert server.sent[0].keys() == stored.keys()
    assert all(torch.allclose(server.sent[0][k], stored[k], atol=1e-6) for k in stored)
    assert not all(torch.equal(server.sent[2][k], stored[k]) for k in stored)


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


def test_experts_and_their_biases_are_sent_under_the_names_of_a_checkpoint(tmp_path: Path):
    hybrid = write_policy(tmp_path / "hybrid", "hybrid")
    with vllm_server(hybrid) as server:
        keys: dict[str, Any] = {"rollouts": by_server(server)}
        run(make_recipe(hybrid, tmp_path / "out", STEPS | {"max_steps": 2}, **keys))
    stored = load_file(hybrid / "model.safetensors")
    sent = server.sent[0]
    assert {k: v.shape for k, v in sent.items()} == {k: v.shape for k, v in stored.items()}
    assert all(torch.equal(sent[k], stored[k]) for k in stored)
    biases = [k for k in stored if k.endswith("e_score_correction_bias")]
    assert biases
    assert not all(torch.equal(server.sent[1][k], stored[k]) for k in biases)


def test_vllm_in_the_training_process_sleeps_while_it_trains(
    policy: Path, alone: Callable[..., Path], tmp_path: Path
):
    keys = {"rollouts": {"engine": "vllm_colocate", "gpu_memory": 0.01}}
    text = run(make_recipe(policy, tmp_path / "out", STEPS, **keys))
    check(tmp_path / "out", alone())
    step = ["wake weights", "reset", "wake kv_cache", "generate", "sleep"]
    assert text.splitlines()[-1] == " ".join(["calls", "sleep", *step * 3])
    share = 0.01 * psutil.virtual_memory().total / GIB
    assert f": rollouts {share:.2f}" in next(x for x in text.splitlines() if x.startswith("memory"))


def test_a_run_that_goes_on_with_a_server_loses_and_repeats_nothing(policy: Path, tmp_path: Path):
    class Fails(Scripted):
        async def reward(self, groups: Any, *, seed: int) -> Any:
            if len(self.requests) == 2:
                raise ConfigError("killed here")
            return await super().reward(groups, seed=seed)

    with vllm_server(policy) as server:
        recipe = make_recipe(
            policy, tmp_path / "out", {"save_steps": 1}, rollouts=by_server(server)
        )
        stage = GroupStage(recipe, prompts=PROMPTS, reward=Fails())
        assert forked(lambda: (install_vllm(), stage.run(dry_run=False)), check=False).codes == [1]
        server.transfer.listen()
        server.log.clear()
        server.log.append(("POST", "/init_weight_transfer_engine", {}))
        run(recipe)
    drawn = rollouts(tmp_path / "out")
    assert [row[:3] for row in drawn] == [
        (step, k, n) for step in (1, 2, 3) for k in range(6) for n in range(4)
    ]


def test_what_vllm_cannot_do_is_refused(policy: Path, tmp_path: Path):
    colocated = {"rollouts": {"engine": "vllm_colocate"}}
    with pytest.raises(ConfigError, match=r"needs vLLM .*: pip install"):
        start(make_recipe(policy, tmp_path / "a", **colocated), PROMPTS, Scripted())
    four_bits = {"adapter": {"method": "qlora"}, **colocated}
    with pytest.raises(ConfigError, match="held in 4 bits"):
        validate(raw_recipe(policy, tmp_path, **four_bits), GroupTraining, where="test")
    lora = {"engine": "lora_server", "url": "http://localhost:1/v1"}
    split = {"launch": {"sharding": "fsdp2"}, "rollouts": lora, **ADAPTER}
    with pytest.raises(ConfigError, match="lora_server with sharding fsdp2"):
        validate(raw_recipe(policy, tmp_path, **split), GroupTraining, where="test")
    moved = {"sampling": {"server": {"url": "http://localhost:1/v1"}}}
    with pytest.raises(ConfigError, match=r"'sampling.server' \(moved: 'rollouts'\)"):
        validate(raw_recipe(policy, tmp_path, **moved), GroupTraining, where="test")


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_a_server_whose_log_probabilities_know_no_temperature_is_refused(
    policy: Path, tmp_path: Path, mode: str
):
    with vllm_server(policy, logprobs_mode=mode) as server:
        keys = {"sampling": {"max_tokens": 4, "temperature": 0.5}, "rollouts": by_server(server)}
        recipe = make_recipe(policy, tmp_path / "out", {"max_steps": 1}, **keys)
        stage = GroupStage(recipe, prompts=make_prompts(6), reward=Scripted())
        ended = forked(lambda: (install_vllm(), stage.run(dry_run=False)), check=False)
    assert ("--logprobs-mode processed_logprobs" in ended.text) == (mode == "raw_logprobs")
    assert ended.codes == [int(mode == "raw_logprobs")]
