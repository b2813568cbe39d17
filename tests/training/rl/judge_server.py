"""A judge behind a server that lies in this process: `with judge_server() as (url, asked):`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextlib.contextmanager
def judge_server(failing: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Verdicts that the question alone decides; of 256 questions `failing` get none.

    Yields its address, and the questions that it has been asked.
    """
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = body["messages"][-1]["content"]
            requests.append(question)
            digest = hashlib.sha256(question.encode()).digest()
            scores = {"score_1": 1 + digest[0] % 5, "score_2": 1 + digest[1] % 5}
            said = json.dumps(scores | {"ranking": 1 + digest[2] % 6})
            message = {"role": "assistant", "content": "?" if digest[3] < failing else said}
            choice = {"message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": 5}
            answer = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Nothing on the tests' screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
