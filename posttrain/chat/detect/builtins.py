"""Requests to run code or to search, in a tool's own notation.

<|python_tag|>print(2**10)      <execute>ls</execute>      ```tool_code      python\\n{"code": …}
<search>tallest mountain</search>      <|begin_search_query|>…      web_search("…")
"""

from __future__ import annotations

import re
from typing import Literal

from posttrain.chat.detect.candidate import Candidate
from posttrain.chat.detect.page import Page
from posttrain.chat.detect.payload import read_payload
from posttrain.chat.detect.reading import NOTHING, TextReader
from posttrain.chat.detect.requested import UNREAD, Request, RequestedCall, requested_in

_RUN = (
    "execute|execute_bash|execute_ipython|execute_python|execute_code|code_interpreter|python|"
    "python_code|ipython|jupyter|jupyter_code|interpreter|tool_code|run_code|run_python|bash"
)
_SEEK = "search|web_search|websearch|google_search|google|search_query|browse|wiki|wikipedia"
_ENGINES = (
    r"brave_search|wolfram_alpha|web_search|google_search|bing_search|search_web|browser\.search|"
    r"google\.search|duckduckgo_search"
)
_MARKER = re.compile(
    r"(?P<tag><\|python_tag\|>)"
    rf"|<(?P<run>{_RUN})>"
    rf"|<(?P<seek>{_SEEK})>"
    r"|<\|(?P<token>begin_search_query|begin_of_query|search|tool_code|code_interpreter|"
    r"execute_start|interpreter)\|>"
    r"|^[ \t]*(?P<named>python|ipython|code_interpreter|browser|web_search|search)[ \t]*\n"
    r"[ \t]*(?=\{\s*[\"'](?:code|query|q|search_query|command|input)[\"'])"
    rf"|^(?: {{0,3}}|[>*-] )(?P<call>(?:{_ENGINES})(?:\.call|\.search|\.run)?|search)\("
    r"(?=\s*(?:query|q|queries)?\s?=?\s?[\"'])"
    r"|^[ \t]*(?P<fence>`{3,}|~{3,})(?:tool_code|tool_call|tool_calls|function_call|tool_use|"
    r"code_interpreter|json tool_call)[ \t]*\n"
    r"|^(?P<tir>`{3})(?:python|py)[ \t]*\n|^[ \t]*`{3}(?P<end_code><end_code>)",
    re.M,
)
_CODE = re.compile(
    r"\s{0,8}(?:import |from \w|print\(|[#!]|def |for |[\w.\[\]\"']{1,64}\s?[+\-*/]?= ?|"
    r"[\w.]{1,80}\(|```|[\d(][\d.\s+\-*/()%]*$)",
    re.M,
)
_OUTPUT = re.compile(r"[ \t]*`{3,}[ \t]*\n\s{0,4}`{3,}(?:output|tool_output|execution_result)\b")
_LONGEST = 20_000
_BLANK = re.compile(
    r"\s*(?:\.\.\.|…|query|your (?:query|code|search)[^<>]*|code|python)?\s*\Z", re.I
)


def builtin(page: Page, reader: TextReader, start: int) -> Candidate | None:
    """The first candidate from `start` on."""
    for match in _MARKER.finditer(page.text, start):
        found = _at(match, page, reader)
        if found is not None:
            return found
    return None


def _at(match: re.Match[str], page: Page, reader: TextReader) -> Candidate | None:
    if match["tag"]:
        return _python_tag(match, page, reader)
    if match["fence"]:
        return _fenced(match, page, reader)
    if match["tir"]:
        return _run_and_printed(match, page)
    if match["end_code"]:
        code = RequestedCall("python", {"code": UNREAD}, request="python")
        return Candidate(
            "python_request", match.start("end_code"), match.end(), (code,), plain=True
        )
    if match["named"]:
        value, end = reader.json(match.end())
        request: Request = (
            "python" if "py" in match["named"] or "code" in match["named"] else "search"
        )
        if value is NOTHING:
            end = len(page.text)
        requested = RequestedCall(match["named"], {"input": UNREAD}, request=request)
        return Candidate(f"{request}_request", match.start(), end, (requested,))
    if match["call"]:
        call, end = reader.python_call(match.start("call"))
        alone = (
            match["call"] != "search" or not (page.text[: match.start()] + page.text[end:]).strip()
        )
        if call is None or not alone or page.after(end).strip(" .;`)"):
            return None
        requested = RequestedCall(call.name, call.arguments, request="search")
        return Candidate("search_request", match.start("call"), end, (requested,), plain=True)
    return _tagged(match, page, reader)


def _python_tag(match: re.Match[str], page: Page, reader: TextReader) -> Candidate | None:
    """Llama's: a JSON call, `tool.call(…)`, or Python to be run."""
    payload = read_payload(reader, match.end())
    one = payload.requested[0] if payload and payload.requested else None
    if payload and one and one.name and (payload.kind == "json" or one.name.endswith(".call")):
        requested = RequestedCall(one.name.removesuffix(".call"), one.arguments)
        return Candidate(
            "llama_python_tag", match.start(), payload.end, (requested, *payload.requested[1:])
        )
    rest = page.text[match.end() : match.end() + 400]
    own = not page.before(match.start()).strip()
    if _CODE.match(rest) or (own and (not rest.strip() or rest.startswith("\n"))):
        stop = reader.find("<|e", match.end())
        end = stop if stop >= 0 else len(page.text)
        code = RequestedCall("python", {"code": UNREAD}, request="python")
        return Candidate("python_request", match.start(), end, (code,))
    return None


def _tagged(match: re.Match[str], page: Page, reader: TextReader) -> Candidate | None:
    """`<search>…</search>` and `<execute>…</execute>`: never inside another element."""
    tag = match["run"] or match["seek"] or match["token"]
    closer = f"</{tag}>" if not match["token"] else "<|end"
    closed = reader.find(closer, match.end())
    stop = closed if closed >= 0 else len(page.text)
    inner = page.text[match.end() : min(stop, match.end() + _LONGEST)]
    before = page.text[max(0, match.start() - 80) : match.start()].rstrip()
    nested = before.endswith(">") and not before.endswith(("|>", "think>"))
    again = inner[:4000].find(match[0])
    if _BLANK.match(inner[:200]) or nested or again >= 0 or len(inner) == _LONGEST:
        return None
    token = match["token"] or ""
    seeks = bool(match["seek"]) or "query" in token or "search" in token
    if seeks and (inner.lstrip()[:1] == "<" or inner.count("\n") > 8):
        return None  # an element that holds elements is a document
    request: Request = "search" if seeks else "python"
    name = "search" if seeks else ("python" if tag != "bash" and tag != "execute_bash" else "bash")
    read = read_payload(reader, match.end()) if tag == "tool_code" else None
    requested = (
        read.requested if read else (RequestedCall(name, {"input": UNREAD}, request=request),)
    )
    plain = not token and tag != "tool_code"
    end = closed + len(closer) if closed >= 0 else len(page.text)
    if match["token"] and closed >= 0:
        end = page.text.find(">", closed) + 1 or end
    return Candidate(f"{request}_request", match.start(), end, requested, plain)


def _run_and_printed(match: re.Match[str], page: Page) -> Candidate | None:
    """A Python block with the output that running it is said to have given right behind it."""
    fence = page.fence(match.end())
    if fence is None or not _OUTPUT.match(page.text, fence.end):
        return None
    code = RequestedCall("python", {"code": UNREAD}, request="python")
    return Candidate("python_request", match.start("tir"), fence.end, (code,), plain=True)


def _fenced(match: re.Match[str], page: Page, reader: TextReader) -> Candidate | None:
    """A block whose info string says that it is a call."""
    fence = page.fence(match.end())
    if fence is None or not page.text[fence.body : fence.end].strip():
        return None
    form: Literal["tool_code"] = "tool_code"
    value, _ = reader.json(reader.skip(fence.body))
    requested = requested_in(value) if value is not NOTHING else ()
    if not requested:
        payload = read_payload(reader, fence.body)
        requested = payload.requested if payload else (RequestedCall(None, request="python"),)
    return Candidate(form, match.start("fence"), fence.end, requested)
