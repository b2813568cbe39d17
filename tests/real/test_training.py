"""RLVR and RLHF whose rollouts a real vLLM makes, with the adapter of each step."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.training.rl.trainer import ENGINE_DIFFERENCE
from tests.real.commands import begin, output, questions, run
from tests.real.server import MODEL, VllmProcess, proxy
from tests.training.tiny import log_rows, rollout_groups

STEPS = 20
BOUND = ENGINE_DIFFERENCE["float32"]
PROMPTS = 2
N = 4


def training(out: Path, checkpoint: Path, url: str, *, steps: int, **keys: Any) -> dict[str, Any]:
    """What RLVR and RLHF share: a rank-8 adapter, 8 short rollouts a step."""
    return {
        "out": str(out),
        "model": {"path": str(checkpoint)},
        "adapter": {"rank": 8, "preset": "attention"},
        "rollouts": {"engine": "lora_server", "url": url},
        "prompts_per_step": PROMPTS,
        "num_generations": N,
        "sampling": {"max_tokens": 16},
        # most completions of so few tokens are cut
        "loss": {"overlong": "train"},
        "guard": {name: {} for name in ("truncated", "zero_variance", "entropy", "length")},
        "trainer": {
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "max_steps": steps,
            "per_device_train_batch_size": 4,
            "gradient_checkpointing": False,
            "bf16": False,
        },
        **keys,
    }


def source(folder: Path, count: int) -> dict[str, Any]:
    """Questions that any digit answers, if the answer ends in time."""
    return {
        "name": "sums",
        "format": "question",
        "path": str(questions(folder, count)),
        "template": "{question}",
        "gold": None,
        "grader": "contains_any",
        "metadata": ["outputs"],
    }


def first_logps(server: VllmProcess, model: str) -> dict[str, float]:
    """What it says first to a question of the training, with log-probabilities."""
    question = [{"role": "user", "content": "What is 3 + 3? Answer with a number."}]
    fields = {
        "logprobs": True,
        "top_logprobs": 5,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    body = {"model": model, "messages": question, "max_tokens": 1, "temperature": 0, **fields}
    [first] = server.post("/chat/completions", body)["choices"][0]["logprobs"]["content"]
    return {row["token"]: row["logprob"] for row in first["top_logprobs"]}


def check_run(out: Path, server: VllmProcess, *, steps: int) -> None:
    """Every step was sampled from the weights that it trains; the server keeps no adapter."""
    rows = log_rows(out, of="loss")
    assert len(rows) == steps
    assert all(row["failed"] == 0 for row in rows)
    # the weights have moved further than this by the last step
    assert max(row["logp_difference"] for row in rows) < BOUND
    assert server.models() == [MODEL]
    base = first_logps(server, MODEL)
    adapter = {"lora_name": "trained", "lora_path": str(out / "adapter")}
    server.post("/load_lora_adapter", adapter)
    try:
        trained = first_logps(server, "trained")
    finally:
        server.post("/unload_lora_adapter", adapter)
    shared = base.keys() & trained.keys()
    assert not shared or max(abs(base[token] - trained[token]) for token in shared) > 0.01


@pytest.fixture(scope="module")
def profile(
    checkpoint: Path, server: VllmProcess, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Pass rates of 24 questions, by the server."""
    folder = tmp_path_factory.mktemp("profile")
    recipe = {
        "out": str(folder / "profile"),
        "checkpoint": str(checkpoint),
        "backend": {"kind": "completions", "url": server.url, "model": MODEL},
        "prompts": [source(folder, 24)],
        "settings": [{"name": "plain", "thinking": 0}],
        "n": N,
        "sampling": {"max_tokens": 16},
    }
    run(folder, "profile_prompts", recipe)
    return folder / "profile"


def rlvr(out: Path, checkpoint: Path, url: str, profile: Path, *, steps: int) -> dict[str, Any]:
    curriculum = {"pass_rates": str(profile), "domains": {"sums": {"ratio": 1}}, "max_epochs": 8}
    return training(out, checkpoint, url, steps=steps, **curriculum)


def test_rlvr(checkpoint: Path, server: VllmProcess, profile: Path, tmp_path: Path):
    out = tmp_path / "out"
    text = run(tmp_path, "rlvr", rlvr(out, checkpoint, server.url, profile, steps=STEPS))
    assert "engine       lora_server: log-probabilities differ" in text
    assert f"above {BOUND:g} a token" not in text
    check_run(out, server, steps=STEPS)


@pytest.fixture(scope="module")
def teaching_server(
    checkpoint: Path, vllm_executable: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmProcess]:
    """vLLM without adapters: with them this version ends at a request for `prompt_logprobs`."""
    log = tmp_path_factory.mktemp("teacher") / "server.log"
    vllm = VllmProcess(vllm_executable, checkpoint, log, adapters=False)
    try:
        vllm.start()
        yield vllm
    finally:
        vllm.kill()


@pytest.fixture(scope="module")
def student(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with noise on its weights."""
    folder = tmp_path_factory.mktemp("student")
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(0.02 * weight.std(correction=0) * noise)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(checkpoint / name, folder)
    return folder


def server_of(vllm: VllmProcess) -> dict[str, Any]:
    return {"url": vllm.url, "model": MODEL}


def distillation(
    folder: Path, student: Path, teacher: dict[str, Any], *, lag: int = 0
) -> dict[str, Any]:
    """Three steps of distillation of the student on one teacher."""
    return {
        "out": str(folder / "out"),
        "model": {"path": str(student)},
        "teachers": {"teacher": teacher},
        "default_teacher": "teacher",
        "prompts": [{**source(folder, 24), "grader": None, "metadata": []}],
        "settings": [{"name": "plain", "thinking": 0}],
        "prompts_per_step": 4,
        "rollouts": {"engine": "in_process", "lag": lag},
        "loss": {"importance": {}},
        "sampling": {"max_tokens": 24},
        "trainer": {
            "learning_rate": 1e-5,
            "warmup_steps": 0,
            "max_steps": 3,
            "per_device_train_batch_size": 4,
            "gradient_checkpointing": False,
            "bf16": False,
        },
    }


def await_first_step(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a distillation has logged a step."""
    log = folder / "out" / "log.jsonl"
    while not log.is_file() or not log_rows(folder / "out", of="loss"):
        assert process.poll() is None, output(folder, "distill")[-3000:]
        time.sleep(0.02)


def token_rewards(out: Path, *, steps: int) -> list[float]:
    """Rewards of all tokens of a distillation, none of whose rollouts is unscored."""
    assert [row["unscored"] for row in log_rows(out, of="loss")] == [0] * steps
    rewards: list[float] = []
    for group in rollout_groups(out):
        for rollout in group["rollouts"]:
            rewards += rollout["token_rewards"]
    return rewards


VERDICT = r'\{"score_1": [1-5], "score_2": [1-5], "ranking": [1-6]\}'


def test_rlhf_behind_a_proxy_that_refuses_every_eleventh_request(
    checkpoint: Path, server: VllmProcess, tmp_path: Path
):
    """The model judges its own answers, held to the JSON of a verdict by the server."""

    def trouble(number: int) -> int | None:
        return {0: 429, 5: 500}.get(number % 11)

    out = tmp_path / "out"
    fields = {"structured_outputs": {"regex": VERDICT}}
    with proxy(server, trouble=trouble, chat_fields=fields) as (url, refusals):
        judge = {"kind": "chat", "url": url, "model": MODEL, "thinking": "enable_thinking"}
        recipe = training(
            out,
            checkpoint,
            url,
            steps=STEPS,
            prompts=[source(tmp_path, 24)],
            settings=[{"name": "plain", "thinking": 0}],
            max_epochs=8,
            judge={
                "models": [{"backend": judge, "layout": "message", "thinking": False}],
                "sampling": {"max_tokens": 48},
                "max_failure_rate": 0.0,
            },
        )
        run(tmp_path, "rlhf", recipe)
    assert {429, 500} == set(refusals)
    check_run(out, server, steps=STEPS)
    judgements = [row for group in rollout_groups(out) for row in group["judgements"]]
    assert len(judgements) == STEPS * PROMPTS * N
    assert not any(row["failed"] for row in judgements)


def test_a_server_that_is_killed_in_the_middle_of_a_step_is_waited_for(
    checkpoint: Path, server: VllmProcess, profile: Path, tmp_path: Path
):
    out = tmp_path / "out"
    recipe = rlvr(out, checkpoint, server.url, profile, steps=3)
    process = begin(tmp_path, "rlvr", recipe)
    try:
        while f"policy-{1:05d}" not in server.models():
            assert process.poll() is None, output(tmp_path, "rlvr")[-3000:]
            time.sleep(0.02)
        server.kill()
        server.start()
        assert process.wait(1500) == 0, output(tmp_path, "rlvr")[-3000:]
    finally:
        process.kill()
        process.wait()
    assert "refuses connections: waiting up to 600 s" in output(tmp_path, "rlvr")
    check_run(out, server, steps=3)


def test_a_replica_that_is_killed_returns_with_the_adapter_of_its_step(
    checkpoint: Path, server: VllmProcess, vllm_executable: Path, profile: Path, tmp_path: Path
):
    """While it is away the other one writes all rollouts; a wrong adapter would fail `check_run`."""
    steps = 60
    out = tmp_path / "out"
    replica = VllmProcess(vllm_executable, checkpoint, tmp_path / "replica.log")
    process = None
    try:
        replica.start()
        answered_before = server.answered()
        recipe = rlvr(out, checkpoint, server.url, profile, steps=steps)
        recipe["rollouts"]["url"] = [server.url, replica.url]
        process = begin(tmp_path, "rlvr", recipe)
        while (answered_first := replica.answered()) < 2 * PROMPTS * N:
            assert process.poll() is None, output(tmp_path, "rlvr")[-3000:]
            time.sleep(0.02)
        replica.kill()
        replica.start()
        assert process.wait(1500) == 0, output(tmp_path, "rlvr")[-3000:]
        check_run(out, server, steps=steps)
        assert replica.models() == [MODEL]
        answered_again = replica.answered()
        answered = server.answered() - answered_before + answered_first + answered_again
    finally:
        if process is not None:
            process.kill()
            process.wait()
        replica.kill()
    assert answered_again > 0
    # nothing was asked twice but what the killed one was at
    assert steps * PROMPTS * N - N <= answered <= steps * PROMPTS * N + PROMPTS * N


def test_a_teachers_server_that_is_killed_is_waited_for_and_gives_the_same_rewards(
    checkpoint: Path, teaching_server: VllmProcess, student: Path, tmp_path: Path
):
    rewards: list[list[float]] = []
    for killed in (False, True):
        folder = tmp_path / str(killed)
        folder.mkdir()
        recipe = distillation(folder, student, {"server": server_of(teaching_server)})
        process = begin(folder, "distill", recipe)
        try:
            if killed:
                await_first_step(folder, process)
                teaching_server.kill()
                teaching_server.start()
            assert process.wait(1500) == 0, output(folder, "distill")[-3000:]
        finally:
            process.kill()
            process.wait()
        rewards.append(token_rewards(folder / "out", steps=3))
    assert "refuses connections: waiting up to 600 s" in output(tmp_path / "True", "distill")
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-4)


def test_a_teachers_server_that_stays_away_ends_the_run_with_its_name(
    checkpoint: Path, vllm_executable: Path, student: Path, tmp_path: Path
):
    served = VllmProcess(vllm_executable, checkpoint, tmp_path / "teacher.log", adapters=False)
    try:
        served.start()
        teacher = {"server": {**server_of(served), "wait": 5}}
        process = begin(tmp_path, "distill", distillation(tmp_path, student, teacher))
        try:
            await_first_step(tmp_path, process)
            served.kill()
            assert process.wait(120) == 1
        finally:
            process.kill()
            process.wait()
    finally:
        served.kill()
    text = output(tmp_path, "distill")
    assert "Traceback" not in text
    assert served.url in text.splitlines()[-1]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_teacher_behind_the_server_gives_the_rewards_of_one_in_process(
    checkpoint: Path, teaching_server: VllmProcess, student: Path, tmp_path: Path, lag: int
):
    in_process = {"path": str(checkpoint), "dtype": "float32"}
    served = {"server": server_of(teaching_server)}
    rewards: list[list[float]] = []
    for name, teacher in (("served", served), ("in_process", in_process)):
        folder = tmp_path / name
        folder.mkdir()
        run(folder, "distill", distillation(folder, student, teacher, lag=lag))
        rewards.append(token_rewards(folder / "out", steps=3))
    assert len(rewards[0]) > 100
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-3)
    # the teacher is not the student
    assert max(abs(reward) for reward in rewards[0]) > 0.05
