"""A byte-level BPE for the tiny world: every digit one token, every tag one token, any text exact.

The some 200 words that Nemotron's template writes around tool declarations are two added tokens,
read off the template: they would fill half of a small model's context.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from posttrain.chat.template import ChatTemplate
from posttrain.runs import atomic_write_json, atomic_write_text

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CONTROL = (PAD, START, END)
# ordinary text to a decoder, so that skipping special tokens loses no reasoning and no call
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CONTEXT = 2048

# words (tool names among them), single digits, runs of XML-like tags, the rest
PIECES = r" ?\p{L}[\p{L}_]*|\p{N}|(?:\n?</?[a-z_]+[>=])+| ?[^\s\p{L}\p{N}<]+|<|\s"


def tool_frame(template: ChatTemplate) -> tuple[str, str]:
    """The constant text before and after the declared tools in a template's system block."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    text = template.text(
        [{"role": "user", "content": ""}], tools=[{"type": "function", "function": function}]
    )
    first, last = text.index("\n<function>"), text.index("</function>") + len("</function>")
    begin = text.index("\n", text.index(START)) + 1
    return text[begin:first], text[last : text.index(END)]


def train_tokenizer(texts: Iterable[str], *, template: ChatTemplate, vocab_size: int) -> Tokenizer:
    """Train on rendered conversations; deterministic for the same texts in the same order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    frame = [AddedToken(text, normalized=False) for text in tool_frame(template)]
    tags = [AddedToken(tag, normalized=False) for tag in TAGS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(frame) - len(tags),
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in CONTROL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in CONTROL]
    )
    tokenizer.train_from_iterator(
        _without(texts, [*tool_frame(template), *TAGS, *CONTROL]), trainer
    )
    tokenizer.add_tokens([*tags, *frame])
    return tokenizer


def _without(texts: Iterable[str], fixed: list[str]) -> Iterable[str]:
    """What is left of the texts once every added token is taken out: it needs no merges."""
    for text in texts:
        for token in fixed:
            text = text.replace(token, "\x00")
        yield from (piece for piece in text.split("\x00") if piece)


def write_tokenizer(tokenizer: Tokenizer, out: Path, *, template: ChatTemplate) -> list[str]:
    """Write the files `transformers.AutoTokenizer` reads; returns their names."""
    out.mkdir(parents=True, exist_ok=True)
    atomic_write_text(out / "tokenizer.json", tokenizer.to_str(pretty=False) + "\n")
    atomic_write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [START],
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    )
    atomic_write_text(out / "chat_template.jinja", template.source)
    return ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
