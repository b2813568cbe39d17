"""What the figures of a run depend on, and the refusal to mix those of different origin.

    lock.json: {"prompts": {"maths.no_tools": "5f0c…"}, "sampling": {"temperature": …, "seed": 0},
                "rendering": {"sft": {"template": "ab78…"}}, "weights": {"sft": {…}}, "data": {…},
                "versions": {"torch": "2.13.0"}}

A run that is taken up again must have the same lock. Two runs can be compared if they asked the
same prompts, in the same words, in the same way: weights and data may differ.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts import Parent, atomic_write_json, differing_keys, digest_of
from posttrain.config.eval import EvalConfig
from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.unit import Unit
from posttrain.rollouts import prompt_to_row
from posttrain.versions import VERSIONED, package_versions

LOCK = "lock.json"
PACKAGES = (*VERSIONED, "inspect-ai", "math-verify", "scipy", "vllm")
# what two runs must share before they are compared, and may be told to overlook
COMPARED = ("sampling", "rendering", "versions")
Lock = dict[str, Any]


def make_lock(
    recipe: EvalConfig,
    config_digest: str,
    *,
    units: Sequence[Unit],
    rendering: Mapping[str, Mapping[str, str] | None],
    files: Mapping[str, str | None],
    parents: Sequence[Parent],
) -> Lock:
    """The lock of a run before any checkpoint is opened.

    Args:
        units: of one checkpoint; all are asked the same.
        rendering: checkpoint → digests of template and tokenizer, None where a server renders.
        files: what prompts are made from, with digests.
        parents: the artifacts those files and the checkpoints belong to.
    """
    return {
        "config": config_digest,
        "prompts": {unit.name: prompts_digest(unit) for unit in units},
        "sampling": {
            # how many tools run at a time changes nothing that is sampled
            **recipe.sampling.model_dump(mode="json", exclude={"tools_at_once"}),
            "samples": {unit.name: unit.samples for unit in units},
            "seed": recipe.seed,
        },
        "rendering": dict(rendering),
        "data": {"files": dict(files), "artifacts": sorted({p.digest for p in parents})},
        "versions": package_versions(PACKAGES),
        "weights": {},
    }


def prompts_digest(unit: Unit) -> str:
    """Digest of a unit's prompts, with their golds and graders, in order."""
    return digest_of([prompt_to_row(prompt) for prompt in unit.prompts])


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
    _refuse_other({k: v for k, v in read_lock(path).items() if k not in unbound}, lock, path)


def bind_weights(path: Path, checkpoint: str, identity: Mapping[str, Any]) -> None:
    """Note what a checkpoint turned out to be when it was opened, or refuse another.

    Raises:
        ConfigError: the checkpoint is not what it was when the run began.
    """
    lock, found = read_lock(path), json.loads(json.dumps(dict(identity)))
    before = lock["weights"].setdefault(checkpoint, found)
    if before != found:
        _refuse_other({checkpoint: before}, {checkpoint: found}, path)
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


def _refuse_other(before: Lock, now: Lock, path: Path) -> None:
    same = {key: now.get(key) for key in before}
    changed = differing_keys(before, same)
    if changed:
        raise ConfigError(
            f"{path.parent} was begun with something else (it differs in: {', '.join(changed)}); "
            "choose another out=, or delete the directory to start over"
        )


def refuse_unlike(
    a: Lock, b: Lock, *, checkpoints: tuple[str, str], despite: Collection[str] = ()
) -> list[str]:
    """Refuse to compare what was not asked alike; gives the names of units that both have.

    Args:
        checkpoints: the one of each run that is compared.
        despite: parts of `COMPARED` that may differ.

    Raises:
        ConfigError: naming what differs; prompts must never differ.
    """
    shared = [name for name in a["prompts"] if name in b["prompts"]]
    if not shared:
        raise ConfigError("the runs have no task and setting in common")
    other = [name for name in shared if a["prompts"][name] != b["prompts"][name]]
    if other:
        raise ConfigError(f"the runs asked different prompts in {', '.join(other)}")
    left, right = _compared(a, checkpoints[0]), _compared(b, checkpoints[1])
    for part in COMPARED:
        changed = differing_keys({part: left[part]}, {part: right[part]})
        if changed and part not in despite:
            raise ConfigError(
                f"the runs differ in {', '.join(changed)}; name --despite {part} to compare them "
                "all the same"
            )
    return shared


def _compared(lock: Lock, checkpoint: str) -> Lock:
    return {
        "sampling": lock["sampling"],
        "rendering": lock["rendering"].get(checkpoint),
        "versions": lock["versions"],
    }
