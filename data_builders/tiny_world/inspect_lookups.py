"""Two tasks for inspect over the tiny world: prices and stocks to look up, and sums without tools.

inspect eval data_builders/tiny_world/inspect_lookups.py@lookups --model posttrain/runs/tiny/sft

recipes/tiny/eval_suite.yaml asks both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import match
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from inspect_ai.tool import ToolDef, ToolParam, ToolParams

# of this checkout: inspect changes into a task's folder to load it
WORLD = str(Path(__file__).absolute().parents[2] / "runs/tiny/world")


@task
def lookups(world: str = WORLD, count: int = 40) -> Task:
    """Questions about one item, which a tool answers: a call, its result, the answer."""
    rows = _rows(world, "lookups", count, lambda m: m["task"] == "one" and m["with_tools"])
    samples = [_sample(row) for row in rows]
    solvers = [declare(), generate()]
    return Task(dataset=MemoryDataset(samples), solver=solvers, scorer=match(location="exact"))


@task
def sums(world: str = WORLD, count: int = 40) -> Task:
    """Arithmetic without tools."""
    rows = _rows(world, "maths", count, lambda m: m["difficulty"] <= 2 and not m["with_tools"])
    samples = [_sample(row) for row in rows]
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match(numeric=True))


def _rows(
    world: str, family: str, count: int, is_in_task: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """First held-out rows of a family with one turn and a gold, whose metadata fit the task."""
    path = Path(world, "heldout", f"{family}.jsonl")
    rows: list[dict[str, Any]] = []
    for line in path.open(encoding="utf-8"):
        row = json.loads(line)
        metadata = row["metadata"]
        if metadata["turns"] == 1 and metadata["gold"] and is_in_task(metadata):
            rows.append(row)
    return rows[:count]


def _sample(row: dict[str, Any]) -> Sample:
    metadata = row["metadata"]
    return Sample(
        id=row["id"],
        input=row["messages"][-1]["content"],
        target=metadata["gold"],
        metadata={"state": metadata["initial_state"], "tools": row["tools"] or []},
    )


@solver
def declare() -> Solver:
    """Give each sample the tools that its row declares, over the items of its row."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        items = state.metadata["state"]
        state.tools = [_tool(row["function"], items).as_tool() for row in state.metadata["tools"]]
        return state

    return solve


def _tool(function: dict[str, Any], items: dict[str, dict[str, Any]]) -> ToolDef:
    kind = function["name"].removeprefix("get_")

    async def execute(item: str) -> str:
        return str(items.get(kind, {}).get(item, f"error: no {item}"))

    parameters = ToolParams(
        properties={"item": ToolParam(type="string", description="item")},
        required=["item"],
        additionalProperties=None,
    )
    return ToolDef(execute, function["name"], function["description"], parameters=parameters)
