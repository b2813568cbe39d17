"""A stand-in for vLLM: the modules that TRL imports, and a server that takes weights and answers.

    with vllm_server(policy) as server:       # in the test's process
        forked(lambda: (install_vllm(), stage.run(dry_run=False)), …)
    server.log   → [("GET", "/health", {}), …]

The transfer is a TCP connection in place of NCCL; what the server samples with is what came over
it. A request that vLLM would not know, or that comes out of order, is an AssertionError in `errors`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.training.rl.servers import completions, decoded, serving

VERSION = "0.28.0"
SAMPLING = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop_token_ids",
    "skip_special_tokens", "return_token_ids", "top_k", "min_p", "repetition_penalty", "logprobs",
}  # fmt: skip
# what each POST may follow: a request that is not listed here may come at any time
AFTER = {
    "/start_weight_update": ("/init_weight_transfer_engine", "/v1/completions"),
    "/update_weights": ("/start_weight_update",),
    "/finish_weight_update": ("/update_weights",),
    "/reset_prefix_cache": ("/finish_weight_update",),
    "/v1/completions": ("/reset_prefix_cache", "/v1/completions"),
}


@dataclass
class VllmServer:
    """`log` are all requests in order, `sent` the (name, shape) pairs of each update."""

    base: Path
    url: str = ""
    logprobs_mode: str = "raw_logprobs"
    log: list[tuple[str, str, Any]] = field(default_factory=list)
    sent: list[dict[str, torch.Tensor]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(self.base).eval()
        self.transfer = socket.create_server(("127.0.0.1", 0))
        self.group_port = self.transfer.getsockname()[1]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        try:
            return 200, self._get(path) if method == "GET" else self._post(path, body)
        except (AssertionError, KeyError, TypeError) as error:
            self.errors.append(repr(error))
            return 400, repr(error)

    def _get(self, path: str) -> Any:
        self.log.append(("GET", path, {}))
        config = {
            "weight_transfer_config": {"backend": "nccl"},
            "model_config": {"logprobs_mode": self.logprobs_mode},
        }
        return {
            "/health": {},
            "/v1/models": {"data": [{"id": "policy"}]},
            "/get_world_size": {"world_size": 1},
            "/server_info": {"vllm_config": config},
        }[path]

    def _post(self, path: str, body: Any) -> Any:
        with self.lock:
            before = [p for method, p, _ in self.log if method == "POST"]
            if path in AFTER:
                assert before, path
                assert before[-1] in AFTER[path], f"{path} after {before[-1]}"
            self.log.append(("POST", path, body))
            if path == "/init_weight_transfer_engine":
                assert set(body["init_info"]) == {
                    "master_address", "master_port", "rank_offset", "world_size", "packed"
                }  # fmt: skip
                self.joined = self.transfer.accept()[0].makefile("rb")
            elif path == "/update_weights":
                self._receive(**body["update_info"])
            elif path == "/v1/completions":
                assert set(body) == SAMPLING, set(body) ^ SAMPLING
                assert body["model"] == "policy"
                return completions(self.model, body)
            return {"success": True}

    def _receive(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        came: dict[str, torch.Tensor] = {}
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
            empty = torch.empty(shape, dtype=getattr(torch, dtype))
            raw = bytearray(self.joined.read(empty.nbytes))
            came[name] = torch.frombuffer(raw, dtype=empty.dtype).reshape(shape)
        self.sent.append(came)
        own = self.model.state_dict()
        with torch.no_grad():
            for name in own.keys() & came.keys():
                own[name].copy_(came[name])


@contextlib.contextmanager
def vllm_server(base: Path, **more: Any) -> Iterator[VllmServer]:
    server = VllmServer(base, **more)
    try:
        with serving(server.answer) as server.url:
            yield server
    finally:
        server.transfer.close()


def join_transfer(info: dict[str, Any]) -> Any:
    """The trainer's end of the transfer."""
    connection = socket.create_connection((info["master_address"], info["master_port"]))
    return SimpleNamespace(connection=connection, group=SimpleNamespace(store=None, socket=None))


def broadcast(iterator: Any, group: Any, src: int, post_iter_func: Any) -> None:
    assert src == 0
    for item in iterator:
        tensor = post_iter_func(item).detach().contiguous()
        group.connection.sendall(tensor.view(torch.uint8).numpy().tobytes())


class Llm:
    """The offline engine: `log` are its calls, in order, of the last one that was made."""

    log: list[str] = []  # noqa: RUF012 - of the process

    def __init__(self, *, model: str, enable_sleep_mode: bool, **given: Any) -> None:
        assert given["logprobs_mode"] == "processed_logprobs"
        self.model: Any = AutoModelForCausalLM.from_pretrained(model).eval()
        runner = SimpleNamespace(model=self)
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=executor)
        self.sleeping = False

    def load_weights(self, pairs: Any) -> None:
        assert not self.sleeping, "its weights are not there"
        own = self.model.state_dict()
        with torch.no_grad():
            for name, tensor in pairs:
                own[name].copy_(tensor)

    def sleep(self, *, level: int) -> None:
        assert level == 2
        self.sleeping = True
        Llm.log.append("sleep")
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()  # level 2 gives the weights up

    def wake_up(self, *, tags: list[str]) -> None:
        self.sleeping = False
        Llm.log.append(f"wake {tags[0]}")

    def reset_prefix_cache(self) -> None:
        Llm.log.append("reset")

    def generate(self, prompts: Any, parameters: Any, *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        Llm.log.append("generate")
        return [
            self._answer(p["prompt_token_ids"], q) for p, q in zip(prompts, parameters, strict=True)
        ]

    def _answer(self, prompt: list[int], given: dict[str, Any]) -> Any:
        output = decoded(self.model, prompt, given)
        rows = [
            {t: SimpleNamespace(logprob=v)} for t, v in zip(output.ids, output.logps, strict=True)
        ]
        one = SimpleNamespace(token_ids=output.ids, finish_reason=output.finish, logprobs=rows)
        return SimpleNamespace(outputs=[one])


def install_vllm() -> None:
    """Put the stand-in where `import vllm` finds it, and have TRL look again; in a fork only."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": VERSION, "LLM": Llm, "RequestOutput": object, "SamplingParams": dict},
        "vllm.sampling_params": {"StructuredOutputsParams": object},
        "vllm.utils": {},
        "vllm.utils.network_utils": {"get_ip": lambda: "127.0.0.1"},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.nccl_common": {"trainer_init": join_transfer},
        "vllm.distributed.weight_transfer.packed_tensor": {"packed_nccl_broadcast_producer": broadcast},
    }  # fmt: skip
    for name, names in contents.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(names)
        sys.modules[name] = module
    from trl.generation import vllm_client, vllm_generation

    importlib.reload(vllm_client)
    # its engine transfers from a CUDA device alone; a device without an index is not touched
    join = vllm_client.VLLMClient.init_communicator
    vllm_client.VLLMClient.init_communicator = lambda self, device: join(self, "cuda")
    importlib.reload(vllm_generation)
    vllm_generation.empty_cache = lambda: None
    from posttrain.training.rl import policy

    importlib.reload(policy)
