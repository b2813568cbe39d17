"""Distillation end to end and its reward, against plain transformers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.config.distill import TeacherConfig
from posttrain.errors import ConfigError, TrainingError
from posttrain.group_rewards import Group
from posttrain.runs import Counts, Parent, Run, read_artifact
from posttrain.sampling.sampler import ScoreOutput, Scorer, ScoreRequest
from posttrain.training.rl.draws import DomainShares
from posttrain.training.rl.early import EarlyWork, begin_early
from posttrain.training.rl.stage import GroupStage
from posttrain.training.rl.teachers import ResidentModels
from reward.distill import DistillationReward
from tests.training.methods import script
from tests.training.rl.distilling import (
    distil,
    make_recipe,
    mean_reverse_kl,
    open_teachers_of,
    prompts_of_two_domains,
    write_teacher,
)
from tests.training.rl.policy import make_prompts, raw_recipe
from tests.training.rl.test_batch import completion, step
from tests.training.tiny import log_rows, make_tokenizer, rollout_groups


def oracle(model: Any, ids: Sequence[int], start: int) -> torch.Tensor:
    """Log-probabilities of the ids from `start` on, one sequence, by plain transformers."""
    logps_T_V = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return logps_T_V[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])]


def test_each_token_is_worth_the_difference_of_its_domains_teacher_and_the_student(
    policy: Path, tmp_path: Path
):
    """The first batch of a run with two teachers, its loss and its weights behind plain SGD."""
    teachers = {
        name: write_teacher(tmp_path / name, policy, moved=moved)
        for name, moved in (("first", 0.05), ("second", 0.3))
    }
    trainer = {"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0}
    trainer |= {"weight_decay": 0.0, "per_device_train_batch_size": 4}
    recipe = make_recipe(policy, tmp_path / "out", trainer)
    out, reward = distil(recipe, teachers)

    student = AutoModelForCausalLM.from_pretrained(policy).eval()
    models = {
        name: AutoModelForCausalLM.from_pretrained(path).eval() for name, path in teachers.items()
    }
    total = torch.zeros((), dtype=torch.double)
    tokens = 0
    domains: set[str] = set()
    for group, rewards in reward.kept:
        [rollout] = group.completions
        [credit] = rewards.rewards
        domain = group.prompt.source
        prompt = rollout.prompt_ids or ()
        ids = [*prompt, *rollout.sampled()[0]]
        logps = oracle(student, ids, len(prompt))
        advantages = oracle(models[recipe.teacher_of[domain]], ids, len(prompt)) - logps
        assert credit == pytest.approx(advantages.tolist(), abs=2e-5)
        assert rewards.parts["reverse_kl"][0] == pytest.approx(-advantages.mean().item(), abs=1e-5)
        total = total - (advantages.detach() * logps).sum()
        tokens += len(advantages)
        domains.add(domain)
    assert domains == {"a", "b"}
    (total / tokens).backward()
    trained = AutoModelForCausalLM.from_pretrained(out)
    for (name, before), after in zip(student.named_parameters(), trained.parameters(), strict=True):
        assert before.grad is not None, name
        torch.testing.assert_close(before.detach() - after.detach(), before.grad, atol=3e-6, rtol=0)
    [row] = log_rows(out, of="loss")
    assert row["domain/b/token_reward"] != row["domain/a/token_reward"]
    assert row["token_rewarded"] == 1.0


@pytest.mark.parametrize("objective", ["sampled", "full"])
def test_a_student_that_equals_its_teachers_is_not_moved_by_a_bit(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str
):
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.0)
    recipe = make_recipe(
        policy, tmp_path / "out", {"max_steps": 2}, objective=objective, guard={"truncated": {}}
    )
    out, _ = distil(recipe, {"first": teacher, "second": teacher})
    assert "step 2: every advantage is 0, for the student equals" in capsys.readouterr().out
    values = [
        value
        for group in rollout_groups(out)
        for rollout in group["rollouts"]
        for value in rollout["token_rewards"]
    ]
    assert set(values) == {0.0}
    before = AutoModelForCausalLM.from_pretrained(policy).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


class Fixed:
    """Scores every token alike, but for requests that it fails or half answers."""

    batched = True

    def __init__(self, logp: float, problems: Sequence[str] = ()) -> None:
        self.identity: dict[str, str] = {"backend": "fixed"}
        self.logp = logp
        self.problems = list(problems)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        problems = iter(self.problems)
        outputs: list[ScoreOutput] = []
        for request in requests:
            problem = next(problems, "")
            logps = (self.logp,) * sum(request.mask)
            if problem == "error":
                outputs.append(ScoreOutput((), error="the server is gone"))
            elif problem == "short":
                outputs.append(ScoreOutput(logps[1:]))
            elif problem == "nan":
                outputs.append(ScoreOutput((math.nan, *logps[1:])))
            else:
                outputs.append(ScoreOutput(logps))
        return outputs


class Unigram(Fixed):
    """A teacher that gives one token nine tenths of its mass wherever it stands."""

    def __init__(self, token: int) -> None:
        super().__init__(math.log(0.1 / 63))
        self.token = token

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        outputs: list[ScoreOutput] = []
        for request in requests:
            written = [id_ for id_, flag in zip(request.ids, request.mask, strict=True) if flag]
            logps = [math.log(0.9) if id_ == self.token else self.logp for id_ in written]
            outputs.append(ScoreOutput(tuple(logps)))
        return outputs


def test_a_student_comes_nearer_to_its_teacher(policy: Path, tmp_path: Path):
    trainer = {"max_steps": 14, "learning_rate": 1e-2, "per_device_train_batch_size": 24}
    recipe = make_recipe(policy, tmp_path / "out", trainer, prompts_per_step=24, max_epochs=11)
    teacher = Unigram(make_tokenizer().get_vocab()["w5"])
    reward = DistillationReward({"t": teacher}, teacher_of={"a": "t", "b": "t"}, max_failure_rate=0)
    stage = GroupStage(recipe, prompts=prompts_of_two_domains(), reward=reward, method="distill")
    out = stage.run(dry_run=False)
    assert out is not None
    kls = [-row["token_reward"] for row in log_rows(out, of="loss")]
    assert sum(kls[-5:]) < 0.7 * sum(kls[:5])


def rewarded(teacher: Scorer, count: int = 5, limit: float = 1.0) -> tuple[Any, Any]:
    first = step((10, 11), results_ids=(20, 21, 22))
    second = step((12, 13, 14, 15), forced=(1, 3))
    [prompt] = [replace(prompt, source="a") for prompt in make_prompts(1)]
    rollouts = tuple(completion(index, first, second) for index in range(count))
    reward = DistillationReward({"t": teacher}, teacher_of={"a": "t"}, max_failure_rate=limit)
    reward.use_policy(Fixed(-1.5))
    [rewards] = asyncio.run(reward.reward([Group(prompt, rollouts)], seed=0))
    return reward, rewards


def test_only_what_the_student_wrote_is_scored():
    """Not a tool's result, nor ids that were put in."""
    _, rewards = rewarded(Fixed(-1.0))
    assert rewards.rewards == ((0.5, 0.5, 0.5, 0.5),) * 5
    assert rewards.parts["reverse_kl"] == (-0.5,) * 5


class Served(Fixed):
    """A teacher behind a server: every rollout is a request of its own."""

    batched = False

    def __init__(self, logp: float) -> None:
        super().__init__(logp)
        self.asked: list[ScoreRequest] = []

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        self.asked += requests
        return await super().score(requests)


def test_a_served_teacher_is_asked_when_a_rollout_ends_and_once():
    prompts = [replace(prompt, source="a") for prompt in make_prompts(2)]
    groups: list[Group] = []
    for prompt in prompts:
        rollouts = tuple(completion(index, step((10, 11 + index))) for index in range(3))
        groups.append(Group(prompt, rollouts))
    everything = [completion for group in groups for completion in group.completions]

    async def rewards_of(early: Sequence[int]) -> tuple[Any, list[int]]:
        teacher = Served(-1.0)
        reward = DistillationReward({"t": teacher}, teacher_of={"a": "t"}, max_failure_rate=0)
        reward.use_policy(Fixed(-1.5))
        work = EarlyWork(asyncio.get_running_loop())
        begin = begin_early(reward, prompts, work, group_size=3, seed=0)
        for position in early:
            begin(position, everything[position])
        await work.finish()
        asked = [len(teacher.asked)]
        rewards = await reward.reward(groups, seed=0)
        return rewards, [*asked, len(teacher.asked)]

    together, asked = asyncio.run(rewards_of(()))
    assert asked == [0, 6]
    assert asyncio.run(rewards_of((4, 0, 1))) == (together, [3, 6])


def test_what_a_teacher_cannot_score_is_left_out_and_counted_to_it():
    reward, rewards = rewarded(Fixed(-1.0, ["error", "", "short", "nan", ""]), limit=0.5)
    assert [credit is None for credit in rewards.rewards] == [True, False, True, True, False]
    assert [failure.reason for failure in rewards.failures] == ["teacher t"] * 3
    assert rewards.counts == {"teacher_failed": 3}
    with pytest.raises(
        TrainingError, match=r"domain 'a'.* 3 of 5 .*teacher t: 3; .*server is gone"
    ):
        reward.settle(rewards.requests, rewards.failures, domain="a")
    reward.settle(6, rewards.failures, domain="a")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"routes": {"a": "first"}},
            "routes: domain 'b' has no teacher: name one of first, second",
        ),
        (
            {"routes": {"a": "first", "b": "frist"}},
            r"routes\.b: there is no teacher 'frist'.*'first'",
        ),
        ({"routes": {"a": "first", "c": "second"}}, "routes: there is no source 'c'"),
        ({"routes": {"a": "first", "b": "first"}}, r"teachers\.second scores no domain"),
        ({"default_teacher": "third"}, "default_teacher: there is no teacher 'third'"),
        ({"sampling": {"max_tokens": 8, "temperature": 0.7}}, r"sampling\.temperature must be 1"),
        ({"prompts_per_step": 1}, "two prompts or more"),
        ({"teachers": {"first": {}, "second": {"path": "y"}}}, "either path or server"),
    ],
)
def test_a_recipe_whose_routes_do_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        make_recipe(tmp_path, tmp_path / "out", **keys)


def test_a_domain_without_a_route_has_the_default_teacher(tmp_path: Path):
    recipe = make_recipe(tmp_path, tmp_path, routes={"b": "second"}, default_teacher="first")
    assert recipe.teacher_of == {"a": "first", "b": "second"}


def opened(policy: Path, **teachers: Path | dict[str, Any]) -> Any:
    """Teachers by path, or by their keys in the recipe."""
    configs = {
        name: keys if isinstance(keys, dict) else {"path": str(keys)}
        for name, keys in teachers.items()
    }
    recipe = make_recipe(
        policy,
        policy.parent / "out",
        teachers=configs,
        routes={"a": next(iter(configs)), "b": [*configs][-1]},
    )
    return open_teachers_of(recipe, contextlib.AsyncExitStack())


def test_two_names_of_one_checkpoint_are_one_model(policy: Path, tmp_path: Path):
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    teachers = opened(policy, one=teacher, two=teacher / ".." / "teacher")
    assert teachers.scorers["one"] is teachers.scorers["two"]
    assert teachers.lines[1] == ("teacher two", "the same model as teacher one")


def test_a_model_that_no_stage_of_ours_made_can_teach(policy: Path, tmp_path: Path):
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    for name in ("manifest.json", "stage.json"):
        (teacher / name).unlink(missing_ok=True)
    teachers = opened(policy, one=teacher)
    assert [*teachers.scorers] == ["one"]
    assert teachers.parents == []


@pytest.mark.parametrize("change", ["template", "vocabulary", "manifest"])
def test_a_teacher_that_reads_otherwise_than_the_student_is_refused(
    policy: Path, tmp_path: Path, change: str
):
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    if change == "template":
        template = teacher / "chat_template.jinja"
        template.write_text(template.read_text() + "!")
        message = "the chat template of .* is not the student's"
    elif change == "vocabulary":
        tokenizer = make_tokenizer()
        tokenizer.add_tokens(["novel"])
        tokenizer.save_pretrained(teacher)
        message = r"'novel' is \d+ there and None in"
    else:
        (teacher / "manifest.json").unlink()
        (teacher / "stage.json").touch()
        message = "has no manifest.json: its stage has not finished"
    with pytest.raises(ConfigError, match=rf"^teachers\.one\.path: .*{message}"):
        opened(policy, one=teacher)


# ---- the exact reverse KL ----

SGD = {"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0}
SGD |= {"weight_decay": 0.0, "per_device_train_batch_size": 4}


def test_the_full_objective_is_the_reverse_kl_by_autograd(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two teachers, chunks of three positions, a step of plain SGD."""
    monkeypatch.setattr("posttrain.training.rl.full_objective.CHUNK_LOGITS", 3 * 64)
    teachers = {
        name: write_teacher(tmp_path / name, policy, moved=moved)
        for name, moved in (("first", 0.05), ("second", 0.3))
    }
    recipe = make_recipe(policy, tmp_path / "out", SGD, objective="full")
    out, reward = distil(recipe, teachers)
    student = AutoModelForCausalLM.from_pretrained(policy).eval()
    models = {
        name: AutoModelForCausalLM.from_pretrained(path).eval() for name, path in teachers.items()
    }
    teacher_of = {source: models[name] for source, name in recipe.teacher_of.items()}
    loss = mean_reverse_kl(reward, student, teacher_of)
    loss.backward()
    [row] = log_rows(out, of="loss")
    assert row["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert row["reverse_kl"] == pytest.approx(loss.item(), abs=1e-5)
    trained = AutoModelForCausalLM.from_pretrained(out)
    for (name, before), after in zip(student.named_parameters(), trained.parameters(), strict=True):
        assert before.grad is not None, name
        torch.testing.assert_close(before.detach() - after.detach(), before.grad, atol=3e-6, rtol=0)


def test_the_full_objective_refuses_a_server(policy: Path, tmp_path: Path):
    server = {"server": {"url": "http://127.0.0.1:9/v1", "model": "m"}}
    with pytest.raises(ConfigError, match=r"teachers\.second\.server: objective full"):
        make_recipe(
            policy,
            tmp_path / "out",
            objective="full",
            teachers={"first": {"path": "x"}, "second": server},
        )


# ---- adapters ----


def write_adapter(folder: Path, policy: Path, *, seed: int) -> Path:
    """A LoRA adapter on the policy, at random, as it is saved by PEFT."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(policy),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(str(folder))
    return folder


def merged(folder: Path, policy: Path, adapter: Path) -> Path:
    """The same as a whole model."""
    whole = write_teacher(folder, policy, moved=0.0)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(policy), str(adapter))
    model.merge_and_unload().save_pretrained(whole)
    (whole / "manifest.json").unlink()
    (whole / "stage.json").unlink(missing_ok=True)
    return whole


@pytest.mark.parametrize("objective", ["sampled", "full"])
def test_adapters_on_one_base_teach_as_whole_models_do(
    policy: Path, tmp_path: Path, objective: str
):
    adapters = {
        name: write_adapter(tmp_path / name, policy, seed=seed)
        for seed, name in enumerate(("first", "second"))
    }
    losses: dict[str, list[float]] = {}
    trained: dict[str, Any] = {}
    for kind in ("adapters", "models"):
        recipe = make_recipe(policy, tmp_path / kind, {"max_steps": 2}, objective=objective)
        configs = {
            name: TeacherConfig(adapter=str(adapter))
            if kind == "adapters"
            else TeacherConfig(path=str(merged(tmp_path / f"{name}-whole", policy, adapter)))
            for name, adapter in adapters.items()
        }
        out, _ = distil(recipe.model_copy(update={"teachers": configs}))
        losses[kind] = [row["loss"] for row in log_rows(out, of="loss")]
        trained[kind] = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert losses["adapters"] == pytest.approx(losses["models"], abs=1e-5)
    assert any(abs(loss) > 1e-3 for loss in losses["models"])
    for name, weight in trained["models"].items():
        torch.testing.assert_close(trained["adapters"][name], weight, atol=1e-4, rtol=0)


def test_adapters_share_their_base_with_a_teacher_without_one(policy: Path, tmp_path: Path):
    adapter = write_adapter(tmp_path / "adapter", policy, seed=1)
    teachers = opened(policy, general={"path": str(policy)}, maths={"adapter": str(adapter)})
    general, maths = teachers.scorers["general"], teachers.scorers["maths"]
    assert general.model is maths.model
    request = ScoreRequest(tuple(range(3, 11)), (False, *[True] * 7))

    async def scores() -> list[Any]:
        return [(await scorer.score([request]))[0].logps for scorer in (general, maths, general)]

    first, adapted, again = asyncio.run(scores())
    assert first == again
    expected = oracle(AutoModelForCausalLM.from_pretrained(policy).eval(), request.ids, 1)
    assert first == pytest.approx(expected.tolist(), abs=1e-5)
    assert max(abs(a - b) for a, b in zip(first, adapted, strict=True)) > 0.01
    assert "the student's weights" in teachers.lines[0][1]
    assert "on a base that is there" in teachers.lines[1][1]


def test_an_adapter_of_another_base_is_refused(policy: Path, tmp_path: Path):
    first = write_teacher(tmp_path / "first", policy, moved=0.1)
    second = write_teacher(tmp_path / "second", policy, moved=0.2)
    folder = tmp_path / "tuned"
    run = Run.open(folder, kind="checkpoint", config={})
    write_adapter(folder / "adapter", policy, seed=1)
    parent = Parent("../first", read_artifact(first).digest, "checkpoint")
    run.finish(counts=Counts(0, 0), files={}, parents=[parent])
    opened(policy, one={"path": str(first), "adapter": str(folder)})
    with pytest.raises(ConfigError, match="trained on another checkpoint"):
        opened(policy, one={"path": str(second), "adapter": str(folder)})
    with pytest.raises(ConfigError, match=r"holds no adapter_config\.json"):
        opened(policy, one={"path": str(second), "adapter": str(first)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("layers", r"is of another model: \d+ tensors .* such as .*layers\.\d+.* in the"),
        ("widths", r"is of another model: size mismatch for [^\n]*$"),
        ("base", "trained on another checkpoint"),
        ("weights", r"holds no adapter_model\.safetensors"),
        ("config", r"adapter_config\.json is no JSON"),
    ],
)
def test_an_adapter_of_peft_that_does_not_fit_its_base_is_refused(
    policy: Path, tmp_path: Path, change: str, message: str
):
    """PEFT itself loads the layers that fit, and leaves others as they are at random."""
    config = AutoConfig.from_pretrained(policy)
    if change == "layers":
        config.num_hidden_layers += 1
        config.layer_types = None
    elif change == "widths":
        config.intermediate_size *= 2
    other = tmp_path / "other"
    if change == "base":
        write_teacher(other, policy, moved=0.1)
    else:
        AutoModelForCausalLM.from_config(config).save_pretrained(other)
    adapter = write_adapter(tmp_path / "adapter", other, seed=1)
    if change in ("layers", "widths"):
        # as a folder of another machine is
        shutil.rmtree(other)
    elif change == "weights":
        (adapter / "adapter_model.safetensors").unlink()
    elif change == "config":
        (adapter / "adapter_config.json").write_text("{")
    base = other if change == "weights" else policy
    if change == "weights":
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(policy / file, other / file)
    with pytest.raises(ConfigError, match=rf"^teachers\.one\.adapter: .*{message}"):
        opened(policy, one={"path": str(base), "adapter": str(adapter)})


# ---- memory ----


class Moving:
    """A model that notes where it is sent."""

    def __init__(self, name: str, moves: list[str]) -> None:
        self.name = name
        self.moves = moves

    def to(self, device: Any) -> None:
        self.moves.append(f"{self.name} → {device}")


@pytest.mark.parametrize(
    ("limit", "moves"),
    [
        (None, []),
        (1, ["a → meta", "a → cpu", "b → meta", "b → cpu", "a → meta", "a → cpu", "c → meta"]),
        (2, ["a → meta", "b → meta", "b → cpu", "c → meta"]),
    ],
)
def test_so_many_models_are_on_the_device_as_the_recipe_allows(limit: int | None, moves: list[str]):
    noted: list[str] = []
    models = {name: Moving(name, noted) for name in "abc"}
    residents = ResidentModels(torch.device("meta"), limit=limit)
    for name in "aabac":
        with residents.using(models[name]):
            pass
    assert noted == moves


def test_teachers_in_turns_give_the_same_run(policy: Path, tmp_path: Path):
    teachers = {
        name: write_teacher(tmp_path / name, policy, moved=moved)
        for name, moved in (("first", 0.05), ("second", 0.3))
    }
    outs: list[Path] = []
    for name, keys in (("all", {}), ("turns", {"teachers_in_memory": 1})):
        recipe = make_recipe(policy, tmp_path / name, {"max_steps": 2}, **keys)
        outs.append(distil(recipe, teachers)[0])
    first, second = ((out / "model.safetensors").read_bytes() for out in outs)
    assert first == second


# ---- shares of domains, and the plan ----


def test_every_batch_has_the_shares_of_the_recipe(policy: Path, tmp_path: Path):
    """Sources of 16 prompts each, of which one comes three times as often as the other."""
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    shares = {"a": 3, "b": 1}
    recipe = make_recipe(policy, tmp_path / "out", {"max_steps": 4}, shares=shares, max_epochs=2)
    out, _ = distil(recipe, {"first": teacher, "second": teacher})
    drawn: dict[str, list[str]] = {"a": [], "b": []}
    for number in range(1, 5):
        of_step = [group["prompt"] for group in rollout_groups(out) if group["step"] == number]
        sources = [prompt["source"] for prompt in of_step]
        assert (sources.count("a"), sources.count("b")) == (6, 2)
        for prompt in of_step:
            drawn[prompt["source"]].append(prompt["id"])
    # whole permutations: two steps repeat nothing, and in the third all 16 have come
    assert len({*drawn["a"][:12]}) == 12
    assert len({*drawn["a"][:18]}) == 16
    assert len({*drawn["b"]}) == 8


def test_shares_that_no_batch_can_have_are_refused(policy: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="shares: domain 'b' has none"):
        make_recipe(policy, tmp_path / "out", shares={"a": 1})
    prompts = prompts_of_two_domains()
    with pytest.raises(ConfigError, match="domain 'b' gets no place in steps of 8"):
        DomainShares(prompts, {"a": 99, "b": 1}, per_step=8, seed=0)
    shares = DomainShares(prompts, {"a": 3, "b": 1}, per_step=8, seed=0)
    with pytest.raises(ConfigError, match="prompts of a"):
        shares.check_enough(steps=4, max_epochs=1)


def test_the_plan_has_each_teachers_memory_and_the_seconds_of_scoring(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    recipe = make_recipe(policy, tmp_path / "out")
    distil(recipe, {"first": teacher, "second": teacher}, dry_run=True)
    printed = capsys.readouterr().out
    assert re.search(r"teacher first .*parameters in float32, [\d.]+ GiB in every process", printed)
    assert re.search(r"[\d.]+ s of it for scores of teachers and student", printed)


def test_the_memory_plan_counts_a_model_once_whatever_names_and_adapters_it_has(
    policy: Path, tmp_path: Path
):
    whole = str(write_teacher(tmp_path / "whole", policy, moved=0.1))
    adapter = str(write_adapter(tmp_path / "adapter", policy, seed=1))
    aliases = opened(policy, first={"path": whole}, second={"path": whole})
    assert len(aliases.frozen.models) == 1
    models = opened(policy, first={"path": whole}, second={"adapter": adapter}).frozen.models
    sizes = [sum(weight.nbytes for weight in model.parameters()) for model in models]
    assert len(models) == 2
    assert sizes[0] < sizes[1] < 1.5 * sizes[0]


# ---- the command ----


def test_the_command_trains_and_notices_that_it_has_finished(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # large enough for the line about memory, which leaves out what is small
    teacher = Path(shutil.copytree(policy, tmp_path / "teacher"))
    config = AutoConfig.from_pretrained(policy)
    config.intermediate_size = 16384
    AutoModelForCausalLM.from_config(config).save_pretrained(teacher)
    questions = tmp_path / "questions.jsonl"
    texts = [prompt.messages[0].content for prompt in make_prompts(16)]
    rows = [json.dumps({"question": text, "answer": "x"}) for text in dict.fromkeys(texts)]
    questions.write_text("\n".join(rows) + "\n")
    source = {"format": "question", "grader": None, "path": str(questions)}
    raw = raw_recipe(policy, tmp_path / "out", {"max_steps": 1}) | {
        "num_generations": 1,
        "prompts_per_step": 8,
        "prompts": [source | {"name": "a"}],
        "settings": [{"name": "plain", "thinking": 0.0}],
        "teachers": {"t": {"path": str(teacher)}},
        "routes": {"a": "t"},
    }
    recipe = tmp_path / "distill.yaml"
    recipe.write_text(yaml.safe_dump(raw))
    command = script("distill")
    command.main(["--config", str(recipe), "--dry-run"])
    printed = capsys.readouterr().out
    assert "teacher t" in printed
    assert re.search(r"^memory .*, teachers 0\.0\d", printed, re.MULTILINE)
    command.main(["--config", str(recipe)])
    manifest = read_artifact(tmp_path / "out", kind="checkpoint")
    assert manifest.stats["routes"] == {"a": "t"}
    assert [*manifest.stats["teachers"]] == ["t"]
    command.main(["--config", str(recipe)])
    assert "is finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"adapter": {"method": "lora", "preset": "attention"}}, "remove adapter, or simulate"),
        ({"rollouts": {"engine": "vllm_colocate"}}, "engine vllm_colocate would sample without"),
        ({"launch": {"sharding": "fsdp2", "world_size": 2}}, "sharding fsdp2 splits them"),
    ],
)
def test_a_student_that_would_not_round_everywhere_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        make_recipe(tmp_path, tmp_path / "out", simulate="quantised", **keys)
