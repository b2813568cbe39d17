"""The slow truth: masks by rendering every prefix with `transformers` itself.

Nothing here shares code with `posttrain.chat` beyond the records: text comes from
`transformers.utils.chat_template_utils.render_jinja_template`, boundaries from string prefixes.
"""

from __future__ import annotations

import itertools
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from posttrain.records import Example, Message, message_to_template, tools_to_template


def hf_text(source: str, messages: list[Message], tools: str | None, **kwargs: Any) -> str:
    """`apply_chat_template(tokenize=False)` without needing a tokenizer."""
    rows = [message_to_template(m) for m in messages]
    text, _ = render_jinja_template(
        conversations=[rows], tools=tools_to_template(tools), chat_template=source, **kwargs
    )
    return text[0]


def naive_sequences(
    source: str, example: Example, **kwargs: Any
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Per sequence: its text, and the trained character spans, as NVIDIA's reference cuts them."""
    messages = list(example.messages)
    reasons = any(m.role == "assistant" and (m.reasoning or "").strip() for m in messages)
    kwargs = {**kwargs, "enable_thinking": reasons}
    if not reasons:
        spans = [k for k, m in enumerate(messages) if m.role == "assistant"]
        return [_naive(source, messages, example.tools, spans, kwargs)] if spans else []
    found: list[tuple[str, list[tuple[int, int]]]] = []
    users = [k for k, m in enumerate(messages) if m.role == "user"] + [len(messages)]
    for first, stop in itertools.pairwise(users):
        spans = [k for k in range(first, stop) if messages[k].role == "assistant"]
        if spans:
            found.append(_naive(source, messages[:stop], example.tools, spans, kwargs))
    return found


def _naive(
    source: str, messages: list[Message], tools: str | None, wanted: list[int], kwargs: Any
) -> tuple[str, list[tuple[int, int]]]:
    full = hf_text(source, messages, tools, **kwargs)
    spans: list[tuple[int, int]] = []
    for k in wanted:
        prompted = {**kwargs, "add_generation_prompt": True}
        modes = ({**prompted, "enable_thinking": on} for on in (True, False))
        prompts = [hf_text(source, messages[:k], tools, **mode) for mode in modes]
        start = max(len(p) for p in prompts if full.startswith(p))
        through = hf_text(source, messages[: k + 1], tools, **kwargs)
        spans.append((start, len(through)))
        assert full.startswith(through), (k, through[-80:], full[len(through) - 80 :][:160])
    return full, spans


def spans_of(sample: Any) -> list[tuple[int, int]]:
    """Trained character spans of a training sample, adjacent pieces merged."""
    spans: list[tuple[int, int]] = []
    at = 0
    for segment in sample.segments:
        stop = at + len(segment.text)
        if segment.trained:
            if spans and spans[-1][1] == at:
                spans[-1] = (spans[-1][0], stop)
            else:
                spans.append((at, stop))
        at = stop
    return spans
