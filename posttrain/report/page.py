"""The page that sections are added to, with its style; one file that needs no other.

page = Page("sft", kicker="checkpoint 3fa9…"); page.add("Loss", "<figure>…"); page.html()
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from posttrain.report.html import text
from posttrain.report.style import STYLE


@dataclass
class Page:
    """Sections in the order they are added, and what was left out with the reason."""

    title: str
    kicker: str = ""
    lead: str = ""
    sections: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    left_out: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add(self, title: str, *parts: str) -> None:
        """Add a section; a section without content is not added."""
        body = "".join(parts)
        if body:
            self.sections.append((title, body))

    def leave_out(self, what: str, why: str) -> None:
        """Say that something is not in this report."""
        self.left_out.append((what, why))

    def html(self) -> str:
        """The finished page."""
        sections = list(self.sections)
        if self.left_out:
            items = "".join(f"<li>{text(what)}: {text(why)}</li>" for what, why in self.left_out)
            sections.append(("Not in this report", f"<ul>{items}</ul>"))
        links = "".join(f'<a href="#{_anchor(t)}">{text(t)}</a>' for t, _ in sections)
        body = "".join(
            f'<section id="{_anchor(t)}"><h2>{text(t)}</h2>{content}</section>'
            for t, content in sections
        )
        return (
            "<!doctype html>\n"
            '<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{text(self.title)}</title><style>{STYLE}</style></head><body><main>"
            f'<header><p class="kicker">{text(self.kicker)}</p><h1>{text(self.title)}</h1>'
            f"{self.lead}</header><nav>{links}</nav>{body}</main></body></html>\n"
        )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
