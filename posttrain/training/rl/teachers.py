"""Teachers of distillation: frozen models in this process, or behind servers, checked against the
student before a rollout is made."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posttrain.config.backend import Server
from posttrain.config.distill import TeacherConfig
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.inference import load_for_inference, weights_digest
from posttrain.runs import MANIFEST, STAGE, Parent, parent_of, read_artifact
from posttrain.sampling.engines.http import Client
from posttrain.sampling.engines.transformers import TransformersEngine
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import Scorer
from posttrain.tokens.tokenizer import largest_id, load_any_tokenizer
from posttrain.training.plan import GIB, Line, model_size


@dataclass(frozen=True, slots=True)
class Teachers:
    """Open teachers.

    Attributes:
        scorers: by name; two names of one checkpoint share a scorer.
        lines: of the plan, one a teacher.
        parents: artifacts among the teachers.
    """

    scorers: dict[str, Scorer]
    lines: list[Line]
    parents: list[Parent]


def open_teachers(
    configs: Mapping[str, TeacherConfig],
    *,
    student: ModelConfig,
    device: torch.device,
    out: Path,
    stack: contextlib.AsyncExitStack,
) -> Teachers:
    """Load the teachers, one model for each checkpoint and precision.

    Args:
        stack: closes the connections to servers.

    Raises:
        ConfigError: a teacher whose vocabulary or template is not the student's, a checkpoint
            whose stage has not finished, a model that cannot be loaded.
    """
    teachers = Teachers({}, [], [])
    loaded: dict[tuple[str, str], str] = {}
    for name, config in configs.items():
        if config.server is not None:
            teachers.scorers[name] = _served(config.server, stack)
            teachers.lines.append(
                (f"teacher {name}", f"{config.server.model} at {config.server.url}")
            )
            continue
        path = str(config.path)
        folder = Path(path)
        key = (str(folder.resolve()) if folder.is_dir() else path, config.dtype)
        if key in loaded:
            teachers.scorers[name] = teachers.scorers[loaded[key]]
            teachers.lines.append((f"teacher {name}", f"the same model as teacher {loaded[key]}"))
            continue
        if (folder / STAGE).is_file() and not (folder / MANIFEST).is_file():
            raise ConfigError(
                f"teachers.{name}.path {path} has no {MANIFEST}: its stage has not finished; rerun "
                "it, or name another checkpoint"
            )
        if (folder / MANIFEST).is_file():
            manifest = read_artifact(folder, kind="checkpoint")
            teachers.parents.append(parent_of(path, relative_to=out, manifest=manifest))
        vocabulary = _check_tokens(name, path, student)
        model = load_for_inference(
            path,
            dtype=config.dtype,
            device=str(device),
            attention="auto",
            vocabulary=vocabulary,
            transposed=False,
        )
        digest = weights_digest(path)
        teachers.scorers[name] = TransformersEngine(model, weights=digest)
        loaded[key] = name
        size = model_size(model)
        precision = str(model.dtype).removeprefix("torch.")
        text = (
            f"{path} ({digest[:12] if folder.is_dir() else digest}), {size.parameters:,} "
            f"parameters in {precision}, {size.weight_bytes / GIB:.2f} GiB in every process"
        )
        teachers.lines.append((f"teacher {name}", text))
    return teachers


def _served(server: Server, stack: contextlib.AsyncExitStack) -> Scorer:
    client = Client(server)
    stack.push_async_callback(client.close)
    identity: Mapping[str, Any] = {"backend": "completions", "weights": server.model}
    return CompletionsEngine(client, model=server.model, identity=identity)


def _check_tokens(name: str, path: str, student: ModelConfig) -> int:
    """Rows that the teacher's embedding needs. Raises ConfigError where it reads ids or turns
    otherwise than the student."""
    tokenizer = load_any_tokenizer(path)
    expected = load_any_tokenizer(str(student.path), revision=student.revision)
    ids, expected_ids = tokenizer.get_vocab(), expected.get_vocab()
    if ids != expected_ids:
        differing = sorted(
            token for token in {*ids, *expected_ids} if ids.get(token) != expected_ids.get(token)
        )
        token = differing[0]
        raise ConfigError(
            f"teachers.{name}: its vocabulary is not the student's: {token!r} is "
            f"{ids.get(token)} there and {expected_ids.get(token)} in {student.path} "
            f"({len(differing):,} tokens differ)"
        )
    if tokenizer.chat_template != expected.chat_template:
        raise ConfigError(
            f"teachers.{name}: its chat template is not the student's: it was trained on prompts "
            "that read otherwise"
        )
    return largest_id(tokenizer) + 1
