"""Which files of a checkpoint are published, the card that goes with them, and what is left out.

    plan = upload_plan(Path("runs/tiny/sft"), "org/name", evaluations=[Path("runs/tiny/eval")])
    plan.files     {"README.md": b"---…", "config.json": Path(…), "model.safetensors": Path(…), …}
    plan.left_out  {"rollouts/": "samples of the training prompts: --samples", …}

Only files that the manifest lists and whose hashes still hold are published, and of these only
those that are named here. `posttrain.json` is the manifest for readers: digests, recipe and counts
with the paths of this machine taken out, under another name so that no stage takes the download for
an artifact of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, cast

from yaml import YAMLError

from posttrain.errors import ConfigError, DataError
from posttrain.publish.card import CARD, UNKNOWN, license_fields, replace_section, serving_section
from posttrain.publish.figures import model_figures
from posttrain.runs import MANIFEST, STAGE, Manifest, read_artifact

LINEAGE = "posttrain.json"
# a vocabulary may hold what looks like a path
_TOKENIZER = {
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt",
    "added_tokens.json", "special_tokens_map.json",
}  # fmt: skip
_TEXTS = {
    "config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja",
    "log.jsonl",
}  # fmt: skip
_SAMPLES = "samples of the training prompts: --samples"
_FOLDERS = {
    "adapter": "merged into the weights",
    "rollouts": _SAMPLES,
    "resume": "state of the run",
    "reference": "state of the run",
    "tensorboard": "state of the run",
}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
# a home directory says who trained and where
_HOME = re.compile(r"(?<![\w.])(?:/(?:home|Users)/[\w.-]+|/root(?=/)|[A-Za-z]:\\+Users\\+[\w.-]+)")
# the usual providers' tokens, private keys, and passwords in addresses
_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30}|sk-(?:proj|ant|or|svcacct)-[\w-]{20}|sk-[A-Za-z0-9]{32}|"
    r"gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{30}|AKIA[A-Z0-9]{16})|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY|://[^\s/:@]+:[^\s/:@]+@"
)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """What goes to the hub.

    Attributes:
        files: path in the repository → file here, or bytes.
        left_out: file or folder → why.
        card: the text of README.md.
        warnings: what a reader of the card will miss.
    """

    repository: str
    files: Mapping[str, Path | bytes]
    left_out: Mapping[str, str]
    card: str
    digest: str
    warnings: Sequence[str]


def upload_plan(
    folder: Path,
    repository: str,
    *,
    evaluations: Sequence[Path] = (),
    license: str | None = None,
    samples: bool = False,
) -> UploadPlan:
    """Read a checkpoint and decide; nothing is written and no network is used.

    Args:
        repository: `ORG/NAME`.
        evaluations: artifacts whose figures of this checkpoint go into the card.
        license: of the weights; None keeps the card's.
        samples: publish the rollouts, too.

    Raises:
        ConfigError: a name that is none, no weights in safetensors, or a text with a secret or
            the name of a home directory.
        DataError: no finished checkpoint, changed files, a card without a head, or an evaluation
            of another checkpoint.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(f"{repository!r} is no name of a repository: {error}") from error
    if repository.count("/") != 1:
        raise ConfigError(f"{repository!r}: give ORG/NAME")
    manifest = read_artifact(folder, kind="checkpoint")
    left_out = {path.name: "not listed in the manifest" for path in _unlisted(folder, manifest)}
    files: dict[str, Path | bytes] = {}
    for entry in manifest.files:
        why = _why_not(entry.path, samples=samples)
        if why is None:
            files[entry.path] = folder / entry.path
        elif entry.path != CARD:  # is written anew
            top, inside, _ = entry.path.partition("/")
            left_out[top + inside] = why
    if not any(name.endswith(".safetensors") for name in files):
        raise ConfigError(f"{folder} has no weights in safetensors; nothing else is published")
    card, warnings = _card(folder, repository, manifest, evaluations, license)
    files[CARD] = card.encode()
    files[LINEAGE] = (json.dumps(public_manifest(folder, files), indent=1) + "\n").encode()
    files = dict(sorted(files.items()))
    for name, source in files.items():
        _refuse_private(name, source, folder)
    return UploadPlan(
        repository, files, dict(sorted(left_out.items())), card, manifest.digest, warnings
    )


def _unlisted(folder: Path, manifest: Manifest) -> list[Path]:
    own = {entry.path for entry in manifest.files} | {MANIFEST, STAGE, CARD}
    return [
        path
        for path in folder.iterdir()
        if path.name not in own and not any(name.startswith(f"{path.name}/") for name in own)
    ]


def _why_not(name: str, *, samples: bool) -> str | None:
    """Why a listed file is not published; None: it is."""
    folder, inside, rest = name.partition("/")
    if inside:
        if folder == "rollouts" and samples:
            return None
        if folder == "additional_chat_templates" and rest.endswith(".jinja"):
            return None
        kept = "another epoch of the same run" if folder.startswith("checkpoint-epoch-") else None
        return kept or _FOLDERS.get(folder, "no file of a checkpoint")
    if name.endswith((".safetensors", ".safetensors.index.json")) or name in _TOKENIZER | _TEXTS:
        return None
    return "no safetensors" if name.endswith(_PICKLES) else "no file of a checkpoint"


def _card(
    folder: Path,
    repository: str,
    manifest: Manifest,
    evaluations: Sequence[Path],
    license: str | None,
) -> tuple[str, list[str]]:
    """The folder's card for this repository, with figures, and what is missing of it."""
    from huggingface_hub import ModelCard

    file = folder / CARD
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    if not text.startswith("---\n"):
        raise DataError(f"{file} has no front matter: the card that the stage wrote is needed")
    try:
        card = ModelCard(text)
    except (ValueError, YAMLError) as error:
        raise DataError(f"{file}: its front matter cannot be read: {error}") from error
    data: Any = card.data
    if license is not None:
        for key, value in ({"license_name": None} | license_fields({license: ()})).items():
            setattr(data, key, value)
    data.license = data.license or UNKNOWN
    found = [model_figures(evaluation, manifest.digest) for evaluation in evaluations]
    lines: list[str] = []
    if found:
        data.model_name = repository.partition("/")[2]
        data.eval_results = [result for figures in found for result in figures.results]
        lines = ["## Evaluation", *[line for figures in found for line in ("", *figures.lines)]]
    content = replace_section(str(card), "serving", serving_section(folder, name=repository))
    if lines:
        content = replace_section(content, "evaluation", lines)
    warnings: list[str] = []
    if data.license == UNKNOWN:
        warnings.append("license: unknown; --license NAME states it")
    if not found:
        warnings.append("no figures: --evaluation DIR adds those of an evaluation")
    return content, warnings


def public_manifest(folder: Path, files: Mapping[str, object]) -> dict[str, Any]:
    """The manifest for readers elsewhere: published files only, and no path of this machine.

    `digest` stays the artifact's own: it is what evaluations and later stages name.
    """
    body = cast(dict[str, Any], json.loads((folder / MANIFEST).read_text("utf-8")))
    body["files"] = [entry for entry in body["files"] if entry["path"] in files]
    body["parents"] = [
        parent | {"path": PureWindowsPath(parent["path"]).name} for parent in body["parents"]
    ]
    return cast(dict[str, Any], _without_paths(body))


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(one) for key, one in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_without_paths(one) for one in cast(list[Any], value)]
    if not isinstance(value, str):
        return value
    if re.match(r"(?:/|~|\.\./|[A-Za-z]:[\\/])", value) and "\n" not in value:
        return f"…/{PureWindowsPath(value).name}"
    return _HOME.sub("…", value)


def _refuse_private(name: str, source: Path | bytes, folder: Path) -> None:
    """Raise where a text has a secret, or names a home or the checkpoint's own directory."""
    if name in _TOKENIZER or ".safetensors" in name:
        return
    data = source if isinstance(source, bytes) else source.read_bytes()
    here = {str(folder.resolve()), str(Path.home().resolve())} - {"/", "/root"}
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        if secret := _SECRET.search(line):
            raise ConfigError(
                f"{folder / name}, line {number}: holds what looks like a secret "
                f"({secret[0][:8]}…); take it out, and have it revoked if it was ever published"
            )
        match = _HOME.search(line)
        hit = match[0] if match else next((path for path in here if path in line), None)
        if hit:
            raise ConfigError(
                f"{folder / name}, line {number}: names a folder of this machine ({hit}); take it "
                "out, or train again with a path relative to the working directory"
            )
