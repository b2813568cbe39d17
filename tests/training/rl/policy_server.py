"""A server of a tiny base model that loads adapters from disk, as vLLM does, and really runs them.

with policy_server(base) as server:
    … server.url, server.loaded …
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import AutoModelForCausalLM

from posttrain.sampling.engines.decode import decode
from posttrain.sampling.sampler import EngineRequest, Parameters


@dataclass
class PolicyServer:
    """`loaded` are the adapters that are there now, `log` every load and unload that worked."""

    base: Path
    url: str = ""
    loaded: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        with self.lock:
            if path == "/v1/load_lora_adapter":
                return self._load(body["lora_name"], body["lora_path"])
            if path == "/v1/unload_lora_adapter":
                return self._unload(body["lora_name"])
            assert path == "/v1/completions", path
            if body["model"] not in self.loaded:
                return 404, f"no model {body['model']}"
            return 200, json.dumps(self._complete(body))

    def _load(self, name: str, path: str) -> tuple[int, str]:
        if name in self.loaded:
            return 400, f"{name} has been loaded already"
        if not (Path(path) / "adapter_config.json").is_file():
            return 404, f"no adapter at {path}"
        model = AutoModelForCausalLM.from_pretrained(self.base)
        # the adapter as it is on disk now; its base layers are the model's own
        self.loaded[name] = PeftModel.from_pretrained(model, path).eval().get_base_model()
        self.log.append(f"+{name}")
        return 200, f"{name} added"

    def _unload(self, name: str) -> tuple[int, str]:
        if self.loaded.pop(name, None) is None:
            return 404, f"no adapter {name}"
        self.log.append(f"-{name}")
        return 200, f"{name} removed"

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        parameters = Parameters(body["temperature"], max_tokens=body["max_tokens"], logps=True)
        stops = tuple(body["stop_token_ids"])
        request = EngineRequest(tuple(body["prompt"]), parameters, body["seed"], stops)
        [output] = decode(self.loaded[body["model"]], [request], batch_size=1)
        assert output.logps is not None
        logprobs = {"token_logprobs": list(output.logps)}
        choice = {"token_ids": list(output.ids), "finish_reason": output.finish}
        return {"choices": [choice | {"logprobs": logprobs}]}


@contextlib.contextmanager
def policy_server(base: Path) -> Iterator[PolicyServer]:
    server = PolicyServer(base)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, text = server.answer(self.path, body)
            encoded = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_: Any) -> None:
            """Nothing on the tests' screen."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
