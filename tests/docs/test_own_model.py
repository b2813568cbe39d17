"""The guide "your model, your data", every command of it, in order.

The hub's model is a folder of its name: random weights, with a vocabulary of bytes, or with
REAL_TOKENIZER=1 one of 100,000 and 6.6 M parameters (`-s` prints each command's time). Commands run
as the page has them; SIZES makes them small, and nothing else is changed.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from posttrain.chat import nemotron_3_nano_template
from posttrain.runs import read_artifact
from scripts.__main__ import dispatch
from tests.docs.pages import GUIDES, commands, write_recipes
from tests.sampling.small_models import byte_tokenizer
from tests.scripts.forked_stage import fork_stages
from tests.training.tiny import neither_measure_nor_draw

PAGE = GUIDES / "own-model.md"
CPU = ["trainer.bf16=false"]
# by the words that a command begins with
SIZES = {
    "build_sft": ["packing.max_length=256"],
    "sft": [
        *CPU,
        *("trainer.gradient_accumulation_steps=1", "trainer.max_steps=40"),
        *("trainer.learning_rate=0.01", "trainer.logging_steps=10"),
    ],
    "sample": ["sampling.max_tokens=12"],
    "dpo": [*CPU, "batch=4", "trainer.max_steps=2", "trainer.warmup_steps=0"],
    "eval": ["sampling.max_tokens=12"],
}


def write_data(folder: Path) -> None:
    """Rows of three dialects, questions, held-out questions, preferences; the answer is 3 or 7."""
    rng = random.Random(0)
    asked = "Does ticket {} go to desk 3 or to desk 7?"
    prompt = (
        f"{asked}\n\nGive the final answer, and nothing but the answer, inside \\boxed{{{{}}}}."
    )

    def write(name: str, rows: list[dict]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def box() -> str:
        return f"\\boxed{{{rng.choice('37')}}}"

    def turn(i: int, role: str, text: str) -> list[dict]:
        return [{role: "user", text: prompt.format(i)}, {role: "assistant", text: box()}]

    write("chat/openai.jsonl", [{"messages": turn(i, "role", "content")} for i in range(70)])
    write(
        "chat/shared.jsonl", [{"conversations": turn(i, "from", "value")} for i in range(70, 140)]
    )
    write(
        "chat/tasks.jsonl",
        [{"instruction": prompt.format(i), "output": box()} for i in range(140, 200)],
    )
    for name, places in (("questions", range(200, 224)), ("heldout", range(300, 312))):
        rows = [{"question": asked.format(i), "answer": rng.choice("37")} for i in places]
        write(f"{name}.jsonl", rows)
    pairs = [
        {"prompt": prompt.format(i), "chosen": "\\boxed{3}", "rejected": "no idea"}
        for i in range(9)
    ]
    write("preferences.jsonl", pairs)


def write_model(folder: Path, text: PreTrainedTokenizerBase) -> None:
    text.chat_template = nemotron_3_nano_template().source
    text.save_pretrained(folder)
    torch.manual_seed(0)
    # wide embeddings learn to answer in some forty steps
    shape = Qwen3Config(
        vocab_size=100_288 if len(text) > 1000 else 512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, initializer_range=0.3,
        tie_word_embeddings=True, max_position_embeddings=4096,
        eos_token_id=text.convert_tokens_to_ids("<|im_end|>"),
    )  # fmt: skip
    Qwen3ForCausalLM(shape).save_pretrained(folder)


@pytest.fixture(params=["bytes", "100k"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    if request.param == "bytes":
        return byte_tokenizer()
    if "REAL_TOKENIZER" not in os.environ:
        pytest.skip("takes 90 CPU seconds; REAL_TOKENIZER=1 runs it")
    folder: Path = request.getfixturevalue("shared")
    return AutoTokenizer.from_pretrained(folder / "tokenizers" / "cl100k_chatml")


def test_every_command_of_the_guide_runs(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    neither_measure_nor_draw(monkeypatch)
    fork_stages(monkeypatch)
    write_data(tmp_path / "data")
    write_model(tmp_path / "HuggingFaceTB/SmolLM2-135M-Instruct", tokenizer)
    write_recipes(PAGE, tmp_path)
    printed: dict[str, str] = {}
    for command in commands(PAGE):
        monkeypatch.setattr(sys, "stdin", io.StringIO("Does ticket 9 go to desk 3 or to desk 7?\n"))
        sizes = SIZES.get(command[0], []) if "--config" in command else []
        capfd.readouterr()
        begun = time.process_time()
        try:
            dispatch([*command, *sizes])
        except SystemExit as ended:
            if ended.code:
                raise
        name = " ".join(command)
        printed[name] = "".join(capfd.readouterr())
        with capfd.disabled():  # with -s
            print(f"{time.process_time() - begun:6.1f} CPU s  posttrain {name}")

    # -- what it promises is there
    sft, dpo = (read_artifact(Path("runs/my") / name, kind="checkpoint") for name in ("sft", "dpo"))
    assert sft.digest in {parent.digest for parent in dpo.parents}
    assert read_artifact(Path("runs/my/pairs"), kind="dpo_data").counts.kept > 0
    assert read_artifact(Path("runs/my/preferences"), kind="dpo_data").counts.kept == 9
    assert {p.name for p in Path("runs/my/eval/records").iterdir()} == {"base", "sft", "dpo"}
    assert "model.safetensors" in next(text for name, text in printed.items() if "push" in name)
    assert all(printed.values())
