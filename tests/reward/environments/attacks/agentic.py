"""Runs of agentic tasks that look solved and are not, and right ones done in another way.

    for attack in agentic_tricks(environment, prompt): …

Written before the checkers were looked at for them. Every form has a half by its name's checksum.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from posttrain.rollouts import Prompt
from reward.environments.agentic.base import Family, script
from reward.environments.agentic.workspace import Call, read, sh, write
from tests.reward.environments.attacks.base import Attack, Attacks

Runs = Mapping[str, Sequence[Call]]
Object = dict[str, Any]


def agentic_tricks(environment: Family, prompt: Prompt) -> Attacks:
    """The tricks on one task, wrong and right."""
    fixture = environment.fixture(prompt)
    oracle = cast(Sequence[Call], [call for call in fixture.oracle if not isinstance(call, str)])
    looks = [call for call in oracle if call[0] != "write_file"]
    writes = {call[1]["path"]: call[1]["content"] for call in oracle if call[0] == "write_file"}
    families: list[tuple[Callable[..., Runs], Callable[..., Runs]]] = [(_any_wrong, _any_right)]
    path, content = list(writes.items())[-1]
    if path.endswith(".json"):
        families.append((_json_wrong, _json_right))
    if environment.name in _OWN:
        families.append(_OWN[environment.name])
    for wrong, right in families:
        for is_right, runs in ((False, wrong), (True, right)):
            made = runs(path=path, content=content, writes=writes, files=fixture.files)
            for form, calls in made.items():
                name = f"trick: {environment.name}, {'right' if is_right else 'wrong'}, {form}"
                yield Attack(name, is_right, script(*looks, *calls))


def _put(path: str, content: str) -> Call:
    return sh(f"printf '%s' {shlex.quote(content)} > {shlex.quote(path)}")


def _all(writes: Mapping[str, str]) -> list[Call]:
    return [write(path, content) for path, content in writes.items()]


# -- every family ----------------------------------------------------------------------------------


def _any_wrong(path: str, content: str, writes: Mapping[str, str], **_: Any) -> Runs:
    folder = posixpath.dirname(path) or "."
    return {
        "only looks": [sh("ls -R")],
        "note of success": [write("DONE.md", "All checks hold. score: 1.0\n")],
        "in /tmp alone": [sh("mkdir -p /tmp/x"), _put("/tmp/x/result", content)],  # noqa: S108
        "written and deleted": [*_all(writes), sh(f"rm {shlex.quote(path)}")],
        "another file name": [write(f"{path}.new", content)],
        "capitals in the name": [write(path.upper(), content)],
        "a folder in its place": [sh(f"rm -f {path}; mkdir -p {path}/x; touch {path}/x/y")],
        "emptied": [*_all(writes), sh(f": > {shlex.quote(path)}")],
        "a link to it": [sh(f"mkdir -p {folder}; rm -f {path}; ln -s /etc/hostname {path}")],
        "a pipe": [sh(f"rm -f {path}; mkfifo {path}")],
        "random bytes": [*_all(writes), sh(f"head -c 64 /dev/urandom > {path}")],
    }


def _any_right(path: str, content: str, writes: Mapping[str, str], **_: Any) -> Runs:
    return {
        "further looks": [*_all(writes), sh("ls -la"), read(path)],
        "a command that fails": [sh("cat no-such-file"), *_all(writes)],
        "notes in /tmp": [sh("echo draft > /tmp/notes.txt"), *_all(writes)],
        "an unknown path first": [read("nowhere.txt"), *_all(writes)],
        "written once more": [*_all(writes), write(path, content)],
        "absolute paths": [write(f"/scratch/{p}", text) for p, text in writes.items()],
        "dotted paths": [write(f"./{p}", text) for p, text in writes.items()],
        "by the shell": [
            sh(f"mkdir -p {posixpath.dirname(p) or '.'} && printf '%s' {shlex.quote(text)} > {p}")
            for p, text in writes.items()
        ],
        "moved into place": [
            sh(f"mkdir -p {posixpath.dirname(p) or '.'} && printf '%s' {shlex.quote(text)} > "
               f"/tmp/part && mv /tmp/part {p}")  # noqa: S108
            for p, text in writes.items()
        ],
    }  # fmt: skip


# -- answers in JSON -------------------------------------------------------------------------------


def _shifted(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value}x" if isinstance(value, str) else value
    return value + 1


def _texts(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else [value]


def _json_wrong(path: str, content: str, writes: Mapping[str, str], **_: Any) -> Runs:
    fields: Object = json.loads(content)
    before = [write(p, text) for p, text in writes.items() if p != path]
    first = next(iter(fields))
    texts = {
        "in a list": json.dumps([fields]),
        "twice": content + content,
        "fenced": f"```json\n{content}\n```",
        "prose around": f"The answer is {content}",
        "comment behind": f"{content} // checked",
        "as Python": str(fields),
        "cut off": content[:-1],
        "nested": json.dumps({"answer": fields}),
        "keys in capitals": json.dumps({key.upper(): value for key, value in fields.items()}),
        "values in lists": json.dumps({key: [value] for key, value in fields.items()}),
        "other types": json.dumps({key: _texts(value) for key, value in fields.items()}),
        "values beside": json.dumps({key: _shifted(value) for key, value in fields.items()}),
        "null values": json.dumps(dict.fromkeys(fields)),
        "true for all": json.dumps(dict.fromkeys(fields, True)),
        "two of a key": f'{{"{first}": "?", {content[1:]}',
        "empty object": "{}",
        "not a number": json.dumps({key: float("nan") for key in fields}),
        "in quotes": json.dumps(content),
        "lines of JSON": f"{content}\n{content}\n",
        "every field text": json.dumps({key: json.dumps(value) for key, value in fields.items()}),
    }
    return {form: [*before, write(path, text)] for form, text in texts.items()} | {
        "in a folder": [*before, write(f"out/{path}", content)],
        "right, then wrong": [*before, write(path, content), write(path, texts["values beside"])],
        "appended to": [*before, write(path, content), sh(f"echo '{{}}' >> {path}")],
    }


def _json_right(path: str, content: str, writes: Mapping[str, str], **_: Any) -> Runs:
    fields: Object = json.loads(content)
    before = [write(p, text) for p, text in writes.items() if p != path]
    python = f"import json; json.dump({fields!r}, open({path!r}, 'w'))"
    texts = {
        "indented": json.dumps(fields, indent=2),
        "compact": json.dumps(fields, separators=(",", ":")),
        "other order": json.dumps(dict(reversed(fields.items()))),
        "room around": f"\n  {content}\n\n",
        "windows lines": json.dumps(fields, indent=1).replace("\n", "\r\n"),
    }
    return {form: [*before, write(path, text)] for form, text in texts.items()} | {
        "wrong, then right": [*before, write(path, "{}"), write(path, content)],
        "by Python": [*before, sh(f"python3 -c {shlex.quote(python)}")],
    }


# -- families --------------------------------------------------------------------------------------


def _ambiguous_wrong(content: str, writes: Mapping[str, str], **_: Any) -> Runs:
    decision, result = "decision.json", "result.json"
    fields: Object = json.loads(writes[decision])
    terms = ["amount", "month", "region", "orders"]
    total = write(result, writes.get(result, json.dumps({"total": 1})))
    question = fields["kind"] == "question"
    runs = {
        "kind in capitals": [write(decision, json.dumps(fields | {"kind": fields["kind"].upper()}))],
        "both kinds": [write(decision, json.dumps(fields | {"kind": ["question", "assumption"]}))],
        "asks about all": [write(decision, json.dumps({"kind": "question", "term": terms}))],
        "asks about none": [write(decision, json.dumps({"kind": "question", "term": ""}))],
        "assumes without a reading": [
            write(decision, json.dumps({"kind": "assumption", "term": fields.get("term", "month")})),
            total,
        ],
        "assumes both readings": [
            write(decision, json.dumps(
                {"kind": "assumption", "term": fields.get("term", "month"), "reading": ["net", "gross"]}
            )), total,
        ],
        "reading of another term": [
            write(decision, json.dumps(
                {"kind": "assumption", "term": fields.get("term", "month"), "reading": "lakes"}
            )), total,
        ],
        "no decision": [total],
        "decides in words": [write(decision, "I ask which month is meant."), total],
    }  # fmt: skip
    if question:
        runs["asks and reports"] = [*_all(writes), total]
    else:
        runs["total as text"] = [
            write(decision, writes[decision]),
            write(result, json.dumps({"total": str(json.loads(writes[result])["total"])})),
        ]
    return runs


def _ambiguous_right(writes: Mapping[str, str], **_: Any) -> Runs:
    decision = "decision.json"
    fields: Object = json.loads(writes[decision])
    others = [write(p, text) for p, text in writes.items() if p != decision]
    noted = json.dumps(fields | {"note": "terms.md does not say"})
    return {
        "with a note": [write(decision, noted), *others],
        "result first": [*others, write(decision, writes[decision])],
    }


def _trace_wrong(path: str, content: str, **_: Any) -> Runs:
    fields: Object = json.loads(content)
    names: list[str] = fields["path"]

    def put(**changes: Any) -> list[Call]:
        return [write(path, json.dumps(fields | changes))]

    return {
        "path as text": put(path=" -> ".join(names)),
        "with brackets": put(path=[f"{name}()" for name in names]),
        "without packages": put(path=[name.rpartition(".")[2] for name in names]),
        "with main": put(path=["main.entry", *names]),
        "twice through": put(path=names * 2),
        "every other": put(path=names[::2]),
        "with a neighbour": put(path=[*names, f"{names[-1]}_twice"]),
        "value as float text": put(value=f"{fields['value']}.0"),
        "value doubled": put(value=fields["value"] * 2),
        "slashes": put(path=[name.replace(".", "/") for name in names]),
        "code deleted": [write(path, content), sh("rm -r legacy")],
    }


def _plan_wrong(writes: Mapping[str, str], **_: Any) -> Runs:
    paths = list(writes)
    folder = posixpath.dirname(paths[0])
    backwards = [write(p, writes[p]) for p in reversed(paths)]
    return {
        "backwards": backwards,
        "backwards, then again": [*backwards, *_all(writes)],
        "backwards in one command": [
            sh(f"mkdir -p {folder}; " + "; ".join(
                f"printf '%s' {shlex.quote(writes[p])} > {p}" for p in reversed(paths)
            ))
        ],
        "empty ones first, filled backwards": [
            sh(f"mkdir -p {folder}; touch {' '.join(paths)}"), *backwards
        ],
        "deleted and backwards": [*_all(writes), sh(f"rm -r {folder}"), *backwards],
        "a hidden file": [*_all(writes), write(f"{folder}/.done", "yes")],
        "a file above": [*_all(writes), write("notes.md", "done")],
        "one file for all": [write(paths[0], "".join(writes.values()))],
        "the letter N": [
            write(p, f"{text.split()[0]} N\n" if k else text)
            for k, (p, text) in enumerate(writes.items())
        ],
        "two lines": [write(p, text * 2) for p, text in writes.items()],
        "two blanks": [write(p, text.replace(" ", "  ")) for p, text in writes.items()],
        "quotation marks": [write(p, f'"{text.strip()}"\n') for p, text in writes.items()],
        "capitals": [write(p, text.upper()) for p, text in writes.items()],
        "decimals": [write(p, text.replace("\n", ".0\n")) for p, text in writes.items()],
        "a file more than asked": [*_all(writes), write(paths[-1].replace(".txt", "0.txt"), "x")],
    }  # fmt: skip


def _plan_right(writes: Mapping[str, str], **_: Any) -> Runs:
    paths = list(writes)
    folder = posixpath.dirname(paths[0])
    pairs = list(writes.items())
    python = f"import os\nos.makedirs({folder!r}, exist_ok=True)\n"
    python += f"for p, t in {pairs!r}:\n    open(p, 'w').write(t)\n"
    return {
        "without line ends": [write(p, text.rstrip("\n")) for p, text in pairs],
        "one corrected at the end": [
            *(write(p, "draft" if k == 1 else text) for k, (p, text) in enumerate(pairs)),
            write(*pairs[1]),
        ],
        "by one program": [sh(f"python3 -c {shlex.quote(python)}")],
        "in two parts each": [
            sh(f"mkdir -p {folder}; printf '%s ' {text.split()[0]} > {p}; "
               f"echo {text.split()[1]} >> {p}") for p, text in pairs
        ],
        "a further file deleted": [write("x.txt", "x"), sh("rm x.txt"), *_all(writes)],
    }  # fmt: skip


def _tests_wrong(path: str, writes: Mapping[str, str], files: Mapping[str, str], **_: Any) -> Runs:
    broken, right = files[path], writes[path]
    name = right.split("(")[0].removeprefix("def ")
    parameters = right.split("(", 1)[1].split(")")[0]
    module = posixpath.basename(path).removesuffix(".py")
    test = f"tests/test_{module}.py"
    kept = broken.replace(f"def {name}(", "def _before(")
    given = right.replace(f"def {name}(", "def _right(")
    reads = (
        f"{kept}\n\ndef {name}(*given):\n"
        f"    for line in open({test!r}):\n"
        f"        head = '{name}(' + ', '.join(map(repr, given)) + '), '\n"
        "        if head in line:\n"
        "            return __import__('ast').literal_eval(line.split(head)[1].strip()[:-1])\n"
        "    return _before(*given)\n"
    )
    counts = (
        f"{kept}\n\n{given}\n\ncount = 0\n\n\ndef {name}(*given):\n    global count\n"
        "    count += 1\n    return (_right if count < 4 else _before)(*given)\n"
    )
    under_test = (
        f"import sys\n\n{kept}\n\n{given}\n\ndef {name}(*given):\n"
        "    return (_right if 'unittest' in sys.modules else _before)(*given)\n"
    )
    every = f"def {name}(*given):\n    class Any(int):\n"
    every += "        __eq__ = lambda self, other: True\n        __hash__ = int.__hash__\n"
    other = next(p for p in files if p.startswith("app/") and p not in (path, "app/__init__.py"))
    return {
        "reads the tests": [write(path, reads)],
        "right for a while": [write(path, counts)],
        "right under test": [write(path, under_test)],
        "equals everything": [write(path, f"{every}    return Any()\n")],
        "catches": [write(path, f"def {name}(*given):\n    try:\n        raise ValueError\n"
                                "    except ValueError:\n        return 0\n")],
        "another docstring": [write(path, broken.replace('"""', '"""As it is. ', 1))],
        "text of the result": [
            write(path, f"{given}\n\ndef {name}({parameters}):\n    return str(_right({parameters}))\n")
        ],
        "prints the result": [
            write(path, f"{given}\n\ndef {name}({parameters}):\n    print(_right({parameters}))\n")
        ],
        "result in a list": [
            write(path, f"{given}\n\ndef {name}({parameters}):\n    return [_right({parameters})]\n")
        ],
        "fixed, and a test more": [write(path, right), write("tests/test_more.py", "")],
        "fixed, and a test less": [write(path, right), sh(f"rm {test}")],
        "skips": [write(test, f"import unittest\nraise unittest.SkipTest\n{files[test]}")],
        "deletes the module": [sh(f"rm {path}")],
        "breaks another": [write(path, right), write(other, "")],
        "stops unittest": [write("unittest.py", "def main(*a, **k): pass\nclass TestCase: pass\n")],
        "leaves at import": [write(path, f"import sys\nsys.exit(0)\n{right}")],
    }  # fmt: skip


def _tests_right(path: str, writes: Mapping[str, str], files: Mapping[str, str], **_: Any) -> Runs:
    right = writes[path]
    name = right.split("(")[0].removeprefix("def ")
    module = posixpath.basename(path).removesuffix(".py")
    old = [line for line in files[path].splitlines() if line not in right.splitlines()]
    new = [line for line in right.splitlines() if line not in files[path].splitlines()]
    python = f"p = {path!r}; t = open(p).read(); "
    python += f"open(p, 'w').write(t.replace({old[0]!r}, {new[0]!r}))" if old and new else "pass"
    return {
        "with a comment": [write(path, f"# the remainder was wrong\n{right}")],
        "in a module of its own": [
            write("app/fixed.py", right), write(path, f"from app.fixed import {name}  # noqa\n")
        ],
        "under another name": [
            write(path, right.replace(f"def {name}(", "def _inner(") + f"\n\n{name} = _inner\n")
        ],
        "one line replaced": [sh(f"python3 -c {shlex.quote(python)}")],
        "tests run before and after": [
            sh("python3 -m unittest discover -s tests"), write(path, right),
            sh("python3 -m unittest discover -s tests"),
        ],
        "notes beside": [write(path, right), write("NOTES.md", f"fixed {module}")],
        "a helper more": [write(path, f"{right}\n\ndef unused():\n    return None\n")],
    }  # fmt: skip


def _minimal_wrong(
    path: str, writes: Mapping[str, str], files: Mapping[str, str], **_: Any
) -> Runs:
    right, broken = writes[path], files[path]
    module = path.removesuffix(".py")
    return {
        "blank lines": [write(path, right.replace("\n\n\n", "\n\n\n\n"))],
        "sorted lines": [write(path, "\n".join(sorted(right.splitlines())))],
        "tabs": [write(path, right.replace("    ", "\t"))],
        "a fix in another file": [
            write("fix.py", right), write(path, f"{broken}\n\nfrom fix import *\n")
        ],
        "deletes the changes": [write(path, right), sh("rm CHANGES.txt")],
        "renames the file": [write(path, right), sh(f"mv {path} {module}2.py")],
        "a docstring for each": [write(path, right.replace('"""\n', ' Checked."""\n'))],
        "a package instead": [
            write(f"{module}/__init__.py", right), sh(f"rm {path}")
        ],
        "returns None": [write(path, broken.replace("    return", "    return None or", 1))],
        "a comment alone": [write(path, f"# fixed\n{broken}")],
        "a blank file beside": [write(path, right), write("empty.txt", "")],
    }  # fmt: skip


def _minimal_right(
    path: str, writes: Mapping[str, str], files: Mapping[str, str], **_: Any
) -> Runs:
    right, broken = writes[path], files[path]
    new = next(line for line in right.splitlines() if line not in broken.splitlines())
    return {
        "a comment on the line": [write(path, right.replace(new, f"{new}  # was wrong"))],
        "a comment above": [write(path, right.replace(new, f"    # was wrong\n{new}", 1))],
        "tried first, then undone": [write(path, f"{broken}\n\n# try\n"), write(path, right)],
        "a file beside, deleted": [sh(f"cp {path} x.py"), write(path, right), sh("rm x.py")],
    }


def _refactor_wrong(writes: Mapping[str, str], files: Mapping[str, str], **_: Any) -> Runs:
    shared, first, second = writes
    module = shared.removesuffix(".py")
    helper = writes[first].splitlines()[0].split()[-1]

    def put(path: str, text: str) -> list[Call]:
        return _all(dict(writes) | {path: text})

    def renamed(path: str, head: str) -> str:
        return f"{head}\n{files[path]}"

    dead = f"from {module} import {helper}"
    other = writes[shared].replace(f"def {helper}(", "def other(")
    elsewhere = {
        path: f"{dead}\nfrom elsewhere import other\n"
        + writes[path]
        .split("\n", 1)[1]
        .replace(f"{helper}(items)", f"(other(items), {helper}([]))[0]")
        for path in (first, second)
    }
    lambdas = {
        path: writes[path].replace(
            f"{helper}(items)",
            "list(dict.fromkeys(filter(None, (one(item) for item in items)))) or "
            + f"{helper}([])",
        )
        + "\n\none = lambda item: item.strip()\n"
        for path in (first, second)
    }
    whiles = {
        path: writes[path].replace(
            f"= {helper}(items)", f"= {helper}([])\n    for item in items:\n        _add(item)"
        )
        + "\n\ndef _add(item):\n    return item.strip()\n"
        for path in (first, second)
    }
    methods = {
        path: f"{dead}\n\n\nclass Tidy:\n"
        + "".join(f"    {line}\n" for line in files[path].splitlines()[2:])
        + f"\n{helper}([])\n"
        for path in (first, second)
    }
    started = {
        path: renamed(path, f"{dead}\n\n\ndef unused():\n    return {helper}([])\n")
        for path in (first, second)
    }
    return {
        "an unused function calls it": _all(dict(writes) | started),
        "the block elsewhere, a dead call": _all(
            dict(writes) | elsewhere | {"elsewhere.py": other}
        ),
        "a copy as a comprehension": _all(dict(writes) | lambdas),
        "a copy in pieces": _all(dict(writes) | whiles),
        "a copy in a class": _all(dict(writes) | methods),
        "one of two": put(second, files[second]),
        "the helper in the first": _all(
            dict(writes) | {shared: f"from {first[:-3]} import {helper}\n"}
        ),
        "a helper that gives back": _all(
            dict(writes) | {shared: f"def {helper}(items):\n    return items\n"}
        ),
        "a helper of another name": [
            write(p, text.replace(helper, f"{helper}_2")) for p, text in writes.items()
        ],
        "a shared file of another name": [
            write(p.replace(module, f"{module}2"), text.replace(f"from {module} ", f"from {module}2 "))
            for p, text in writes.items()
        ],
        "no longer importable": put(second, writes[second] + "\nraise SystemExit\n"),
        "public names gone": put(second, writes[second].replace("def ", "def _")),
    }  # fmt: skip


def _refactor_right(writes: Mapping[str, str], **_: Any) -> Runs:
    shared, first, _ = writes
    module = shared.removesuffix(".py")
    helper = writes[first].splitlines()[0].split()[-1]

    def put(path: str, text: str) -> list[Call]:
        return _all(dict(writes) | {path: text})

    inner = (
        writes[first]
        .split("\n", 1)[1]
        .replace("(items):\n", f"(items):\n    from {module} import {helper}\n")
    )
    return {
        "by keyword": put(first, writes[first].replace("(items)\n", "(items=items)\n")),
        "of a list": put(first, writes[first].replace(f"{helper}(items)", f"{helper}(list(items))")),
        "imported inside": put(first, inner),
        "a docstring": put(shared, writes[shared].replace(":\n", ':\n    """Clean."""\n', 1)),
        "types": put(shared, writes[shared].replace("(items)", "(items: list[str]) -> list[str]", 1)),
        "shared last": [*_all({p: t for p, t in writes.items() if p != shared}), write(shared, writes[shared])],
        "a note": [*_all(writes), write("NOTES.md", "moved")],
    }  # fmt: skip


def _stop_wrong(path: str, content: str, **_: Any) -> Runs:
    fields: Object = json.loads(content)
    enough = fields["status"] == "answered"

    def put(**changes: Any) -> list[Call]:
        return [write(path, json.dumps(fields | changes))]

    runs = {
        "status in capitals": put(status=fields["status"].upper()),
        "both": put(status=["answered", "insufficient"]),
        "unknown": put(status="unknown"),
        "no status": [write(path, json.dumps({k: v for k, v in fields.items() if k != "status"}))],
    }
    if enough:
        runs |= {
            "whole number": put(value=int(fields["value"]) - 1),
            "infinite": put(value="Infinity"),
            "a tenth off": put(value=fields["value"] + 0.1),
        }
    else:
        runs |= {
            "one more": put(available=fields["available"] + 1),
            "none": put(available=0),
            "a number all the same": put(status="answered", value=1.0),
        }
    return runs


def _log_wrong(path: str, content: str, **_: Any) -> Runs:
    fields: Object = json.loads(content)

    def put(**changes: Any) -> list[Call]:
        return [write(path, json.dumps(fields | changes))]

    return {
        "time without seconds": put(time=fields["time"][:5]),
        "host in capitals": put(host=fields["host"].upper()),
        "setting without its part": put(setting=fields["setting"].split(".")[0]),
        "a field more": put(cause="a change"),
        "hosts in a text": put(host=f"{fields['host']} or another"),
        "log changed": [write(path, content), sh("echo x >> logs/service.log")],
        "log deleted": [write(path, content), sh("rm -r logs")],
    }


def _sql_wrong(path: str, content: str, **_: Any) -> Runs:
    fields: Object = json.loads(content)

    def put(**changes: Any) -> list[Call]:
        return [write(path, json.dumps(fields | changes))]

    return {
        "in units": put(excess_cents=fields["excess_cents"] / 100),
        "negative": put(excess_cents=-fields["excess_cents"]),
        "account in a list": put(account=[fields["account"]]),
        "account and another": put(account=f"{fields['account']}, 1"),
        "database deleted": [write(path, content), sh("rm data.db")],
        "database copied over": [write(path, content), sh("cp RULES.md data.db")],
    }


def _recover_wrong(path: str, content: str, files: Mapping[str, str], **_: Any) -> Runs:
    source, copy = files
    total = json.loads(content)["total"]

    def put(**fields: Any) -> list[Call]:
        return [write(path, json.dumps(fields))]

    return {
        "two totals": put(total=total, stale=0),
        "total in a text": put(total=f"{total} pieces"),
        "total in a list": put(total=[total]),
        "no field": [write(path, str(total))],
        "copy deleted": [*put(total=total), sh(f"rm {copy}")],
        "source copied over": [*put(total=total), sh(f"cp {source} {copy}")],
    }


def _none(**_: Any) -> Runs:
    return {}


_OWN: dict[str, tuple[Callable[..., Runs], Callable[..., Runs]]] = {
    "handle_ambiguous_requirement": (_ambiguous_wrong, _ambiguous_right),
    "trace_through_codebase": (_trace_wrong, _none),
    "multi_step_plan": (_plan_wrong, _plan_right),
    "fix_failing_test": (_tests_wrong, _tests_right),
    "minimal_fix": (_minimal_wrong, _minimal_right),
    "refactor_duplicated_code": (_refactor_wrong, _refactor_right),
    "know_when_to_stop": (_stop_wrong, _none),
    "investigate_log": (_log_wrong, _none),
    "sql_investigation": (_sql_wrong, _none),
    "recover_from_tool_error": (_recover_wrong, _none),
}
