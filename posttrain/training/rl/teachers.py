"""Teachers of distillation: frozen models in this process, adapters on a shared base, or models
behind servers, compared with the student before a rollout is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.utils.save_and_load import get_peft_model_state_dict, load_peft_weights
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedTokenizerBase

from posttrain.config.backend import Dtype, Server
from posttrain.config.distill import TeacherConfig
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError, PosttrainError
from posttrain.hashing import sha256_file
from posttrain.jsontext import load_json
from posttrain.models.inference import load_for_inference, weights_digest
from posttrain.models.load import without_zero3_init
from posttrain.runs import MANIFEST, STAGE, Parent, parent_of, read_artifact
from posttrain.sampling.engines.http import Client, wait_for_servers
from posttrain.sampling.engines.transformers import score_in_thread
from posttrain.sampling.engines.vllm import CompletionsEngine
from posttrain.sampling.sampler import ScoreOutput, Scorer, ScoreRequest
from posttrain.tokens.tokenizer import largest_id, load_any_tokenizer
from posttrain.training.plan import GIB, FrozenModels, Line, model_size
from posttrain.training.sharded import most_passes, share_bytes, split_weights
from posttrain.training.trainer import ADAPTER

_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# digits, capitals, accents, another script, an emoji and code: pieces that vocabularies cut apart
_PROBE = "Distil 3.14159 ≠ 22/7; naïve ÅNGSTRÖM, 东京 🙂\n\tdef f(x): return x ** 2"


class ResidentModels:
    """Keeps the models used last on the device, and the others in the CPU's memory.

    Args:
        limit: greatest number of models on the device at a time; None: all, and nothing moves.
    """

    def __init__(self, device: torch.device, *, limit: int | None) -> None:
        self._device = device
        self._limit = limit
        # the training thread may need a teacher again for a chunk that backward recomputes
        self._lock = threading.RLock()
        self._resident: list[Any] = []

    @contextlib.contextmanager
    def using(self, model: Any) -> Iterator[None]:
        """Hold the model on the device inside the block, for one thread at a time."""
        with self._lock:
            if self._limit is not None:
                self._make_resident(model, self._limit)
            yield

    def _make_resident(self, model: Any, limit: int) -> None:
        """Move the model to the device, and the models used longest ago off it."""
        if any(resident is model for resident in self._resident):
            self._resident = [resident for resident in self._resident if resident is not model]
        else:
            # room is made first, so that no more than `limit` are there at any moment
            while len(self._resident) >= limit:
                self._resident.pop(0).to("cpu")
            model.to(self._device)
        self._resident.append(model)


@dataclass(frozen=True, slots=True)
class InProcessTeacher:
    """A frozen model in this process, as a `Scorer`.

    Attributes:
        model: The model, in eval mode; shared by the teachers that are adapters on it.
        adapter: Name of the teacher's adapter in the model; None for the model without one.
        identity: Backend, digest of the weights, precision.
        residents: Decides which models are on the device.
    """

    model: Any
    adapter: str | None
    identity: Mapping[str, Any]
    residents: ResidentModels

    @property
    def batched(self) -> bool:
        return True

    @property
    def is_split(self) -> bool:
        """True where the weights are split over processes, which must all run the same passes."""
        return isinstance(self.plain_model.base_model, FSDPModule)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Hold the model on the device inside the block, with this teacher's adapter."""
        with self.residents.using(self.model):
            if self.model.device.type == "cuda":
                # a new thread has the first GPU as its device
                torch.cuda.set_device(self.model.device)
            if self.adapter is not None:
                self.model.set_adapter(self.adapter)
            without_adapter = isinstance(self.model, PeftModel) and self.adapter is None
            with self.model.disable_adapter() if without_adapter else contextlib.nullcontext():
                yield

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Score ids as `Scorer.score` does.

        Where the weights are split, every process must call it, also without requests.
        """
        if not requests and not self.is_split:
            return []

        def passes(batches: int) -> int:
            return most_passes(batches, self.model.device) if self.is_split else batches

        return await score_in_thread(self.model, requests, around=self.active, passes=passes)

    @property
    def plain_model(self) -> Any:
        """Model without the wrapper of its adapters."""
        return _plain_model(self.model)


@dataclass(frozen=True, slots=True)
class Teachers:
    """Open teachers.

    Attributes:
        scorers: Scorer of each teacher by name; two names of one checkpoint share a scorer.
        lines: Lines of the plan, one for each teacher.
        parents: Artifacts among the teachers.
        on_device: Greatest number of their models on the device at a time; None: all.
    """

    on_device: int | None = None
    scorers: dict[str, Scorer] = field(default_factory=dict[str, Scorer])
    lines: list[Line] = field(default_factory=list[Line])
    parents: list[Parent] = field(default_factory=list[Parent])

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each teacher's weights, or the name that its server knows it by."""
        return {name: str(scorer.identity["weights"]) for name, scorer in self.scorers.items()}

    @property
    def frozen(self) -> FrozenModels:
        """Models of the teachers in this process, each once, for the memory plan."""
        models: dict[int, Any] = {}
        for scorer in self.scorers.values():
            if isinstance(scorer, InProcessTeacher):
                models[id(scorer.model)] = scorer.model
        return FrozenModels([*models.values()], self.on_device)


def open_teachers(
    teachers: Mapping[str, TeacherConfig],
    *,
    student: ModelConfig,
    device: torch.device,
    out: Path,
    stack: contextlib.AsyncExitStack,
    in_memory: int | None = None,
    student_is_rounded: bool = False,
    processes: int = 1,
) -> Teachers:
    """Load the teachers: one model for each checkpoint and precision, whatever adapters it has.

    Args:
        student: model whose tokens they score.
        out: the run's directory, which the paths of parents are relative to.
        in_memory: greatest number of their models on the device at a time; None: all.
        student_is_rounded: the student samples with other weights than its checkpoint holds.
        processes: number of processes that the weights in process are split over.
        stack: closes the connections to servers.

    Raises:
        ConfigError: a teacher whose vocabulary or template is not the student's, a checkpoint
            whose stage has not finished, an adapter of another base, a model that cannot be loaded.
    """
    loader = _TeacherLoader(student, device, out, stack, in_memory, student_is_rounded, processes)
    # model → the last teacher on it, after which all its adapters are there
    last_teachers = {
        loader.model_key(config): name for name, config in teachers.items() if config.server is None
    }
    for name, config in teachers.items():
        if config.server is not None:
            loader.open_served(name, config.server)
            continue
        loader.open_in_process(name, config)
        if last_teachers[loader.model_key(config)] == name:
            loader.split(config)
    return loader.teachers


class _TeacherLoader:
    """Opens teachers one after the other, and keeps the models loaded so far."""

    def __init__(
        self,
        student: ModelConfig,
        device: torch.device,
        out: Path,
        stack: contextlib.AsyncExitStack,
        in_memory: int | None,
        student_is_rounded: bool,
        processes: int,
    ) -> None:
        self.student = student
        self.device = device
        self.out = out
        self.stack = stack
        self.in_memory = in_memory
        self.student_is_rounded = student_is_rounded
        self.processes = processes
        self.teachers = Teachers(on_device=in_memory)
        self.residents = ResidentModels(device, limit=in_memory)
        # (path, precision) → model
        self.models: dict[tuple[str, Dtype], Any] = {}
        # (path, adapter, precision) → name of the first teacher with these weights
        self.name_of: dict[tuple[str, str, Dtype], str] = {}
        self.student_digest = weights_digest(student.path) if student.path is not None else None

    def open_served(self, name: str, server: Server) -> None:
        """Add a teacher behind a server, after a comparison with the student."""
        # one that starts later would never be compared
        asyncio.run(wait_for_servers(f"teachers.{name}.server", server))
        # each replica is asked, since any of them may serve another model under the name
        comparisons: list[str] = []
        for url in server.urls:
            replica = server.model_copy(update={"url": url})
            with _naming(f"teachers.{name}.server"):
                comparisons.append(_compare_served(replica, url, self.student))
        client = Client(server)
        self.stack.push_async_callback(client.close)
        identity: Mapping[str, Any] = {"backend": "completions", "weights": server.model}
        scorer = CompletionsEngine(client, model=server.model, identity=identity)
        self.teachers.scorers[name] = scorer
        distinct_comparisons = "; ".join(dict.fromkeys(comparisons))
        text = f"{server.model} at {server.addresses}; {distinct_comparisons}"
        self.teachers.lines.append((f"teacher {name}", text))

    def model_key(self, config: TeacherConfig) -> tuple[str, Dtype]:
        """Key in `models` of the model that a teacher is, or has its adapter on."""
        return _resolved(config.path or str(self.student.path)), config.dtype

    def split(self, config: TeacherConfig) -> None:
        """Split a teacher's model over the processes, before the next one is loaded."""
        if self.processes == 1:
            return
        model = self.models[self.model_key(config)]
        split_weights(_plain_model(model), self.device)
        if self.in_memory is not None:
            model.to("cpu")

    def open_in_process(self, name: str, config: TeacherConfig) -> None:
        """Add a teacher in this process, with its model, its line of the plan and its parents."""
        path = config.path or str(self.student.path)
        adapter = None if config.adapter is None else _adapter_folder(name, config.adapter)
        key = (_resolved(path), _resolved(str(adapter or "")), config.dtype)
        if key in self.name_of:
            first_name = self.name_of[key]
            self.teachers.scorers[name] = self.teachers.scorers[first_name]
            line = (f"teacher {name}", f"the same model as teacher {first_name}")
            self.teachers.lines.append(line)
            return
        self.name_of[key] = name
        with _naming(f"teachers.{name}.path"):
            self._add_parent(path)
            digest = weights_digest(path)
            model, newly_loaded = self._load_model(path, config.dtype)
        if adapter is not None:
            artifact = adapter.parent if adapter.name == ADAPTER else adapter
            with _naming(f"teachers.{name}.adapter"):
                self._add_parent(str(artifact))
                _check_base(artifact, adapter, path, digest)
                model = self._add_adapter(name, adapter, (_resolved(path), config.dtype))
            digest = f"{digest}+{_adapter_digest(adapter)}"
        precision = str(model.dtype).removeprefix("torch.")
        identity = {"backend": "transformers", "weights": digest, "dtype": precision}
        adapter_name = None if adapter is None else name
        scorer = InProcessTeacher(model, adapter_name, identity, self.residents)
        self.teachers.scorers[name] = scorer
        text = self._size_text(model, adapter_name, newly_loaded=newly_loaded)
        digest_text = digest if "@" in digest else digest[:12]
        location = path if adapter is None else f"{config.adapter} on {path}"
        text = f"{location} ({digest_text}), {text}"
        if digest == self.student_digest and not self.student_is_rounded:
            text += "; the student's weights: its advantages are 0 until the student has moved"
        self.teachers.lines.append((f"teacher {name}", text))

    def _add_parent(self, path: str) -> None:
        """Record an artifact as a parent of the run; a directory without a manifest is none."""
        folder = Path(path)
        if (folder / STAGE).is_file() and not (folder / MANIFEST).is_file():
            raise ConfigError(
                f"{path} has no {MANIFEST}: its stage has not finished; rerun it, or name "
                "another checkpoint"
            )
        if (folder / MANIFEST).is_file():
            manifest = read_artifact(folder, kind="checkpoint")
            parent = parent_of(path, relative_to=self.out, manifest=manifest)
            if parent not in self.teachers.parents:
                self.teachers.parents.append(parent)

    def _load_model(self, path: str, dtype: Dtype) -> tuple[Any, bool]:
        """Load the model of a path, unless a teacher before this one has loaded it.

        Returns:
            The model, and True if this call has loaded it.
        """
        key = (_resolved(path), dtype)
        if key in self.models:
            return self.models[key], False
        vocabulary = _check_tokens(path, self.student)
        moves_later = self.in_memory is not None or self.processes > 1
        # read whole by every process, also where ZeRO-3 splits what is loaded
        with without_zero3_init():
            model = load_for_inference(
                path,
                dtype=dtype if dtype != "auto" else _auto_dtype(self.device),
                device="cpu" if moves_later else str(self.device),
                attention="auto",
                vocabulary=vocabulary,
                transposed=False,
            )
        self.models[key] = model.requires_grad_(False)
        return model, True

    def _add_adapter(self, name: str, adapter: Path, base: tuple[str, Dtype]) -> PeftModel:
        """Load an adapter beside the others of its base, and return the base with all of them."""
        model = self.models[base]
        if not any((adapter / file).is_file() for file in _ADAPTER_WEIGHTS):
            raise ConfigError(f"{adapter} holds no {_ADAPTER_WEIGHTS[0]}")
        try:
            if isinstance(model, PeftModel):
                model.load_adapter(str(adapter), name)
            else:
                model = PeftModel.from_pretrained(model, str(adapter), adapter_name=name)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ConfigError(f"{adapter} cannot be loaded: {_first_problem(error)}") from error
        _check_tensors(model, name, adapter)
        model.eval().requires_grad_(False)
        self.models[base] = model
        # teachers without an adapter on this base go on through its wrapper, which switches it off
        base_model = model.get_base_model()
        for teacher_name, scorer in self.teachers.scorers.items():
            if isinstance(scorer, InProcessTeacher) and scorer.plain_model is base_model:
                wrapped = InProcessTeacher(model, scorer.adapter, scorer.identity, self.residents)
                self.teachers.scorers[teacher_name] = wrapped
        return model

    def _size_text(self, model: Any, adapter: str | None, *, newly_loaded: bool) -> str:
        """Text about the parameters and memory that a teacher adds to the processes.

        Args:
            adapter: name of the teacher's adapter in the model, None for the model itself.
            newly_loaded: True where the model was loaded for this teacher.
        """
        size = model_size(model)
        locations: list[str] = []
        if self.processes > 1:
            share_gib = share_bytes(model, size.weight_bytes, processes=self.processes) / GIB
            locations.append(f"split over {self.processes} processes, {share_gib:.2f} GiB in each")
        if self.in_memory is not None:
            locations.append(f"on the device in turns, {self.in_memory} at a time")
        location = ", ".join(locations) or "in every process"
        precision = str(model.dtype).removeprefix("torch.")
        if adapter is None:
            return (
                f"{size.parameters:,} parameters in {precision}, "
                f"{size.weight_bytes / GIB:.2f} GiB {location}"
            )
        adapter_parameters = [
            parameter
            for parameter_name, parameter in model.named_parameters()
            if adapter in parameter_name.split(".")
        ]
        parameter_count = sum(p.numel() for p in adapter_parameters)
        adapter_bytes = sum(p.numel() * p.element_size() for p in adapter_parameters)
        base = "on a base that is there"
        if newly_loaded:
            base = f"on a base of {size.weight_bytes / GIB:.2f} GiB"
        adapter_gib = adapter_bytes / GIB
        return f"{parameter_count:,} parameters more, {adapter_gib:.3f} GiB {base}, {location}"


def _plain_model(model: Any) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _resolved(path: str) -> str:
    """Absolute path of a folder; a name on the hub as it is."""
    folder = Path(path)
    return str(folder.resolve()) if path and folder.is_dir() else path


def _auto_dtype(device: torch.device) -> Dtype:
    """Precision of a teacher with `dtype: auto`, by the device that it scores on."""
    return "bfloat16" if device.type == "cuda" else "float32"


def _adapter_folder(name: str, path: str) -> Path:
    """Folder of the adapter itself: the path, or `adapter/` in a checkpoint of ours."""
    for folder in (Path(path), Path(path) / ADAPTER):
        if (folder / "adapter_config.json").is_file():
            return folder
    raise ConfigError(f"teachers.{name}.adapter: {path!r} holds no adapter_config.json")


@contextlib.contextmanager
def _naming(key: str) -> Iterator[None]:
    """Begin the message of a user's mistake inside the block with a recipe key."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(f"{key}: {error}") from error


def _check_base(artifact: Path, adapter: Path, base: str, base_digest: str) -> None:
    """Refuse an adapter that was trained on another base, as far as its folder tells.

    Args:
        artifact: folder of the manifest, if there is one.
        base: path or name on the hub of the teacher's base.
        base_digest: digest of the base's weights.

    Raises:
        ConfigError: the manifest, or without one PEFT's file, names another base.
    """
    if (artifact / MANIFEST).is_file() and (Path(base) / MANIFEST).is_file():
        parents = read_artifact(artifact, verify=False).parents
        digests = [parent.digest for parent in parents if parent.kind == "checkpoint"]
    else:
        file = adapter / "adapter_config.json"
        try:
            config = load_json(file.read_text("utf-8"))
        except ValueError as error:
            raise ConfigError(f"{file} is no JSON: {error}") from error
        trained_on = str(config.get("base_model_name_or_path"))
        # a folder of another machine, or a name on the hub, tells nothing
        digests = [weights_digest(trained_on)] if Path(trained_on).is_dir() else []
    if digests and base_digest not in digests:
        raise ConfigError(
            f"{adapter} was trained on another checkpoint "
            f"({', '.join(digest[:12] for digest in digests)}) than {base} ({base_digest[:12]})"
        )


def _check_tensors(model: PeftModel, name: str, adapter: Path) -> None:
    """Refuse an adapter of a model with other layers, of which PEFT loads those that fit.

    Raises:
        ConfigError: its file and the model do not have the same tensors.
    """
    in_model = {*get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)}
    in_file = {*load_peft_weights(str(adapter), device="cpu")}
    differing_tensors = sorted(in_model ^ in_file)
    if differing_tensors:
        tensor = differing_tensors[0]
        owner = "the file" if tensor in in_file else "the model"
        raise ConfigError(
            f"{adapter} is of another model: {len(differing_tensors):,} tensors are in the file or "
            f"in the model alone, such as {tensor} in {owner}"
        )


def _first_problem(error: Exception) -> str:
    """First problem of PEFT's message, which has a line for each tensor."""
    lines = [line.strip() for line in str(error).splitlines()]
    mismatches = [line for line in lines if line.startswith("size mismatch")]
    return f"it is of another model: {mismatches[0]}" if mismatches else lines[0]


def _adapter_digest(adapter: Path) -> str:
    """Digest of an adapter's weights and configuration."""
    total = hashlib.sha256()
    for file in sorted(adapter.glob("adapter_*")):
        total.update(f"{file.name} {sha256_file(file)}\n".encode())
    return total.hexdigest()


def _check_tokens(path: str, student: ModelConfig) -> int:
    """Compare a teacher's tokenizer and chat template with the student's.

    Returns:
        Number of rows that the teacher's embedding needs.

    Raises:
        ConfigError: a token has another id, or the template differs.
    """
    tokenizer = load_any_tokenizer(path)
    student_tokenizer = _student_tokenizer(student)
    teacher_ids = tokenizer.get_vocab()
    student_ids = student_tokenizer.get_vocab()
    if teacher_ids != student_ids:
        all_tokens = {*teacher_ids, *student_ids}
        differing_tokens = [
            token for token in all_tokens if teacher_ids.get(token) != student_ids.get(token)
        ]
        # a short one: some vocabularies have pages of text in a token
        token = min(differing_tokens, key=lambda token: (len(token), token))
        raise ConfigError(
            f"the vocabulary of {path} is not the student's: {token!r} is "
            f"{teacher_ids.get(token)} there and {student_ids.get(token)} in {student.path} "
            f"({len(differing_tokens):,} tokens differ)"
        )
    if tokenizer.chat_template != student_tokenizer.chat_template:
        raise ConfigError(
            f"the chat template of {path} is not the student's: it was trained on prompts that "
            "read otherwise"
        )
    return largest_id(tokenizer) + 1


def _student_tokenizer(student: ModelConfig) -> PreTrainedTokenizerBase:
    return load_any_tokenizer(str(student.path), revision=student.revision)


def _compare_served(server: Server, url: str, student: ModelConfig) -> str:
    """Compare a served model's vocabulary and template with the student's.

    Only what the server reveals is compared.

    Returns:
        Text about what was compared, for the plan.

    Raises:
        ConfigError: they differ.
    """
    root, served_ids = asyncio.run(_ask_server(server, url))
    if root is not None and Path(root).is_dir():
        _check_tokens(root, student)
        return f"vocabulary and template of {root} are the student's"
    if served_ids is None:
        return "the server does not tell its vocabulary and template: they are not compared"
    student_ids = _probe_ids(_student_tokenizer(student))
    if student_ids == served_ids:
        return "it renders and tokenises a probe as the student does"
    # one list may be a beginning of the other, and then differs behind its end
    position = min(len(student_ids), len(served_ids))
    for index, (student_id, served_id) in enumerate(zip(student_ids, served_ids, strict=False)):
        if student_id != served_id:
            position = index
            break
    raise ConfigError(
        f"{url} renders and tokenises a probe otherwise than the student: "
        f"{len(served_ids)} ids in place of {len(student_ids)}, the first that differs is number "
        f"{position}: serve a model with the student's vocabulary and template"
    )


def _probe_messages() -> list[dict[str, str]]:
    return [{"role": "user", "content": _PROBE}]


def _probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the probe as this tokenizer renders and tokenises it."""
    text: Any = tokenizer.apply_chat_template(
        _probe_messages(), tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


async def _ask_server(server: Server, url: str) -> tuple[str | None, list[int] | None]:
    """Ask a server for its model's path and for the ids of a probe, by vLLM's `/tokenize`.

    Returns:
        The path and the ids, each None where the server does not tell it.
    """
    client = Client(server)
    # `/tokenize` is outside of /v1; the server is there, as has been checked
    root_url = url.removesuffix("/v1")
    tokenize_client = Client(server.model_copy(update={"url": root_url, "wait": 0.0, "retries": 0}))
    try:
        models = await client.models()
        if not models:
            return None, None
        path: str | None = None
        for model in models:
            if path is None and model.get("id") == server.model:
                root = model.get("root")
                path = root if isinstance(root, str) else None
        body = {
            "model": server.model,
            "messages": _probe_messages(),
            "add_generation_prompt": True,
        }
        try:
            answer = await tokenize_client.post("/tokenize", body, key=0)
        except PosttrainError:
            return path, None
        tokens = answer.get("tokens")
        return path, tokens if isinstance(tokens, list) else None
    finally:
        await client.close()
        await tokenize_client.close()
