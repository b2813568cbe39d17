"""A stage's output directory: locked while it works, its manifest written last, and no input
trusted without one.

    with open_run(Path("runs/x"), kind="sft_data", config=config) as run:
        …
        run.finish(counts=Counts(rows_in=10, kept=9, dropped={"empty_answer": 1}), files={…})

`stage.json`, written first, names the config that owns the directory: any other is refused. Digests
hold no time and no absolute path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from posttrain.errors import ConfigError, DataError, PosttrainError
from posttrain.hashing import digest_of, sha256_file
from posttrain.versions import package_versions

# of safetensors and of torch.save, which name no errno
_DISK_FULL = ("No space left on device", "PytorchStreamWriter failed writing", "unexpected pos ")
# of a file that is no UTF-8, no JSON, or not of the layout that it is read as
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
MANIFEST = "manifest.json"
STAGE = "stage.json"
SECONDS = "seconds.json"
REPORT = "report.html"  # no part of the artifact: it can be written again at any time
LOG = "log.jsonl"  # of a training run, a row for each logged step
_ABSENT: Any = object()  # equals no value


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows in, rows kept and rows dropped by reason; they add up."""

    rows_in: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        lost = self.rows_in - self.kept - sum(self.dropped.values())
        assert lost == 0, f"{lost} rows neither kept nor dropped: {self}"


@dataclass(frozen=True, slots=True)
class Parent:
    """An artifact this one was made from; `digest` binds, `path` only helps to find it."""

    path: str
    digest: str
    kind: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an artifact, by path relative to it. `rows` is `None` for files without rows."""

    path: str
    rows: int | None
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `manifest.json`.

    `digest` identifies content and lineage; `run`, how it was made, is no part of it.
    """

    kind: str
    config: Mapping[str, Any]
    config_digest: str
    parents: tuple[Parent, ...]
    counts: Counts
    files: tuple[FileEntry, ...]
    versions: Mapping[str, str]
    template_digest: str | None
    seed: int
    stats: Mapping[str, Any]
    digest: str
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])


# ---- an output directory ----


@dataclass(frozen=True, slots=True)
class Run:
    """An output directory that belongs to one stage with one config."""

    path: Path
    kind: str
    config: Mapping[str, Any]
    config_digest: str

    @classmethod
    def open(
        cls,
        out: Path | str,
        *,
        kind: str,
        config: Mapping[str, Any],
        recipe: BaseModel | None = None,
        dry_run: bool = False,
    ) -> Run:
        """Create the directory, or reopen it if the same config made it.

        A dry run only checks that it can be used. The directory of a version that had fewer keys
        keeps the config that it has.

        Args:
            config: the resolved recipe without its output path, JSON-able.
            recipe: what `config` was made from; knows the default of every key.

        Raises:
            ConfigError: the directory belongs to another config or stage, or holds foreign files.
        """
        out = Path(out)
        run = cls(path=out, kind=kind, config=config, config_digest=digest_of(config))
        owner = read_owner(out) if (out / STAGE).is_file() else {}
        if owner and not (owner.get("released") and owner["kind"] == kind):
            if owner["kind"] != kind:
                raise ConfigError(f"{out} holds a {owner['kind']!r} artifact, not {kind!r}")
            known = without_new_defaults(config, owner["config"], recipe)
            if owner["config_digest"] != digest_of(known):
                changed = ", ".join(differing_keys(owner["config"], known))
                raise ConfigError(
                    f"{out} was made by another config (they differ in: {changed}); choose another "
                    "out=, or delete the directory to start over"
                )
            return cls(out, kind, owner["config"], owner["config_digest"])
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file; out= must name a directory")
        partial = f".{STAGE}.partial"
        if not owner and out.is_dir() and any(p.name != partial for p in out.iterdir()):
            raise ConfigError(
                f"{out} is not empty and was not made by a stage of ours; choose another out="
            )
        if not dry_run:
            run._write_owner()
            return run
        ancestor = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
            reason = "is not writable" if ancestor.is_dir() else "is a file; name a directory"
            raise ConfigError(f"out={out}: {ancestor} {reason}")
        return run

    def release(self, *, scratch: str | None = None) -> None:
        """Let another config have the directory if this stage failed before it made anything.

        A corrected recipe may then use the same `out`. Files in the folder `scratch` do not count.
        """
        if all(
            path.name == STAGE or path.relative_to(self.path).parts[0] == scratch
            for path in self.path.rglob("*")
            if path.is_file()
        ):
            self._write_owner(released=True)

    def _write_owner(self, *, released: bool = False) -> None:
        body: dict[str, Any] = {
            "kind": self.kind,
            "config": self.config,
            "config_digest": self.config_digest,
        }
        if released:
            body["released"] = True
        atomic_write_json(self.path / STAGE, body)

    @property
    def complete(self) -> bool:
        """Check that the stage has finished here; its files are verified, so tampering raises."""
        if not (self.path / MANIFEST).is_file():
            return False
        read_artifact(self.path, kind=self.kind)
        return True

    def finish(
        self,
        *,
        counts: Counts,
        files: Mapping[str, int | None],
        parents: Sequence[Parent] = (),
        template_digest: str | None = None,
        seed: int = 0,
        stats: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Hash the files and write the manifest, which finishes the artifact.

        Args:
            files: path relative to the directory → number of rows, or None.
            run: how it was made, for readers; no part of the digest.
        """
        entries = [
            FileEntry(name, rows, (self.path / name).stat().st_size, sha256_file(self.path / name))
            for name, rows in sorted(files.items())
        ]
        body: dict[str, Any] = {
            "kind": self.kind,
            "config": self.config,
            "config_digest": self.config_digest,
            "parents": [asdict(parent) for parent in parents],
            "counts": {"in": counts.rows_in, "kept": counts.kept, "dropped": dict(counts.dropped)},
            "files": [asdict(entry) for entry in entries],
            "versions": package_versions(),
            "template_digest": template_digest,
            "seed": seed,
            "stats": dict(stats or {}),
        }
        if run:
            body["run"] = dict(run)
        body["digest"] = _manifest_digest(body)
        atomic_write_json(self.path / MANIFEST, body)
        return _manifest(body)


def read_owner(out: Path) -> dict[str, Any]:
    """Read which stage owns a directory, with its config; DataError where none is named."""
    try:
        owner = json.loads((out / STAGE).read_text("utf-8"))
        return owner | {key: owner[key] for key in ("kind", "config", "config_digest")}
    except (*_DAMAGED, FileNotFoundError) as error:
        raise DataError(
            f"{out / STAGE} is missing or damaged ({error!r}): it says whose directory this is"
        ) from error


@contextlib.contextmanager
def open_run(
    out: Path,
    *,
    kind: str,
    config: Mapping[str, Any],
    recipe: BaseModel | None = None,
    scratch: str | None = None,
) -> Generator[Run]:
    """Open a stage's output directory: locked while it works, released if it made nothing.

    Raises:
        ConfigError: as `locked` and `Run.open`.
        DataError: as `refusing_full_disk`.
    """
    with refusing_full_disk(out), locked(out):
        run = Run.open(out, kind=kind, config=config, recipe=recipe)
        began = None if (out / MANIFEST).is_file() else time.monotonic()
        try:
            yield run
        except PosttrainError:
            run.release(scratch=scratch)
            raise
        if began is not None and (out / MANIFEST).is_file():
            write_seconds(out, began)


def write_seconds(out: Path, began: float) -> None:
    """Write how long the run that finished a stage took, beside what its manifest lists.

    CPU seconds are those of the process since it began, imports included, and of ended children.

    Args:
        began: by the monotonic clock.
    """
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    seconds = time.monotonic() - began
    body = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
    atomic_write_json(out / SECONDS, body)


@contextlib.contextmanager
def refusing_full_disk(out: Path) -> Generator[None]:
    """Raises DataError, with what to do, for a disk that fills up in the block."""
    try:
        yield
    except Exception as error:
        code = getattr(error, "errno", None)
        text = str(error)
        if code in (errno.ENOSPC, errno.EDQUOT) or any(sign in text for sign in _DISK_FULL):
            raise DataError(
                f"{out}: the disk is full ({text.splitlines()[0]}): free some space and rerun "
                "the same command to resume"
            ) from error
        raise


@contextlib.contextmanager
def locked(out: Path) -> Generator[None]:
    """Create the directory if need be, and lock it.

    The lock is the kernel's: it leaves no file and ends with the process.

    Raises:
        ConfigError: another process holds it, or it cannot be created.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"out={out}: {error.filename} is a file; name a directory") from error
    except OSError as error:
        raise ConfigError(f"out={out} cannot be created: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process is at work in {out}; wait for it, or choose another out="
            ) from error
        except OSError:
            pass  # a network file system may have no locks: there the user takes care
        yield
    finally:
        os.close(handle)


def refuse_other(out: Path, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the keys, if a run would be resumed with other inputs."""
    if recorded != current:
        raise ConfigError(
            f"{out} was begun with something else (it differs in: "
            f"{', '.join(differing_keys(recorded, current))}); choose another out=, or delete the "
            "directory to start over"
        )


def differing_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "", *, absent: object = _ABSENT
) -> list[str]:
    """Dotted keys whose values differ between two configs.

    Args:
        absent: value of a key that one of them lacks; by default it differs from any.
    """
    keys: list[str] = []
    for key in sorted(set(old) | set(new)):
        old_value = old.get(key, absent)
        new_value = new.get(key, absent)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            old_block = cast(Mapping[str, Any], old_value)
            new_block = cast(Mapping[str, Any], new_value)
            keys += differing_keys(old_block, new_block, f"{prefix}{key}.", absent=absent)
        elif old_value != new_value:
            keys.append(f"{prefix}{key}")
    return keys


def without_new_defaults(
    config: Any, recorded: Any, recipe: BaseModel | None, block: Any = None
) -> Any:
    """Copy a config without the keys that a recorded one lacks and that have their default.

    The version that recorded it had no such keys.

    Args:
        recipe: what the config was made from; None: every key counts.
        block: part of the recipe that this part of the config was made from; None: the whole.
    """
    config_parts = _parts(config)
    if recipe is None or not config_parts:
        return config
    block = recipe if block is None else block
    fields = type(block).model_fields if isinstance(block, BaseModel) else {}
    # an identity may hold a block of the recipe under another path
    blocks = {**_parts(recipe), **_parts(block)}
    recorded_parts = _parts(recorded)
    kept: dict[Any, Any] = {}
    for key, value in config_parts.items():
        if key in recorded_parts:
            kept[key] = without_new_defaults(value, recorded_parts[key], recipe, blocks.get(key))
        elif key not in fields or value != _default(fields[key]):
            kept[key] = value
    return [*kept.values()] if isinstance(config, list) else kept


def _parts(value: Any) -> Mapping[Any, Any]:
    """Values in a block, a mapping or a list, by key or position; none in a scalar."""
    if isinstance(value, BaseModel):
        return vars(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast(Sequence[Any], value)))
    return cast(Mapping[Any, Any], value) if isinstance(value, Mapping) else {}


def _default(field: FieldInfo) -> Any:
    return to_jsonable_python(field.get_default(call_default_factory=True))


# ---- finished artifacts ----


EDITABLE = "README.md"  # the owner's to edit, even where an older manifest lists it


def parent_of(path: Path | str, *, relative_to: Path, manifest: Manifest) -> Parent:
    """The lineage entry for an input artifact."""
    relative = os.path.relpath(Path(path).resolve(), relative_to.resolve())
    return Parent(path=relative, digest=manifest.digest, kind=manifest.kind)


# who makes what other stages read
_MADE_BY = {
    "sft_data": "build_sft",
    "dpo_data": "build_dpo",
    "genrm_data": "build_genrm",
    "samples": "sample",
    "pass_rates": "profile_prompts",
    "synthetic_rows": "synthesize",
    "checkpoint": "a training stage",
    "evaluation": "eval",
}


def read_artifact(path: Path | str, *, kind: str | None = None, verify: bool = True) -> Manifest:
    """Read and check an artifact of some kind.

    Args:
        kind: `None` for any.
        verify: hash every file again; otherwise only their sizes are compared.

    Raises:
        DataError: no manifest (the stage has not finished), another kind, or changed files.
    """
    try:
        return _read_checked(Path(path), kind, verify=verify)
    except DataError as error:
        error.path = str(path)
        raise


def _read_checked(path: Path, kind: str | None, *, verify: bool) -> Manifest:
    file = path / MANIFEST
    if path.is_file():
        stage = _MADE_BY.get(kind or "", "a stage")
        raise DataError(f"{path} is a file; here goes the directory that {stage} wrote")
    if not path.is_dir():
        raise DataError(f"no artifact at {path}: there is no such directory")
    if not file.is_file():
        hint = "its stage has not finished" if (path / STAGE).is_file() else "it is not an artifact"
        raise DataError(f"{path} has no {MANIFEST}: {hint}")
    try:
        body = cast(dict[str, Any], json.loads(file.read_text("utf-8")))
        manifest = _manifest(body)
    except (*_DAMAGED, AssertionError) as error:
        raise DataError(f"{file} is damaged: {error!r}") from error
    if kind is not None and manifest.kind != kind:
        raise DataError(f"{path} is a {manifest.kind!r} artifact, {kind!r} is needed here")
    if manifest.digest != _manifest_digest(body):
        raise DataError(f"{file} was edited: its digest does not match its content")
    for entry in manifest.files:
        if Path(entry.path).is_absolute() or ".." in Path(entry.path).parts:
            raise DataError(f"{file} lists {entry.path}, which lies outside of {path}")
    for entry in manifest.files:
        if entry.path == EDITABLE:
            continue
        listed = path / entry.path
        if not listed.is_file():
            raise DataError(f"{listed} is missing, {file} lists it")
        same_size = listed.stat().st_size == entry.bytes
        if not same_size or (verify and sha256_file(listed) != entry.sha256):
            raise DataError(f"{listed} has changed since {file} was written")
    return manifest


def _manifest_digest(body: Mapping[str, Any]) -> str:
    bound = {key: value for key, value in body.items() if key not in ("digest", "run")}
    # where a parent lies is a convenience; which parent it was is the lineage
    bound["parents"] = [{k: p[k] for k in ("digest", "kind")} for p in body["parents"]]
    return digest_of(bound)


def _manifest(body: Mapping[str, Any]) -> Manifest:
    counts = body["counts"]
    typed: dict[str, Any] = {
        "parents": tuple(Parent(**parent) for parent in body["parents"]),
        "counts": Counts(rows_in=counts["in"], kept=counts["kept"], dropped=counts["dropped"]),
        "files": tuple(FileEntry(**entry) for entry in body["files"]),
    }
    return Manifest(**{**body, **typed})


# ---- files that appear whole ----


def atomic_write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader sees all of it or the old one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


def atomic_write_json(path: Path, value: object) -> None:
    """`atomic_write_text` of indented JSON."""
    atomic_write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")
