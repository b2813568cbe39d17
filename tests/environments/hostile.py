"""Programs that try to get out of the sandbox or to bring the machine down.

    CASES["fork bomb"].program → "import os, sys\\n…", run as `python -I -c program canaries`

Each tries things through `attempt(what, action)`, which prints `refused what` or `ESCAPED what`, and
prints `end` when it got through; one that a limit has to stop names the limit. `control` marks those
that do escape when run on the host as they are: what they try would otherwise succeed here. Those
that harm nothing but what they try are run one after the other in one sandbox.
"""

from __future__ import annotations

import platform
import textwrap
from dataclasses import dataclass

from posttrain.environments.sandbox.syscalls import call_numbers

PRELUDE = """
import ctypes, errno, json, mmap, os, resource, shutil, signal, socket, subprocess, sys, threading, time
from pathlib import Path
canary = json.loads(sys.argv[1])
if canary["inside"] and socket.gethostname() != "sandbox":
    sys.exit("this program is not where it should be, and does nothing")
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, action, *arguments):
    try:
        action(*arguments)
        print("ESCAPED", what, flush=True)
    except Exception as error:
        print("refused", what, type(error).__name__, str(error)[:80], flush=True)
def denied(what, number, *arguments, error=errno.EPERM):
    failed = libc.syscall(number, *arguments) == -1 and ctypes.get_errno() == error
    print("refused" if failed else "ESCAPED", what, ctypes.get_errno(), flush=True)
def at_most(what, value, bound):
    print("refused" if value <= bound else "ESCAPED", what, value, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and how it has to end: by itself with `code`, or by one of `limits`."""

    program: str
    code: int = 0
    limits: tuple[str, ...] = ()
    control: bool = False
    alone: bool = True


def numbered(program: str) -> str:
    """The program, its indentation taken off, with `{mount}` and the like as this machine's numbers
    of system calls."""
    program = textwrap.dedent(program).strip()
    for name, number in call_numbers(platform.machine()).items():
        program = program.replace(f"{{{name}}}", str(number))
    return program


def ends(program: str, *, control: bool = False, alone: bool = False) -> Case:
    """A program that has to reach its end."""
    return Case(f'{PRELUDE}{numbered(program)}\nprint("end")', control=control, alone=alone)


def together(cases: dict[str, Case]) -> str:
    """One program that runs several, each in a space of its own, and says which comes next."""
    programs = {name: case.program for name, case in cases.items()}
    return (
        f"for name, program in {programs!r}.items():\n"
        '    print("case", name, flush=True)\n    exec(program, {})\n'
    )


def dies(program: str, code: int) -> Case:
    """A program that has to end with a code."""
    return Case(f"{PRELUDE}{numbered(program)}", code=code)


def stopped(program: str, *limits: str) -> Case:
    """A program that has to be stopped by one of the limits."""
    return Case(f"{PRELUDE}{numbered(program)}", limits=limits)


RESOURCES = {
    "fork bomb": stopped("""
        while True:
          try: os.fork()
          except OSError: pass
    """, "time", "cpu", "memory"),
    "forks that wait": ends("""
        made = 0
        try:
          while made < 500:
            if os.fork() == 0: time.sleep(60); os._exit(0)
            made += 1
        except OSError: pass
        at_most('processes', made, 24)
    """, alone=True),
    "threads": ends("""
        made = 0
        try:
          while made < 500:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); made += 1
        except RuntimeError: pass
        at_most('threads', made, 24)
        sys.stdout.flush(); print('end', flush=True); os._exit(0)
    """, alone=True),
    "memory of one process": ends("attempt('a gigabyte', bytearray, 10**9)", alone=True),
    "memory of many processes": stopped("""
        for _ in range(12):
          if os.fork() == 0:
            held = bytearray(os.urandom(1)) * (100 << 20); time.sleep(60)
        time.sleep(60)
    """, "memory"),
    "shared memory of many processes": stopped("""
        for _ in range(12):
          if os.fork() == 0:
            held = mmap.mmap(-1, 100 << 20)
            for at in range(0, 100 << 20, 4096): held[at] = 1
            time.sleep(60)
        time.sleep(60)
    """, "memory"),
    "anonymous files": ends("attempt('memfd', os.memfd_create, 'x')"),
    "pages kept by pipes": ends("denied('vmsplice', {vmsplice}, os.pipe()[1], None, 0, 0)"),
    "System V memory": ends("denied('shmget', {shmget}, 0, 1 << 30, 0o1666)"),
    "disk full": ends("""
        def fill(path, piece=1 << 20):
          written = 0
          try:
            with open(path, 'wb', buffering=0) as file:
              while written < 1 << 30: written += file.write(b'x' * piece)
          except OSError: pass
          return written
        at_most('scratch', sum(fill(f'/scratch/{k}') for k in range(40)), 8 << 20)
        at_most('shm', sum(fill(f'/dev/shm/{k}') for k in range(40)), 4 << 20)
        at_most('tmp', fill('/tmp/more'), 0)
    """, alone=True),
    "sparse file": ends("""
        def sparse():
          with open('big', 'wb') as file: file.truncate(1 << 40)
        attempt('a terabyte', sparse)
    """),
    "a million files": stopped("""
        for k in range(1_000_000): open(f'f{k}', 'w').close()
        time.sleep(60)
    """, "files"),
    "files in shared memory": stopped("""
        for k in range(1_000_000): open(f'/dev/shm/f{k}', 'w').close()
        time.sleep(60)
    """, "files"),
    "larger socket buffers": ends("""
        one, other = socket.socketpair()
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
          attempt(name, one.setsockopt, socket.SOL_SOCKET, name, 1 << 26)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    """, alone=True),
    "data queued in sockets": stopped("""
        held = []
        for _ in range(20):
          if os.fork() == 0:
            while True:
              try: held.append(socket.socketpair())
              except OSError: time.sleep(60)
              for end in held[-1]:
                end.setblocking(False)
                try:
                  while True: end.send(b'x' * 65536)
                except OSError: pass
        time.sleep(60)
    """, "memory"),
    "data queued over loopback": stopped("""
        held = []
        server = socket.create_server(('127.0.0.1', 0))
        for _ in range(20):
          if os.fork() == 0:
            while True:
              try: held += [socket.create_connection(server.getsockname())]; held += [server.accept()[0]]
              except OSError: time.sleep(60)
              for end in held[-2:]:
                end.setblocking(False)
                try:
                  while True: end.send(b'x' * 65536)
                except OSError: pass
        time.sleep(60)
    """, "memory"),
    "output flood": stopped("while True: os.write(1, b'x' * 65536)", "output"),
    "error flood": stopped("while True: os.write(2, b'x' * 65536)", "output"),
    "flood from a child": stopped("""
        os.fork()
        os.setsid() if os.fork() == 0 else None
        while True: os.write(1, b'x' * 65536)
    """, "output"),
    "sleep": stopped("time.sleep(3600)", "time"),
    "spin": stopped("while True: pass", "cpu", "time"),
    "spin that ignores signals": stopped("""
        for number in range(1, 65):
          try: signal.signal(number, signal.SIG_IGN)
          except (OSError, ValueError): pass
        while True: pass
    """, "cpu", "time"),
    "a day of regular expression": stopped("""
        import re
        re.match(r'(a+)+$', 'a' * 64 + 'b')
    """, "cpu", "time"),
    "limits raised": ends("""
        def more(kind):
          soft, hard = resource.getrlimit(kind)
          resource.setrlimit(kind, (hard + 1, hard + 1))
        for name in ('AS', 'CPU', 'NPROC', 'FSIZE', 'NOFILE', 'MSGQUEUE'):
          attempt(name, more, getattr(resource, f'RLIMIT_{name}'))
    """, alone=True),
    "priority": ends("""
        attempt('nice', os.nice, -5)
        attempt('real time', os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))
    """, alone=True),
    "huge arguments": ends(
        "attempt('argv', subprocess.run, ['true', 'x' * (8 << 20)])", alone=True
    ),
    "open files": ends("attempt('files', lambda: [os.dup(1) for _ in range(5000)])", alone=True),
}  # fmt: skip
