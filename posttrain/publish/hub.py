"""Publish a checkpoint on a hub: choose files, write the card, commit, verify the result.

A file is published if the manifest lists it, its hash is unchanged, and its name is allowed here.
`posttrain.json` is the manifest for readers, without paths of this machine; no stage takes it for
one of its own. `huggingface_hub` takes the address from HF_ENDPOINT and the token from HF_TOKEN or
`hf auth login`, and tries transfers again. Files are added and replaced, never deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, cast

from yaml import YAMLError

from posttrain.errors import ConfigError, DataError
from posttrain.publish.card import CARD, UNKNOWN, license_fields, replace_section, serving_section
from posttrain.runs import MANIFEST, STAGE, Manifest, read_artifact

LINEAGE = "posttrain.json"
# the most telling rates of `posttrain.evaluation.metrics.RATES`, and their headings
_SHOWN = {"accuracy": "accuracy", "hallucination": "undeclared calls", "truncated": "truncated"}
# files of a tokenizer, apart from other texts: a vocabulary may hold what looks like a path
_TOKENIZER = {
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
}
_TEXTS = {
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "log.jsonl",
}
_FOLDERS = {
    "adapter": "merged into the weights",
    "rollouts": "samples of the training prompts",
    **dict.fromkeys(("resume", "reference", "tensorboard"), "state of the run"),
}
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
    """Files, card and checks of one upload.

    Attributes:
        files: path in the repository → file on this machine, or bytes.
        left_out: file or folder → reason.
        hashes: path in the repository → sha256.
        card: text of README.md.
        digest: of the checkpoint's manifest.
        warnings: sentences on what the card lacks.
    """

    repository: str
    files: Mapping[str, Path | bytes]
    left_out: Mapping[str, str]
    hashes: Mapping[str, str]
    card: str
    digest: str
    warnings: Sequence[str]


def upload_plan(
    folder: Path,
    repository: str,
    *,
    evaluations: Sequence[Path] = (),
    license: str | None = None,
) -> UploadPlan:
    """Plan the upload of a checkpoint; nothing is written and no network is used.

    Args:
        repository: `ORG/NAME`.
        evaluations: artifacts whose figures of this checkpoint go into the card.
        license: of the weights; None keeps the card's.

    Raises:
        ConfigError: an impossible name, no weights in safetensors, or a file with a secret or a
            folder of this machine.
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
    listed = {entry.path for entry in manifest.files} | {MANIFEST, STAGE, CARD}
    listed_names = {name.partition("/")[0] for name in listed}
    left_out: dict[str, str] = {}
    for path in folder.iterdir():
        if path.name not in listed_names:
            left_out[path.name] = "not listed in the manifest"
    files: dict[str, Path | bytes] = {}
    for entry in manifest.files:
        reason = _reason_to_leave_out(entry.path)
        if reason is None:
            files[entry.path] = folder / entry.path
        elif entry.path != CARD:  # the card is written anew
            top, slash, _ = entry.path.partition("/")
            left_out[top + slash] = reason
    if not any(name.endswith(".safetensors") for name in files):
        raise ConfigError(f"{folder} has no weights in safetensors; nothing else is published")
    card, warnings = _card(folder, repository, manifest, evaluations, license)
    files[CARD] = card.encode()
    # for readers elsewhere; `digest` stays what evaluations and later stages name
    body: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
    body["files"] = [entry for entry in body["files"] if entry["path"] in files]
    for parent in body["parents"]:
        parent["path"] = PureWindowsPath(parent["path"]).name
    files[LINEAGE] = (json.dumps(_without_paths(body), indent=1) + "\n").encode()
    files = dict(sorted(files.items()))
    for name, source in files.items():
        _refuse_private(name, source, folder)
    left_out = dict(sorted(left_out.items()))
    hashes = {entry.path: entry.sha256 for entry in manifest.files}
    for name, source in files.items():
        if isinstance(source, bytes):
            hashes[name] = hashlib.sha256(source).hexdigest()
    hashes = {name: hashes[name] for name in files}
    return UploadPlan(repository, files, left_out, hashes, card, manifest.digest, warnings)


def _reason_to_leave_out(name: str) -> str | None:
    """Reason why a listed file is not published; None if it is published."""
    folder, slash, file = name.partition("/")
    weights = name.endswith((".safetensors", ".safetensors.index.json"))
    if not slash and (weights or name in _TOKENIZER | _TEXTS):
        return None
    if folder == "additional_chat_templates" and file.endswith(".jinja"):
        return None
    if folder.startswith("checkpoint-epoch-"):
        return "another epoch of the same run"
    return _FOLDERS.get(folder, "no file of a checkpoint")


def _card(
    folder: Path,
    repository: str,
    manifest: Manifest,
    evaluations: Sequence[Path],
    license: str | None,
) -> tuple[str, list[str]]:
    """Complete the folder's card for this repository; returns it with warnings of what it lacks."""
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
    warnings = ["license: unknown; --license NAME states it"] if data.license == UNKNOWN else []
    serving = serving_section(folder, name=repository, commands=manifest.stats.get("serving"))
    if not evaluations:
        warnings.append("no figures: --evaluation DIR adds those of an evaluation")
        return replace_section(str(card), "serving", serving), warnings
    data.model_name = repository.partition("/")[2]
    data.eval_results = []
    lines = ["## Evaluation"]
    for evaluation in evaluations:
        results, table = _figures(evaluation, manifest.digest)
        data.eval_results += results
        lines += ["", *table]
    content = replace_section(str(card), "serving", serving)
    return replace_section(content, "evaluation", lines), warnings


def _figures(evaluation: Path, digest: str) -> tuple[list[Any], list[str]]:
    """Read an evaluation's figures of the checkpoint with this digest.

    Returns:
        Entries of the card's `model-index`, and lines of Markdown.

    Raises:
        DataError: no finished evaluation, or it did not sample this checkpoint.
    """
    from huggingface_hub import EvalResult

    manifest = read_artifact(evaluation, kind="evaluation")
    weights: Mapping[str, Mapping[str, Any]] = manifest.stats["weights"]
    name = next((n for n, identity in weights.items() if identity["weights"] == digest), None)
    if name is None:
        evaluated = [f"{n} {str(identity['weights'])[:12]}" for n, identity in weights.items()]
        raise DataError(
            f"{evaluation} did not evaluate checkpoint {digest[:12]}; it has figures of "
            f"{', '.join(evaluated)}"
        )
    metrics = json.loads((evaluation / "metrics.json").read_text("utf-8"))
    cells = [cell for cell in metrics["cells"] if cell["checkpoint"] == name]
    hubs = {row["name"]: row.get("hub") for row in manifest.config.get("prompts", ())}
    results: list[Any] = []
    for cell in cells:
        accuracy = cell["rates"].get("accuracy")
        if accuracy is None:
            continue
        result = EvalResult(
            task_type="text-generation",
            dataset_type=hubs.get(cell["task"]) or cell["task"],
            dataset_name=cell["task"],
            # entries of one data set and config would be put together
            dataset_config=f"{cell['setting']}, thinking {cell['thinking']}",
            dataset_args={"questions": accuracy["questions"], "samples": accuracy["samples"]},
            metric_type="accuracy",
            metric_name=f"accuracy, 95 % interval {_interval_text(accuracy)}",
            metric_value=round(accuracy["value"], 4),
        )
        results.append(result)
    sampling = manifest.config["sampling"]
    keys = ("temperature", "top_p", "top_k", "max_tokens")
    settings = ", ".join(f"{key} {sampling[key]}" for key in keys if key in sampling)
    head = ("task", "setting", "thinking", "questions", "unscored", *_SHOWN.values())
    rows = [head, ["---"] * len(head), *map(_table_row, cells)]
    return results, [
        f"Evaluation `{manifest.digest}` of checkpoint `{digest}`, {settings}, seed "
        f"{manifest.seed}; in parentheses 95 % intervals over questions.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _table_row(cell: Mapping[str, Any]) -> list[str]:
    """Texts of a row of the card's table, from a cell of the evaluation's metrics."""
    unscored = cell["failed"] + cell["unscored"]
    texts = [cell["task"], cell["setting"], cell["thinking"]]
    texts += [f"{cell['questions']:,}", f"{unscored:,}"]
    for name in _SHOWN:
        rate = cell["rates"].get(name)
        texts.append("–" if rate is None else f"{rate['value']:.1%} ({_interval_text(rate)})")
    return texts


def _interval_text(rate: Mapping[str, Any]) -> str:
    return f"{rate['low']:.1%} to {rate['high']:.1%}"


def _without_paths(value: Any) -> Any:
    """JSON value with folders of this machine replaced by "…"; the last part of a path stays."""
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in cast(list[Any], value)]
    if not isinstance(value, str):
        return value
    # a text of several lines is no path, even if it begins like one
    if re.match(r"(?:/|~|\.\./|[A-Za-z]:[\\/])", value) and "\n" not in value:
        return f"…/{PureWindowsPath(value).name}"
    return _HOME.sub("…", value)


def _refuse_private(name: str, source: Path | bytes, folder: Path) -> None:
    """Refuse a text with a secret, a home directory, or the checkpoint's own directory."""
    private_paths = {str(folder.resolve()), str(Path.home().resolve())} - {"/", "/root"}
    try:
        texts = [*_texts_of(name, source)]
    except ValueError as error:
        raise ConfigError(f"{folder / name} cannot be read: {error}") from error
    for position, text in texts:
        if secret := _SECRET.search(text):
            raise ConfigError(
                f"{folder / name}{position}: holds what looks like a secret "
                f"({secret[0][:8]}…); take it out, and have it revoked if it was ever published"
            )
        # a vocabulary may hold what looks like a home, but not this machine's folders
        home = None if name in _TOKENIZER else _HOME.search(text)
        if home:
            private_path = home[0]
        else:
            private_path = next((path for path in private_paths if path in text), None)
        if private_path:
            raise ConfigError(
                f"{folder / name}{position}: names a folder of this machine ({private_path}); take "
                "it out, or train again with a path relative to the working directory"
            )


def _texts_of(name: str, source: Path | bytes) -> Iterator[tuple[str, str]]:
    """Yield the texts of a file, each with its position in words for a message.

    The texts of weights are those of the header; of a tokenizer, its entries, each alone; of any
    other file, its lines.
    """
    if name.endswith(".safetensors"):
        assert isinstance(source, Path), "weights are sent as they lie here"
        with source.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        yield from ((", header", text) for text in _strings(header))
        return
    data = source if isinstance(source, bytes) else source.read_bytes()
    if name in _TOKENIZER and name.endswith(".json"):
        yield from (("", text) for text in _strings(json.loads(data)))
    elif name.endswith(".model"):  # pieces and the trainer's settings between other bytes
        yield from (("", text.decode("ascii")) for text in re.findall(rb"[ -~]{4,}", data))
    else:
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
            yield f", line {number}", line


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value, its keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in cast(list[Any], value):
            yield from _strings(inner)
    elif isinstance(value, dict):
        for key, inner in cast(dict[str, Any], value).items():
            yield key
            yield from _strings(inner)


def push(plan: UploadPlan, *, private: bool) -> None:
    """Publish a planned upload and print its steps; the same call resumes after a failure.

    Args:
        private: create a private repository; an existing public one is then refused.

    Raises:
        ConfigError: no token, no right, no network, or the hub has other bytes afterwards.
    """
    # imported here: a plan needs no HTTP client
    from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    # of httpx or httpx2, by the client's version: a broken connection is another of its kind
    http_error: Any = HfHubHTTPError.__mro__[1]
    name = plan.repository
    api = HfApi(library_name="posttrain")
    operations = [CommitOperationAdd(path, source) for path, source in plan.files.items()]
    for operation in operations:
        if operation.upload_info.sha256.hex() != plan.hashes[operation.path_in_repo]:
            raise ConfigError(
                f"{operation.path_in_repo} has changed since it was checked: push again"
            )
    try:
        try:
            is_private = api.repo_info(name).private
            if private and not is_private:
                raise ConfigError(f"{name} exists and is public: give --public to push to it")
            if is_private and not private:
                print(f"{name} exists and stays private; its settings page changes that")
            untouched = sorted({*api.list_repo_files(name)} - {*plan.files, ".gitattributes"})
            if untouched:
                print(f"{name} exists; these files stay as they are: {', '.join(untouched)}")
            ModelCard(plan.card).validate()
        except RepositoryNotFoundError:
            # all that can be refused comes first, or an empty repository would stay
            ModelCard(plan.card).validate()
            api.create_repo(name, private=private, exist_ok=True)
            print(f"created {name}, {'private' if private else 'public'}")
        commit = api.create_commit(
            name, operations, commit_message=f"checkpoint {plan.digest[:12]} of posttrain"
        )
        published = {info.path: info for info in api.get_paths_info(name, [*plan.files])}
    except LocalTokenNotFoundError as error:
        raise ConfigError("no token: set HF_TOKEN or run `hf auth login`") from error
    except OfflineModeIsEnabled as error:
        raise ConfigError(f"{name}: HF_HUB_OFFLINE is set, nothing was pushed") from error
    except ConfigError:
        raise
    except (http_error, RuntimeError, ValueError, OSError) as error:
        # the client wraps a failed transfer without its reason
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        raise ConfigError(
            f"{name}: {' '.join(str(cause).split())}; what was transferred stays; rerun the "
            "same command to resume"
        ) from error
    differing: list[str] = []
    for operation in operations:
        if not _has_hash(published.get(operation.path_in_repo), operation):
            differing.append(operation.path_in_repo)
    if differing:
        raise ConfigError(f"{name}: the hub does not hold what was sent: {', '.join(differing)}")
    print(f"commit {commit.oid[:12]}: {len(plan.files)} files, checked against their hashes")
    print(commit.repo_url)


def _has_hash(published: Any, operation: Any) -> bool:
    """Compare the hub's record of a file with the hash of what was sent.

    The hub keeps the sha256 of large files, and git's hash of the others.
    """
    from huggingface_hub.utils.sha import git_hash

    if published is None:
        return False
    if published.lfs is not None:
        return published.lfs.sha256 == operation.upload_info.sha256.hex()
    with operation.as_file() as file:
        return published.blob_id == git_hash(file.read())
