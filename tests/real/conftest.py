"""A real model and a real server, where POSTTRAIN_REAL_MODEL and POSTTRAIN_VLLM name them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.chat.template import packaged_template_source
from tests.real.server import VllmProcess


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of POSTTRAIN_REAL_MODEL with Qwen3's template, which knows tools and reasoning."""
    if not (named := os.environ.get("POSTTRAIN_REAL_MODEL")):
        pytest.skip("POSTTRAIN_REAL_MODEL names no directory of a ChatML model")
    source = Path(named).resolve()
    folder = tmp_path_factory.mktemp("model")
    for file in source.iterdir():
        if file.name not in ("tokenizer_config.json", "chat_template.jinja"):
            (folder / file.name).symlink_to(file)
    config = json.loads((source / "tokenizer_config.json").read_text("utf-8"))
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = packaged_template_source("trl:qwen3")
    assert template is not None
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


@pytest.fixture(scope="session")
def vllm_executable() -> Path:
    """The program of POSTTRAIN_VLLM."""
    if not (named := os.environ.get("POSTTRAIN_VLLM")):
        pytest.skip("POSTTRAIN_VLLM names no vllm executable, and no environment with one")
    executable = Path(named)
    return executable / "bin" / "vllm" if executable.is_dir() else executable


@pytest.fixture(scope="session")
def server(
    checkpoint: Path, vllm_executable: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmProcess]:
    """vLLM that serves it in float32, one for all tests."""
    vllm = VllmProcess(vllm_executable, checkpoint, tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        vllm.start()
        yield vllm
    finally:
        vllm.kill()
