"""Seeds that several kinds read: conversations of any dialect, prompts, and plain rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from data_builders.prompts.build import PromptPlan
from data_builders.rows.raw import Drop
from data_builders.rows.read import RowCounts, read_examples, read_rows
from data_builders.synthesis.sources import as_source_config
from data_builders.synthesis.steps import Discarded, Seed, SeedSet
from posttrain.config.source import RowPlace, SourceConfig
from posttrain.records import Example, Message, content_id, make_example
from posttrain.rollouts import Prompt

Row = dict[str, Any]
RowSource = TypeVar("RowSource", bound=RowPlace)
_BASE = Path()  # paths in a recipe are relative to the working directory


def chat_seeds(sources: Sequence[SourceConfig]) -> SeedSet:
    """Read conversations; the content of a seed is its `Example`."""
    result = SeedSet([])
    known_ids: set[str] = set()
    source_stats: Row = {}
    for source in sources:
        counts = RowCounts()
        for example in read_examples(source, _BASE, counts=counts):
            if isinstance(example, Drop):
                result.dropped[example.reason] += 1
            elif example.id in known_ids:
                result.dropped["duplicate"] += 1
            else:
                known_ids.add(example.id)
                result.seeds.append(Seed(example.id, example, example))
        source_stats[source.name] = counts.stats()
    result.stats = {"sources": source_stats}
    return result


def prompt_seeds(plan: PromptPlan) -> SeedSet:
    """Build the prompts of a plan; the content of a seed is its `Prompt`."""
    prompt_set = plan.build()
    seeds = [Seed(prompt.id, prompt, example_of(prompt)) for prompt in prompt_set.prompts]
    return SeedSet(seeds, stats=prompt_set.stats())


def example_of(prompt: Prompt) -> Example:
    """Conversation of a prompt, for decontamination and the comparison with the result."""
    return make_example(prompt.messages, tools=prompt.tools, source=prompt.source, dialect="prompt")


def plain_seeds(
    sources: Sequence[RowSource], content_of: Callable[[Row, RowSource], tuple[str, Any]]
) -> SeedSet:
    """Read rows that are no conversations.

    Args:
        content_of: function of a row and its source that returns the text that stands for the row
            and the content of the seed; it raises Discarded for a row that cannot be used.
    """
    result = SeedSet([])
    known_ids: set[str] = set()
    source_stats: Row = {}
    for source in sources:
        counts = RowCounts()
        for raw in read_rows(as_source_config(source), _BASE):
            counts.rows_in += 1
            try:
                if isinstance(raw, Drop):
                    raise Discarded(raw.reason, raw.detail)
                text, content = content_of(raw.row, source)
                messages = (Message("user", text),)
                seed_id = content_id(messages, None)
                if seed_id in known_ids:
                    raise Discarded("duplicate")
            except Discarded as problem:
                counts.drop(problem.reason, problem.detail)
                result.dropped[problem.reason] += 1
                continue
            known_ids.add(seed_id)
            counts.kept += 1
            example = make_example(messages, source=source.name, dialect="plain")
            result.seeds.append(Seed(seed_id, content, example))
        source_stats[source.name] = counts.stats()
    result.stats = {"sources": source_stats}
    return result


def row_texts(source: RowPlace, path: str) -> list[str]:
    """Read the texts under a dotted path of a source's rows; rows without one are left out."""
    texts: list[str] = []
    for raw in read_rows(as_source_config(source), _BASE):
        if isinstance(raw, Drop):
            continue
        with contextlib.suppress(Discarded):
            texts.append(text_field(raw.row, path))
    return texts


def text_field(row: Row, path: str) -> str:
    """Read the text or number under a dotted path of a row. Raises Discarded without one."""
    value = row_value(row, path)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise Discarded("malformed_row", f"{path} is no text")
    return value.strip()


def row_value(row: Row, path: str) -> Any:
    """Value under a dotted path of a row; None without one."""
    value: Any = row
    for key in path.split("."):
        value = cast(Row, value).get(key) if isinstance(value, dict) else None
    return value
