"""The stage with nothing replaced: a random model in process, and a server that is in trouble."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from posttrain.errors import DataError
from posttrain.runs import read_artifact
from posttrain.sampling.generate import read_completions, read_prompts
from tests.data_builders.small_build import script
from tests.sampling.small_stage import Adding, write_recipe
from tests.sampling.stub_server import Stub, Trouble, no_trouble
from tests.sampling.test_open import write_checkpoint

# test_sample_stage.py draws the page of samples
pytestmark = pytest.mark.usefixtures("charts_not_drawn")


def run(recipe: Path, *overrides: str) -> None:
    """`posttrain sample --config recipe …` in this process; errors are raised."""
    with patch("data_builders.prompts.build.toolkits_for", lambda *_: {"adding": Adding()}):
        script("sample").main(["--config", str(recipe), *overrides])


def test_in_process_the_same_recipe_gives_the_same_bytes(tmp_path: Path):
    settings = [
        {"name": "no_tools", "thinking": 0.5},
        {"name": "with_tools", "tools": "adding", "thinking": "both", "n": 2},
    ]
    sampling = {"max_tokens": 12}
    recipe = write_recipe(tmp_path, settings=settings, sampling=sampling, chunk=5)
    write_checkpoint(tmp_path / "checkpoint")
    outs = [tmp_path / "once", tmp_path / "again"]
    for out in outs:
        run(recipe, f"out={out}", "prompts.0.count=6")
    for name in ("prompts.jsonl", "samples.jsonl", "manifest.json"):
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes()
    assert read_artifact(outs[0], kind="samples").counts.kept == 6
    prompts = read_prompts(outs[0] / "prompts.jsonl")
    completions = read_completions(outs[0] / "samples.jsonl")
    number = {"no_tools": 3, "with_tools": 2}
    assert [(c.prompt_id, c.index) for c in completions] == [
        (p.id, index) for p in prompts for index in range(number[p.setting])
    ]
    for step in (completion.steps[-1] for completion in completions):
        assert 0 < len(step.ids or ()) <= 12
    states = {c.prompt_id: c.state for c in completions}
    assert all((states[p.id] is not None) == (p.tools is not None) for p in prompts)


@contextmanager
def serving(trouble: Trouble = no_trouble) -> Iterator[Stub]:
    """A stub server in a thread of its own."""
    listens, over = threading.Event(), threading.Event()
    found: list[Stub] = []

    async def serve() -> None:
        async with Stub(trouble) as stub:
            found.append(stub)
            listens.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert listens.wait(10)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


def test_what_a_server_gave_up_on_is_asked_again_and_no_answer_twice(tmp_path: Path):
    # the url is given with every start
    backend = {"kind": "completions", "url": "http://localhost:1/v1", "model": "m",
               "tokenizer": str(tmp_path / "checkpoint"), "chat_template": "nemotron_3_nano",
               "concurrency": 8}  # fmt: skip
    recipe = write_recipe(tmp_path, backend=backend, settings=[{"name": "no_tools"}], n=5)

    def refuses(body: dict[str, Any], again: int) -> int | None:
        return 400 if body["seed"] % 4 == 0 else None

    with serving(refuses) as bad, pytest.raises(DataError, match=r"completions failed.*400"):
        run(recipe, f"backend.url={bad.url}")
    refused = {body["seed"] for body in bad.bodies if body["seed"] % 4 == 0}
    # mended, it listens elsewhere; another limit is no other recipe
    with serving() as mended:
        run(recipe, f"backend.url={mended.url}", "backend.concurrency=3", "max_failure_rate=0.1")
    asked_again = {body["seed"] for body in mended.bodies}
    assert refused <= asked_again
    # the limit ends the stage at once: what had been answered by then is kept
    assert len(asked_again) < 60
    assert len(mended.bodies) == len(asked_again)
    assert len(read_completions(tmp_path / "out/samples.jsonl")) == 60
