"""A page as it reads: its sections, the cells of its tables, what it loads, how its tags nest."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from posttrain.pages.write import write_report

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Checks that tags nest; collects what is highlighted and the attributes that load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.marked: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        addresses = [(k, v) for k, v in attrs if k in ("src", "href") and v[:1] != "#"]
        if tag == "a":
            self.links += [address for _, address in addresses]
        else:
            self.loads += [f"{k}={v}" for k, v in addresses]
        self.loads += [tag] if tag in ("link", "iframe", "img") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "mark" in self.open and "pre" in self.open:
            self.marked.append(data)


def page_of(artifact: Path) -> str:
    """The report as it reads: spaces that keep a number and its unit on one line are spaces."""
    return write_report(artifact).read_text("utf-8").replace("\N{NO-BREAK SPACE}", " ")


def tiles_of(artifact: Path) -> list[tuple[str, str, str]]:
    """The tiles of a page, in their order."""
    page = (artifact / "report.html").read_text("utf-8").replace("\N{NO-BREAK SPACE}", " ")
    tile = r'<div class="tile"><b>(.*?)</b><span>(.*?)</span><small>(.*?)</small></div>'
    return re.findall(tile, page)


def cells(page: str, first: str) -> list[str]:
    """The cells of the first table row that begins with this one."""
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page):
        found = [
            re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        ]
        if found and found[0].strip("\u2003↳ ") == first:
            return found
    raise AssertionError(f"no row begins with {first!r}")


def section(page: str, title: str) -> str:
    """The content of one section."""
    found = re.search(rf"<h2>{title}</h2>(.*?)</section>", page, re.DOTALL)
    assert found, title
    return found[1]


def sections(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)
