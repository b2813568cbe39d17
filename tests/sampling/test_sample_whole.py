"""The stage with nothing replaced: a random model in process, and servers that are in trouble."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from posttrain.errors import DataError
from posttrain.models.load import build_model
from posttrain.rollouts import completion_from_row, prompt_from_row
from posttrain.runs import read_artifact
from tests.data_builders.small_build import script, write_rows, write_tokenizer
from tests.evaluation.small_world import make_world
from tests.models.tiny import TINY_ATTENTION
from tests.sampling.stub_server import Stub, Trouble, no_trouble

FAMILIES = ("maths", "lookups", "steps")


def run(recipe: Path, *overrides: str) -> None:
    """`python scripts/sample.py --config recipe …` in this process; errors are raised."""
    script("sample").main(["--config", str(recipe), *overrides])


def write_recipe(path: Path, **keys: Any) -> Path:
    path.write_text(yaml.safe_dump(keys, sort_keys=False))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny world, a random model with its tokenizer, and a recipe over both."""
    folder = tmp_path_factory.mktemp("whole")
    make_world(folder / "world")
    torch.manual_seed(0)
    model = build_model({**TINY_ATTENTION, "vocab_size": 512, "eos_token_id": 2, "pad_token_id": 0})
    model.save_pretrained(folder / "checkpoint")
    for file in (folder / "world/tokenizer").iterdir():
        (folder / "checkpoint" / file.name).write_bytes(file.read_bytes())
    write_recipe(
        folder / "sample.yaml",
        out=str(folder / "out"),
        checkpoint=str(folder / "checkpoint"),
        backend={"kind": "transformers", "batch_size": 16},
        prompts=[
            {
                "name": family,
                "format": "tiny_world",
                "path": str(folder / f"world/train/{family}.jsonl"),
                "count": 8,
            }
            for family in FAMILIES
        ],
        settings=[
            {"name": "no_tools", "thinking": 0.5},
            {"name": "with_tools", "tools": "given", "thinking": "both", "n": 2},
        ],
        n=3,
        sampling={"max_tokens": 12, "logps": True},
        chunk=32,
    )
    run(folder / "sample.yaml")
    return folder


def test_in_process(world: Path):
    manifest = read_artifact(world / "out", kind="samples")
    assert [parent.kind for parent in manifest.parents] == ["tiny_world"]
    assert manifest.counts.kept == 24
    prompts = [prompt_from_row(row) for row in rows(world / "out/prompts.jsonl")]
    completions = [completion_from_row(row) for row in rows(world / "out/samples.jsonl")]
    assert {p.setting for p in prompts} == {"no_tools", "with_tools"}
    number = {"no_tools": 3, "with_tools": 2}
    assert [(c.prompt_id, c.index) for c in completions] == [
        (p.id, index) for p in prompts for index in range(number[p.setting])
    ]
    for completion in completions:
        assert completion.finish in ("stop", "length")
        step = completion.steps[-1]
        assert step.ids is not None
        assert step.logps is not None
        assert len(step.ids) == len(step.logps) <= 12
        assert completion.prompt_ids is not None
        assert len(completion.prompt_ids) == step.prompt_tokens
    states = {c.prompt_id: c.state for c in completions}
    assert all((states[p.id] is not None) == (p.tools is not None) for p in prompts)


def test_the_same_recipe_gives_the_same_bytes(world: Path, tmp_path: Path):
    run(world / "sample.yaml", f"out={tmp_path / 'again'}")
    for name in ("prompts.jsonl", "samples.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (world / "out" / name).read_bytes()
    # where parents lie differs, and is no part of the digest
    digests = [read_artifact(out).digest for out in (tmp_path / "again", world / "out")]
    assert digests[0] == digests[1]


@contextmanager
def serving(trouble: Trouble = no_trouble, *, gate: int = 1) -> Iterator[Stub]:
    """A stub server in a thread of its own."""
    ready, over = threading.Event(), threading.Event()
    found: list[Stub] = []

    async def serve() -> None:
        async with Stub(trouble, gate=gate) as stub:
            found.append(stub)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


def server_recipe(folder: Path, kind: str) -> Path:
    """20 questions × 5 samples; the url is given with every start."""
    questions = [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(20)]
    write_rows(folder / "rows.jsonl", questions)
    backend: dict[str, Any] = {"kind": kind, "url": "http://localhost:1/v1", "model": "m"}
    if kind == "completions":
        tokenizer = str(write_tokenizer(folder / "tokenizer"))
        backend |= {"tokenizer": tokenizer, "chat_template": "nemotron_3_nano"}
    return write_recipe(
        folder / "sample.yaml",
        out=str(folder / "out"),
        backend={**backend, "concurrency": 8},
        prompts=[
            {
                "name": "sums",
                "format": "question",
                "path": str(folder / "rows.jsonl"),
                "grader": "math",
            }
        ],
        settings=[{"name": "no_tools"}],
        n=5,
        sampling={"max_tokens": 64},
    )


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_what_a_server_gave_up_on_is_asked_again_alone(tmp_path: Path, kind: str):
    recipe = server_recipe(tmp_path, kind)

    def refuses(body: dict[str, Any], again: int) -> int | None:
        return 400 if body["seed"] % 4 == 0 else None

    with serving(refuses) as bad, pytest.raises(DataError, match=r"completions failed.*400"):
        run(recipe, f"backend.url={bad.url}")
    refused = {body["seed"] for body in bad.bodies if body["seed"] % 4 == 0}
    # mended, it listens elsewhere
    with serving() as mended:
        # another limit is no other recipe
        run(recipe, f"backend.url={mended.url}", "backend.concurrency=3", "max_failure_rate=0.1")
    assert {body["seed"] for body in mended.bodies} == refused
    assert len(rows(tmp_path / "out/samples.jsonl")) == 100
