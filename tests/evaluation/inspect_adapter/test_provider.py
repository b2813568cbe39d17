"""Tasks written for inspect, through our provider: rendering by us, turns continued by ids."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("inspect_ai")

import inspect_ai
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalSample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    GenerateConfig,
)
from inspect_ai.scorer import Score as InspectScore
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

from posttrain.chat import nemotron_3_nano_template, render
from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.inspect_adapter.provider import (
    SamplerAPI,
    from_inspect,
    inspect_model,
    to_inspect,
)
from posttrain.evaluation.inspect_adapter.tasks import _score_of_sample, load_task
from posttrain.evaluation.journal import JournaledSampler
from posttrain.records import Message, ToolCall
from tests.evaluation.inspect_adapter.running import run_task
from tests.evaluation.scripted import CALL, ScriptedSampler, turn


@tool
def calculate() -> Tool:
    async def execute(expression: str) -> str:
        """Arithmetic.

        Args:
            expression: What to work out.
        """
        return "56" if expression == "7*8" else "no"

    return execute


def run(sampler, *, samples=3, epochs=1, solver=None, **config):
    dataset = MemoryDataset([Sample(input=f"{k}: 7*8?", target="56") for k in range(samples)])
    task = inspect_ai.Task(
        dataset=dataset,
        solver=solver or [use_tools(calculate()), generate()],
        scorer=match(),
        epochs=epochs,
    )
    log = run_task(task, inspect_model(sampler, "tiny"), **config)
    assert log.status == "success"
    return log


def calling(request) -> str:
    last = request.messages[-1]
    return turn(last.content if last.role == "tool" else CALL)


def test_a_task_of_inspects_own_with_tools_goes_on_from_sampled_ids():
    sampler = ScriptedSampler(calling)
    log = run(sampler)
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    first, second = sampler.calls
    assert len(first) == len(second) == 3
    declared = json.loads(first[0].tools)[0]["function"]
    assert declared["name"] == "calculate"
    assert declared["parameters"]["properties"]["expression"]["type"] == "string"
    for request in second:
        assert request.continues is not None
        assert request.continues.step.ids == tuple(map(ord, turn(CALL)))
        assert [m.role for m in request.messages] == ["user", "assistant", "tool"]
    # what inspect's own provider cannot render: the second turn, by the template of training
    text = render(second[0].messages, nemotron_3_nano_template(), tools=second[0].tools,
                  add_generation_prompt=True, enable_thinking=True)  # fmt: skip
    assert "<function=calculate>\n<parameter=expression>\n7*8\n</parameter>" in text
    assert "<tool_response>\n56\n</tool_response>" in text


def test_results_that_a_sampler_breaks_are_found_again_without_it(tmp_path):
    class Framing(ScriptedSampler):
        def unframed(self, text: str) -> str:
            return text.replace("6", "six")

    kept = tmp_path / "journal.jsonl"
    run(JournaledSampler(Framing(calling), kept))
    log = run(JournaledSampler(None, kept))
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_epochs_have_seeds_of_their_own_and_runs_repeat():
    def seeds() -> list[int]:
        sampler = ScriptedSampler(lambda request: turn("56"))
        run(sampler, samples=2, epochs=3, solver=generate(), seed=5)
        return sorted(request.seed for batch in sampler.calls for request in batch)

    first = seeds()
    assert len(set(first)) == 6
    assert seeds() == first
    # a backend that gave up is an error, and is not called again
    sampler = ScriptedSampler(lambda request: "FAIL")
    with pytest.raises(Exception, match="the server went away"):
        run(sampler, samples=1, solver=generate())
    assert len(sampler.calls) == 1


def test_a_long_run_keeps_the_last_turn_of_each_conversation_alone():
    scripted = ScriptedSampler(lambda request: turn(CALL if len(request.messages) < 7 else "56"))
    api: Any = SamplerAPI("tiny")
    api._sampler = scripted

    async def converse(asked: str) -> list[int]:
        messages: list[ChatMessage] = [ChatMessageUser(content=asked)]
        kept: list[int] = []
        while len(messages) < 9:
            output = await api.generate(messages, [], "auto", GenerateConfig())
            kept.append(len(api._turns))
            messages += [output.message, ChatMessageTool(content="56", tool_call_id="call00000")]
        return kept

    assert asyncio.run(converse("7 * 8")) == [1, 1, 1, 0]
    sent = [batch[0].continues is not None for batch in scripted.calls]
    assert sent == [False, True, True, True]


def test_messages_there_and_back():
    messages = [
        Message("system", "Be brief."),
        Message("user", "7*8?"),
        Message("assistant", "Let me see.", reasoning="a product",
                tool_calls=(ToolCall("calculate", '{"expression":"7*8"}', "call00000"),)),
        Message("tool", "56", tool_call_id="call00000", name="calculate"),
        Message("assistant", "56"),
    ]  # fmt: skip
    assert [from_inspect(to_inspect(message)) for message in messages] == messages
    with pytest.raises(DataError, match="image"):
        from_inspect(ChatMessageUser(content=[ContentImage(image="data:image/png;base64,AA==")]))


def test_the_value_that_counts_of_a_score_of_several():
    score = InspectScore(value={"1.1": 1.0, "1.2": 0.0, "1.3": "C"}, answer="x")
    sample = EvalSample(id=1, epoch=1, input="?", target="", scores={"verify": score})
    assert _score_of_sample(sample, "verify.1.1").value == 1.0
    assert _score_of_sample(sample, "verify.*").value == pytest.approx(2 / 3)
    for wanted in (None, "verify", "verify.2", "other"):
        with pytest.raises(ConfigError, match="name"):
            _score_of_sample(sample, wanted)


def test_a_task_in_docker_is_refused_where_there_is_none(tmp_path, monkeypatch):
    path = tmp_path / "task.py"
    path.write_text(
        "from inspect_ai import Task, task\n\n"
        "@task\ndef contained():\n    return Task(sandbox='docker')\n"
    )
    load_task(f"{path}@contained", {})
    monkeypatch.setattr("posttrain.evaluation.inspect_adapter.tasks.which", lambda _: None)
    with pytest.raises(ConfigError, match="docker"):
        load_task(f"{path}@contained", {})
