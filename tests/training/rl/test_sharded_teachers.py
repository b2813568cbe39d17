"""Teachers whose weights are split over processes score as whole ones do, with less memory each."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.config.distill import DistillConfig
from posttrain.errors import ConfigError
from posttrain.sampling.sampler import ScoreOutput, ScoreRequest
from posttrain.training.rl.teachers import Teachers, open_teachers
from posttrain.training.sharded import tensor_bytes
from tests.training.forks import forked
from tests.training.rl.distilling import distil, make_recipe, write_teacher
from tests.training.rl.test_distill import write_adapter

REQUESTS = [
    ScoreRequest(tuple(range(3, 12)), (False, False, *[True] * 7)),
    ScoreRequest(tuple(range(20, 26)), (False, *[True] * 5)),
]


def write_tied(folder: Path, policy: Path) -> Path:
    """A teacher of four layers with one matrix for embeddings and head."""
    write_teacher(folder, policy, moved=0.1)
    config = AutoConfig.from_pretrained(policy)
    config.tie_word_embeddings = True
    config.num_hidden_layers = 4
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(str(folder))
    (folder / "manifest.json").unlink()
    (folder / "stage.json").unlink(missing_ok=True)
    return folder


def recipe_of_teachers(policy: Path, root: Path, **keys: Any) -> DistillConfig:
    """Recipe with an adapter in float32 on a base in bfloat16, that base, and tied embeddings."""
    teachers = {
        "general": {"path": str(policy), "dtype": "bfloat16"},
        "tuned": {
            "adapter": str(write_adapter(root / "adapter", policy, seed=1)),
            "dtype": "bfloat16",
        },
        "tied": {"path": str(write_tied(root / "tied", policy))},
    }
    prompts = [
        {"format": "question", "grader": None, "path": "questions.jsonl", "name": name}
        for name in teachers
    ]
    routes = {name: name for name in teachers}
    return make_recipe(
        policy, root / "out", teachers=teachers, prompts=prompts, routes=routes, **keys
    )


def opened(recipe: DistillConfig, *, processes: int) -> Teachers:
    return open_teachers(
        recipe.teachers,
        student=recipe.model,
        device=torch.device("cpu"),
        out=Path(recipe.out),
        stack=contextlib.AsyncExitStack(),
        in_memory=recipe.teachers_in_memory,
        processes=processes,
    )


def scores(teachers: Teachers, requests: list[ScoreRequest]) -> dict[str, list[ScoreOutput]]:
    return {name: asyncio.run(scorer.score(requests)) for name, scorer in teachers.scorers.items()}


@pytest.mark.parametrize("in_memory", [None, 1])
def test_split_teachers_score_as_whole_ones_do(policy: Path, tmp_path: Path, in_memory: int | None):
    recipe = recipe_of_teachers(policy, tmp_path, teachers_in_memory=in_memory)

    def run() -> None:
        state = PartialState(cpu=True)
        whole = opened(recipe, processes=1)
        split = opened(recipe, processes=2)
        # one process has nothing to score, and both gather the weights
        requests = REQUESTS if state.process_index == 0 else []
        for _ in range(2):
            assert scores(split, requests) == scores(whole, requests)
        shares = [tensor_bytes(model) for model in split.frozen.models]
        sizes: list[int] = []
        split_bytes: list[int] = []
        for model in whole.frozen.models:
            sizes.append(tensor_bytes(model))
            split_bytes.append(sizes[-1] - model.get_output_embeddings().weight.nbytes)
        expected = [size - part / 2 for size, part in zip(sizes, split_bytes, strict=True)]
        assert shares == pytest.approx(expected, rel=0.01)
        # a pass gathers two of the four layers of the largest at a time
        gathered = split.frozen.bytes_on(torch.device("cpu")) - sum(shares)
        assert gathered == pytest.approx(split_bytes[1] / 2, rel=0.01)
        assert whole.frozen.bytes_on(torch.device("cpu")) == sum(sizes)
        print(split.lines)

    ended = forked(run, processes=2)
    assert "split over 2 processes, 0.00 GiB in each" in ended.text


def test_the_whole_distributions_are_not_trained_on_under_zero3(policy: Path, tmp_path: Path):
    message = "start with accelerate/fsdp2, or use objective: sampled"
    with pytest.raises(ConfigError, match=message):
        make_recipe(policy, tmp_path, objective="full", launch={"sharding": "zero3"})
    # the launcher may shard where the recipe says nothing of it
    trainer = {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}
    trainer |= {"max_steps": 1, "per_device_train_batch_size": 4}
    recipe = make_recipe(policy, tmp_path / "out", trainer, objective="full")
    teacher = write_teacher(tmp_path / "teacher", policy, moved=0.1)
    ended = forked(
        lambda: distil(recipe, {"first": teacher, "second": teacher}),
        processes=2,
        sharding="zero3",
        check=False,
    )
    assert ended.codes == [1, 1]
    assert message in ended.text
