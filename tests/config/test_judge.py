"""The blocks of a recipe that say how rollouts are judged."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from reward.judge.prompt import AUTO, LAYOUTS
from reward.pairing import STRATEGIES

CHAT = {"kind": "chat", "url": "http://localhost:8000/v1", "model": "genrm"}
OWN = {"kind": "transformers"}


def judge(*models: dict[str, Any], **fields: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({"models": models, **fields})


def test_the_defaults_are_those_of_the_paper_and_its_code():
    found = judge({"backend": CHAT, "layout": "roles"})
    parameters = found.sampling.parameters()
    assert (parameters.temperature, parameters.top_p, parameters.max_tokens) == (0.6, 0.95, 16384)
    assert found.retries == 3
    assert PairingConfig().strategy == "circular"
    length = LengthConfig()
    assert (length.reasoning_coefficient, length.answer_coefficient) == (0.5, 0.5)
    assert (length.reasoning_bonus, length.answer_bonus, length.quality_percentile) == (
        0.5,
        0.5,
        80,
    )
    assert (length.style_coefficient, length.absolute_penalty, length.unit) == (0, 0, "tokens")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"backend": CHAT}, "hides its template"),
        ({"backend": OWN}, "checkpoint is required"),
        ({"backend": {**CHAT, "kind": "completions"}}, "name backend.tokenizer"),
        ({"backend": CHAT, "layout": "role"}, "layout"),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused(model: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        judge(model)


def test_someone_must_judge():
    with pytest.raises(ValidationError, match="models"):
        judge()


def test_the_names_are_those_that_exist():
    for layout in (AUTO, *LAYOUTS):
        assert (
            judge({"backend": OWN, "checkpoint": "c", "layout": layout}).models[0].layout == layout
        )
    for strategy in STRATEGIES:
        assert PairingConfig.model_validate({"strategy": strategy}).strategy == strategy


def test_how_a_server_is_reached_and_when_to_stop_may_change():
    model = {"backend": CHAT, "layout": "roles"}
    moved = {**CHAT, "url": "http://elsewhere:1/v1", "concurrency": 7, "timeout": 3.0, "retries": 1}
    bound = judge(model).owner_config()
    other = judge({"backend": moved, "layout": "roles"}, max_failure_rate=0.5, cache="shared")
    assert other.owner_config() == bound
    for change in ({"principle": "p"}, {"sampling": {"top_p": 0.5}}, {"retries": 0}):
        assert judge(model, **change).owner_config() != bound
    assert judge(model, model).owner_config() != bound
