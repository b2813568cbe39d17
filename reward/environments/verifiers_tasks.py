"""Tasks of the `verifiers` package (its `verifiers.v1`, from 0.4 on): `environment: verifiers:ID`,
where ID is an installed taskset.

Only environments that ask one question and read one answer are supported: no tools, no further
turns, no container, no judge. Rows are generated (`generated: SEED`, `count: N`): tasks of the
taskset, shuffled by that seed. The reward is the sum of the task's weighted rewards; a sum outside
[0, 1] leaves the completion unscored.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from posttrain.errors import ConfigError, DataError
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment

PREFIX = "verifiers:"


class TasksetEnvironment(RLVREnvironment):
    """Environment of the tasks of one taskset."""

    def __init__(self, taskset_id: str) -> None:
        self.name = f"{PREFIX}{taskset_id}"
        try:
            vf: Any = importlib.import_module("verifiers.v1")
            loaders: Any = importlib.import_module("verifiers.v1.utils.loaders")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"environment {self.name!r}: {error}: pip install 'verifiers>=0.4'"
            ) from error
        self._vf = vf
        try:
            taskset_class: Any = loaders.taskset_class(taskset_id)
            self._config: Any = loaders.taskset_config_type(taskset_id)(id=taskset_id)
            self._taskset: Any = taskset_class(self._config)
            environment: Any = loaders.environment_class(taskset_id)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(f"environment {self.name!r} cannot be made: {problem}") from error
        self._task: Any = taskset_class.task_type()
        toolsets = taskset_class.toolsets(self._config) or self._task.toolsets(self._config.task)
        needs = {
            "further turns or several agents": environment is not vf.SingleAgentEnv,
            "a container": self._task.NEEDS_CONTAINER,
            "tool servers": toolsets,
            "a judge": self._config.task.judges,
        }
        if unsupported := [name for name, needed in needs.items() if needed]:
            raise ConfigError(f"environment {self.name!r} needs {', '.join(unsupported)}")

    def rows(self, *, seed: int, count: int) -> list[dict[str, Any]]:
        tasks: Any = self._taskset
        tasks = tasks.shuffle(seed) if tasks.bounded else tasks
        return [self._row(task) for task in tasks.take(count)]

    def _row(self, task: Any) -> dict[str, Any]:
        """Convert a task to a row.

        Raises:
            DataError: its question is not text alone, or its reward needs a runtime.
        """
        for hook in task.hooks("reward"):
            parameter = inspect.signature(hook).parameters.get("runtime")
            if parameter is not None and parameter.default is inspect.Parameter.empty:
                raise DataError(f"{self.name}: reward {hook.__name__} needs a runtime")
        data: dict[str, Any] = task.data.model_dump(mode="json", exclude_none=True)
        question: Any = data.get("prompt") or ""
        messages = (
            [{"role": "user", "content": question}] if isinstance(question, str) else question
        )
        if (system := data.get("system_prompt")) is not None:
            messages = [{"role": "system", "content": system}, *messages]
        if not all(isinstance(message.get("content"), str) for message in messages):
            raise DataError(f"{self.name}: task {data.get('idx')} asks with more than text")
        row_id = data.get("id") or f"{self.name}-{data.get('idx')}"
        return {"id": row_id, "messages": messages, "metadata": {"task": data}}

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        vf = self._vf
        data = self._task.data_type().model_validate(metadata_of(prompt)["task"])
        task = self._task(data, self._config.task)
        messages: list[Any] = []
        for message in prompt.messages:
            message_classes = {"system": vf.SystemMessage, "user": vf.UserMessage}
            message_class = message_classes.get(message.role, vf.AssistantMessage)
            messages.append(message_class(content=message.content))
        for step in completion.steps:
            parsed = step.parsed
            answer = vf.AssistantMessage(content=parsed.answer, reasoning_content=parsed.reasoning)
            messages.append(answer)
        prompt_length = len(messages) - len(completion.steps)
        nodes = [
            vf.MessageNode(
                parent=index - 1 if index else None,
                message=message,
                sampled=index >= prompt_length,
            )
            for index, message in enumerate(messages)
        ]
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            nodes=nodes,
            is_completed=True,
            ok=True,
        )
        await task.score(trace)
        if not trace.rewards or any(reward is None for reward in trace.rewards.values()):
            return Score(None, None, f"{self.name}: no reward", "verifier_error")
        parts = ", ".join(f"{name} {reward.value:g}" for name, reward in trace.rewards.items())
        return Score(trace.reward, completion.answer[:200], parts)
