"""The conversations on which deduplication and decontamination are measured: real sets in a folder.

sets_in(Path("../shared/data"))  →  {"gsm8k": [Example(…), …], "traces": […], …}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_builders.rows.examples import read_examples
from posttrain.config.load import validate
from posttrain.config.source import SourceConfig
from posttrain.records import Example

_PROMPT = {"dialect": "prompt_completion"}
SETS: dict[str, dict[str, Any]] = {
    "gsm8k": {
        **_PROMPT,
        "path": "gsm8k_train.jsonl",
        "fields": {"prompt": "question", "completion": "answer"},
    },
    "alpaca_en": {"path": "lf_alpaca_en.jsonl"},
    "alpaca_zh": {"path": "lf_alpaca_zh.jsonl"},
    "glaive": {"path": "lf_glaive_toolcall_en.jsonl"},
    "traces": {"path": ["reasoning_ma_content.jsonl", "reasoning_ma_inline.jsonl"]},
    "sgd": {"path": "sgd_openai_tools.jsonl"},
    "tau": {"path": "tau_bench_airline.jsonl"},
    "toolset": {"path": "toolset_tools.jsonl", "filters": {"undeclared_tools": False}},
    "reasoning_gym": {
        **_PROMPT,
        "path": "reasoning_gym_graded.jsonl",
        "fields": {"prompt": "question", "completion": "expected_answer"},
    },
}


def sets_in(folder: Path) -> dict[str, list[Example]]:
    """Every set whose rows can be read as conversations; other rows are left out."""
    found: dict[str, list[Example]] = {}
    for name, keys in SETS.items():
        source = validate({"name": name, **keys}, SourceConfig, where="benchmark")
        found[name] = [e for e in read_examples(source, folder) if isinstance(e, Example)]
    return found
