"""A vLLM server as a process of its own, and a proxy in front of it that makes trouble."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.sampling.test_endpoint import free_port
from tests.training.rl.servers import serving

MODEL = "real"  # the name that it is served by
CONTEXT = 1024
_BOOT = 600.0  # seconds
_FLAGS = (
    "--dtype", "float32", "--max-model-len", str(CONTEXT),
    # this vLLM fails on a seeded request whose prompt is read in chunks on a CPU
    "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(CONTEXT),
    "--max-num-seqs", "16", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
)  # fmt: skip
_ADAPTERS = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class VllmProcess:
    """`start` returns when it answers, `kill` when it and its workers are gone."""

    def __init__(
        self, executable: Path, checkpoint: Path, log: Path, *, adapters: bool = True
    ) -> None:
        self.address = ("127.0.0.1", free_port())
        self.log = log
        self._command = [str(executable), "serve", str(checkpoint), "--served-model-name", MODEL]
        self._flags = (*_FLAGS, *_ADAPTERS) if adapters else _FLAGS
        # its workers are programs of the same environment
        self._path = f"{executable.parent}{os.pathsep}{os.environ['PATH']}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}/v1"

    def start(self) -> None:
        host, port = self.address
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *self._flags, "--host", host, "--port", str(port)],
                env=os.environ | _ENVIRONMENT | {"PATH": self._path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + _BOOT
        while not self.models():
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < until, "vLLM does not start"
            time.sleep(1)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def models(self) -> list[str]:
        """Names of what it serves now: the model and its adapters; [] where it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=10) as answer:  # noqa: S310 - our own
                return [model["id"] for model in json.load(answer)["data"]]
        except OSError:
            return []

    def answered(self) -> int:
        """Number of requests that it has answered since its start."""
        metrics = self.url.removesuffix("/v1") + "/metrics"
        with urllib.request.urlopen(metrics, timeout=10) as answer:  # noqa: S310 - our own
            lines = answer.read().decode()
        counts = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", lines, re.MULTILINE)
        return int(sum(float(count) for count in counts))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        status, answer = _post(f"{self.url}{path}", body)
        assert status == 200, answer
        return answer


def _post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310 - our own
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


@contextlib.contextmanager
def proxy(
    server: VllmProcess,
    *,
    trouble: Callable[[int], int | None] = lambda _: None,
    chat_fields: dict[str, Any] | None = None,
) -> Iterator[tuple[str, list[int]]]:
    """Yields its address and the refusals so far.

    Args:
        trouble: of the number of a request, the status that it is refused with.
        chat_fields: put into each request for a chat completion.
    """
    numbers = itertools.count()
    refusals: list[int] = []

    def answer(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if method == "GET":
            return 200, {"data": [{"id": name} for name in server.models()]}
        if (status := trouble(next(numbers))) is not None:
            refusals.append(status)
            return status, "trouble"
        if path.endswith("/chat/completions"):
            body = body | (chat_fields or {})
        return _post(server.url + path.removeprefix("/v1"), body)

    with serving(answer) as url:
        yield url, refusals
