"""Hostile tool uses: each is contained, and the workspace is as usable as before."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reward.environments.agentic import workspace
from reward.environments.agentic.workspace import TOOLS, Call, Workspace, read, sh, write
from tests.environments.test_hostile import survivors

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
MARK = f"hostile-{uuid.uuid4().hex}"
SECRET = f"secret-{uuid.uuid4().hex}"
FILES = {"a.txt": b"one\n", "src/b.py": b"x = 1\n"}
LAST = "still here"


@dataclass(frozen=True)
class Use:
    """Calls of one run; `says`: part of the last result, `keeps`: paths that may be new."""

    calls: tuple[Call, ...]
    says: str = "error:"
    keeps: tuple[str, ...] = ()


def reads(path: str) -> Use:
    return Use((read(path),))


def writes(path: str, content: str = "x") -> Use:
    return Use((write(path, content),))


def runs(*commands: str, says: str = "") -> Use:
    return Use(tuple(map(sh, commands)), says)


def sql(query: str, says: str = "error:", database: str = "data.db") -> Use:
    return Use((("sql", {"database": database, "query": query}),), says)


def uses(secret: Path, port: int) -> dict[str, Use]:
    root = Path(__file__).resolve().parents[3]
    gold = f"{root}/reward/environments/agentic/investigations.py"
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    spawn = f"(sleep 0.6; echo {MARK} > late) & (setsid nohup sleep 300 {MARK} >/dev/null 2>&1 &) ; echo started"
    return {
        "traversal_read": reads("../../etc/passwd"),
        "absolute_read": reads("/etc/passwd"),
        "traversal_behind_the_root": reads("/scratch/../etc/passwd"),
        "traversal_inside_a_path": reads(f"src/../..{secret}"),
        "traversal_write": writes("../escape"),
        "absolute_write": writes(f"{secret.parent}/planted"),
        "null_in_a_path": writes("a\0b"),
        "long_path": writes("d/" * 3000 + "f"),
        "traversal_list": Use((("list_files", {"path": "../.."}),)),
        "file_as_directory": writes("a.txt/b"),
        "too_much_written": writes("big", "x" * (5 << 20)),
        "half_a_surrogate": writes("s", "\ud800"),
        "link_to_a_file": Use((sh(f"ln -s {secret} link"), read("link"))),
        "link_to_the_root": Use(
            (sh("ln -s / root"), write(f"root{secret.parent}/planted", "x")),
            "wrote", (f"root{secret.parent}/planted",),
        ),
        "host_file": runs(f"cat {secret}", says="exit code"),
        "host_variables": runs("env; cat /proc/*/environ | tr '\\0' '\\n'"),
        "checker_s_files": runs(f"cat {gold}", says="exit code"),
        "search_for_the_project": runs("ls /work /root /home; find / -name investigations.py 2>/dev/null"),
        "fork_bomb": runs(":(){ :|:& };:; sleep 3"),
        "endless_output": runs("yes", says="exit code 1"),
        "endless_loop": runs("while true; do :; done", says="killed"),
        "huge_file": runs("head -c 60000000 /dev/zero > big", says="its changes are lost"),
        "many_files": runs("for i in $(seq 2000); do : > f$i; done", says="its changes are lost"),
        "memory": runs("python3 -c 'x = bytes(1 << 33)'", says="exit code 1"),
        "network": runs(f'python3 -c "{connect}"', says="exit code 1"),
        "background": runs(spawn, "sleep 0.9; ls; echo end", says="end"),
        "kills_everything": runs("kill -9 -1; sleep 1"),
        "ends_the_collector": runs("kill -9 $PPID; kill -9 $(ps -o ppid= $PPID)"),
        "forged_listing": runs(
            "for p in /proc/[0-9]*; do printf '0 0 0 1\\n3 /etc/x\\nabc' > $p/fd/1; done 2>/dev/null"
        ),
        "forged_without_end": runs(
            "for p in /proc/[0-9]*; do printf '0 0 0 99999999999\\n-4 a\\n' > $p/fd/1; done 2>/dev/null"
        ),
        "deep_directories": runs(
            "python3 -c \"import os\nfor n in range(3000): os.mkdir('d'); os.chdir('d')\""
        ),
        "special_files": runs("mkfifo pipe; python3 -c \"import socket as s; s.socket(1).bind('k')\"",
                            says="not kept"),
        "odd_names": runs("touch \"$(printf 'a\\nb')\" \"$(printf 'c\\377')\"", says="not kept"),
        "mounts": runs("mount -t tmpfs x src; unshare -r true", says="exit code"),
        "unreadable": runs("mkdir locked; touch locked/f; chmod 000 locked"),
        "removes_all": runs("rm -rf /scratch/* /interpreter/* /usr/* 2>/dev/null; cp /proc/self/exe x; rm x"),
        "sql_writes": sql("DELETE FROM t"),
        "sql_attaches": sql(f"ATTACH DATABASE '{secret}' AS x"),
        "sql_never_ends": sql(
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
            says="killed",
        ),
        "sql_loads_code": sql("SELECT load_extension('x')"),
        "sql_elsewhere": sql("SELECT 1", database=f"../..{secret}"),
        "sql_uri_options": sql("DELETE FROM t", database="data.db?mode=rw"),
        "huge_command": runs("echo " + "x" * 3_000_000, says="error:"),
    }  # fmt: skip


def database() -> bytes:
    import sqlite3

    with sqlite3.connect(":memory:") as connection:
        connection.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
        return connection.serialize()


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Every use in a workspace of its own, then a last sound command where one ran in it."""
    secret = tmp_path_factory.mktemp("host") / "secret.txt"
    secret.write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.MonkeyPatch.context() as patch:
        server.settimeout(0.2)
        patch.setenv("POSTTRAIN_SECRET", SECRET)
        patch.setattr(workspace, "SECONDS", 1)
        every = uses(secret, server.getsockname()[1])

        async def run(use: Use) -> tuple[list[str], str, dict[str, bytes]]:
            box = Workspace({**FILES, "data.db": database()}, tools=TOOLS)
            results = [await box.call(name, arguments) for name, arguments in use.calls]
            kept = dict(box.files)
            ran = any(name == "shell" for name, _ in use.calls)
            last = await box.call("shell", {"command": f"echo {LAST}"}) if ran else LAST
            return results, last, kept

        async def gather() -> list[tuple[list[str], str, dict[str, bytes]]]:
            return await asyncio.gather(*map(run, every.values()))

        found = dict(zip(every, asyncio.run(gather()), strict=True))
        with pytest.raises(TimeoutError):
            server.accept()
        yield {"found": found, "uses": every, "secret": secret}


CASES = list(uses(Path("/x"), 1))


@pytest.mark.parametrize("name", CASES)
def test_contained(name: str, ends: dict[str, Any]):
    use: Use = ends["uses"][name]
    results, last, files = ends["found"][name]
    assert last == LAST
    assert use.says in results[-1], results[-1][:500]
    everything = json.dumps(results) + repr(sorted(files.items()))
    assert SECRET not in everything
    assert "Family" not in everything
    assert all(len(result) < 10_000 for result in results)
    assert sum(map(len, files.values())) <= workspace.MOST_BYTES
    assert not any(path.startswith(("/", "../")) for path in files)
    assert "late" not in files
    assert set(use.keeps) <= set(files)


def test_the_host_is_as_it_was(ends: dict[str, Any]):
    secret: Path = ends["secret"]
    assert secret.read_text() == SECRET
    assert [path.name for path in secret.parent.iterdir()] == ["secret.txt"]
    assert len(CASES) >= 25
    assert survivors(MARK) == []
