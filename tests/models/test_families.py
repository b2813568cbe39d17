"""The recipes of recipes/models, each on a random model of its architecture with its real template.

Of the hub's models there are folders of their names: a vocabulary of bytes with the family's special
tokens and roles, and its template, from the installed TRL, from the real model (SmolLM2), or from
Mistral's own package in the environment of the real vLLM. Commands are those that a user types; sizes
are cut, and nothing else is changed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from posttrain.chat.template import packaged_template_source
from posttrain.config.recipe_files import read_mapping, recipe_file
from posttrain.models.load import build_model
from posttrain.tokens.tokenizer import special_ids
from scripts.__main__ import dispatch
from tests.models.tiny import TINY_HYBRID
from tests.sampling.small_models import byte_tokenizer
from tests.training.tiny import neither_measure_nor_draw

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What is particular to a family.

    config: of a small model of its architecture.
    tokens: special tokens of its vocabulary, beside the roles.
    roles: bos, eos, pad and unk of its tokenizer.
    turn_end: what its template writes behind an answer; its first token ends turns.
    pad: what is trained with.
    stops: the texts of the tokens at which its generation config stops.
    """

    config: dict[str, Any]
    tokens: tuple[str, ...]
    roles: dict[str, str]
    turn_end: str
    pad: str
    stops: tuple[str, ...]
    tools: bool = True


FAMILIES = {
    "smollm2": Family(
        {"model_type": "llama", **SMALL, "tie_word_embeddings": True},
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<empty_output>"),
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
         "unk_token": "<|endoftext|>"},
        "<|im_end|>\n", "<empty_output>", ("<|im_end|>",), tools=False,
    ),
    "qwen3": Family(
        {"model_type": "qwen3", **SMALL, "tie_word_embeddings": True},
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|image_pad|>"),
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "<|im_end|>\n", "<|endoftext|>", ("<|im_end|>", "<|endoftext|>"),
    ),
    "llama3": Family(
        {"model_type": "llama", **SMALL},
        ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
         "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
         "<|eot_id|>", "<|python_tag|>"),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "<|eot_id|>", "<|finetune_right_pad_id|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    ),
    "gemma3": Family(
        {"model_type": "gemma3_text", **SMALL, "sliding_window": 16,
         "layer_types": ["sliding_attention", "full_attention"]},
        ("<pad>", "<eos>", "<bos>", "<unk>", "<unused0>", "<start_of_turn>", "<end_of_turn>",
         "<start_of_image>"),
        {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
        "<end_of_turn>\n", "<pad>", ("<eos>", "<end_of_turn>"), tools=False,
    ),
    "mistral": Family(
        {"model_type": "mistral", **SMALL, "sliding_window": None},
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
         "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "<pad>", "<SPECIAL_20>"),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        "</s>", "<pad>", ("</s>",),
    ),
    "nemotron": Family(
        TINY_HYBRID,
        ("<unk>", "<s>", "</s>", "[INST]", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
         "<tool_call>", "</tool_call>", "<SPECIAL_20>"),
        {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"},
        "<|im_end|>\n", "<SPECIAL_20>", ("</s>", "<|im_end|>"),
    ),
}  # fmt: skip
TRL = {
    "qwen3": "trl:qwen3",
    "llama3": "trl:llama3_2",
    "gemma3": "trl:gemma3",
    "nemotron": "trl:nemotron_3_nano",
}
_MISTRAL = """
from mistral_common.integrations.chat_templates.template_generator import *
from mistral_common.tokens.tokenizers.base import TokenizerVersion
print(build_chat_template(TemplateConfig(version=TokenizerVersion.v3)), end="")
"""


def real_template(name: str) -> str:
    """The family's template; skips where its owner is not at hand."""
    if name in TRL:
        source = packaged_template_source(TRL[name])
        assert source is not None
        return source
    if name == "smollm2":
        folder = os.environ.get("POSTTRAIN_REAL_MODEL")
        if folder is None:
            pytest.skip("POSTTRAIN_REAL_MODEL names no SmolLM2")
        return (Path(folder) / "chat_template.jinja").read_text()
    environment = os.environ.get("POSTTRAIN_VLLM")
    if environment is None:
        pytest.skip("POSTTRAIN_VLLM names no vLLM, whose environment has Mistral's template")
    vllm = Path(environment)
    python = (vllm / "bin" if vllm.is_dir() else vllm.parent) / "python"
    done = subprocess.run([python, "-c", _MISTRAL], capture_output=True, text=True, check=True)
    return done.stdout


def write_hub_model(folder: Path, family: Family, template: str) -> None:
    tokenizer = byte_tokenizer(family.tokens, pad=None)
    for role, token in family.roles.items():
        setattr(tokenizer, role, token)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    ids = special_ids(tokenizer)
    torch.manual_seed(0)
    model = build_model({**family.config, "vocab_size": 320})
    model.generation_config.eos_token_id = [ids[token] for token in family.stops]
    model.save_pretrained(folder)


def write_data(folder: Path, *, tools: bool) -> None:
    declared = [{"type": "function", "function": {"name": "add", "description": "Adds.",
                "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for i in range(60):
        asked = {"role": "user", "content": f"What is {i} and 1?"}
        answer = {"role": "assistant", "content": f"It is {i + 1}."}
        messages = [asked, answer]
        if i % 3 == 0:
            messages = [{"role": "system", "content": "Be brief."}, *messages]
        row: dict[str, Any] = {"messages": messages}
        if tools and i % 3 == 1:
            function = {"name": "add", "arguments": json.dumps({"x": i})}
            call = {"id": f"call{i:05}", "type": "function", "function": function}
            result = {"role": "tool", "tool_call_id": f"call{i:05}", "content": f"{i + 1} it is"}
            calling = {"role": "assistant", "content": "", "tool_calls": [call]}
            row = {"messages": [asked, calling, result, answer], "tools": declared}
        rows.append(row)
    pairs = [
        {"prompt": f"What is {i} and 1?", "chosen": f"It is {i + 1}.", "rejected": "No idea."}
        for i in range(12)
    ]
    for name, lines in (("chat/rows.jsonl", rows), ("preferences.jsonl", pairs)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def trained_texts(data: Path, tokenizer: PreTrainedTokenizerFast) -> set[str]:
    """Every stretch of trained tokens of the shards, as text."""
    texts: set[str] = set()
    for file in sorted((data / "packed").glob("train-*.arrow")):
        for row in pa.ipc.open_stream(file).read_all().to_pylist():
            stretch: list[int] = []
            for label in [*row["labels"], -100]:
                if label != -100:
                    stretch.append(label)
                elif stretch:
                    texts.add(tokenizer.decode(stretch))
                    stretch = []
    return texts


@pytest.mark.parametrize("name", FAMILIES)
def test_the_recipes_of_a_family(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    family = FAMILIES[name]
    template = real_template(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    neither_measure_nor_draw(monkeypatch)
    hub = read_mapping(recipe_file(f"models/{name}/sft"))["model"]["path"]
    write_hub_model(tmp_path / hub, family, template)
    write_data(tmp_path / "data", tools=family.tools)
    sft, dpo = f"runs/models/{name}/sft", f"runs/models/{name}/dpo"
    on_cpu = ["launch.gpu=false", "trainer.bf16=false", "model.dtype=float32"]

    dispatch(
        [
            "build_sft",
            "--config",
            f"models/{name}/build_sft",
            *("packing.max_length=1536", "held_out.rate=0.1"),
        ]
    )
    dispatch(
        [
            "sft",
            "--config",
            f"models/{name}/sft",
            *on_cpu,
            *("trainer.max_steps=2", "trainer.gradient_accumulation_steps=1"),
        ]
    )
    (build_dpo,) = re.findall(
        "^# posttrain (build_dpo .*)", recipe_file(f"models/{name}/dpo").read_text(), re.M
    )
    dispatch(shlex.split(build_dpo))
    dispatch([
        "dpo", "--config", f"models/{name}/dpo", *on_cpu,
        *("batch=4", "trainer.max_steps=1", "trainer.warmup_steps=0"),
    ])  # fmt: skip

    # -- answers and calls are trained through what ends the family's turns, and nothing else is
    tokenizer = AutoTokenizer.from_pretrained(sft)
    texts = trained_texts(Path(f"{sft}_data"), tokenizer)
    assert all(text.endswith(family.turn_end) for text in texts)
    answers = {text.removesuffix(family.turn_end) for text in texts if text.startswith("It is ")}
    assert answers <= {f"It is {i + 1}." for i in range(60)}
    assert len(answers) > 30
    assert len(texts) > len(answers) if family.tools else len(texts) == len(answers)
    assert all("add" in text for text in texts if not text.startswith("It is "))
    # -- and both checkpoints stop there and pad with a token of no other use
    for checkpoint in (sft, dpo):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        assert tokenizer.chat_template == template
        assert tokenizer.pad_token == family.pad
        ids = special_ids(tokenizer)
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        assert model.config.model_type == family.config["model_type"]
        stops = model.generation_config.eos_token_id
        stops = {stops} if isinstance(stops, int) else {*stops}
        assert stops == {ids[text] for text in family.stops} - {ids[family.pad]}
        assert ids[family.turn_end.strip()] in stops
        assert model.generation_config.pad_token_id == ids[family.pad]
    # the adapters are merged, and every matrix that they name has changed
    base = AutoModelForCausalLM.from_pretrained(hub).state_dict()
    trained = AutoModelForCausalLM.from_pretrained(dpo).state_dict()
    changed = {key.split(".")[-2] for key in base if not torch.equal(base[key], trained[key])}
    assert changed >= {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}
    assert ("in_proj" in changed) is (name == "nemotron")
