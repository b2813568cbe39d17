"""`rlvr` as a command: the curriculum's prompts, refills, kills, failures, a second profile."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_builders.prompts.profile import read_profile
from posttrain.config.load import load_recipe
from posttrain.config.rlvr import RlvrConfig
from posttrain.errors import ConfigError, DataError, TrainingError
from posttrain.group_rewards import Failure, Group
from posttrain.pages.write import write_report
from posttrain.records import FailureKind, Score
from posttrain.report import html
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import read_artifact
from posttrain.training.rl.draws import PromptDraws, pool_of
from reward.rlvr import Domain, RoutedReward
from tests.training.forks import Ended
from tests.training.methods import script
from tests.training.rl.conftest import BATCH, N, command
from tests.training.tiny import lines_of, log_rows


def run(root: Path, out: Path, *keys: str, **options: Any) -> Ended:
    return command("rlvr", root / "rlvr.yaml", f"out={out}", *keys, **options)


@pytest.fixture(scope="module")
def trained(root: Path) -> Path:
    ended = run(root, root / "trained")
    assert "curriculum   one: 3 prompts a step" in ended.text
    return root / "trained"


def groups_of(out: Path) -> list[list[dict[str, Any]]]:
    return [lines_of(file) for file in sorted((out / "rollouts").iterdir())]


def test_each_step_has_the_prompts_of_the_plan_and_honest_figures(
    root: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = lines_of(trained / "curriculum.jsonl")
    rates = {rate.prompt_id: rate for rate in read_profile(root / "profile").rates}
    logs = log_rows(trained, of="rollouts")
    unscored = 0
    for planned, groups, log in zip(plan, groups_of(trained), logs, strict=True):
        assert [g["prompt"]["id"] for g in groups] == [name for name, *_ in planned["prompts"]]
        domains = Counter(domain for _, domain, *_ in planned["prompts"])
        assert domains == {"one": 3, "b": 1}
        assert all(rates[name].bucket(N) == bucket for name, _, bucket, _ in planned["prompts"])
        trained_tokens = sum(r["in_loss"] * r["tokens"] for g in groups for r in g["rollouts"])
        for domain, source in (("one", "a"), ("b", "b")):
            own = [g for g in groups if g["prompt"]["source"] == source]
            rollouts = [r for g in own for r in g["rollouts"]]
            rewards = [r["reward"] for r in rollouts if r["reward"] is not None]
            unscored += len(rollouts) - len(rewards)
            figures = {k.split("/")[2]: v for k, v in log.items() if f"domain/{domain}/" in k}
            assert figures["pass_rate"] == figures["reward"] == statistics.fmean(rewards)
            assert figures["unscored"] == pytest.approx(1 - len(rewards) / len(rollouts))
            assert figures.get("unscored_timeout", 0) == pytest.approx(figures["unscored"])
            tokens = sum(r["in_loss"] * r["tokens"] for r in rollouts)
            assert figures["loss_share"] == pytest.approx(tokens / trained_tokens)
            buckets = [bucket / N for _, d, bucket, _ in planned["prompts"] if d == domain]
            assert figures["drawn"] == pytest.approx(statistics.fmean(buckets))
            assert figures["target"] == planned["target"]
        for rollout in (r for g in groups for r in g["rollouts"] if r["reward"] is None):
            assert rollout["advantage"] is None
            assert not rollout["in_loss"]
    assert unscored
    seconds = lines_of(trained / "timing.jsonl")
    assert all(set(row["verifiers"]) == {"one", "b"} for row in seconds)
    assert "| one |" in (trained / "README.md").read_text()
    monkeypatch.setattr(html, "_template", html._template.__wrapped__)  # with its charts
    report = write_report(trained).read_text()
    assert "Curriculum" in report
    assert "<svg" in report
    assert "pass rate of its prompts" in report
    kinds = {parent.kind for parent in read_artifact(trained).parents}
    assert "pass_rates" in kinds


def test_killed_anywhere_it_ends_with_the_same_prompts_and_losses(
    root: Path, trained: Path, tmp_path: Path
):
    for moment in ("verify", "train:2"):
        assert run(root, tmp_path / "out", killed=moment, check=False).codes == [-9]
    run(root, tmp_path / "out")
    assert read_artifact(tmp_path / "out").digest == read_artifact(trained).digest


# dynamic sampling with groups of two, half of which are alike; few prompts are left for refills
DYNAMIC = (
    "num_generations=2",
    "dynamic_sampling.max_gen_batches=3",
    "loss.overlong=train",
    "sampling.max_completion=[{from_batch: 1, tokens: 4}, {from_batch: 3, tokens: 8}]",
)
POOLS = (*DYNAMIC, "curriculum={order: difficulty_pools}")


@pytest.fixture(scope="module", params=[DYNAMIC, POOLS], ids=["planned", "pools"])
def refilled(root: Path, request: pytest.FixtureRequest) -> tuple[Path, tuple[str, ...]]:
    out = root / f"refilled-{request.param == POOLS}"
    run(root, out, *request.param)
    return out, request.param


def test_groups_that_teach_nothing_are_replaced_within_their_domain(
    root: Path, refilled: tuple[Path, tuple[str, ...]]
):
    out, keys = refilled
    profiled = {rate.prompt_id: rate for rate in read_profile(root / "profile").rates}
    draws = [line["groups"] for line in lines_of(out / "draws.jsonl")]
    logs = log_rows(out, of="rollouts")
    refills = empty = 0
    rates = {name: rate.passes / max(rate.scored, 1) for name, rate in profiled.items()}
    for groups, drawn, log in zip(groups_of(out), draws, logs, strict=True):
        names = {(at, attempt): name for at, attempt, name, *_ in drawn}
        assert names == {(g["position"], g["attempt"]): g["prompt"]["id"] for g in groups}
        assert len(set(names.values())) == len(names)
        for place in range(BATCH):
            own = [g for g in groups if g["position"] == place]
            assert len({g["prompt"]["source"] for g in own}) == 1
            assert [g["attempt"] for g in own] == list(range(len(own)))
            for group in own:
                alike = len({r["reward"] for r in group["rollouts"] if r["reward"] is not None}) < 2
                assert group["dropped"] == alike
                assert any(r["in_loss"] for r in group["rollouts"]) != alike
            # only the last of a place may teach, and a place ends early only where it does
            assert all(g["dropped"] for g in own[:-1])
            empty += own[-1]["dropped"]
        assert log["count/refills"] == len(groups) - BATCH
        assert log["count/dropped_groups"] == sum(g["dropped"] for g in groups)
        limit, rollouts = log["max_completion"], [r for g in groups for r in g["rollouts"]]
        assert limit == (4 if log["step"] < 3 else 8)
        assert max(r["tokens"] for r in rollouts) == limit
        cut = {r["finish"] for r in rollouts if r["tokens"] == limit}
        assert ("token_limit" if limit < 8 else "length") in cut
        assert log["rounds"] == 1 + max(g["attempt"] for g in groups)
        refills += len(groups) - BATCH
        domains = Counter(domain for _, attempt, _, domain, *_ in drawn if not attempt)
        assert domains == {"one": 3, "b": 1}
        if keys == POOLS:
            for _, attempt, name, _, reason, *_ in drawn:
                assert attempt or reason in (pool_of(rates[name]), "leftover")
        rates |= {name: passes / scored for *_, name, _, _, passes, scored, _ in drawn if scored}
    assert refills
    manifest = read_artifact(out)
    stats, files = manifest.stats, {file.path for file in manifest.files}
    assert stats["counts"]["refills"] == refills
    assert stats["counts"]["empty_places"] == empty
    assert "further prompts were rolled out" in (out / "report.html").read_text()
    assert files & {"curriculum.jsonl", "draws.jsonl"} == (
        {"draws.jsonl"} if keys == POOLS else {"curriculum.jsonl", "draws.jsonl"}
    )


def test_refills_are_the_same_after_kills_and_in_two_processes(
    root: Path, refilled: tuple[Path, tuple[str, ...]], tmp_path: Path
):
    """Every step has refills, which a process's second verification is of."""
    done, keys = refilled
    processes = 2 if keys == DYNAMIC else 1
    for moment in ("plan", "rollout:1", "verify")[2 * (keys == POOLS) :]:
        ended = run(root, tmp_path / "out", *keys, killed=moment, check=False, processes=processes)
        assert -9 in ended.codes
    run(root, tmp_path / "out", *keys, processes=processes)
    whole = done if processes == 1 else tmp_path / "whole"
    if processes == 2:
        run(root, whole, *keys, processes=2)
    assert read_artifact(tmp_path / "out").digest == read_artifact(whole).digest
    draws = [folder / "draws.jsonl" for folder in (tmp_path / "out", whole, done)]
    assert len({file.read_bytes() for file in draws}) == 1


def test_another_curriculum_is_another_run_and_failing_verifiers_stop_the_step(
    root: Path, trained: Path, tmp_path: Path
):
    for out, key, named in (
        (trained, "curriculum.order=random", "curriculum"),
        (tmp_path, "domains.one.max_failure_rate=0.0", "domains.one.max_failure_rate"),
    ):
        ended = run(root, out, key, check=False)
        assert ended.codes == [1]
        assert named in ended.text.splitlines()[-1]
    assert "timeout" in ended.text.splitlines()[-1]


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("max_epochs=1 prompts_per_step=24", "max_epochs"),
        ("domains={a: {ratio: 1.0}, zz: {ratio: 1.0}}", "zz"),
        ("domains={a: {ratio: 1000.0}, b: {ratio: 1.0}}", "'b' gets no place"),
        ("domains={x: {ratio: 1.0, sources: [a]}, a: {ratio: 1.0}}", "two domains"),
    ],
)
def test_plans_that_cannot_be_are_refused(root: Path, tmp_path: Path, key: str, named: str):
    with pytest.raises((ConfigError, DataError), match=named):
        script("rlvr").main(
            ["--config", str(root / "rlvr.yaml"), f"out={tmp_path / 'out'}",
             *(key.split() if key.startswith("max") else [key])]
        )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([0, 40, 40, 40, 40, 40, 40, 40], ""),
        ([0, 90, 80, 40, 10, 0, 0, 0], "off: the profile has too few easier prompts)"),
        ([0, 10, 10, 10, 10, 10, 10, 200], "off: the profile has too few harder prompts)"),
        ([0, 0, 0, 200, 0, 0, 0, 0], "it cannot fall: the profile has too few prompts of other"),
    ],
)
def test_the_plan_says_where_the_mean_is_off_or_cannot_fall(
    root: Path, tmp_path: Path, sizes: list[int], said: str
):
    keys = ["domains={m: {ratio: 1.0}}", f"out={tmp_path}", "prompts_per_step=8"]
    recipe = load_recipe(root / "rlvr.yaml", RlvrConfig, keys)
    pools = {"m": {f"{k}-{i}": k for k, size in enumerate(sizes) for i in range(size)}}
    [(_, line)] = PromptDraws(recipe, pools, n=8, steps=12).lines()
    assert said in line
    assert " for a target of 0.6" in line
    assert bool(said) == ("profile has" in line)


def test_a_domain_whose_prompts_are_all_dropped_is_refused(root: Path):
    profile = read_profile(root / "profile")
    solved = [replace(rate, dropped="solved") for rate in profile.rates]
    with pytest.raises(DataError, match=r"'one': .*profile kept none of its prompts \(solved 40\)"):
        replace(profile, rates=solved).pools({"one": ["a"]})


def test_profiled_again_with_the_trained_policy_the_drift_is_shown(
    root: Path, trained: Path, tmp_path: Path
):
    first = read_profile(root / "profile")
    script("profile_prompts").main(
        ["--config", str(root / "profile.yaml"), f"out={tmp_path / 'again'}", f"checkpoint={trained}",
         f"previous={root / 'profile'}", "prompts=[]", "settings=[]"]
    )  # fmt: skip
    again = read_profile(tmp_path / "again")
    assert [p.id for p in again.prompts] == [p.id for p in first.kept()]
    old = {rate.prompt_id: (rate.passes, rate.scored) for rate in first.rates}
    assert all(rate.before == list(old[rate.prompt_id]) for rate in again.rates)
    drift = again.manifest.stats["rates"]["a"]["drift"]
    pairs = [
        (r.before[0] / r.before[1], r.passes / r.scored)
        for r in again.rates
        if r.source == "a" and r.before and r.scored
    ]
    assert drift["before"] == pytest.approx(statistics.fmean(old for old, _ in pairs))
    assert drift["rose"] == sum(new > old for old, new in pairs)
    assert {parent.kind for parent in again.manifest.parents} == {"checkpoint", "pass_rates"}
    assert "Drift between profiles" in (tmp_path / "again" / "report.html").read_text()


# ---- the reward alone ----


class Kinds:
    """Gives the score that stands in a completion's error field, which nobody else uses here."""

    async def verify(self, prompt: Prompt, completion: Completion) -> Score:
        await asyncio.sleep(0)
        kinds: dict[int, FailureKind] = {1: "timeout", 2: "sandbox"}
        kind = kinds.get(completion.index)
        return Score(None if kind else 0.5, None, "made", kind)

    def passes(self, score: Score) -> bool:
        return score.value == 0.5


def test_failures_are_counted_by_domain_and_a_lost_rollout_is_none_of_them():
    prompt = Prompt("p", "p", "made", (), source="s")
    finishes = ("stop", "stop", "stop", "failed")
    completions = tuple(Completion("p", k, (), f) for k, f in enumerate(finishes))
    reward = RoutedReward(lambda _: Kinds(), domains={"d": Domain(("s",), 0.5)})
    [given] = asyncio.run(reward.reward([Group(prompt, completions)], seed=0))
    assert given.rewards == (0.5, None, None, None)
    assert given.parts["pass"] == (1.0, None, None, None)
    assert (given.domain, given.requests) == ("d", 3)
    assert [failure.reason for failure in given.failures] == ["timeout", "sandbox"]
    reward.settle(4, given.failures, domain="d")
    with pytest.raises(TrainingError, match="'d': 2 of 3"):
        reward.settle(3, given.failures, domain="d")
    unreadable = [Failure("unreadable", "")] * 3
    reward.settle(3, unreadable, domain="d")
