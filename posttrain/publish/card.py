"""Model card of a checkpoint: front matter that hubs read, commands to serve it, its lineage.

A card is its owner's to edit: no manifest binds it, and a later stage takes license, base model and
datasets over from the card in the folder. A license that nothing declares is written as unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from yaml import YAMLError

from posttrain.chat.reasoning import OPEN
from posttrain.chat.template import NEMOTRON_3_NANO_SHA256, ChatTemplate
from posttrain.config.paths import checkpoint_dtype, is_quantised
from posttrain.errors import DataError, RenderError
from posttrain.lineage import Node, trace
from posttrain.records import Message, ToolCall, message_to_template
from posttrain.runs import MANIFEST, Parent

CARD = "README.md"
UNKNOWN = "unknown"
_UNNAMED = "THIS_FOLDER_OR_HUB_ID"
# method → its name in the title, where that is no acronym
_TITLES = {"distill": "Distilled", "genrm": "GenRM", "lora": "Merged", "quantize": "Quantised"}
# licenses that data and models usually have, of those at
# https://huggingface.co/docs/hub/repositories-licenses; any other name goes into `license_name`
_IDENTIFIERS = (
    "apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigcode-openrail-m afl-3.0"
    " artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5"
    " cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0"
    " cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0"
    " cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl epl-2.0 eupl-1.1 eupl-1.2"
    " agpl-3.0 gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc mpl-2.0 ms-pl odbl odc-by pddl"
    " unlicense zlib gemma llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 other unknown"
)


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of a checkpoint, as far as recipes, manifests and cards declare them.

    Attributes:
        base_model: hub id of the model that training began with; None for random weights, or for a
            folder that names none.
        datasets: hub ids.
        licenses: names of models and data by their license; `unknown` where none is declared.
    """

    base_model: str | None
    datasets: tuple[str, ...]
    licenses: Mapping[str, tuple[str, ...]]


def origins_of(
    out: Path,
    *,
    base: str | None,
    parents: Sequence[Parent] = (),
    stats: Mapping[str, Any] | None = None,
    adapter: Path | None = None,
) -> Origins:
    """Collect what the base, the adapter's card and every artifact in the lineage declare.

    Args:
        out: folder of the checkpoint, which the paths of `parents` are relative to.
        base: folder or hub id of the model that training began with; None for random weights.
        stats: of the run, which may name inputs of its own.
        adapter: folder whose weights were merged into the base.
    """
    base_model: str | None = None
    datasets = set[str]()
    licenses: dict[str, set[str]] = {}

    def declare(origin: str, *declared_licenses: str | None) -> None:
        """Add an origin to its licenses; None, or no license at all, counts as unknown."""
        for license in declared_licenses or (UNKNOWN,):
            licenses.setdefault(license or UNKNOWN, set()).add(origin)

    if base is not None:
        card = _front_matter(base)
        if (Path(base) / MANIFEST).is_file():
            base_model = next(iter(_texts(card.get("base_model"))), None)
            datasets |= set(_texts(card.get("datasets")))
        elif not Path(base).is_dir():
            base_model = base
        declare("the model it began with", *_card_licenses(card))
    if adapter is not None:
        declare("the adapter", *_card_licenses(_front_matter(str(adapter))))
    nodes: dict[str, Node] = {}
    for parent in parents:
        if parent.kind != "checkpoint":  # the card of the base declares its own origins
            for node in trace(out / parent.path):
                nodes[node.digest] = node
    for node in nodes.values():
        if node.manifest is None:
            declare(f"the {node.kind} {node.digest[:12]}, which was not found")
            continue
        sources = list(_sources(node.manifest.config))
        datasets |= {source["hub"] for source in sources if source["hub"]}
        row_licenses = _row_licenses(node)
        if row_licenses:  # more exact than the recipe
            for name, license in row_licenses:
                declare(name, license)
        else:
            for source in sources:
                name = source.get("name") or source["hub"] or node.kind
                declare(str(name), source.get("license"))
    # RL names its prompts in the run's stats
    for prompt_file in (stats or {}).get("inputs", ()):
        if prompt_file["sha256"] is None:
            datasets.add(prompt_file["path"].partition("@")[0])
        declare(prompt_file["source"])
    ordered = {name: tuple(sorted(licenses[name])) for name in sorted(licenses)}
    return Origins(base_model, tuple(sorted(datasets)), ordered)


def _sources(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the mappings of a recipe that name a source of rows, by `hub` and `path`."""
    if isinstance(config, dict):
        row = cast(dict[str, Any], config)
        if "hub" in row and "path" in row:
            yield row
            return
        config = list(row.values())
    for value in cast(list[Any], config) if isinstance(config, list) else ():
        yield from _sources(value)


def _row_licenses(node: Node) -> list[tuple[str, str | None]]:
    """Distinct (source, license) of packed training rows, which may have licenses of their own."""
    from pyarrow import concat_tables, parquet

    files = sorted((node.path / "index").glob("train-*.parquet"))
    if not files:
        return []
    columns = ["source", "license"]
    table = concat_tables([parquet.read_table(file, columns=columns) for file in files])
    distinct_rows = table.group_by(columns).aggregate([]).to_pylist()
    return [(row["source"], row["license"]) for row in distinct_rows]


def _front_matter(model: str) -> dict[str, Any]:
    """YAML head of a model's card, in its folder or in the hub's cache; {} if it has none."""
    from huggingface_hub import ModelCard, try_to_load_from_cache

    file = Path(model) / CARD
    if not Path(model).is_dir():
        cached = try_to_load_from_cache(model, CARD)
        file = Path(cached) if isinstance(cached, str) else file
    if not file.is_file():
        return {}
    try:
        return ModelCard(file.read_text("utf-8"), ignore_metadata_errors=True).data.to_dict()
    except (ValueError, YAMLError):  # a head that is no YAML mapping
        return {}


def _card_licenses(card: Mapping[str, Any]) -> list[str]:
    name = card.get("license_name") if card.get("license") == "other" else None
    return _texts(name or card.get("license"))


def _texts(field: Any) -> list[str]:
    """Texts of a card's field, in which people write a text, a list, a number or nothing."""
    values = cast(list[Any], field) if isinstance(field, list) else [field]
    return [str(value) for value in values if value is not None]


def license_fields(licenses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """License fields of a card: an identifier of the hub, a name, "several", or `unknown`.

    `unknown` if any license is, or there is none.
    """
    names = {name.lower() for name in licenses}
    if not names or UNKNOWN in names:
        return {"license": UNKNOWN}
    name = names.pop() if len(names) == 1 else "several"
    if name in _IDENTIFIERS.split():
        return {"license": name}
    return {"license": "other", "license_name": name}


def checkpoint_card(
    method: str,
    origins: Origins,
    *,
    folder: Path,
    summary: Sequence[str],
    parents: Sequence[Parent],
    details: Sequence[str],
    serving: Sequence[str] | None = None,
) -> str:
    """Text of a card: Markdown with a YAML head.

    Args:
        method: name of the training method, such as `sft`.
        folder: of the checkpoint, with its tokenizer and template.
        summary: lines on what the run did.
        parents: artifacts that the lineage lists.
        details: further sections.
        serving: commands, as for `serving_section`.
    """
    from huggingface_hub import ModelCardData

    licenses: Any = license_fields(origins.licenses)
    head = ModelCardData(
        **licenses,
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=origins.base_model,
        base_model_relation="finetune" if origins.base_model else None,
        datasets=list(origins.datasets) or None,
        tags=[method],
    )
    lines = ["---", head.to_yaml(), "---", ""]
    lines += [f"# {_TITLES.get(method, method.upper())} checkpoint", "", *summary, ""]
    lines += [*marked("serving", serving_section(folder, name=_UNNAMED, commands=serving)), ""]
    lines += ["## Lineage", "", "| kind | digest |", "|---|---|"]
    lines += [f"| {parent.kind} | `{parent.digest}` |" for parent in parents]
    lines += ["", "## Licenses", "", "| license | of |", "|---|---|"]
    for license, declared_by in origins.licenses.items():
        lines.append(f"| {license} | {', '.join(declared_by)} |")
    lines += ["", *details, ""]
    return "\n".join(lines)


# -- how to serve it -------------------------------------------------------------------------------


def serving_section(folder: Path, *, name: str, commands: Sequence[str] | None = None) -> list[str]:
    """Lines of the card on serving: commands, the tokens that end generation, reasoning off.

    Args:
        name: folder or hub id of the checkpoint in the commands.
        commands: in place of the usual ones, with NAME for `name`; empty: nothing serves it yet.
    """
    dtype = checkpoint_dtype(folder)
    if is_quantised(folder):
        dtype = "bfloat16"  # vLLM refuses float32 for what is not in FP8
    # vLLM serves float32 in bfloat16 unless told
    flags = f" --dtype {dtype}" if dtype else ""
    thinking_key = None
    template = _own_template(folder)
    if template is not None:
        reasoning_name = reasoning_parser(template)
        if reasoning_name:
            flags += f" --reasoning-parser {reasoning_name}"
        tool_name = tool_parser(template)
        if tool_name:
            flags += f" --enable-auto-tool-choice --tool-call-parser {tool_name}"
        keys = ("enable_thinking", "thinking")
        thinking_key = next((key for key in keys if key in template.source), None)
    request: dict[str, Any] = {"model": name, "messages": [{"role": "user", "content": "7*8?"}]}
    if thinking_key:
        request["chat_template_kwargs"] = {thinking_key: True}
    stops = ", ".join(f"`{token}`" for token in stop_tokens(folder)) or "no token that it names"
    notes = f"Generation ends at {stops} (`generation_config.json`); the chat template is the "
    notes += "tokenizer's own."
    if thinking_key:
        notes += f" `{thinking_key}` false switches reasoning off."
    if commands is None:
        commands = ["posttrain chat NAME", "transformers serve NAME", f"vllm serve NAME{flags}"]
        if is_quantised(folder):
            commands = commands[2:]  # the others would load the weights without their scales
    if not commands:
        return ["## Serving", "", notes]
    return [
        "## Serving",
        "",
        "```bash",
        *(command.replace("NAME", name) for command in commands),
        "curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\",
        f"  -d '{json.dumps(request)}'",
        "```",
        "",
        notes,
    ]


def marked(name: str, lines: Sequence[str]) -> list[str]:
    """Lines of a section between marks, by which `replace_section` finds it."""
    return [f"<!-- posttrain: {name} -->", *lines, f"<!-- end of {name} -->"]


def replace_section(text: str, name: str, lines: Sequence[str]) -> str:
    """Replace a section of a card; a card without it gets it before the lineage, or at the end.

    Raises:
        DataError: the mark at the section's beginning has none at its end.
    """
    section = "\n".join(marked(name, lines))
    start_mark = f"<!-- posttrain: {name} -->"
    end_mark = f"<!-- end of {name} -->"
    head, opened, tail = text.partition(start_mark)
    _, closed, tail = tail.partition(end_mark)
    if opened and not closed:
        raise DataError(
            f"the card has {start_mark!r} without {end_mark!r}: put the second where the section "
            "ends, or remove the first"
        )
    if opened:
        return head + section + tail
    head, lineage, tail = text.partition("## Lineage\n")
    if lineage:
        return f"{head}{section}\n\n{lineage}{tail}"
    return f"{text.rstrip()}\n\n{section}\n"


def _own_template(folder: Path) -> ChatTemplate | None:
    file = folder / "chat_template.jinja"
    if not file.is_file():
        return None
    config = _json(folder / "tokenizer_config.json")
    variables = {key: value for key, value in config.items() if key.endswith("_token")}
    try:
        return ChatTemplate(file.read_text("utf-8"), variables=variables)
    except RenderError:
        return None


def reasoning_parser(template: ChatTemplate) -> str | None:
    """Name vLLM's parser for the reasoning that this template asks for; None without think tags."""
    if template.digest == NEMOTRON_3_NANO_SHA256:
        return "nemotron_v3"
    if OPEN not in template.source:
        return None
    question = [message_to_template(Message("user", "q"))]
    try:
        prompt = template.text(question, add_generation_prompt=True, enable_thinking=True)
    except RenderError:
        return None
    # behind a prompt that opens the reasoning there is no opening tag to find
    return "deepseek_r1" if prompt.rstrip().endswith(OPEN) else "qwen3"


def tool_parser(template: ChatTemplate) -> str | None:
    """Name vLLM's parser for this template's tool calls; None for a notation not known here."""
    call = Message("assistant", tool_calls=(ToolCall("f0", '{"a0": "b0"}', id="call00000"),))
    try:
        text = template.text([message_to_template(m) for m in (Message("user", "q"), call)])
    except RenderError:
        return None
    if re.search(r"<function=f0>\s*<parameter=a0>", text):
        return "qwen3_coder"
    return "hermes" if re.search(r'<tool_call>\s*\{"name": ?"f0"', text) else None


def stop_tokens(folder: Path) -> list[str]:
    """Texts of the tokens that end generation, or their ids where they are no added tokens."""
    configured = _json(folder / "generation_config.json").get("eos_token_id")
    if configured is None:
        return []
    ids = configured if isinstance(configured, list) else [configured]
    added = _json(folder / "tokenizer.json").get("added_tokens", ())
    texts = {token["id"]: token["content"] for token in added}
    return [str(texts.get(i, i)) for i in ids]


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
