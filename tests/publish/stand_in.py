"""A stand-in for the hub's API: create, preupload, LFS batch, transfer, commit, and what lies there.

with StandIn() as hub:
    … huggingface_hub with endpoint hub.url …
    hub.files["org/name"]["model.safetensors"]   the bytes
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "hf_" + "t" * 34


@dataclass
class StandIn:
    """So many `broken` transfers are answered 503, so many commits refused with 500."""

    broken: int = 0
    refuse_commits: int = 0
    keep_wrong: bool = False
    refuse_cards: bool = False
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    large: dict[str, set[str]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)
    transfers: int = 0

    def __enter__(self) -> StandIn:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"] or 0))
                wrong = self.headers.get("authorization") != f"Bearer {TOKEN}"
                open_to_all = self.path == "/api/validate-yaml"
                if self.command == "POST" and wrong and not open_to_all:
                    status, body = 401, {"error": "Invalid username or password."}
                else:
                    handle = {"GET": hub.get, "PUT": hub.put, "POST": hub.post}[self.command]
                    status, body = handle(urlsplit(self.path).path, data)
                text = json.dumps(body).encode()
                self.send_response(status)
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", str(len(text)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(text)

            do_PUT = do_POST = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def hold(self, repo: str, *, private: bool = True, **files: bytes) -> None:
        """A repository that is there already."""
        self.files[repo], self.large[repo], self.private[repo] = {**files}, set(), private

    def get(self, path: str, _: bytes) -> tuple[int, Any]:
        repo = "/".join(path.split("/")[3:5])
        if repo not in self.files:
            return 404, {"error": "Repository not found"}
        if "/tree/" in path:
            return 200, [self._record(repo, name) for name in self.files[repo]]
        siblings = [{"rfilename": name} for name in self.files[repo]]
        info = {"_id": "1", "id": repo, "private": self.private[repo], "siblings": siblings}
        return 200, info | {"sha": "0" * 40, "tags": [], "downloads": 0, "likes": 0}

    def put(self, path: str, data: bytes) -> tuple[int, Any]:
        self.transfers += 1
        if self.broken:
            self.broken -= 1
            return 503, {"error": "later"}
        oid = path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == oid
        self.store[oid] = data
        return 200, {}

    def post(self, path: str, data: bytes) -> tuple[int, Any]:
        repo = "/".join(path.split("/")[3:5])
        if path == "/api/repos/create":
            body = json.loads(data)
            repo = f"{body['organization']}/{body['name']}"
            self.hold(repo, private=body["visibility"] == "private")
            return 200, {"url": f"{self.url}/{repo}"}
        if path == "/api/validate-yaml":
            bad = self.refuse_cards or not json.loads(data)["content"].startswith("---\n")
            return (400, {"errors": [{"message": "no head"}]}) if bad else (200, {"warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {"objects": [self._batch(one) for one in json.loads(data)["objects"]]}
        if "/preupload/" in path:
            names = [one["path"] for one in json.loads(data)["files"]]
            modes = ["lfs" if name.endswith(".safetensors") else "regular" for name in names]
            rows = zip(names, modes, strict=True)
            return 200, {"files": [
                {"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in rows
            ]}  # fmt: skip
        if "/paths-info/" in path:
            wanted = parse_qs(data.decode()) if b"=" in data[:20] else json.loads(data)
            return 200, [self._record(repo, p) for p in wanted["paths"] if p in self.files[repo]]
        assert "/commit/" in path, path
        return self._commit(repo, [json.loads(line) for line in data.splitlines()])

    def _batch(self, one: dict[str, Any]) -> dict[str, Any]:
        known = {"oid": one["oid"], "size": one["size"]}
        upload = {"actions": {"upload": {"href": f"{self.url}/store/{one['oid']}"}}}
        return known if one["oid"] in self.store else known | upload

    def _commit(self, repo: str, rows: list[dict[str, Any]]) -> tuple[int, Any]:
        if self.refuse_commits:
            self.refuse_commits -= 1
            return 500, {"error": "the disk is full"}
        for row in rows:
            value = row["value"]
            if row["key"] == "file":
                self.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                self.files[repo][value["path"]] = self.store[value["oid"]]
                self.large[repo].add(value["path"])
            else:
                assert row["key"] == "header", row
        if self.keep_wrong:
            self.files[repo]["config.json"] = b"{}"
        return 200, {"commitUrl": f"{self.url}/{repo}/commit/{'a' * 40}", "commitOid": "a" * 40}

    def _record(self, repo: str, path: str) -> dict[str, Any]:
        data = self.files[repo][path]
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        row: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": blob}
        if path in self.large[repo]:
            oid = hashlib.sha256(data).hexdigest()
            row["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 134}
        return row
