"""Where the rows of an SFT data set come from: mixture, drops and origin of each source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.report.html import bar, paragraph, percent, signed_percent, table, text

Stats = Mapping[str, Any]


def mixture(stats: Stats) -> list[str]:
    """Amounts asked for and realised."""
    sources: Mapping[str, Any] = stats["sources"]
    largest = max((s["shares"]["tokens"] for s in sources.values()), default=1.0)
    rows: list[list[object]] = []
    for name, source in sources.items():
        asked, got, shares = source["requested"], source["realised"], source["shares"]
        rows.append(
            [
                name,
                _asked(asked),
                None if asked is None else signed_percent(asked["difference"]),
                f"{got['epochs']:.2f}",
                got["rows"],
                got["tokens"],
                got["trained"],
                *(percent(shares[unit]) for unit in ("rows", "tokens", "trained")),
                bar(shares["tokens"], of=largest),
            ]
        )
    sums = [sum(s["realised"][u] for s in sources.values()) for u in ("rows", "tokens", "trained")]
    rows.append(["all", "", "", "", *sums, "", "", "", ""])
    head = ["source", "asked for", "off by", "epochs", "rows", "tokens", "trained"]
    head += ["% rows", "% tokens", "% trained", ""]
    return [
        paragraph(
            "What the recipe asked for, and what was realised; repeats over epochs count. "
            "“Off by” is the relative difference in the unit asked for."
        ),
        table(head, rows, numeric=range(1, 10), total=True),
    ]


def _asked(asked: Mapping[str, Any] | None) -> str:
    if asked is None:
        return "each once"
    share = "" if asked["share"] is None else f" ({percent(asked['share'])})"
    return f"{asked['amount']:,.0f} {asked['unit']}{share}"


def drops(stats: Stats) -> list[str]:
    """Rows in, kept and dropped by reason."""
    sources: Mapping[str, Any] = stats["sources"]
    reasons = sorted({reason for s in sources.values() for reason in s["dropped"]})
    head = ["source", "in", "kept", "held out", "dropped"]
    if len(reasons) <= 5:
        rows: list[list[object]] = [
            [*_books(name, s), *(s["dropped"].get(reason, 0) or None for reason in reasons)]
            for name, s in sources.items()
        ]
        totals = [sum(s["dropped"].get(r, 0) for s in sources.values()) for r in reasons]
        rows.append([*_all_books(sources), *totals])
        counted = table([*head, *reasons], rows, numeric=range(1, 5 + len(reasons)), total=True)
    else:
        rows = [[*_books(name, s), _by_reason(s["dropped"])] for name, s in sources.items()]
        rows.append([*_all_books(sources), ""])
        counted = table([*head, "by reason"], rows, numeric=range(1, 5), total=True)
    lost = {name: s["sequences_lost"] for name, s in sources.items() if s.get("sequences_lost")}
    return [
        paragraph(
            "Rows. Kept includes those held out for evaluation; not_sampled are rows that the "
            "mixture did not need."
        ),
        counted,
        _lost_sequences(lost),
    ]


def _books(name: str, source: Mapping[str, Any]) -> list[object]:
    dropped = sum(source["dropped"].values())
    return [name, source["in"], source["kept"], source["held_out"], dropped]


def _all_books(sources: Mapping[str, Any]) -> list[object]:
    columns = zip(*(_books(name, s)[1:] for name, s in sources.items()), strict=True)
    return ["all", *(sum(int(str(value)) for value in column) for column in columns)]


def _by_reason(dropped: Mapping[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{reason} {number:,}" for reason, number in ordered if number)


def _lost_sequences(lost: Mapping[str, Mapping[str, int]]) -> str:
    if not lost:
        return ""
    rows = [[name, _by_reason(reasons)] for name, reasons in lost.items()]
    return paragraph("Sequences lost from conversations that were kept or dropped:") + table(
        ["source", "sequences"], rows
    )


def origins(stats: Stats) -> list[str]:
    """Template, dialects, licenses, files and the warnings of the build."""
    files: dict[str, list[str]] = {}
    for given in stats["inputs"]:
        digest = f" ({given['sha256'][:12]})" if given["sha256"] else ""
        files.setdefault(given["source"], []).append(f"{given['path']}{digest}")
    rows: list[list[object]] = [
        [
            name,
            _by_reason(source["dialects"]),
            _by_reason(source["licenses"]),
            ", ".join(files.get(name, [])),
        ]
        for name, source in stats["sources"].items()
    ]
    # what no record came from: files of evaluation items, to be kept out
    others = "; ".join(
        f"{name} {', '.join(own)}" for name, own in files.items() if name not in stats["sources"]
    )
    warnings = "".join(f"<li>{text(warning)}</li>" for warning in stats.get("warnings", ()))
    return [
        paragraph(f"Template: {stats['template']['describe']}."),
        table(["source", "rows by dialect", "prepared rows by license", "files (sha256)"], rows),
        paragraph(f"Also read: {others}.") if others else "",
        f"<h3>Warnings of the build</h3><ul>{warnings}</ul>" if warnings else "",
    ]
