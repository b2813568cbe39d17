"""The shared real data, of large sources a part: text, masks and parsing, without exception."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from data_builders.rows.raw import Drop
from data_builders.rows.read import read_examples
from posttrain.chat import nemotron_3_nano_template, parse_completion, render, training_samples
from posttrain.config.filters import Filters, StructuralFilters
from posttrain.config.source import SourceConfig
from posttrain.records import Example, Message, with_messages
from posttrain.tokens.renderer import chat_template_of
from tests.chat.reference import naive_sequences, spans_of

NANO = nemotron_3_nano_template()
SOURCES = {
    "gsm8k_train": {"dialect": "prompt_completion", "fields": {"prompt": "question", "completion": "answer"}},
    "lf_alpaca_en": {}, "lf_alpaca_zh": {}, "lf_dpo_en": {}, "lf_glaive_toolcall_en": {}, "lf_kto_en": {},
    "reasoning_ma_content": {}, "reasoning_ma_inline": {}, "sgd_openai_tools": {},
    "tau_bench_airline": {}, "toolset_preference": {}, "toolset_tools": {},
}  # fmt: skip
END = "<|im_end|>\n"
# only what cannot be rendered is filtered here: faulty conversations must be masked right as well
_OFF = Filters(**dict.fromkeys(StructuralFilters.model_fields, False))


def records(shared: Path, name: str, most: int) -> list[Example]:
    """A fixed sample: about `most` records, evenly spaced."""
    config = SourceConfig(
        name=name, path=str(shared / "data" / f"{name}.jsonl"), filters=_OFF, **SOURCES[name]
    )
    kept = [r for r in read_examples(config, Path()) if not isinstance(r, Drop)]
    return kept[:: max(1, len(kept) // most)]


@pytest.mark.parametrize("name", SOURCES)
def test_text_masks_and_parsing_on_real_records(shared: Path, name: str):
    for record in records(shared, name, 12):
        samples = training_samples(record, NANO)
        expected = naive_sequences(NANO.source, record)
        assert samples
        assert [s.text for s in samples] == [text for text, _ in expected], record.id
        for sample, (_, spans) in zip(samples, expected, strict=True):
            assert spans_of(sample) == spans, record.id
            _check_spans(sample, record)


def _check_spans(sample, record: Example) -> None:
    """Only assistant text is trained, through its end token, and parsing it loses nothing."""
    spans = spans_of(sample)
    assert len(spans) == len(sample.trained_messages)
    for (start, stop), k in zip(spans, sample.trained_messages, strict=True):
        text = sample.text[start:stop]
        assert record.messages[k].role == "assistant"
        assert text.endswith(END)
        assert text.count("<|im_end|>") == 1
        prompt = sample.text[:start]
        assert prompt.endswith(("assistant\n<think>\n", "assistant\n<think></think>"))
        thinking = prompt.endswith("<think>\n")
        parsed = parse_completion(text, thinking=thinking, tools=record.tools)
        question = Message("user", "q")
        again = render([question, parsed.message()], NANO)
        assert again == render([question, record.messages[k]], NANO), record.id


def test_many_turns_with_reasoning_on_real_dialogues(shared: Path):
    """Real dialogues do not reason over several turns; give them traces, so that history drops them."""
    turns = 0
    for record in records(shared, "sgd_openai_tools", 15):
        traced = (
            replace(m, reasoning=f"So: {m.content}\n\nThat is {k}.")
            if m.role == "assistant" and k % 3
            else m
            for k, m in enumerate(record.messages)
        )
        reasoning = with_messages(record, traced)
        samples = training_samples(reasoning, NANO)
        expected = naive_sequences(NANO.source, reasoning)
        assert [(s.text, spans_of(s)) for s in samples] == expected
        turns += len(samples)
    assert turns > 90


@pytest.fixture(scope="module")
def tokenizer(shared: Path):
    return AutoTokenizer.from_pretrained(shared / "tokenizers" / "cl100k_chatml")


def test_segments_tokenise_to_the_ids_of_prompt_and_completion_apart(shared: Path, tokenizer):
    """Cut into segments or not, a prompt has the ids that inference would give it."""
    template = chat_template_of(tokenizer, choice="nemotron_3_nano")
    for name in ("tau_bench_airline", "reasoning_ma_inline", "lf_alpaca_zh"):
        for record in records(shared, name, 6):
            for sample in training_samples(record, template):
                for _, run in itertools.groupby(sample.segments, key=lambda s: s.trained):
                    texts = [segment.text for segment in run]
                    ids = [tokenizer.encode(t, add_special_tokens=False) for t in texts]
                    whole = tokenizer.encode("".join(texts), add_special_tokens=False)
                    assert [i for part in ids for i in part] == whole
