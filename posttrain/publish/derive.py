"""Checkpoints made from checkpoints: tokenizer, card and manifest that belong to new weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.models.inference import weights_digest
from posttrain.publish.card import CARD, checkpoint_card, origins_of
from posttrain.runs import (
    MANIFEST,
    STAGE,
    Counts,
    Manifest,
    Parent,
    Run,
    atomic_write_text,
    parent_of,
    read_artifact,
)

KIND = "checkpoint"
# beginnings of the names of files that are copied beside the new weights
_COPIED = (
    "tokenizer",
    "chat_template",
    "special_tokens",
    "added_tokens",
    "vocab",
    "merges",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True)
class Source:
    """Weights that a checkpoint is made from.

    Attributes:
        path: folder or hub id.
        manifest: None if the folder is no checkpoint of a stage of ours.
    """

    path: str
    manifest: Manifest | None

    @property
    def digest(self) -> str:
        """Digest of the artifact, or else of the weights."""
        return self.manifest.digest if self.manifest else weights_digest(self.path)


@dataclass(frozen=True, slots=True)
class Derived:
    """Statements of a stage about the weights that it wrote.

    Attributes:
        summary: lines of the card on what was done.
        stats: stats of the manifest.
        serving: commands of the card that serve the weights as they are meant, with NAME for the
            folder or hub id; None: those of a checkpoint that every loader reads.
    """

    summary: Sequence[str]
    stats: Mapping[str, Any]
    serving: Sequence[str] | None = None


def read_source(path: Path | str) -> Source:
    """Read the manifest of a folder that is an artifact; a hub id or other folder has none.

    Raises:
        DataError: an artifact of another kind, or whose files have changed.
    """
    is_artifact = (Path(path) / MANIFEST).is_file()
    manifest = read_artifact(path, kind=KIND) if is_artifact else None
    return Source(str(path), manifest)


def copy_tokenizer(tokenizer: Any, *, origin: str, folder: Path) -> None:
    """Put tokenizer, template and generation config beside the weights.

    Files on this machine are copied byte for byte; those of a hub id are saved anew.

    Args:
        origin: folder or hub id that the tokenizer was loaded from.
    """
    if not Path(origin).is_dir():
        tokenizer.save_pretrained(folder)
        return
    for path in sorted(Path(origin).iterdir()):
        if path.is_file() and path.name.startswith(_COPIED):
            shutil.copyfile(path, folder / path.name)


def derive_checkpoint(
    run: Run,
    *,
    method: str,
    sources: Sequence[Source],
    base: str,
    write: Callable[[Path], Derived],
    adapter: Path | None = None,
) -> None:
    """Write a checkpoint with its card and manifest into an output directory.

    Args:
        run: the directory, which holds no finished checkpoint; its config has the sources by digest
            and no paths.
        method: method that the card names.
        sources: what the checkpoint is made from; those with a manifest become its parents, and
            the first of these names the chat template.
        base: folder or hub id whose license, datasets and base model the card takes over.
        write: writes all files of the model into a folder, which appears whole in the directory.
        adapter: a folder of foreign weights that were merged in; its license goes into the card.

    Raises:
        ConfigError: as `write` raises; then nothing stays.
    """
    out = run.path
    partial = out / f".{method}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        derived = write(partial)
        for path in sorted(partial.iterdir()):
            path.replace(out / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    template_digest = None
    parents: list[Parent] = []
    for source in sources:
        if source.manifest is not None:
            if not parents:  # the first parent names the template
                template_digest = source.manifest.template_digest
            parents.append(parent_of(source.path, relative_to=out, manifest=source.manifest))
    card = checkpoint_card(
        method,
        origins_of(out, base=base, adapter=adapter),
        folder=out,
        summary=derived.summary,
        serving=derived.serving,
        parents=parents,
        details=[],
    )
    atomic_write_text(out / CARD, card)
    stats = dict(derived.stats)
    if derived.serving is not None:  # for the card that `push` writes
        stats["serving"] = [*derived.serving]
    # the card is its owner's to edit, so the manifest does not bind it
    listed_files = {path.name for path in out.iterdir() if path.is_file()} - {CARD, STAGE}
    run.finish(
        counts=Counts(0, 0),
        files=dict.fromkeys(listed_files),
        parents=parents,
        template_digest=template_digest,
        stats=stats,
    )
