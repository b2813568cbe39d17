"""A recipe file and command-line overrides → one validated schema instance."""

import difflib
import functools
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar, cast

from pydantic import BaseModel, ValidationError

from posttrain.config.recipe_files import parse_value, read_mapping, recipe_file
from posttrain.errors import ConfigError

Schema = TypeVar("Schema", bound=BaseModel)
_ABSENT: Any = object()
# in an annotation: one block may stand in place of a list, of which the schema makes a list
OR_ONE = object()
_MAX_PROPOSALS = 3  # keys that a message proposes

# old keys whose new name is not the nearest in letters (docs/reference/renamed.md), and words of
# other trainers
_RENAMED = {
    "capacity": "max_length",
    "cycle_words": "min_words",
    "edits": "threshold",
    "epochs": "num_train_epochs",
    "given": "offline",
    "isolation": "document_masking",
    "limits": "sampling",
    "lr": "learning_rate",
    "output_dir": "out",
    "parameters": "sampling",
    "samples": "n",
    "spool": "parts_dir",
    "updates": "num_iterations",
    "weight": "share",
}
_MODEL_KEYS = ("checkpoint", "checkpoints.NAME", "model.path", "tokenizer.path")
_DATA_KEYS = ("data", "sources.N.path", "prompts.N.path")
# words of other trainers' commands → keys here, of which a recipe has one or none; users choose
# `NAME`. A key of the same name at any depth is proposed first, but for words of `_AMBIGUOUS`
_FOREIGN_WORDS: dict[str, tuple[str, ...]] = {
    "checkpoint": ("checkpoint", "checkpoints.NAME", "model.path"),
    "model": _MODEL_KEYS,
    "name": ("model.path", "tokenizer.path"),
    "model_name_or_path": _MODEL_KEYS,
    "model_name": _MODEL_KEYS,
    "model_id": _MODEL_KEYS,
    "model_path": _MODEL_KEYS,
    "base_model": _MODEL_KEYS,
    "data": ("sources.N.path", "prompts.N.path", "samples"),
    "dataset": _DATA_KEYS,
    "dataset_name": _DATA_KEYS,
    "datasets": _DATA_KEYS,
    "train_file": _DATA_KEYS,
    "data_path": _DATA_KEYS,
    "dataset_path": _DATA_KEYS,
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "micro_batch_size", "per_device_batch_size"),
        ("backend.batch_size", "batch", "trainer.per_device_train_batch_size"),
    ),
    **dict.fromkeys(
        ("grad_accum", "gradient_accumulation", "accumulation_steps", "accumulate_grad_batches"),
        ("trainer.gradient_accumulation_steps",),
    ),
    **dict.fromkeys(
        ("max_seq_length", "max_seq_len", "seq_length", "sequence_len", "cutoff_len", "block_size"),
        ("packing.max_length", "max_length"),
    ),
    **dict.fromkeys(
        ("max_new_tokens", "max_completion_length", "max_gen_toks", "max_gen_tokens"),
        ("sampling.max_tokens",),
    ),
    **dict.fromkeys(
        ("num_samples", "n_samples", "num_return_sequences", "samples_per_prompt"),
        ("n", "num_generations"),
    ),
    **dict.fromkeys(
        ("num_rollouts", "rollouts_per_prompt", "group_size"),
        ("n", "num_generations"),
    ),
    **dict.fromkeys(
        ("limit", "max_samples", "max_examples", "max_prompts", "max_rows"),
        ("prompts.N.count",),
    ),
    "temp": ("sampling.temperature",),
    "lora_r": ("adapter.rank",),
    "lora_rank": ("adapter.rank",),
    "lora_alpha": ("adapter.alpha",),
    "lora_dropout": ("adapter.dropout",),
    "lora_target": ("adapter.modules",),
    "target_modules": ("adapter.modules",),
    "steps": ("trainer.max_steps",),
    "wd": ("trainer.weight_decay",),
    "kl_coef": ("loss.kl",),
    "template": ("tokenizer.chat_template", "backend.chat_template"),
}
# so many blocks have keys of these names that a key of the same name is rarely what is meant
_AMBIGUOUS = ("checkpoint", "model", "data")
# keys that moved to another block, in the recipes that have that block
_MOVED = {
    "sampling.batch_size": "rollouts.batch_size",
    "sampling.server": "rollouts",
}
_GROUP_STAGES = ("distill", "genrm", "rlhf", "rlvr")
# removed keys with the reason, by the stages that had them and by their path without positions in
# lists; users choose `NAME`. Other stages may have a key of the same path
_REMOVED: dict[tuple[str, ...], dict[str, str]] = {
    ("rlhf",): {
        "length.absolute_penalty": "length control is relative to the group, as in the paper",
        "length.style_coefficient": "markup is no part of the reward",
    },
    _GROUP_STAGES: {
        "loss.importance.geometric_low": "a completion is left out by sequence_limit alone",
        "loss.importance.geometric_high": "a completion is left out by sequence_limit alone",
        "loss.importance.product_high": "a completion is left out by sequence_limit alone",
        "loss.malformed_call_advantage": "a malformed completion has the advantage of its reward",
        "loss.malformed_tag_advantage": "a malformed completion has the advantage of its reward",
        "guard.window": "it is four batches everywhere",
    },
    ("rlvr",): {
        "curriculum.pools": "difficulty pools have the same bounds and shares everywhere",
    },
    ("dpo",): {
        "chosen_floor": "it is -0.02 everywhere",
        "loss.kl_weight": "the KL coefficient of the paper is loss.beta",
    },
    ("eval", "eval_genrm", "profile_prompts", "sample"): {
        "sampling.logps": "no stage reads log-probabilities of samples",
    },
    ("build_dpo",): {
        "shard_pairs": "it is 8,192 everywhere",
        "match_length": "pairs are drawn whatever their lengths; the page shows both sides'",
        "rule": "pairs use each completion as evenly as can be; pairs_per_prompt bounds their "
        "number",
        "thinking_on": "choose by the settings that the samples were asked in",
    },
    ("build_sft",): {
        "part_bytes": "it is 64 MiB everywhere",
        "tokenizer.backend": "tiktoken is used where it gives the same ids",
        "sources.filters.language.letters": "it is 200 everywhere",
        "sources.filters.truncated.slack": "it is 0.01 everywhere",
        "sources.filters.repetition.compression_ratio": "it is 3.0 everywhere",
        "sources.filters.repetition.cycle_share": "it is 0.9 everywhere",
        "sources.filters.repetition.duplicate_share": "it is 0.9 everywhere",
        "sources.filters.repetition.min_rounds": "it is 3 everywhere",
        "sources.filters.repetition.ngram": "it is 6 everywhere",
        "sources.filters.repetition.window": "it is 100 everywhere",
    },
    ("audit", "build_sft"): {
        "limits.min_trained": "the page shows the share of trained tokens",
        "limits.max_empty_think": "the page shows how many answers follow an empty trace",
    },
    ("rlhf", "win_rate"): {"judge.chunk": "it is 1,024 everywhere"},
    ("synthesize",): {
        "chunk": "completions of a model in process are saved 1,024 at a time here",
        "make.band": "it is 0.5 everywhere",
        "make.letters": "it is 80 everywhere",
        "make.confidence": "it is 0.9 everywhere",
        "make.longest": "it is 20,000 for a turn of continue_chat, 2,000 for a query of "
        "instructions",
    },
    ("eval", "synthesize"): {"prices.NAME.reasoning": "reasoning costs what output does"},
    ("tiny_world",): {
        "verbosity": "it is 0.4 terse, 0.3 plain and 0.3 chatty everywhere",
        "tokenizer.vocab_size": "it is 1,024 everywhere",
        "tokenizer.rows_per_family": "it is 400 everywhere",
        "families.NAME.several_turns": "it is 0.1 everywhere",
    },
    ("tiny_judgements",): {"layout": "it is compact everywhere"},
    ("eval",): {
        "estimate.tokens_per_second": "a dry run measures how fast a model in this process is",
    },
    ("build_genrm",): {
        "sft": "rows of judgements for SFT are data of build_sft",
        "sources.fields.reasoning": "rows of judgements for SFT are data of build_sft",
    },
}
_REMOVED_EVERYWHERE = {"extends": "a recipe is one file"}


def read_recipe(path: Path | str) -> dict[str, Any]:
    """Read the mapping of a recipe, given its file or the name of a shipped recipe.

    Raises:
        ConfigError: as `read_mapping`.
    """
    return read_mapping(recipe_file(path))


def load_recipe(
    path: Path | str,
    schema: type[Schema],
    overrides: Sequence[str] = (),
    *,
    read: Callable[[str], dict[str, Any]] = read_recipe,
) -> Schema:
    """Read a recipe, apply the overrides and validate the result.

    Args:
        overrides: `key.path=value`; null removes a key whose field takes no null.
        read: function that reads the recipe's mapping, given `path`.

    Raises:
        ConfigError: naming the file, the dotted key, and the nearest valid key or expected type.
    """
    raw = apply_overrides(read(str(path)), overrides)
    null_keys: list[str] = []
    for override in overrides:
        key, _, text = override.partition("=")
        # an empty value is a shell's unset variable, not a null
        if text.strip() and parse_value(text) is None:
            null_keys.append(key)
    if null_keys:
        try:
            schema.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            # the key is the last part of a location, or the last but one where the last part names
            # the member of a union that was tried
            tails = [problem["loc"][-2:] for problem in error.errors() if problem["input"] is None]
            for key in null_keys:
                parts = key.split(".")
                if any(parts[-1] in tail for tail in tails):
                    raw = _with_value(raw, parts, _ABSENT, full_key=key)
    return validate(raw, schema, where=str(path))


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `key.path=value` overrides; a position addresses a list's item (`sources.0.rows=5`).

    Raises:
        ConfigError: an override is malformed, given twice, or addresses nothing.
    """
    seen: set[str] = set()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {override!r} is not of the form key.path=value")
        if key in seen:
            raise ConfigError(f"override {key!r} is given twice")
        seen.add(key)
        raw = _with_value(raw, key.split("."), parse_value(text), full_key=key)
    return raw


def _with_value(node: Any, parts: list[str], value: Any, *, full_key: str) -> Any:
    """Copy a node with `value` at the path `parts` below it; `_ABSENT` removes the key there."""
    head = parts[0]
    parts_below = parts[1:]
    if isinstance(node, list):
        children = list(cast(list[Any], node))
        if not head.isdecimal() or int(head) >= len(children):
            raise ConfigError(
                f"override {full_key!r}: {head!r} is no position in 0…{len(children) - 1}"
            )
        position = int(head)
        if parts_below:
            value = _with_value(children[position], parts_below, value, full_key=full_key)
        children[position] = value
        return children
    if node is not None and not isinstance(node, dict):
        raise ConfigError(f"override {full_key!r}: nothing can be set below the value {node!r}")
    mapping = dict(cast(dict[str, Any], node or {}))
    if parts_below:
        value = _with_value(mapping.get(head), parts_below, value, full_key=full_key)
    if value is _ABSENT:
        mapping.pop(head, None)
    else:
        mapping[head] = value
    return mapping


def validate(raw: Mapping[str, Any], schema: type[Schema], *, where: str) -> Schema:
    """Validate a raw mapping against a schema.

    Args:
        where: name of the recipe, for messages.

    Raises:
        ConfigError: listing every problem with its dotted key.
    """
    try:
        # strict JSON mode: no coercion of scalars, but a list may fill a tuple and text a Path
        return schema.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        problems = error.errors()
        unknown_keys = [key for key in raw if key not in schema.model_fields]
        # mostly unknown keys: the recipe of another stage, for which one line says more
        if len(unknown_keys) > len(raw) / 2 and len(raw) > 2:
            raise ConfigError(
                f"{where}: {', '.join(unknown_keys)} are no keys of this stage, which has "
                f"{', '.join(schema.model_fields)}: {_stage_hint(raw)}"
            ) from None
        locations_above: set[tuple[Any, ...]] = set()
        for problem in problems:
            location = problem["loc"]
            locations_above.update(location[:depth] for depth in range(len(location)))
        reported: list[Any] = []
        for problem in problems:
            # pydantic calls a list "too short" whose items it refused
            if problem["type"] != "too_short" or problem["loc"] not in locations_above:
                reported.append(problem)
        lines = [
            _explain(problem, schema, raw) for problem in _merge_alternatives(reported, raw, schema)
        ]
        raise ConfigError(f"{where}: " + "\n  ".join(lines)) from None


def _merge_alternatives(
    problems: Sequence[Any], raw: Mapping[str, Any], schema: type[BaseModel]
) -> list[Any]:
    """Join the problems that pydantic lists for one value, one for each type that it may have."""
    merged: dict[tuple[Any, ...], Any] = {}
    for problem in problems:
        *above, alternative = problem["loc"] or ("",)
        # without the tags of unions, which may be named as a key beside them is (`question`)
        written, _ = _written_path(schema, above)
        value = _value_at(raw, written)
        # "[key]" ends the location of a mapping's key that is none of the allowed words
        if alternative == "[key]" or value is _ABSENT or isinstance(value, (dict, list)):
            merged[*above, alternative] = problem
            continue
        # a scalar has no keys: the last part of the location names one of its alternative types
        location = tuple(above)
        message = problem["msg"]
        if location in merged:
            message = f"{merged[location]['msg']}, or {message[:1].lower()}{message[1:]}"
        merged[location] = {**problem, "loc": location, "msg": message}
    return list(merged.values())


def _value_at(raw: object, path: Sequence[str]) -> object:
    """Value at a path of a recipe as it was written; `_ABSENT` if there is no such path."""
    value = raw
    for part in path:
        if isinstance(value, dict) and part in value:
            value = cast(dict[Any, Any], value)[part]
        elif isinstance(value, list) and part.isdecimal():
            children = cast(list[Any], value)
            index = int(part)
            value = children[index] if index < len(children) else _ABSENT
        else:
            return _ABSENT
    return value


def _blocks_at(schema: type[BaseModel], location: Sequence[Any]) -> list[type[BaseModel]]:
    """Schemas of the blocks that may stand at a location of a recipe."""
    blocks = [schema]
    for part in map(str, location):
        fields = [block.model_fields[part] for block in blocks if part in block.model_fields]
        if fields:
            members: list[Any] = []
            for field in fields:
                members += [member for _, member in parts_of(field.annotation)]
            blocks = [member for member in members if is_block(member)]
    return blocks


def _stage_hint(raw: Mapping[str, Any]) -> str:
    """Name the stages whose schema has all keys of a recipe."""
    from posttrain.config.schemas import stage_schemas  # it imports this module

    fitting: list[str] = []
    for stage, schema in stage_schemas().items():
        if raw.keys() <= schema.model_fields.keys():
            fitting.append(stage)
    if not fitting:
        return "is it a recipe of another one?"
    return f"it is a recipe of {' or '.join(fitting)}"


def _without_added_positions(raw: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    """Path as the recipe has it, without the position of a block that may be a list and is none."""
    written: list[str] = []
    for part in path:
        value = _value_at(raw, written)
        if not (part.isdecimal() and isinstance(value, dict) and part not in value):
            written.append(part)
    return written


def _explain(problem: Any, schema: type[BaseModel], raw: Mapping[str, Any]) -> str:
    """Put one of pydantic's problems into a line that says what to write instead."""
    error_type = problem["type"]
    context = problem.get("ctx", {})
    value = problem["input"]
    path, siblings = _written_path(schema, problem["loc"])
    dotted = ".".join(_without_added_positions(raw, path))
    if error_type == "extra_forbidden":
        moved = _MOVED.get(dotted)
        if moved is not None and moved.split(".")[0] in schema.model_fields:
            return f"unknown key {dotted!r} (moved: {moved!r})"
        # `packing.max_length=8` in a recipe without packing: the hint is for the full path, while
        # pydantic reports `packing`
        while isinstance(value, dict) and len(cast(dict[str, Any], value)) == 1:
            [(key, value)] = cast(dict[str, Any], value).items()
            path = [*path, key]
        return f"unknown key {dotted!r}{key_hint(schema, path, dotted, siblings)}"
    if error_type == "literal_error" and path[-1] == "[key]":  # a mapping with fixed words as keys
        allowed = context["expected"].split("'")[1::2]
        *above, name = path[:-1]
        renamed = _RENAMED.get(name)
        hint = nearest(name, allowed)
        if renamed is not None and renamed in allowed:
            hint = f" (renamed: {'.'.join([*above, renamed])!r})"
        return f"unknown key {'.'.join(path[:-1])!r}{_removal_hint(schema, path[:-1]) or hint}"
    if error_type == "missing":
        return f"{dotted!r} is required"
    if error_type == "union_tag_not_found":
        return f"'{dotted}.{context['discriminator'][1:-1]}' is required"
    if error_type == "union_tag_invalid":
        hint = nearest(context["tag"], context["expected_tags"][1:-1].split("', '"))
        return f"'{dotted}.{context['discriminator'][1:-1]}': {context['tag']!r} is not known{hint}"
    if error_type == "value_error":  # a check of a schema raised; its message says what to do
        text = str(context["error"])
        return text if not dotted or text.startswith(f"{dotted}.") else f"{dotted}: {text}"
    found = f"found {value!r} ({type(value).__name__})"
    if error_type in ("list_type", "tuple_type") and isinstance(value, str):
        return f"{dotted!r} is a list, such as '{dotted}=[{value}]', {found}"
    if error_type in ("model_type", "model_attributes_type"):
        blocks = _blocks_at(schema, problem["loc"])
        if blocks:
            first_key = next(iter(blocks[0].model_fields))
            return f"{dotted!r} is a block of keys, such as '{dotted}.{first_key}', {found}"
    hint = ""
    if error_type == "literal_error" and isinstance(value, str):
        hint = nearest(value, context["expected"].split("'")[1::2], or_list=False)
    return f"{dotted!r}: {problem['msg']}, {found}{hint}"


def key_hint(
    schema: type[BaseModel], path: Sequence[str], unknown: str, siblings: Sequence[str] = ()
) -> str:
    """Guess what was meant by an unknown key: a key of this recipe, or of another stage's.

    Args:
        path: the key as it was written, in parts.
        unknown: the shortest unknown prefix of the key, with dots.
        siblings: the valid keys of the same block.
    """
    if removal := _removal_hint(schema, path):
        return removal
    *above, name = unknown.split(".")
    prefix = "".join(f"{part}." for part in above)
    renamed = _RENAMED.get(name)
    if renamed in siblings:
        return f" (renamed: '{prefix}{renamed}')"
    keys = keys_of_recipe(schema)
    path_pattern = "N".join(re.split(r"(?<=\.)\d+(?=\.|$)", ".".join(path)))
    if tags := keys.get(path_pattern):
        return f" (of {above[-1] if above else 'another block'} with {' or '.join(tags)})"
    last_name = _RENAMED.get(path[-1], path[-1])
    same_name = [key for key in keys if _last_part(key) == last_name]
    # a recipe may have several of these keys where it chooses one of several blocks
    foreign_keys = _FOREIGN_WORDS.get(last_name, ())
    translated = [key for key in foreign_keys if key.removesuffix(".NAME") in keys]
    if translated and len(path) == 1 and (not same_name or last_name in _AMBIGUOUS):
        return _did_you_mean(translated[:1])
    beside = [key for key in translated if _block(key) == _block(path_pattern)]
    if beside:
        return _did_you_mean([f"{prefix}{_last_part(beside[0])}"])
    if same_name:
        return _did_you_mean(same_name)
    dotted = ".".join(path)
    # the whole key of another stage is meant sooner than one here that is spelt alike
    if _stages_with(schema, dotted):
        return _of_other_stages(schema, dotted)
    if close := difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
        return _did_you_mean([f"{prefix}{close[0]}"])
    words = set(last_name.split("_"))
    # a key of another block has to be closer than one beside it: "weight" is not meant as "high"
    names = {_last_part(key) for key in keys}
    close = difflib.get_close_matches(last_name, names, n=1, cutoff=0.8)
    similar: list[str] = []
    for key in keys:
        if _last_part(key) in close or words <= set(_last_part(key).split("_")):
            similar.append(key)
    if similar:
        return _did_you_mean(similar)
    if elsewhere := _same_name_elsewhere(schema, last_name):
        return _of_other_stages(schema, elsewhere)
    return nearest(name, siblings)


def _block(key: str) -> str:
    return key.rpartition(".")[0]


def _last_part(key: str) -> str:
    return key.rpartition(".")[2]


def _removal_hint(schema: type[BaseModel], path: Sequence[str]) -> str:
    """Why a key was removed, or "" if this stage never had it; a removed block takes its keys."""
    from posttrain.config.schemas import stage_schemas  # it imports this module

    names = [part for part in path if not part.isdecimal()]
    reasons = dict(_REMOVED_EVERYWHERE)
    for stages, removed in _REMOVED.items():
        if any(stage_schemas().get(stage) is schema for stage in stages):
            reasons |= removed
    for key, reason in reasons.items():
        parts = key.split(".")
        pairs = zip(parts, names, strict=False)
        if len(parts) <= len(names) and all(part in ("NAME", name) for part, name in pairs):
            return f" (gone: {reason})"
    return ""


def _did_you_mean(keys: Sequence[str]) -> str:
    # keys near the top of a recipe are meant more often
    proposals = sorted(keys, key=lambda key: key.count("."))[:_MAX_PROPOSALS]
    return f" (did you mean {' or '.join(map(repr, proposals))}?)"


def _stages_with(schema: type[BaseModel], key: str) -> list[str]:
    """Names of the other stages that have the dotted key."""
    from posttrain.config.schemas import stage_schemas  # it imports this module

    stages: list[str] = []
    for stage, other_schema in stage_schemas().items():
        if other_schema is not schema and key in keys_of_recipe(other_schema):
            stages.append(stage)
    return stages


def _of_other_stages(schema: type[BaseModel], key: str) -> str:
    *others, last = _stages_with(schema, key)
    names = f"{', '.join(others)} or {last}" if others else last
    return f" (it is of another stage: {key!r} of {names})"


def _same_name_elsewhere(schema: type[BaseModel], last_name: str) -> str:
    """Key of another stage that has the same last name, or ""."""
    from posttrain.config.schemas import stage_schemas  # it imports this module

    # every block that is one of several to choose from has a `kind`
    if last_name == "kind":
        return ""
    for other_schema in stage_schemas().values():
        if other_schema is not schema:
            for key in keys_of_recipe(other_schema):
                if _last_part(key) == last_name:
                    return key
    return ""


@functools.cache
def keys_of_recipe(schema: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """List the dotted keys that a recipe may have.

    Returns:
        Path of every key, with `N` for positions in lists → the tags (`kind: vllm`) of the blocks
        that it belongs to, empty where its block is not one of several to choose from.
    """
    keys: dict[str, tuple[str, ...]] = {}

    def add_block(
        block: type[BaseModel], prefix: str, tags: tuple[str, ...], ancestors: tuple[Any, ...]
    ) -> None:
        for name, field in block.model_fields.items():
            path = f"{prefix}{name}"
            keys[path] = tuple(dict.fromkeys((*keys.get(path, ()), *tags)))
            members = list(parts_of(field.annotation))
            blocks = [(suffix, member) for suffix, member in members if is_block(member)]
            for suffix, member in blocks:
                if member in ancestors:  # a block may hold blocks of its own kind
                    continue
                tag, values = tags_of(member)
                member_tags: tuple[str, ...] = ()
                if len(blocks) > 1:
                    member_tags = tuple(f"{tag} {value}" for value in values)
                add_block(member, f"{path}{suffix}.", member_tags, (*ancestors, member))

    add_block(schema, "", (), (schema,))
    free_fields: Callable[[], list[str]] | None = getattr(schema, "free_fields", None)
    if free_fields is not None:
        keys |= {f"trainer.{name}": () for name in free_fields()}
    return keys


def keys_of_path(recipe: BaseModel, path: str) -> list[str]:
    """Dotted keys of a recipe whose value is a path, however it is spelt."""
    keys: list[str] = []
    wanted = os.path.normpath(path)

    def search(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in cast(dict[str, Any], value).items():
                search(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, list):
            for position, inner in enumerate(cast(list[Any], value)):
                search(inner, f"{key}.{position}")
        elif isinstance(value, str) and value and os.path.normpath(value) == wanted:
            keys.append(key)

    search(recipe.model_dump(mode="json"), "")
    return keys


def nearest(name: str, valid: Sequence[str], *, or_list: bool = True) -> str:
    """Propose the valid name nearest to `name`: ` (did you mean 'x'?)`.

    Args:
        or_list: list the valid names if none is close; otherwise the proposal is then empty.
    """
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (valid: {', '.join(sorted(valid))})" if valid and or_list else ""


def _written_path(schema: type[BaseModel], location: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Turn a location of pydantic's into the path that a user writes, in parts.

    Besides keys, positions and names in mappings, a location holds for a union the class name or
    the tag of the block that was tried, which nobody writes.

    Returns:
        The path, and the keys of the last part's block.
    """
    path: list[str] = []
    siblings: list[str] = []
    blocks = [schema]
    container_depth = 0  # lists and mappings still to enter: their parts are no fields
    for part in map(str, location):
        siblings = sorted({name for block in blocks for name in block.model_fields})
        if container_depth:  # a position or a name, which may be that of a field
            container_depth -= 1
            path.append(part)
            continue
        tagged = [block for block in blocks if part in (block.__name__, *tags_of(block)[1])]
        if tagged:
            blocks = tagged
            continue
        path.append(part)
        depths: dict[type[BaseModel], int] = {}
        for block in blocks:
            if part in block.model_fields:
                for suffix, member in parts_of(block.model_fields[part].annotation):
                    if is_block(member):
                        depths[member] = suffix.count(".N")
        container_depth = max(depths.values(), default=0)
        blocks = [*depths] or blocks
    return path, siblings


def parts_of(annotation: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Take an annotation apart into plain types and blocks.

    Yields:
        Path below the field (`.N` in a list, `.NAME` in a mapping) and the type that stands there,
        for each member of a union. A block that needs no list around it has no position.
    """
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = arguments[0]
        if OR_ONE in arguments:  # most recipes write the one, which has no position
            inner = typing.get_args(inner)[0]
        yield from parts_of(inner, path)
    elif origin in (typing.Union, types.UnionType):
        for member in arguments:
            yield from parts_of(member, path)
    elif origin in (tuple, list):
        yield from parts_of(arguments[0], f"{path}.N")
    elif origin is dict:
        yield from parts_of(arguments[1], f"{path}.NAME")
    else:
        yield path, annotation


def is_block(part: Any) -> TypeGuard[type[BaseModel]]:
    """True if a part of an annotation is the schema of a block."""
    return isinstance(part, type) and issubclass(part, BaseModel)


def tags_of(block: type[BaseModel]) -> tuple[str, tuple[str, ...]]:
    """Key and values that choose a block among several, such as ("kind", ("vllm",)).

    ("", ()) if nothing does.
    """
    for key, field in block.model_fields.items():
        if typing.get_origin(field.annotation) is Literal and field.is_required():
            return key, typing.get_args(field.annotation)
    return "", ()
