"""The backend block: each kind has its own fields, and a key never stands in a recipe."""

from __future__ import annotations

import pytest

from posttrain.config.backend import BackendConfig, CompletionsBackend, TransformersBackend
from posttrain.config.base import Strict
from posttrain.config.load import validate
from posttrain.config.sample import SampleConfig
from posttrain.errors import ConfigError


class Recipe(Strict):
    backend: BackendConfig = TransformersBackend(kind="transformers")


def read(**backend) -> BackendConfig:
    return validate({"backend": backend}, Recipe, where="r.yaml").backend


def test_each_kind_is_read_by_its_own_schema():
    assert read(kind="transformers", batch_size=8) == TransformersBackend(
        kind="transformers", batch_size=8
    )
    server = read(kind="completions", url="http://localhost:8000/v1/", model="m", tokenizer="t")
    assert isinstance(server, CompletionsBackend)
    assert server.url == "http://localhost:8000/v1"
    assert read(kind="vllm").tensor_parallel == 1
    assert read(kind="chat", url="https://h/v1", model="m", api_key_env="KEY").api_key_env == "KEY"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ({}, "'backend.kind' is required"),
        ({"kind": "transfomers"}, "did you mean 'transformers'"),
        ({"kind": "transformers", "batchsize": 3}, "did you mean 'batch_size'"),
        ({"kind": "vllm", "tensor_paralel": 2}, "did you mean 'tensor_parallel'"),
        ({"kind": "transformers", "batch_size": 0}, "greater than or equal to 1"),
        ({"kind": "transformers", "url": "http://h"}, "unknown key 'backend.transformers.url'"),
        ({"kind": "chat", "model": "m"}, "'backend.chat.url' is required"),
        ({"kind": "chat", "model": "m", "url": "localhost:80"}, "begins with http"),
        ({"kind": "chat", "model": "m", "url": "http://me:pw@h/v1"}, "no user, key or query"),
    ],
)
def test_a_mistake_is_named(backend: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        read(**backend)


def test_a_key_in_the_recipe_is_refused_without_repeating_it():
    with pytest.raises(ConfigError, match="never a key") as raised:
        read(kind="chat", url="http://h/v1", model="m", api_key_env="sk-secret-1234")
    assert "secret" not in str(raised.value)


def test_a_chat_server_that_cannot_switch_thinking_is_refused_for_both_modes():
    recipe = {
        "out": "runs/x",
        "backend": {"kind": "chat", "url": "http://localhost:1/v1", "model": "m"},
        "prompts": [{"name": "p", "format": "chat", "path": "p.jsonl"}],
        "settings": [{"name": "s", "thinking": "both"}],
        "n": 1,
    }
    with pytest.raises(ConfigError, match=r"backend\.thinking: fixed"):
        validate(recipe, SampleConfig, where="r.yaml")
    recipe["backend"] |= {"server": "vllm", "thinking": "enable_thinking"}
    validate(recipe, SampleConfig, where="r.yaml")
