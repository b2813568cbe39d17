from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_builders.rows.where import Conditions, unmet

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
episodes = importlib.import_module("tiny_episodes")
WORLD: Any = SimpleNamespace(stats={"train_rows": {"maths": 9, "logs": 9, "calendar": 0}})


def sources(*pairs: tuple[str, Conditions | None]) -> list[dict[str, Any]]:
    return [{"path": f"train/{family}.jsonl", "where": where} for family, where in pairs]


def lineage(monkeypatch: pytest.MonkeyPatch, given: list[dict[str, Any]]) -> None:
    found: Iterator[Any] = iter(
        [
            SimpleNamespace(parents=[SimpleNamespace(kind="sft_data", path="../data")]),
            SimpleNamespace(config={"sources": given}),
        ]
    )
    monkeypatch.setattr(episodes, "read_artifact", lambda *_, **__: next(found))


def matching(wheres: Any, row: dict[str, int]) -> bool:
    return any(unmet(where, row) is None for where in wheres)


def test_a_family_taught_by_several_sources_keeps_every_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lineage(
        monkeypatch,
        sources(("maths", {"d": {"eq": 1}}), ("maths", {"d": {"eq": 3}}), ("logs", None)),
    )
    found = episodes.taught(Path("sft"), WORLD)
    assert [matching(found["maths"], {"d": d}) for d in (1, 2, 3)] == [True, False, True]
    assert found["logs"] == ()
    assert "calendar" not in found


def test_prompts_meet_one_of_the_conditions(tmp_path: Path) -> None:
    (tmp_path / "heldout").mkdir()
    rows = "".join(json.dumps({"d": d}) + "\n" for d in (1, 2, 3, 1, 2, 3))
    (tmp_path / "heldout" / "maths.jsonl").write_text(rows, "utf-8")
    either = ({"d": {"eq": 1}}, {"d": {"eq": 3}})
    assert [row["d"] for row in episodes.held_out_items(tmp_path, {"maths": either}, 4)] == [
        1,
        3,
        1,
        3,
    ]
    assert [row["d"] for row in episodes.held_out_items(tmp_path, {"maths": ()}, 3)] == [1, 2, 3]
