"""A judge behind a server that lies in this process: `with judge_server() as (url, asked):`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = body["messages"][-1]["content"]
            requests.append(question)
            if down is not None and down in question:
                self.send_error(503)
                return
            message = {"role": "assistant", "content": answer(question, failing)}
            choice = {"message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": 5}
            body = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing on the tests' screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
