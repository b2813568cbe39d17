"""License, base model and data sets come from what declares them; the rest says unknown."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from posttrain.chat import nemotron_3_nano_template
from posttrain.chat.template import ChatTemplate
from posttrain.errors import DataError
from posttrain.publish.card import (
    CARD,
    Origins,
    checkpoint_card,
    license_fields,
    origins_of,
    reasoning_parser,
    replace_section,
    serving_section,
    tool_parser,
)
from posttrain.publish.derive import Derived, derive_checkpoint, read_source
from posttrain.publish.hub import upload_plan
from posttrain.runs import Counts, Run, open_run, parent_of, read_artifact
from tests.publish.writers import write_checkpoint


def source(name: str, *, license: str | None, hub: str | None = None) -> dict[str, Any]:
    return {"name": name, "hub": hub, "path": None if hub else f"{name}.jsonl", "license": license}


def write_data(folder: Path, sources: list[dict[str, Any]]) -> Path:
    run = Run.open(folder, kind="sft_data", config={"sources": sources})
    (folder / "rows.jsonl").write_text("{}\n")
    run.finish(counts=Counts(1, 1), files={"rows.jsonl": 1})
    return folder


def origins(out: Path, *data: Path, base: str | None = None, inputs: Any = ()) -> Origins:
    out.mkdir(exist_ok=True)
    parents = [parent_of(one, relative_to=out, manifest=read_artifact(one)) for one in data]
    return origins_of(out, base=base, parents=parents, stats={"inputs": inputs})


@pytest.mark.parametrize(
    ("method", "title"), [("sft", "# SFT checkpoint"), ("lora", "# Merged checkpoint")]
)
def test_a_card_is_named_after_what_was_done(tmp_path: Path, method: str, title: str):
    card = checkpoint_card(
        method, origins(tmp_path / "out"), folder=tmp_path, summary=[], parents=[], details=[]
    )
    assert f"\n{title}\n" in card


def test_a_card_of_a_hub_model_and_data(tmp_path):
    data = write_data(
        tmp_path / "data",
        [source("gsm", license="MIT", hub="openai/gsm8k"), source("own", license="MIT")],
    )
    found = origins(tmp_path / "out", data, base="Qwen/Qwen3-0.6B")
    assert found.base_model == "Qwen/Qwen3-0.6B"
    assert found.datasets == ("openai/gsm8k",)
    # the base's own card is not in this machine's cache
    assert found.licenses == {"MIT": ("gsm", "own"), "unknown": ("the model it began with",)}
    text = checkpoint_card("sft", found, folder=tmp_path, summary=[], parents=[], details=[])
    head = ModelCard(text).data
    assert (head.license, head.base_model) == ("unknown", "Qwen/Qwen3-0.6B")
    assert (head.base_model_relation, head.datasets) == ("finetune", ["openai/gsm8k"])
    assert (head.library_name, head.tags) == ("transformers", ["sft"])
    assert head.eval_results is None
    random = origins(tmp_path / "other", data)
    assert license_fields(random.licenses) == {"license": "mit"}
    assert random.base_model is None


def test_the_next_stage_takes_over_what_the_card_before_it_declares(tmp_path):
    first = Origins("Qwen/Qwen3-0.6B", ("openai/gsm8k",), {"Apache-2.0": ("…",)})
    policy = write_checkpoint(tmp_path / "sft", origins=first)
    data = write_data(tmp_path / "pairs", [source("p", license="apache-2.0", hub="a/b")])
    found = origins(tmp_path / "dpo", data, base=str(policy))
    assert found.base_model == "Qwen/Qwen3-0.6B"
    assert found.datasets == ("a/b", "openai/gsm8k")
    assert license_fields(found.licenses) == {"license": "apache-2.0"}
    # an owner's edit goes on, too
    text = (policy / CARD).read_text()
    (policy / CARD).write_text(text.replace("license: apache-2.0", "license: mit"))
    edited = origins(tmp_path / "dpo2", data, base=str(policy))
    assert license_fields(edited.licenses) == {"license": "other", "license_name": "several"}
    (policy / CARD).unlink()
    assert license_fields(origins(tmp_path / "dpo3", data, base=str(policy)).licenses) == {
        "license": "unknown"
    }


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("license: [mit", {"license": "unknown"}),
        ("license:", {"license": "unknown"}),
        ("license: [mit]", {"license": "mit"}),
        ("license: [mit, apache-2.0]", {"license": "other", "license_name": "several"}),
        ("license: other\nlicense_name: 3", {"license": "other", "license_name": "3"}),
        ("license: other\nlicense_name: acme", {"license": "other", "license_name": "acme"}),
    ],
)
def test_whatever_a_base_declares_is_carried_or_unknown(tmp_path, head, fields):
    """Cards are written by hand: none may end a training that is done."""
    (tmp_path / CARD).write_text(f"---\n{head}\n---\n")
    found = origins(tmp_path / "out", base=str(tmp_path))
    assert (found.base_model, license_fields(found.licenses)) == (None, fields)


def test_prompts_of_a_run_declare_no_license(tmp_path):
    rows = [{"source": "p", "path": "a/b@0123", "sha256": None},
            {"source": "q", "path": "q.jsonl", "sha256": "00"}]  # fmt: skip
    found = origins(tmp_path / "out", inputs=rows)
    assert found == Origins(None, ("a/b",), {"unknown": ("p", "q")})


HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<think>{% if add_generation_prompt %}"
)


@pytest.mark.parametrize(
    ("source", "reasoning", "calls"),
    [
        (nemotron_3_nano_template().source, "nemotron_v3", "qwen3_coder"),
        (nemotron_3_nano_template().source + " ", "deepseek_r1", "qwen3_coder"),
        (HERMES + "<|im_start|>assistant\n<think>\n{% endif %}", "deepseek_r1", "hermes"),
        (HERMES + "<|im_start|>assistant\n{% endif %}", "qwen3", "hermes"),
        ("{% for m in messages %}{{ m.content }}</s>{% endfor %}", None, None),
    ],
)
def test_the_parsers_follow_what_the_template_writes(source, reasoning, calls):
    template = ChatTemplate(source)
    assert reasoning_parser(template) == reasoning
    assert tool_parser(template) == calls


def test_the_serving_section_names_stops_and_the_switch(tmp_path):
    card = ModelCard((write_checkpoint(tmp_path / "sft") / CARD).read_text())
    assert "--reasoning-parser nemotron_v3 --enable-auto-tool-choice" in card.text
    assert '"chat_template_kwargs": {"enable_thinking": true}' in card.text
    assert "`<|im_end|>`" in card.text


def test_a_section_is_replaced_where_it_stands_and_else_put_before_the_lineage():
    once = replace_section("# A\n\n## Lineage\n\nx\n", "evaluation", ["e1"])
    assert once.index("e1") < once.index("## Lineage")
    twice = replace_section(once, "evaluation", ["e2"])
    assert "e1" not in twice
    assert twice.replace("e2", "e1") == once
    assert replace_section("# A\n", "evaluation", ["e1"]).endswith("end of evaluation -->\n")
    with pytest.raises(DataError, match="without '<!-- end of evaluation -->'"):
        replace_section(once.replace("<!-- end of evaluation -->", ""), "evaluation", ["e2"])


def test_the_command_of_vllm_names_the_precision_of_the_weights(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    assert "vllm serve x --dtype float32" in serving_section(tmp_path, name="x")


@pytest.mark.parametrize("serving", [["int8-server NAME --slots 2"], []])
def test_a_derived_checkpoint_names_what_serves_it_on_both_cards(tmp_path: Path, serving):
    source = write_checkpoint(tmp_path / "sft")

    def write(folder: Path) -> Derived:
        folder.mkdir()
        for name in ("model.safetensors", "config.json"):
            shutil.copyfile(source / name, folder / name)
        return Derived(["Weights in int8."], {"method": "int8"}, serving)

    with open_run(tmp_path / "int8", kind="checkpoint", config={"int8": {}}) as run:
        sources = [read_source(source)]
        derive_checkpoint(run, method="int8", sources=sources, base=str(source), write=write)
    written = (run.path / CARD).read_text("utf-8")
    pushed = upload_plan(run.path, "acme/tiny").card
    for card, name in ((written, "THIS_FOLDER_OR_HUB_ID"), (pushed, "acme/tiny")):
        assert "transformers serve" not in card
        assert (f"int8-server {name} --slots 2" in card) is bool(serving)
        assert ("curl" in card) is bool(serving)
