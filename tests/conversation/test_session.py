"""A checkpoint and a server are talked to through the script, from a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from posttrain.config.backend import TransformersBackend
from posttrain.errors import ConfigError
from posttrain.records import Message
from posttrain.rollouts import Parameters
from posttrain.sampling.engines.chat import StreamedMessage
from posttrain.sampling.engines.transformers import TextPieces
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.sampler import Request, seed_of
from scripts.chat import main
from tests.sampling.small_models import byte_tokenizer
from tests.sampling.test_open import write_checkpoint


def chat(*arguments: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> str:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    with contextlib.redirect_stdout(out):
        main([*arguments])
    return out.getvalue()


def test_a_checkpoint_streams_what_the_sampler_makes(tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path / "checkpoint")
    config = json.loads((folder / "generation_config.json").read_text())
    config |= {"temperature": 0.7, "top_k": 40, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(config))
    arguments = [str(folder), "--max-tokens", "40", "--seed", "8"]
    out = chat(*arguments, lines="/no_think\nhello\n", monkeypatch=monkeypatch)
    parameters = Parameters(temperature=0.7, top_k=40, max_tokens=40)
    seed = seed_of(8, "turn-1", 0, 0)
    request = Request((Message("user", "hello"),), None, False, parameters, seed)

    async def sample() -> str:
        backend = TransformersBackend(kind="transformers", device="cpu")
        async with opened_sampler(backend, checkpoint=str(folder)) as sampler:
            [generation] = await sampler.sample([request])
        assert generation.step is not None
        return generation.step.text

    text = asyncio.run(sample())
    streamed = re.search(r"> hello\n(.*?)(?:\n\[.*)?$", out, re.DOTALL)
    assert streamed is not None, out
    # random weights write broken characters, and tags that no answer has
    plain = re.sub(r"<[^>]*>|\W", "", text)
    assert len(plain) > 3
    assert re.sub(r"<[^>]*>|\W", "", streamed[1]) == plain


@pytest.mark.parametrize("text", ["plain words", "naïve 日本 🎉 é", "a\ufffdb", ""])
def test_pieces_are_whole_characters_and_lose_nothing(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = TextPieces(lambda some: tokenizer.decode(some))
    parts = [pieces.add(one) for one in ids]
    assert "".join([*parts, pieces.end()]) == text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


def test_a_first_blank_that_is_dropped_and_broken_bytes():
    words = ["▁a", "▁b", "c", "▁d"]
    pieces = TextPieces(lambda ids: "".join(words[i] for i in ids).replace("▁", " ").lstrip(" "))
    assert "".join([*(pieces.add(i) for i in range(4)), pieces.end()]) == "a bc d"
    pieces = TextPieces(lambda ids: "\ufffd" * len(ids))
    shown = [pieces.add(0) for _ in range(40)]
    assert sum(map(len, shown)) + len(pieces.end()) == 40
    assert any(shown[:10])


# ---- a server -----------------------------------------------------------------------------------


@contextlib.contextmanager
def server(answers: list[tuple[str, bytes]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Sends (content type, body) in order."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            kind, body = answers[len(bodies) - 1]
            self.send_response(500 if kind == "trouble" else 200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1", bodies
    finally:
        running.shutdown()
        running.server_close()


def events(*rows: Any, done: bool = True, end: str = "\n\n") -> tuple[str, bytes]:
    lines = [f"data: {row if isinstance(row, str) else json.dumps(row)}{end}" for row in rows]
    text = f": keep-alive\n\n{''.join(lines)}{'data: [DONE]' if done else ''}\n\n"
    return "text/event-stream; charset=utf-8", text.encode()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


STOP = delta("stop")
PIECE = {"index": 0, "function": {"arguments": '"7*8"}'}}
FIRST = {"index": 0, "id": "c1", "type": "function",
         "function": {"name": "calculate", "arguments": '{"expression": '}}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (events(delta(role="assistant", content=""), delta(content="5"), delta(content="6"), STOP), "56"),
        (events(delta(reasoning_content="hm hm"), delta(content="56"), STOP), "[reasoning, 2 words]\n56"),
        # the same trace under two names, as a server in transition sends it
        (events(delta(reasoning="hm hm", reasoning_content="hm hm"), delta(content="56"), STOP), "2 words]\n56"),
        (events(delta(content="<think>hm</think>56"), STOP), "1 words]\n56"),
        (events(delta(content=[{"type": "text", "text": "56"}]), STOP), "56"),
        (events(delta(content="56"), STOP, end="\r\n\r\n"), "56"),
        (events(delta(content="a\ud83d"), delta(content="\ude00b"), STOP), "a😀b"),
        (events(delta(content="5"), delta("stop", content="6"), {"choices": [], "usage": {"completion_tokens": 2}}, done=False), "56"),
        (("application/json", json.dumps({"choices": [{"message": {"content": "56"}, "finish_reason": "stop"}]}).encode()), "56"),
        (events(delta(content="5"), done=False), "failed: no finish reason"),
        (("text/event-stream", b"data:\n\n" + events(delta(content="56"), STOP)[1]), "56"),
        (events(delta(content="5"), {"error": {"message": "overloaded"}}), "overloaded"),
        (events("{not json"), "no JSON"),
        (events("[1]"), "no object"),
        (events(delta(content={"a": 1}), STOP), "neither text nor parts"),
        (events(delta(content="5"), delta(content=6), delta(content="7"), STOP), "neither text nor parts"),
        (events(delta(tool_calls=[FIRST]), delta(tool_calls=[PIECE]), delta("tool_calls")), '→ calculate({"expression":"7*8"})'),
        (events(delta(tool_calls=[{k: v for k, v in FIRST.items() if k != "index"}]), delta(tool_calls=[{"function": PIECE["function"]}]), STOP), '→ calculate({"expression":"7*8"})'),
        (events(delta(tool_calls=[FIRST]), STOP), "[malformed_call]"),
        (("trouble", b"down"), "status 500"),
        (("text/event-stream", b"data: " + b"x" * (9 << 20)), "more than"),
    ],
)  # fmt: skip
def test_streams_of_all_spellings_are_read_or_named(answer, shown, monkeypatch):
    with server([answer]) as (url, bodies):
        out = chat("--server", url, "--model", "m", lines="7*8?\n", monkeypatch=monkeypatch)
    assert shown in out
    [body] = bodies
    assert body["stream"] is True
    assert not {"temperature", "top_p", "top_k"} & body.keys()  # the server's own


def test_thousands_of_calls_are_put_together_in_linear_time():
    message = StreamedMessage(lambda _kind, _text: None)
    for index in range(20_000):
        for piece in ("f", ""):
            function = {"name": piece, "arguments": "{}"[: len(piece)]}
            message.add(delta(tool_calls=[{"index": index, "function": function}]))
    calls = message.body()["choices"][0]["message"]["tool_calls"]
    assert [call["index"] for call in calls] == list(range(20_000))


def test_a_servers_call_is_run_and_its_result_sent_back(monkeypatch):
    call = events(delta(tool_calls=[FIRST]), delta(tool_calls=[PIECE]), delta("tool_calls"))
    answer = events(delta(reasoning="so"), delta(content="It is 56."), STOP)
    flags = ["--model", "m", "--tools", "calculator", "--temperature", "0.5", "--server-type", "vllm",
             "--thinking-field", "enable_thinking"]  # fmt: skip
    with server([call, answer, answer]) as (url, bodies):
        lines = "7*8?\ny\n/no_think\nsure?\n"
        out = chat("--server", url, *flags, lines=lines, monkeypatch=monkeypatch)
    assert "← 56" in out
    assert "It is 56." in out
    assert bodies[0]["tools"][0]["function"]["name"] == "calculate"
    assert bodies[0]["temperature"] == 0.5
    assert bodies[1]["messages"][-1] == {
        "role": "tool", "content": "56", "tool_call_id": "c1", "name": "calculate"
    }  # fmt: skip
    switches = [body["chat_template_kwargs"]["enable_thinking"] for body in bodies]
    assert switches == [True, True, False]
    assert bodies[2]["messages"][3]["reasoning"] == "so"


def test_what_cannot_be_talked_to_is_refused(tmp_path, monkeypatch, capsys):
    for arguments in ([], ["x", "--server", "http://h/v1"], ["--server", "http://h/v1"]):
        with pytest.raises(SystemExit):
            main(arguments)
    with pytest.raises(ConfigError, match="no address"):
        main(["--server", "nowhere", "--model", "m"])
    with pytest.raises(ConfigError, match="temperature"):
        main(["--server", "http://h/v1", "--model", "m", "--temperature", "-1"])
    with pytest.raises(ConfigError, match="there is no directory"):
        main([str(tmp_path / "nowhere")])
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ConfigError, match="posttrain merge"):
        main([str(tmp_path)])
    with pytest.raises(ConfigError, match="calculator"):
        main(["--server", "http://h/v1", "--model", "m", "--tools", "calculater"])


def test_reasoning_is_offered_where_the_template_knows_it(tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path / "checkpoint")
    arguments = [str(folder), "--max-tokens", "4"]
    lines = "/help\n/think\n/reasoning\n"
    with_reasoning = chat(*arguments, lines=lines, monkeypatch=monkeypatch)
    assert "/think, /no_think" in with_reasoning
    assert "thinking on" in with_reasoning
    without = chat(*arguments, "--chat-template", "hermes", lines=lines, monkeypatch=monkeypatch)
    assert "/think, /no_think" not in without
    assert "/think: the chat template of this model knows no reasoning" in without
    assert "/reasoning: the chat template of this model knows no reasoning" in without
