"""An SFT data set: mixture, drops, origins, lengths, reasoning control, packing, conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from posttrain.lineage import Node
from posttrain.pages import supervision
from posttrain.pages.artifact import kept_tile, samples_to_read
from posttrain.report import section as ui

_UNITS = ("rows", "tokens", "trained")


def sections(node: Node) -> ui.Sections:
    """Sections of an `sft_data` artifact."""
    for section in (mixture, drops, origins, lengths, augmentation, control, packing):
        yield section(node.stats)
    yield from supervision.sections(node)
    yield samples_to_read(
        node,
        "Sample conversations",
        _conversation,
        examples="samples.jsonl",
        note=supervision.MARKED,
    )


def tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the rows, the training tokens and the fill of the packs."""
    stats = node.stats
    shown: list[ui.Tile] = [kept_tile(node, "rows")]
    if "splits" in stats:
        train = stats["splits"]["train"]
        share = ui.ratio(train["trained"], train["tokens"], 0) or "–"
        size = f"{train['tokens'] / 1e6:,.2f} M"
        packs = f"{train['packs']:,} packs of {stats['max_length']:,}"
        shown.append((size, "training tokens", f"{share} trained, repeats counted"))
        shown.append((f"{100 * train['fill']:.2f} %", "packing fill", packs))
    return shown


@ui.section("Mixture")
def mixture(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows: list[list[object]] = []
    for name, source in sources.items():
        requested = source["requested"]
        realised = source["realised"]
        shares = source["shares"]
        target: list[object] = [None, None, "each once"]
        if requested is not None:
            share = "" if requested["share"] is None else f" ({ui.percent(requested['share'])})"
            target = [requested["realised"], ui.signed(100 * requested["difference"], 2, " %")]
            target.append(f"{requested['amount']:,.0f} {requested['unit']}{share}")
        counts = [realised[unit] for unit in _UNITS]
        row = [name, *target, f"{realised['epochs']:.2f}", *counts]
        rows.append([*row, *(ui.percent(shares[unit]) for unit in _UNITS)])
    sums = [sum(source["realised"][unit] for source in sources.values()) for unit in _UNITS]
    rows.append(["all", None, None, None, None, *sums, None, None, None])
    head = ["source", "actual", "deviation", "target", "epochs", *_UNITS]
    head += ["% rows", "% tokens", "% trained"]
    yield "Repeats over epochs count. Actual and deviation are in the unit of the target."
    yield ui.Table(head, rows, total=True)


@ui.section("Drops by source")
def drops(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows: list[list[object]] = []
    sums = Counter[str]()
    for name, source in sources.items():
        numbers = {key: source[key] for key in ("in", "kept", "held_out")}
        numbers["dropped"] = sum(source["dropped"].values())
        sums.update(numbers)
        rows.append([name, *numbers.values(), _most_first(source["dropped"])])
    rows.append(["all", *sums.values(), None])
    head = ["source", "in", "kept", "held out", "dropped", "by reason"]
    yield "Rows. Kept includes those held out; not_sampled are rows that the mixture did not need."
    yield ui.Table(head, rows, total=True)
    lost: list[list[object]] = []
    for name, source in sources.items():
        if source["sequences_lost"]:
            lost.append([name, _most_first(source["sequences_lost"])])
    if lost:
        yield "Sequences lost from conversations that were kept or dropped:"
        yield ui.Table(["source", "sequences"], lost)


def _most_first(counts: Mapping[str, int]) -> str:
    return ui.counted(dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))))


@ui.section("Sources")
def origins(stats: ui.Row) -> Iterator[ui.Block]:
    files: dict[str, list[str]] = {}
    for file in stats["inputs"]:
        digest = f" ({file['sha256'][:12]})" if file["sha256"] else ""
        files.setdefault(file["source"], []).append(f"{file['path']}{digest}")
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows: list[list[object]] = []
    unread: list[list[object]] = []
    for name, source in sources.items():
        dialects = _most_first(source["dialects"])
        licenses = _most_first(source["licenses"])
        rows.append([name, dialects, licenses, ", ".join(files.get(name, []))])
        unread += [[name, *column] for column in source["unread"]]
    head = ["source", "rows by dialect", "prepared rows by license", "files (sha256)"]
    yield f"Template: {stats['template']['describe']}."
    yield ui.Table(head, rows)
    if unread:
        yield "Columns that no part of a record was read from:"
        yield ui.Table(["source", "column", "rows that fill it", "example"], unread)
    # files of evaluation items, which records must not contain
    other_inputs: list[str] = []
    for name, paths in files.items():
        if name not in sources:
            other_inputs.append(f"{name} {', '.join(paths)}")
    if other_inputs:
        yield f"Also read: {'; '.join(other_inputs)}."
    if stats["warnings"]:
        yield "Warnings of the build:"
        yield from stats["warnings"]


@ui.section("Lengths")
def lengths(stats: ui.Row) -> Iterator[ui.Block]:
    histogram: Sequence[Mapping[str, int]] = stats["histograms"]["length"]
    if not histogram:
        return
    smallest = histogram[0]["up_to"]
    largest = histogram[-1]["up_to"]
    by_bin = {row["up_to"]: row for row in histogram}
    # each bin ends at twice the end of the one before; empty bins have no row
    bins = [smallest << k for k in range((largest // smallest).bit_length())]

    def chart(y: str, parts: Sequence[str], caption: str, keys: Sequence[str]) -> ui.BarChart:
        bars = [(f"≤ {up:,}", [by_bin.get(up, {}).get(key, 0) for key in keys]) for up in bins]
        return ui.BarChart(bars, "length of a sequence, tokens", y, caption, parts)

    caption = "Sequences of the training split by length; each bin reaches from half its label."
    yield chart("sequences", (), caption, ["sequences"])
    caption = "The same bins by the tokens they hold: those in the loss, and those only read."
    yield chart("tokens", ("trained", "not trained"), caption, ["trained", "untrained"])


@ui.section("Prompt augmentation")
def augmentation(stats: ui.Row) -> Iterator[ui.Block]:
    templates = {name: source["templates"] for name, source in stats["sources"].items()}
    if rows := ui.nested(templates):
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
        "Chosen by a keyed hash of the record's id, counted before the mixture is sampled. "
        + (f"Not listed, as without reasoning: {without} of {len(sources)}." if without else "")
    )
    yield ui.Table(head, rows, total=True)
    counts = Counter[int]()
    for budget, count in stats["histograms"]["budgets"]:
        counts[budget.bit_length() - 1] += count
    if counts:
        powers = range(min(counts), max(counts) + 1)
        bars = [(f"{1 << k:,} – {(2 << k) - 1:,}", [counts[k]]) for k in powers]
        caption = "Budgets of the traces that were cut."
        yield ui.BarChart(bars, "budget, tokens of reasoning kept", "traces", caption)


def _control_row(control: Mapping[str, int]) -> list[object]:
    return [
        control["reasoned"],
        control["stripped"],
        ui.ratio(control["stripped"], control["reasoned"], 2),
        control["traces"],
        control["truncated"],
        ui.ratio(control["truncated"], control["traces"], 2),
        control["too_short"],
    ]


@ui.section("Packing")
def packing(stats: ui.Row) -> Iterator[ui.Block]:
    splits = [(0, name, split) for name, split in stats["splits"].items()]
    splits += [(2, name, split) for name, split in stats["eval_groups"].items()]
    rows: list[list[object]] = []
    for indent, name, split in splits:
        rows.append(
            [
                ui.TableCell(name, indent=indent),
                split["packs"],
                split["sequences"],
                ui.ratio(split["reasoning"], split["sequences"]),
                ui.ratio(split["truncated"], split["sequences"]),
                split["tokens"],
                ui.ratio(split["trained"], split["tokens"]),
                ui.percent(split["fill"], 2),
                f"{split['sequences_per_pack']:.1f}",
                split["longest"],
            ]
        )
    head = ["split", "packs", "sequences", "reasoning on", "trace cut", "tokens", "trained"]
    head += ["fill", "sequences a pack", "longest"]
    yield f"Packs of {stats['max_length']:,} tokens."
    yield ui.Table(head, rows)
    fills: Sequence[int] = stats["histograms"]["fill_percent"]
    if sum(fills):
        bars = [(f"{k} – {k + 9} %", [sum(fills[k : k + 10])]) for k in range(0, 90, 10)]
        bars += [(f"{k} %", [fills[k]]) for k in range(90, 101)]
        caption = "How full the packs of the training split are."
        yield ui.BarChart(bars, "fill, rounded down to whole percent", "packs", caption)


def _conversation(row: ui.Row, most: int) -> ui.Sample:
    budget = f", cut to {row['budget']} tokens" if row["budget"] is not None else ""
    turn = f" · turn {row['turn']}, reasoning {row['reasoning']}{budget}, {row['tokens']:,} tokens"
    record = ui.Styled(f" · {row['record_id'][:12]}", "code")
    title = (ui.Styled(row["source"], "bold"), turn, record)
    segments = supervision.marked_segments(row["segments"])
    values = {"source": row["source"], "reasoning": row["reasoning"]}
    return ui.Sample(title, [segments], values, {"tokens": row["tokens"]})
