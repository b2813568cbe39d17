"""Servers in this process: a judge, and a base model that is given adapters.

with judge_server() as (url, requests): …
with policy_server(base) as server: … server.url, server.loaded …
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import AutoModelForCausalLM

from posttrain.rollouts import Parameters
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.sampler import EngineRequest


@contextlib.contextmanager
def serving(answer: Callable[[str, str, Any], tuple[int, Any]]) -> Iterator[str]:
    """A server that answers (method, path, body) with a status and a body; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            status, body = answer(self.command, path, json.loads(raw or b"{}"))
            encoded = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Nothing on the tests' screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


@contextlib.contextmanager
def stating(context: int | None, model: str = "m") -> Iterator[str]:
    """A server that says of its model, if anything, how many tokens it allows; yields its
    address."""
    stated = {} if context is None else {"max_model_len": context}
    with serving(lambda *_: (200, {"data": [{"id": model, **stated}]})) as url:
        yield url


# ---- a judge ----


def verdict(question: str, failing: int) -> str:
    """Scores and a ranking that the question alone decides; "?" for `failing` of 256 questions."""
    digest = hashlib.sha256(question.encode()).digest()
    scores = {"score_1": 1 + digest[0] % 5, "score_2": 1 + digest[1] % 5}
    answer = json.dumps(scores | {"ranking": 1 + digest[2] % 6})
    return "?" if digest[3] < failing else answer


def label(question: str, failing: int) -> str:
    """As `verdict`, the boolean that is asked for; the order of the texts to judge decides nothing."""
    texts = sorted(re.findall(r"\[Begin of [^\]]*\]\n(.*?)\n\[End of", question, re.DOTALL))
    digest = hashlib.sha256("\n".join(texts).encode()).digest()
    name = re.findall(r'\{"(\w+)": true\}', question)[-1]
    return "?" if digest[3] < failing else json.dumps({name: digest[0] % 2 == 0})


@contextlib.contextmanager
def judge_server(
    failing: int = 0, *, answer: Callable[[str, int], str] = verdict, down: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """A judge that answers every question by `answer`, and those with the text `down` with 503.

    Yields its address, and the questions that it has been asked.
    """
    requests: list[str] = []

    def reply(method: str, _path: str, body: Any) -> tuple[int, Any]:
        if method == "GET":
            return 404, "no list of models"
        question = body["messages"][-1]["content"]
        requests.append(question)
        if down is not None and down in question:
            return 503, "down"
        message = {"role": "assistant", "content": answer(question, failing)}
        usage = {"prompt_tokens": 9, "completion_tokens": 5}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    with serving(reply) as url:
        yield url, requests


# ---- a policy ----


def decoded(model: Any, prompt: list[int], given: dict[str, Any]) -> Any:
    """One completion, under the fields of a request or of SamplingParams."""
    parameters = Parameters(given["temperature"], max_tokens=given["max_tokens"], logps=True)
    stops = tuple(given["stop_token_ids"])
    return decode(
        model, [EngineRequest(tuple(prompt), parameters, given["seed"], stops)], batch_size=1
    )[0]


def completions(model: Any, body: dict[str, Any]) -> dict[str, Any]:
    """What `/v1/completions` answers."""
    output = decoded(model, body["prompt"], body)
    logprobs = {"token_logprobs": list(output.logps)}
    choice = {"token_ids": list(output.ids), "finish_reason": output.finish}
    return {"choices": [choice | {"logprobs": logprobs}]}


@dataclass
class PolicyServer:
    """`loaded` are the adapters that are there now, `log` every load and unload that worked."""

    base: Path
    url: str = ""
    loaded: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, _method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": str(self.base)}]}
        with self.lock:
            if path == "/v1/load_lora_adapter":
                in_place = body.get("load_inplace", False)
                return self.load(body["lora_name"], body["lora_path"], in_place=in_place)
            if path == "/v1/unload_lora_adapter":
                name = body["lora_name"]
                if self.loaded.pop(name, None) is None:
                    return 404, f"no adapter {name}"
                self.log.append(f"-{name}")
                return 200, "removed"
            assert path == "/v1/completions", path
            if body["model"] not in self.loaded:
                return 404, f"no model {body['model']}"
            return 200, completions(self.loaded[body["model"]], body)

    def load(self, name: str, path: str, *, in_place: bool = False) -> tuple[int, Any]:
        if name in self.loaded and not in_place:
            return 400, f"{name} has been loaded already"
        if not (Path(path) / "adapter_config.json").is_file():
            return 404, f"no adapter at {path}"
        model = AutoModelForCausalLM.from_pretrained(self.base)
        # the adapter as it is on disk now; its base layers are the model's own
        self.loaded[name] = PeftModel.from_pretrained(model, path).eval().get_base_model()
        self.log.append(f"+{name}")
        return 200, "added"


@contextlib.contextmanager
def policy_server(base: Path) -> Iterator[PolicyServer]:
    """A server that loads adapters from disk, as vLLM does, and really runs them."""
    server = PolicyServer(base)
    with serving(server.answer) as server.url:
        yield server
