"""Every method killed at any moment, or spread over processes: the same log and the same weights."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import run as torchrun
from transformers import AutoModelForCausalLM

from posttrain.config.command import run_command
from posttrain.config.sft import LaunchConfig
from posttrain.errors import ConfigError
from posttrain.report import html
from posttrain.report.html import UNFINISHED
from posttrain.runs import read_artifact
from posttrain.training import stage as training_stage
from posttrain.training.launch import Launched, check_launch
from posttrain.training.output import LogRows
from posttrain.training.sft.stage import SftStage
from scripts.__main__ import launch
from tests.training.conftest import sft_recipe
from tests.training.forks import forked, launch_environment, renew_threads, shipped
from tests.training.methods import Method, write_methods
from tests.training.tiny import ROOT, log_rows, losses, rollout_groups, sha

METHODS = ("sft", "dpo", "grpo", "rlhf")


@pytest.fixture(scope="module")
def methods(data: Path, policy: Path, tmp_path_factory) -> dict[str, Method]:
    return write_methods(tmp_path_factory.mktemp("methods"), data, policy)


@pytest.fixture(scope="module")
def undisturbed(methods: dict[str, Method]) -> Callable[[str], Path]:
    """Runs each method once, with the charts of its page; one process."""

    def run(name: str) -> Path:
        out = methods[name].recipe.parent / f"undisturbed-{name}"

        def with_charts() -> None:
            html._template.cache_clear()  # its filters are the real ones again
            methods[name].run(out)

        if not out.exists():
            forked(with_charts)
            assert "<svg" in page_of(out)
        return out

    return run


@pytest.mark.parametrize("name", METHODS)
def test_killed_runs_end_with_the_bytes_of_an_undisturbed_run(
    methods: dict[str, Method], undisturbed: Callable[[str], Path], tmp_path: Path, name: str
):
    out, whole, method = tmp_path / "out", undisturbed(name), methods[name]
    for moment in method.moments:
        ended = forked(lambda moment=moment: method.run(out, killed=moment), check=False)
        assert ended.codes == [-9], ended.text[-2000:]
        assert not (out / "manifest.json").exists()
        assert not (out / "log.jsonl").exists() or UNFINISHED in page_of(out)
    last = forked(lambda: method.run(out))
    assert log_rows(out) == log_rows(whole)
    assert rollouts(out) == rollouts(whole)
    assert read_artifact(out).digest == read_artifact(whole).digest
    assert UNFINISHED not in page_of(out)
    if name == "dpo":
        assert "all on disk" in last.text
        assert [row["step"] for row in log_rows(out, of="loss")] == [1, 2, 3, 4, 6, 8, 9, 10]
        page = (out / "report.html").read_text()
        assert "Margins and log-probabilities" in page
        assert "Speed of DPO" in page


def page_of(out: Path) -> str:
    return (out / "report.html").read_text()


def rollouts(out: Path) -> dict[str, str]:
    return {path.name: sha(path) for path in sorted((out / "rollouts").glob("*"))}


def groups(out: Path) -> list[dict[str, Any]]:
    """All but the ratios, whose last digits are those of a layout."""
    found = rollout_groups(out)
    for group in found:
        for one in group["rollouts"]:
            one.pop("importance", None)
    return found


# ---- processes ----

TWO = ("launch.world_size=2",)


def check_rows(out: Path, other: Path, *, abs: float) -> None:
    ours, theirs = (log_rows(run, of="loss") for run in (out, other))
    assert len(ours) == len(theirs) > 3
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, abs=abs)


@pytest.mark.parametrize(("name", "processes"), [("dpo", 2), ("grpo", 3)])
def test_processes_and_accumulation_change_nothing(
    methods: dict[str, Method], undisturbed: Callable[[str], Path], tmp_path: Path, name: str,
    processes: int,
):  # fmt: skip
    """Also each with its own reference; the same rollouts, rewards and advantages."""
    out, one, micro = tmp_path / "out", undisturbed(name), 2 if name == "dpo" else 4
    keys = (f"launch.world_size={processes}", f"trainer.per_device_train_batch_size={micro}")
    forked(lambda: methods[name].run(out, *keys), processes=processes)
    assert groups(out) == groups(one)
    check_rows(out, one, abs=1e-5 if name == "dpo" else 1e-4)
    a, b = (AutoModelForCausalLM.from_pretrained(run).state_dict() for run in (out, one))
    if name == "dpo":
        assert max(float((a[key] - b[key]).abs().max()) for key in a) < 1e-5


def test_processes_and_kills_change_no_judged_reward(
    methods: dict[str, Method], undisturbed: Callable[[str], Path], tmp_path: Path
):
    """An adapter and a judge in each process; the same matches are judged in two steps."""
    rlhf, one = methods["rlhf"], groups(undisturbed("rlhf"))
    two, killed = tmp_path / "two", tmp_path / "killed"
    forked(lambda: rlhf.run(two, *TWO), processes=2)
    assert judged_twice(one) > 0
    assert groups(two) == one
    ended = forked(lambda: rlhf.run(killed, *TWO, killed="votes:9"), processes=2, check=False)
    assert any(ended.codes)
    assert not (killed / "manifest.json").exists()
    forked(lambda: rlhf.run(killed, *TWO), processes=2)
    assert rollouts(killed) == rollouts(two)
    assert log_rows(killed) == log_rows(two)
    assert read_artifact(killed).digest == read_artifact(two).digest


def judged_twice(found: list[dict[str, Any]]) -> int:
    """Matches that are judged in more than one step."""
    steps: dict[str, set[int]] = {}
    for group in found:
        answers = [one["answer"] for one in group["rollouts"]]
        for row in group["judgements"]:
            match = [group["prompt"]["task"], answers[row["first"]], answers[row["second"]]]
            steps.setdefault(json.dumps(match), set()).add(group["step"])
    return sum(len(at) > 1 for at in steps.values())


def test_two_processes_that_train_no_token_both_fail(
    methods: dict[str, Method], policy: Path, tmp_path: Path
):
    out = tmp_path / "out"
    keys = (
        *TWO, "trainer.max_steps=1", "trainer.per_device_train_batch_size=4", "loss.overlong=mask",
        "sampling={max_tokens: 2, temperature: 0.02}", f"model.path={policy}",
    )  # fmt: skip
    failed = forked(lambda: methods["grpo"].run(out, *keys), processes=2, check=False)
    assert failed.text.count("TrainingError: no token was trained in 1 steps") == 2
    assert failed.codes == [1, 1]
    assert not (out / "manifest.json").exists()


# ---- the layouts of SFT; 10 steps of 8 packs in 2 epochs ----

ONE_BY_EIGHT = {"per_device_train_batch_size": 8}
TWO_BY_TWO = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}


def sft(data: Path, model: Path, out: Path, trainer: dict[str, Any], **keys: Any) -> SftStage:
    return SftStage(sft_recipe(data, model, out, {"num_train_epochs": 2, **trainer}, **keys))


@pytest.fixture(scope="module")
def one_process(data: Path, policy: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    sft(data, policy, out, ONE_BY_EIGHT).run(dry_run=False)
    return out


def test_a_hybrid_of_experts_is_the_same_in_every_layout(data: Path, hybrid: Path, tmp_path: Path):
    """Mamba, attention and routed experts, unpacked; the mean of the balance term is over the global
    batch."""
    keys = {"balance": {"coefficient": 0.1}}
    epoch = {"num_train_epochs": 1}
    sft(data, hybrid, tmp_path / "one", ONE_BY_EIGHT | epoch, **keys).run(dry_run=False)
    launch = {"world_size": 2}
    two = sft(data, hybrid, tmp_path / "two", TWO_BY_TWO | epoch, launch=launch, **keys)
    forked(lambda: two.run(dry_run=False), processes=2)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)
    assert read_artifact(tmp_path / "one").stats["document_masking"] == "unpacked"
    first = log_rows(tmp_path / "one")[0]
    # one MoE layer: the mean over sequences of a term whose minimum is about 1
    assert 0.9 < first["balance"] < 4
    assert first["max_violation"] > 0


def launch_forks(arguments: list[str]) -> None:
    """`posttrain launch …`, whose torchrun forks this process instead of starting Python anew, as
    config/test_command.py has it."""

    def elastic_launch(config: Any, entrypoint: str) -> Callable[..., Any]:
        def run(*command: str) -> None:
            renew_threads()
            script = next(at for at, word in enumerate(command) if word.endswith(".py"))
            runpy.run_path(command[script])["main"](command[script + 1 :])

        return whole(dataclasses.replace(config, start_method="fork"), run)

    whole, torchrun.elastic_launch = torchrun.elastic_launch, elastic_launch
    launch(arguments)


def test_the_documented_command_starts_two_processes(
    one_process: Path, data: Path, policy: Path, tmp_path: Path
):
    """Killed in epoch 2 and taken up in its middle, by one process each of two."""
    out = tmp_path / "out"
    keys = {"save_strategy": "steps", "save_steps": 7}
    stage = sft(data, policy, out, TWO_BY_TWO | keys, launch={"world_size": 2})

    def die_in_epoch_2() -> None:
        from tests.training.methods import Mortal, arm

        arm("sft", "step:8", Mortal())
        stage.run(dry_run=False)

    assert any(forked(die_in_epoch_2, processes=2, check=False).codes)
    assert (out / "resume" / "checkpoint-7" / "complete.json").is_file()
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(json.dumps(stage.recipe.model_dump(mode="json")))
    options = ["--config_file", "accelerate/cpu-2"]
    forked(lambda: launch_forks([*options, "sft", "--config", str(recipe)]))
    assert len(losses(out)) == 10
    assert losses(out) == pytest.approx(losses(one_process), abs=1e-5)


def test_two_nodes_are_one_run(data: Path, policy: Path, tmp_path: Path):
    keys = TWO_BY_TWO | {"max_steps": 4, "num_train_epochs": None}
    whole, nodes = (
        sft(data, policy, tmp_path / name, keys, launch={"world_size": 2})
        for name in ("whole", "nodes")
    )
    forked(lambda: whole.run(dry_run=False), processes=2)

    def run_alone_on_a_node() -> None:
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        nodes.run(dry_run=False)

    ended = forked(run_alone_on_a_node, processes=2)
    assert ended.text.count(f"{nodes.out}: checkpoint") == 1  # only the first node speaks
    assert log_rows(nodes.out) == log_rows(whole.out)
    assert sha(nodes.out / "model.safetensors") == sha(whole.out / "model.safetensors")


def test_an_output_directory_that_is_not_shared_is_refused(
    data: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training_stage, "DIRECTORY_TIMEOUT", 0.0)

    def run() -> None:
        out = tmp_path / f"disk-of-{os.environ['RANK']}" / "out"
        sft(data, policy, out, {}, launch={"world_size": 2}).run(dry_run=False)

    ended = forked(run, processes=2, check=False)
    assert ended.codes[1] != 0
    assert "all machines must see the same out" in ended.text


# ---- what the launchers really start, and the refusal of what they silently drop ----


CPU = ("--cpu", "--num_processes", "2")
LAUNCHED = {
    "started one.*cpu-2": (CPU, {}, Launched(1, "none", "cpu", "fp32")),
    r"world_size is 2, 1 process\(es\) run": ((), {"world_size": 2}, Launched(1, "none", "", "")),
    # forced CPU drops sharding without a word
    "asked for zero2.*but none runs": (shipped("zero2"), {}, Launched(2, "none", "cpu", "fp32")),
    "asked for fsdp2.*but none runs": (shipped("fsdp2"), {}, Launched(2, "none", "cpu", "fp32")),
    r"--config_file accelerate/zero3": ((), {"sharding": "zero3"}, Launched(2, "none", "cpu", "fp32")),
}  # fmt: skip


@pytest.mark.parametrize("message", LAUNCHED)
def test_a_launch_that_is_not_what_was_asked_for_is_refused(message: str):
    arguments, asks, launched = LAUNCHED[message]
    if "zero2" in message:
        pytest.importorskip("deepspeed")
    env = launch_environment(*arguments) if arguments else {}
    with pytest.raises(ConfigError, match=message):
        check_launch(LaunchConfig(**asks), launched, env)
    check_launch(LaunchConfig(**asks), Launched(2, asks.get("sharding", "none"), "gpu", "fp32"), {})


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/accelerate").glob("*.yaml")), ids=str)
def test_every_launch_config_is_one_that_accelerate_reads(path: Path):
    from accelerate.commands.config.config_args import load_config_from_file

    nodes = 2 if path.stem.endswith("-2-nodes") else 1
    expected = {"cpu": 1, "cpu-2": 2}.get(path.stem, 8 * nodes)
    read = load_config_from_file(str(path))
    assert (read.num_machines, read.num_processes) == (nodes, expected)


def test_a_terminated_run_says_so_on_its_page_and_goes_on(
    methods: dict[str, Method], undisturbed: Callable[[str], Path], tmp_path: Path
):
    out = tmp_path / "out"

    def terminated() -> None:
        whole = LogRows.on_log

        def on_log(self: LogRows, args: Any, state: Any, control: Any, **rest: Any) -> None:
            whole(self, args, state, control, **rest)
            if state.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        LogRows.on_log = on_log
        run_command(lambda: methods["sft"].run(out))

    ended = forked(terminated, check=False)
    assert ended.codes == [143]
    assert "ended by SIGTERM; rerun the same command to resume" in ended.text.splitlines()
    assert "Interrupted at step 3," in page_of(out)
    forked(lambda: methods["sft"].run(out))
    assert read_artifact(out).digest == read_artifact(undisturbed("sft")).digest
