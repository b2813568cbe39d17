"""Programs: right ones in other fences, mutants, and tricks on whoever runs them."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from typing import Any

from posttrain.rollouts import Prompt, metadata_of
from reward.environments.base import says
from tests.reward.environments.attacks.base import Attack, Attacks

_LATER_PROGRAMS = {
    "later: sys.exit in thread": "import threading, os\nthreading.Thread(target=lambda: os._exit(0)).start()",
    "later: close output": "import os\nos.close(1)",
    "later: answer all": "import os\nfor fd in range(3, 50):\n    try: os.write(fd, b'= 0\\n' * 50)\n    except OSError: pass",
    "later: exec true": "import os\nos.execv('/bin/true', ['true'])",
    "later: replace stdout": "import sys, io\nsys.stdout = io.StringIO()\nprint('passed')",
    "later: daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    os.write(1, b'{\"output\": 0}\\n')",
    "later: return the expected": "import sys\nprint(getattr(sys.modules['__main__'], 'inputs', None))",
    "later: globals": "print({k: v for k, v in globals().items()})",
    "later: stderr": "import sys\nsys.stderr.write('all tests passed')",
    "later: huge integer": "print(10 ** 4000)",
}
_HOSTILE = {
    "exit 0": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "silent": "pass",
    "raise SystemExit": "raise SystemExit",
    "every number": "print(*range(-1000, 1000))",
    "true for all": "class T:\n    def __eq__(self, o): return True\n    def __repr__(self): return 'T'\n"
    "import sys\nprint(T())",
    "kill parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "stop parent": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
    "kill all": "import os\ntry:\n    os.kill(-1, 9)\nexcept OSError: pass",
    "write to parent": "import os\nfor k in range(1, 6):\n    try:\n"
    "        f = open(f'/proc/{os.getppid()}/fd/{k}', 'w'); f.write('passed\\n{\"output\": 0}\\n'); f.flush()\n"
    "    except OSError: pass",
    "read parent": "import os\nfor p in os.listdir('/proc'):\n    for n in ('environ', 'cmdline', 'mem', 'fd/0'):\n"
    "        try:\n            t = open(f'/proc/{p}/{n}', 'rb').read(100000)\n            print(t)\n"
    "        except (OSError, ValueError): pass",
    "protocol": "print('{\"output\": 0}\\n' * 60)\nprint('= 0\\n' * 60)",
    "overwrite": "import glob, os\nfor p in glob.glob('/scratch/**', recursive=True):\n    try:\n"
    "        open(p, 'w').write('')\n    except OSError: pass",
    "shadow modules": "for m in ('json', 'ast', 'select', 'subprocess', 'os'):\n"
    "    open(m + '.py', 'w').write('raise SystemExit(0)')",
    "patch builtins": "import builtins, atexit, os\nbuiltins.AssertionError = ValueError\n"
    "atexit.register(os._exit, 0)",
    "inspect frames": "import sys, gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'expected' in o:\n"
    "        print(o)",
    "flood": "while True: print('9' * 10000)",
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(100)",
    "memory": "x = []\nwhile True: x.append(bytearray(10**7))",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "recursion": "def f(): return f()\nf()",
    "echo input": "import sys\nprint(sys.stdin.read())",
    "syntax error": "def (:",
    "network": "import socket\nsocket.create_connection(('example.com', 80), 3)",
}  # fmt: skip
_SLOW = frozenset({"flood", "loop", "sleep", "memory", "forks", "stop parent", "kill all"})


def code(prompt: Prompt, rng: random.Random) -> Attacks:
    """Programs; a function has each of the tricks at import and inside."""
    gold, task = prompt.gold or "", metadata_of(prompt)
    function = task.get("function")
    for form, text in {
        "python fence": f"```python\n{gold}\n```",
        "py fence": f"Here it is.\n\n```py\n{gold}\n```\nIt runs in linear time.",
        "bare fence": f"```\n{gold}\n```",
        "capital": f"```Python\n{gold}\n```",
        "windows": f"```python\n{gold}\n```".replace("\n", "\r\n"),
        "draft before": f"A draft:\n```python\nprint('draft')\n```\nBetter:\n```python\n{gold}\n```",
        "no fence": gold,
        "comment": f"```python\n# the solution\n{gold}\n# end\n```",
        "indented fence": f"  ```python\n{gold}\n  ```",
        "guarded main": f"```python\n{gold}\n\nif __name__ == '__nothing__':\n    print(1)\n```",
    }.items():
        yield Attack(form, True, says(text))
    if function:
        usage = f"```python\n{gold}\n```\nUse it so:\n```python\nprint({function}([1, 2]))\n```"
        yield Attack("usage behind", True, says(usage))
    names = [name for name in _HOSTILE if name not in _SLOW or rng.random() < 0.08]
    for name in names:
        program = _HOSTILE[name]
        if function and rng.random() < 0.5:
            inner = program.replace("\n", "\n    ")
            program = f"def {function}(*a, **k):\n    {inner}"
        elif function:
            program = f"{program}\ndef {function}(*a, **k):\n    return None"
        yield Attack(name, False, says(f"```python\n{program}\n```"))
    for form, program in _LATER_PROGRAMS.items():
        whole = f"{program}\ndef {function}(*a): return 'x'" if function else program
        yield Attack(form, False, says(f"```python\n{whole}\n```"))
    yield Attack("prose", False, says("The program squares each number and prints the total."))
    yield Attack("other language", False, says("```bash\necho 1\n```"))
    yield Attack("open fence", False, says(f"```python\n{gold}"))
    for k, mutant in enumerate(m for m in mutants(gold) if not survives(m, task)):
        yield Attack(f"mutant {k % 6}", False, says(f"```python\n{mutant}\n```"))
    if function:
        always = "class E(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n"
        always += f"def {function}(*a):\n    return E(0)"
        yield Attack("equal to all", False, says(f"```python\n{always}\n```"))
        endless = "class E:\n    __repr__ = lambda s: '1e999'\n"
        endless += f"def {function}(*a):\n    return E()"
        yield Attack("last: infinite", False, says(f"```python\n{endless}\n```"))
        swallow = (
            f"def {function}(*a):\n    try:\n        raise ValueError\n    except Exception:\n"
        )
        yield Attack("swallowed", False, says(f"```python\n{swallow}        return None\n```"))


def mutants(program: str) -> list[str]:
    """The program with one operator, constant, comparison or return changed, where it can be."""
    changed: list[str] = []
    tree = ast.parse(program)
    for k, node in enumerate(list(ast.walk(tree))):
        copy = ast.parse(program)
        own: Any = list(ast.walk(copy))[k]
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                own.value = value + 1
            case ast.BinOp(op=ast.Add()):
                own.op = ast.Sub()
            case ast.BinOp(op=ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod()):
                own.op = ast.Add()
            case ast.Compare(ops=[ast.Lt() | ast.LtE()]):
                own.ops = [ast.Gt()]
            case ast.Compare(ops=[ast.Gt() | ast.GtE()]):
                own.ops = [ast.Lt()]
            case ast.Compare(ops=[ast.Eq()]):
                own.ops = [ast.NotEq()]
            case ast.Return() if node.value is not None:
                own.value = ast.Constant(None)
            case ast.FunctionDef():
                handler = ast.ExceptHandler(ast.Name("Exception"), None, [ast.Return(None)])
                raising = ast.parse("raise ValueError").body
                own.body = [ast.Try([*raising, *own.body], [handler], [], [])]
            case _:
                continue
        changed.append(ast.unparse(ast.fix_missing_locations(copy)))
    return changed


def survives(program: str, task: Mapping[str, Any]) -> bool:
    """Whether one of our own mutants passes the tests when it is simply run: it is no wrong answer."""
    space: dict[str, Any] = {}
    try:
        for test in task["tests"]:
            if task.get("function"):
                exec(program, space)
                result: Any = space[task["function"]](*test["input"])
            else:
                printed: list[str] = []
                space["input"] = lambda given=test["input"]: given.rstrip("\n")
                space["print"] = lambda *v, to=printed: to.append(" ".join(map(str, v)))
                exec(program, space)
                result = "\n".join(printed) + "\n"
            if result != test["output"]:
                return False
    except Exception:
        return False
    return True
