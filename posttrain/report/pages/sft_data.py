"""An SFT data set: mixture, drops, origins, lengths, reasoning control, packing, conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from posttrain.report import section as ui
from posttrain.report.lineage import Node, rows_to_read
from posttrain.report.pages import supervision

SHOWN_SAMPLES = 12
_UNITS = ("rows", "tokens", "trained")


def sections(node: Node) -> ui.Sections:
    for figure in (mixture, drops, origins, lengths, augmentation, control, packing):
        yield figure(node.stats)
    yield from supervision.sections(node)
    yield rows_to_read(node, "samples.jsonl", "Sample conversations", conversations)


def tiles(node: Node) -> list[ui.Tile]:
    assert node.manifest is not None
    counts, stats = node.manifest.counts, node.stats
    found: list[ui.Tile] = [(f"{counts.kept:,}", "rows kept", f"of {counts.rows_in:,}")]
    if "splits" in stats:
        train = stats["splits"]["train"]
        share = ui.ratio(train["trained"], train["tokens"], 0) or "–"
        size = f"{train['tokens'] / 1e6:,.2f} M"
        packs = f"{train['packs']:,} packs of {stats['max_length']:,}"
        found.append((size, "training tokens", f"{share} trained, repeats counted"))
        found.append((f"{100 * train['fill']:.2f} %", "packing fill", packs))
    return found


@ui.section("Mixture")
def mixture(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows: list[list[object]] = []
    for name, source in sources.items():
        requested, realised, shares = source["requested"], source["realised"], source["shares"]
        rows.append(
            [
                name,
                _requested(requested),
                None if requested is None else requested["realised"],
                None if requested is None else ui.signed(100 * requested["difference"], 2, " %"),
                f"{realised['epochs']:.2f}",
                *(realised[unit] for unit in _UNITS),
                *(ui.percent(shares[unit]) for unit in _UNITS),
            ]
        )
    sums = [sum(source["realised"][unit] for source in sources.values()) for unit in _UNITS]
    rows.append(["all", "", "", "", "", *sums, "", "", ""])
    head = ["source", "target", "actual", "deviation", "epochs", *_UNITS]
    head += ["% rows", "% tokens", "% trained"]
    yield (
        "What the recipe requests, and what was realised; repeats over epochs count. Actual and "
        "deviation are in the unit of the target."
    )
    yield ui.Table(head, rows, total=True)


def _requested(requested: ui.Row | None) -> str:
    if requested is None:
        return "each once"
    share = "" if requested["share"] is None else f" ({ui.percent(requested['share'])})"
    return f"{requested['amount']:,.0f} {requested['unit']}{share}"


@ui.section("Drops by source")
def drops(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    reasons = sorted({reason for source in sources.values() for reason in source["dropped"]})
    columns = reasons if len(reasons) <= 5 else []
    rows: list[list[object]] = []
    sums = [0] * (4 + len(columns))
    for name, source in sources.items():
        dropped = source["dropped"]
        numbers = [source["in"], source["kept"], source["held_out"], sum(dropped.values())]
        numbers += [dropped.get(reason, 0) for reason in columns]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        own: list[object] = [*numbers[:4], *(number or None for number in numbers[4:])]
        rows.append([name, *own, *([] if columns else [_most_first(dropped)])])
    rows.append(["all", *sums, *([] if columns else [""])])
    head = ["source", "in", "kept", "held out", "dropped", *(columns or ["by reason"])]
    yield (
        "Rows. Kept includes those held out for evaluation; not_sampled are rows that the mixture "
        "did not need."
    )
    yield ui.Table(head, rows, total=True)
    lost = {name: s["sequences_lost"] for name, s in sources.items() if s["sequences_lost"]}
    if lost:
        yield "Sequences lost from conversations that were kept or dropped:"
        yield ui.Table(
            ["source", "sequences"], [[name, _most_first(n)] for name, n in lost.items()]
        )


def _most_first(counts: Mapping[str, int]) -> str:
    return ui.counted(dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))))


@ui.section("Sources")
def origins(stats: ui.Row) -> Iterator[ui.Block]:
    files: dict[str, list[str]] = {}
    for file in stats["inputs"]:
        digest = f" ({file['sha256'][:12]})" if file["sha256"] else ""
        files.setdefault(file["source"], []).append(f"{file['path']}{digest}")
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows = [
        [
            name,
            *(_most_first(source[key]) for key in ("dialects", "licenses")),
            ", ".join(files.get(name, [])),
        ]
        for name, source in sources.items()
    ]
    yield f"Template: {stats['template']['describe']}."
    yield ui.Table(
        ["source", "rows by dialect", "prepared rows by license", "files (sha256)"], rows
    )
    unread = [[name, *column] for name, own in sources.items() for column in own["unread"]]
    if unread:
        yield "Columns that no part of a record was read from:"
        yield ui.Table(["source", "column", "rows that fill it", "example"], unread)
    # what no record came from: files of evaluation items, to be kept out
    others = [f"{name} {', '.join(own)}" for name, own in files.items() if name not in sources]
    if others:
        yield f"Also read: {'; '.join(others)}."
    if stats["warnings"]:
        yield ui.Heading("Warnings of the build")
        yield from stats["warnings"]


@ui.section("Lengths")
def lengths(stats: ui.Row) -> Iterator[ui.Block]:
    histogram: Sequence[Mapping[str, int]] = stats["histograms"]["length"]
    if not histogram:
        return
    first, last = histogram[0]["up_to"], histogram[-1]["up_to"]
    by_bin = {row["up_to"]: row for row in histogram}
    empty = {"sequences": 0, "trained": 0, "untrained": 0}
    bins = [first << k for k in range((last // first).bit_length())]
    rows = [(f"≤ {size:,}", by_bin.get(size, empty)) for size in bins]
    x = "length of a sequence, tokens"
    yield ui.BarChart(
        [(label, [row["sequences"]]) for label, row in rows],
        x,
        "sequences",
        "Sequences of the training split by length; each bin reaches from half its label.",
    )
    yield ui.BarChart(
        [(label, [row["trained"], row["untrained"]]) for label, row in rows],
        x,
        "tokens",
        "The same bins by the tokens they hold: those in the loss, and those only read.",
        parts=("trained", "not trained"),
    )


@ui.section("Prompt augmentation")
def augmentation(stats: ui.Row) -> Iterator[ui.Block]:
    rows = [
        [name, template, count]
        for name, source in stats["sources"].items()
        for template, count in source["templates"].items()
    ]
    if rows:
        yield ui.Table(["source", "template, or why in its own words", "records"], rows)
        yield "Chosen by a keyed hash of the record's id. Counted before the mixture is sampled."


@ui.section("Reasoning control")
def control(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows: list[list[object]] = [
        [name, *_control_row(source["control"])]
        for name, source in sources.items()
        if source["control"]["reasoned"]
    ]
    without = len(sources) - len(rows)
    rows.append(["all", *_control_row(stats["control"])])
    head = ["source", "records with reasoning", "stripped", "share"]
    head += ["traces", "cut to a budget", "share", "too short to cut"]
    yield (
        "Reasoning is switched off for some records, and some traces are cut to a budget, chosen "
        "by a keyed hash of the record's id. Counted before the mixture is sampled. "
        + (f"{without} sources have no reasoning and are not listed." if without else "")
    )
    yield ui.Table(head, rows, total=True)
    budgets: Sequence[tuple[int, int]] = stats["histograms"]["budgets"]
    if budgets:
        caption = "Budgets of the traces that were cut."
        yield ui.BarChart(_binned(budgets), "budget, tokens of reasoning kept", "traces", caption)


def _control_row(control: Mapping[str, int]) -> list[object]:
    names = ("reasoned", "stripped", "traces", "truncated", "too_short")
    reasoned, stripped, traces, cut, short = (control[name] for name in names)
    stripped_share, cut_share = ui.ratio(stripped, reasoned, 2), ui.ratio(cut, traces, 2)
    return [reasoned, stripped, stripped_share, traces, cut, cut_share, short]


def _binned(budgets: Sequence[tuple[int, int]]) -> list[tuple[str, list[int]]]:
    """Few budgets one bar each, many by powers of two."""
    if len(budgets) <= 12:
        return [(f"{budget:,}", [count]) for budget, count in budgets]
    counts: Counter[int] = Counter()
    for budget, count in budgets:
        counts[budget.bit_length() - 1] += count
    bins = range(min(counts), max(counts) + 1)
    return [(f"{1 << k:,} – {(2 << k) - 1:,}", [counts[k]]) for k in bins]


@ui.section("Packing")
def packing(stats: ui.Row) -> Iterator[ui.Block]:
    splits = [(0, name, split) for name, split in stats["splits"].items()]
    splits += [(2, name, split) for name, split in stats["eval_groups"].items()]
    rows: list[list[object]] = [
        [
            ui.TableCell(name, indent=indent),
            split["packs"],
            split["sequences"],
            *(ui.ratio(split[key], split["sequences"]) for key in ("reasoning", "truncated")),
            split["tokens"],
            ui.ratio(split["trained"], split["tokens"]),
            ui.percent(split["fill"], 2),
            f"{split['sequences_per_pack']:.1f}",
            split["longest"],
        ]
        for indent, name, split in splits
    ]
    head = ["split", "packs", "sequences", "reasoning on", "trace cut", "tokens", "trained"]
    head += ["fill", "sequences a pack", "longest"]
    yield f"Packs of {stats['max_length']:,} tokens."
    yield ui.Table(head, rows)
    fills: Sequence[int] = stats["histograms"]["fill_percent"]
    if sum(fills):
        caption = "How full the packs of the training split are."
        x = "fill, rounded down to whole percent"
        yield ui.BarChart(_fill_bars(fills), x, "packs", caption)


def _fill_bars(fills: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Single percents from 90 on; where many packs are emptier than that, steps of ten."""
    if sum(fills[:90]) <= 0.1 * sum(fills):
        return [("< 90 %", [sum(fills[:90])]), *((f"{k} %", [fills[k]]) for k in range(90, 101))]
    tens = [sum(fills[k : k + 10]) for k in range(0, 100, 10)] + [fills[100]]
    return [(f"{10 * k} %", [count]) for k, count in enumerate(tens)]


def conversations(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Samples of as many sources as there is room for, one of each in turn."""
    by_source: dict[str, list[ui.Row]] = {}
    for row in rows:
        by_source.setdefault(row["source"], []).append(row)
    turns = max(map(len, by_source.values()), default=0)
    dealt = [own[k] for k in range(turns) for own in by_source.values() if k < len(own)]
    folds = [_conversation(row, opened=k == 0) for k, row in enumerate(dealt[:SHOWN_SAMPLES])]
    if folds:
        yield ui.Styled("Highlighted", "mark"), " text is trained on; the rest is only read."
        yield from folds


def _conversation(row: ui.Row, *, opened: bool) -> ui.Fold:
    budget = f", cut to {row['budget']} tokens" if row["budget"] is not None else ""
    about = f"turn {row['turn']}, reasoning {row['reasoning']}{budget}, {row['tokens']:,} tokens"
    title = (
        ui.Styled(row["source"], "bold"),
        f" · {about} · ",
        ui.Styled(row["record_id"][:12], "code"),
    )
    return ui.Fold(title, [supervision.marked_segments(row["segments"])], opened)
