"""Every file of real rows: each row is kept or dropped by name, and the figures are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_builders.rows.raw import Drop
from data_builders.rows.read import RowCounts, read_examples
from posttrain.config.source import SourceConfig

GSM8K = {"fields": {"prompt": "question", "completion": "answer"}}
# file, settings, dialect, kept, dropped
KNOWN: list[tuple[str, dict[str, Any], str, int, dict[str, int]]] = [
    ("gsm8k_train", GSM8K, "prompt_completion", 7473, {}),
    ("lf_alpaca_en", {}, "alpaca", 999, {}),
    ("lf_alpaca_zh", {}, "alpaca", 1000, {}),
    ("lf_dpo_en", {}, "chosen_rejected", 299, {}),
    ("toolset_preference", {}, "chosen_rejected", 400, {}),
    ("lf_glaive_toolcall_en", {}, "sharegpt", 299, {"bad_arguments": 1}),
    ("lf_kto_en", {}, "openai", 150, {"rejected_answer": 150}),
    ("lf_kto_en", {"where": {"label": True}}, "openai", 150, {"where": 150}),
    # one of its bad answers goes on with a turn of <|user|>
    ("lf_kto_en", {"metadata": ("label",)}, "openai", 299, {"template_markup": 1}),
    ("reasoning_ma_content", {}, "openai", 459, {"empty_answer": 9}),
    ("reasoning_ma_inline", {}, "inline_think", 311, {"empty_answer": 1}),
    ("sgd_openai_tools", {}, "openai", 699, {"bad_arguments": 1}),
    ("tau_bench_airline", {"where": {"reward": 1}}, "openai", 31, {"where": 69}),
    ("tau_bench_airline", {"ending": "drop"}, "", 0, {"ends_without_assistant": 100}),
    ("toolset_tools", {}, "openai", 9, {"undeclared_tools": 891}),
    ("mt_bench", {}, "", 0, {"unrecognised": 80}),
]


@pytest.mark.parametrize(("name", "settings", "dialect", "kept", "dropped"), KNOWN)
def test_the_figures_of_a_file(
    shared: Path, name: str, settings: dict[str, Any], dialect: str, kept: int,
    dropped: dict[str, int],
) -> None:  # fmt: skip
    report = RowCounts()
    assert read_all(shared, name, report, **settings) == kept + sum(dropped.values())
    assert (report.kept, dict(report.dropped)) == (kept, dropped)
    assert dict(report.dialects) == ({dialect: kept} if kept else {})


def read_all(shared: Path, name: str, counts: RowCounts | None = None, **settings: Any) -> int:
    """Rows of a file, none of which is lost."""
    path = shared / "data" / f"{name}.jsonl"
    config = SourceConfig(name=name, path=path.name, **settings)
    items = list(read_examples(config, path.parent, counts=counts))
    with path.open("rb") as lines:
        assert len(items) == sum(1 for line in lines if line.strip()), name
    assert all(item.reason for item in items if isinstance(item, Drop))
    return len(items)


def test_no_row_of_any_other_file_is_lost(shared: Path) -> None:
    names = {file.stem for file in (shared / "data").glob("*.jsonl")}
    assert len(names) >= 20
    assert all(read_all(shared, name) for name in sorted(names - {known[0] for known in KNOWN}))


def test_tool_use_is_read_whole(shared: Path) -> None:
    """Calls and results in the raw file, counted apart from our reading of them."""
    config = SourceConfig(name="sgd", path="sgd_openai_tools.jsonl",
                          filters={"bad_arguments": False})  # fmt: skip
    calls = results = 0
    for item in read_examples(config, shared / "data"):
        calls += sum(len(message.tool_calls) for message in item.messages)
        results += sum(message.role == "tool" for message in item.messages)
    text = (shared / "data" / "sgd_openai_tools.jsonl").read_text("utf-8")
    assert calls == text.count('"arguments": ') > 1900
    assert results == text.count('"tool_call_id": ') > 1900
