"""The files of one evaluation, and the lock: what its figures depend on.

    out/lock.json  {"prompts": {"maths.no_tools": "5f0c…"}, "sampling": {"temperature": …},
                    "rendering": {"sft": {"template": "ab78…"}}, "weights": {"sft": {…}},
                    "data": {…}, "versions": {"torch": "2.13.0"}}
    out/records/dpo/maths.no_tools.jsonl  out/metrics.json  out/examples.jsonl
    out/journals/…  out/times/…  out/costs.json  out/export/…

A run that is resumed must have the same lock. A unit's records appear whole; samples that are not
graded yet are in out/work/. Journals hold the answers that tasks of inspect and a judge were given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.config.eval import EvalConfig
from posttrain.errors import DataError
from posttrain.evaluation.grade import Record, Unit, read_records
from posttrain.hashing import digest_of
from posttrain.rollouts import prompt_to_row
from posttrain.runs import Manifest, Parent, atomic_write_json, read_artifact
from posttrain.sampling.generate import refuse_other
from posttrain.versions import VERSIONED, package_versions

KIND = "evaluation"
LOCK = "lock.json"
RECORDS = "records"
WORK = "work"
JOURNALS = "journals"
LABELS = "judge.jsonl"
METRICS = "metrics.json"
EXAMPLES = "examples.jsonl"
INSPECT_LOGS = "inspect"
PACKAGES = (*VERSIONED, "math-verify", "scipy", "vllm", "if-verifiable", "inspect-evals")
Lock = dict[str, Any]


def make_lock(
    recipe: EvalConfig,
    config_digest: str,
    *,
    units: Sequence[Unit],
    rendering: Mapping[str, Mapping[str, str] | None],
    files: Mapping[str, str | None],
    parents: Sequence[Parent],
    judge: Mapping[str, Any] | None,
) -> Lock:
    """The lock of a run before any checkpoint is opened.

    Args:
        rendering: checkpoint → digests of template and tokenizer, None where a server renders.
        files: sources of the prompts, with digests.
        parents: the artifacts those files and the checkpoints belong to.
        judge: what decides the labels of judged tasks; None without one.
    """
    return {
        "config": config_digest,
        # with their golds and graders, in order
        "prompts": {
            unit.name: digest_of([prompt_to_row(prompt) for prompt in unit.prompts])
            for unit in units
        },
        "sampling": {
            # the number of tools that run at a time changes no sample
            **recipe.sampling.model_dump(mode="json", exclude={"tools_at_once"}),
            "samples": {unit.name: unit.samples for unit in units},
            "settings": {s.name: s.sampling for s in recipe.settings if s.sampling},
            "seed": recipe.seed,
        },
        "judge": judge,
        "rendering": dict(rendering),
        "data": {"files": dict(files), "artifacts": sorted({p.digest for p in parents})},
        "versions": package_versions(PACKAGES),
        "weights": {},
    }


def bind_lock(path: Path, lock: Lock, *, finished: bool = False) -> None:
    """Write the lock, or check it against the one that is there.

    Args:
        finished: the run is complete: nothing will be mixed with it, whatever is installed by now.

    Raises:
        ConfigError: the run was begun with something else, naming what.
    """
    lock = json.loads(json.dumps(lock))
    if not path.is_file():
        atomic_write_json(path, lock)
        return
    unbound = {"weights", "versions"} if finished else {"weights"}
    bound = {key: value for key, value in read_lock(path).items() if key not in unbound}
    refuse_other(path.parent, bound, {key: lock.get(key) for key in bound})


def bind_weights(path: Path, checkpoint: str, identity: Mapping[str, Any]) -> None:
    """Add the identity of a checkpoint that was opened to the lock, or check it.

    Raises:
        ConfigError: the checkpoint is not what it was when the run began.
    """
    lock, now = read_lock(path), json.loads(json.dumps(dict(identity)))
    before = lock["weights"].setdefault(checkpoint, now)
    refuse_other(path.parent, {checkpoint: before}, {checkpoint: now})
    atomic_write_json(path, lock)


def read_lock(path: Path) -> Lock:
    """The lock of a run.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def record_path(out: Path, checkpoint: str, unit: str) -> Path:
    return out / RECORDS / checkpoint / f"{unit}.jsonl"


def journal_path(out: Path, checkpoint: str, unit: str, role: str = "") -> Path:
    """What a task of inspect was answered, by the checkpoint or in a role."""
    return out / JOURNALS / checkpoint / f"{unit}{role and '.' + role}.jsonl"


def read_run(out: Path) -> tuple[Manifest, dict[str, list[Record]]]:
    """A finished run: its manifest, and its records by checkpoint in the recipe's order.

    Raises:
        DataError: not a finished evaluation, or files that changed.
    """
    manifest = read_artifact(out, kind=KIND)
    return manifest, records_of(out, manifest.stats["checkpoints"], manifest.stats["units"])


def records_of(
    out: Path, checkpoints: Iterable[str], units: Sequence[str]
) -> dict[str, list[Record]]:
    """The records of each checkpoint, unit by unit."""
    return {
        name: [r for unit in units for r in read_records(record_path(out, name, unit))]
        for name in checkpoints
    }
