"""On-policy data: a set of samples, and the preference pairs selected from graded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.report.lineage import Node, rows_to_read
from posttrain.report.section import (
    SHOWN_CHARACTERS,
    BarChart,
    Block,
    Dialogue,
    Fold,
    LeftOut,
    Row,
    Section,
    Styled,
    Table,
    Tile,
    counted,
    percent,
    ratio,
    section,
    shortened,
    signed,
)
from posttrain.rollouts import TRUNCATED, Prompt
from posttrain.runs import Manifest

SHOWN_PAIRS = 4  # of each category


def sections(node: Node) -> Iterator[Section | LeftOut]:
    """All sections of one `samples` artifact."""
    yield settings(node.stats["settings"])
    yield prompts_by_source(node.stats)
    yield rows_to_read(node, "examples.jsonl", "Samples to read", samples_to_read)


def tiles(node: Node) -> list[Tile]:
    """Samples, tokens, the share that a limit ended."""
    found = node.stats["settings"].values()
    samples, tokens, prompts = (
        sum(f[key] for f in found) for key in ("samples", "tokens", "prompts")
    )
    cut = sum(f["finish"][finish] for f in found for finish in TRUNCATED)
    return [
        (f"{samples:,}", "samples", f"of {prompts:,} prompts"),
        (f"{tokens / 1e6:,.2f} M", "tokens sampled", "tool results not counted"),
        (ratio(cut, samples) or "–", "truncated", f"a limit ended {cut:,} of {samples:,}"),
    ]


@section("Samples")
def settings(settings: Mapping[str, Row]) -> Iterator[Block]:
    """By setting: samples, how they ended, their lengths and calls."""
    ended = list(next(iter(settings.values()))["finish"])
    counts: list[list[object]] = [
        [name, own["prompts"], own["samples"], own["thinking_on"]]
        + [ratio(own["finish"][finish], own["samples"]) for finish in ended]
        for name, own in settings.items()
    ]
    means = ("reasoning_tokens", "answer_tokens", "steps")
    lengths: list[list[object]] = [
        [
            name,
            *(f"{own[key] / own['samples']:.1f}" for key in means),
            ratio(own["samples_with_calls"], own["samples"], 2),
            own["tool_results"],
            counted(own["problems"]) or None,
        ]
        for name, own in settings.items()
    ]
    head = ["setting", "prompts", "samples", "reasoning on", *(f"ended: {e}" for e in ended)]
    columns = ["setting", "reasoning tokens", "answer tokens", "steps", "with a call"]
    columns += ["tool results", "malformed"]
    yield Table(head, counts)
    yield (
        "Means of a sample. A call counts wherever it was parsed as one, declared or not; the "
        "rate of undeclared calls in every form is counted when samples are graded."
    )
    yield Table(columns, lengths)


@section("Prompts by source")
def prompts_by_source(stats: Row) -> Iterator[Block]:
    """Rows of each source, those dropped with an example, prompts that a setting skips."""
    rows = [
        [name, own["rows_in"], own["kept"], reason, count, own["examples"].get(reason)]
        for name, own in stats["sources"].items()
        for reason, count in (own["dropped"] or {None: None}).items()
    ]
    skipped = [
        [setting, reason, count]
        for setting, reasons in stats["skipped"].items()
        for reason, count in reasons.items()
    ]
    head = ["source", "rows", "requested", "dropped because", "rows", "such as"]
    yield Table(head, rows)
    if skipped:
        yield "Questions that a setting skips, of all distinct ones:"
        yield Table(["setting", "because", "questions"], skipped)


def planned(
    prompts: Sequence[Prompt], n_of: Callable[[str], int], most_tokens: Callable[[str], int]
) -> Section:
    """What a dry run expects of each setting."""
    settings = dict.fromkeys(prompt.setting for prompt in prompts)
    rows: list[list[object]] = []
    for name in settings:
        own, n = [prompt for prompt in prompts if prompt.setting == name], n_of(name)
        thinking = sum(prompt.thinking for prompt in own)
        rows.append([name, len(own), thinking, n, len(own) * n, len(own) * n * most_tokens(name)])
    head = ["setting", "prompts", "reasoning on", "n", "completions", "tokens at most"]
    return Section("Settings", [Table(head, rows)])


def samples_to_read(rows: Sequence[Row]) -> Iterator[Block]:
    """Every example, the first one open; the model's own text stands out."""
    yield from (_example(row, opened=place == 0) for place, row in enumerate(rows))


def _example(row: Row, *, opened: bool) -> Fold:
    prompt, completion = row["prompt"], row["completion"]
    thinking = "on" if prompt["thinking"] else "off"
    about = f" · reasoning {thinking} · {prompt['source']} · {completion['finish']}"
    words = [part for m in prompt["messages"] for part in _turn(m["role"], m["content"])]
    for step in completion["steps"]:
        words += [Styled(shortened(step["text"]), "mark"), "\n"]
        words += [part for m in step["results"] for part in _turn("tool", m["content"])]
    if prompt["gold"] is not None:
        words += _turn("gold", prompt["gold"])
    return Fold((Styled(prompt["setting"], "bold"), about), [Dialogue(words)], opened)


def _turn(role: str, content: str) -> list[str | Styled]:
    return [Styled(f"[{role}]", "faint"), f" {shortened(content)}\n"]


# preference pairs


def pair_sections(node: Node) -> Iterator[Section | LeftOut]:
    """All sections of one `dpo_data` artifact."""
    yield from pair_figures(node.stats)
    yield rows_to_read(node, "samples.jsonl", "Pairs to read", pairs_to_read)


def pair_figures(stats: Row) -> Iterator[Section]:
    """The sections that need no file: those that a build prints at its end too."""
    yield categories(stats)
    yield graded_samples(stats["samples"])
    yield length_balance(stats["lengths"])
    yield distances(stats)
    yield unread_columns(stats)


def pair_tiles(node: Node) -> list[Tile]:
    """Pairs by category, the share of samples truncated."""
    stats = node.stats
    total, parts = stats["pairs"]["total"], stats["pairs"]["by_category"]
    sums = sum(map(Counter, stats["samples"].values()), Counter[str]())
    cut, of = sums["truncated"], sums["completions"]
    share = ratio(cut, of)
    pairs = (f"{total:,}", "preference pairs", counted(parts))
    return [pairs, *([(share, "of the samples truncated", f"{cut:,} of {of:,}")] if share else [])]


@section("Plan")
def planned_pairs(recipe: BuildDpoConfig, parents: Sequence[Manifest]) -> Iterator[Block]:
    """What a dry run would build pairs of; nothing is graded."""
    rows = [[path, *_rows_of(parent)] for path, parent in zip(recipe.samples, parents, strict=True)]
    if rows:
        yield Table(["samples", "prompts", "completions"], rows)
    offline = [[source.name, ", ".join(source.paths) or source.hub] for source in recipe.offline]
    if offline:
        yield Table(["offline", "files"], offline)
    yield Table(["category", "share"], [[c, percent(s)] for c, s in recipe.categories.items()])
    total = f"{recipe.total:,} pairs at most" if recipe.total else "As many pairs as shares allow"
    yield f"{total}, {recipe.pairs_per_prompt} of a prompt, rule {recipe.rule}."


def _rows_of(samples: Manifest) -> list[int | None]:
    rows = {file.path: file.rows for file in samples.files}
    return [rows.get(name) for name in ("prompts.jsonl", "samples.jsonl")]


@section("Preference pairs")
def categories(stats: Row) -> Iterator[Block]:
    """Pairs by category and mode, what was dropped, how prompts fared."""
    pairs, modes = stats["pairs"]["by_category"], stats["pairs"]["by_mode"]
    rows: list[list[object]] = []
    for category, count in pairs.items():
        share = percent(count / max(1, stats["pairs"]["total"]))
        by_mode = [modes.get(f"{category}/{mode}", 0) for mode in ("on", "off")]
        target = percent(stats["requested_shares"][category])
        rows.append([category, target, count, share, *by_mode])
    head = ["category", "target share", "pairs", "share", "reasoning on", "reasoning off"]
    counts, limit = stats["pair_counts"], stats["limited_by"]
    yield Table(head, rows)
    yield (
        f"{counts['in']:,} candidate pairs = {counts['kept']:,} kept + dropped: "
        f"{counted(counts['dropped']) or 'none'}. Rule: {stats['rule']} (ours; the paper states "
        "none). "
        + (f"The total is limited by {limit}: there are no more such pairs." if limit else "")
    )
    outcomes = [
        [category, outcome, count]
        for category, found in stats["prompts"].items()
        for outcome, count in found.items()
    ]
    if outcomes:
        yield Table(["category", "prompt", "prompts"], outcomes)


@section("Graded samples")
def graded_samples(samples: Mapping[str, Row]) -> Iterator[Block]:
    """The on-policy samples before pairing."""
    names = ("right", "with_call", "truncated", "unscored", "failed")
    rows = [
        [setting, own["completions"]]
        + [percent(own.get(name, 0) / max(1, own["completions"])) for name in names]
        for setting, own in samples.items()
    ]
    head = ["setting / reasoning", "completions", "right", "with a call"]
    head += ["truncated", "unscored", "failed"]
    if rows:
        yield "Of on-policy samples, before pairing. Where no tool is declared, any call counts."
        yield Table(head, rows)


@section("Length balance")
def length_balance(lengths: Mapping[str, Row]) -> Iterator[Block]:
    """Tokens of both sides by category."""
    rows: list[list[object]] = []
    for category, own in lengths.items():
        means = [f"{own[key]:.1f}" for key in ("chosen_mean", "rejected_mean")]
        longer = [percent(own[key]) for key in ("chosen_longer", "rejected_longer")]
        rows.append([category, own["pairs"], *means, signed(own["difference_median"], 0), *longer])
    head = ["category", "pairs", "chosen, tokens", "rejected, tokens", "median difference"]
    head += ["chosen longer", "rejected longer"]
    yield (
        "Tokens that the model sampled. Where one side is longer throughout, DPO can learn length "
        "in place of what the pairs are about; match_length evens it out."
    )
    yield Table(head, rows)


@section("Distance of chosen and rejected")
def distances(stats: Row) -> Iterator[Block]:
    """How much of a pair differs: all pairs as a chart, categories as a table."""
    every = stats["distances"].get("all")
    if not every:
        return
    bars = [(f"{10 * k}–{10 * k + 10} %", [count]) for k, count in enumerate(every["tenths"])]
    rows = [
        [category, percent(own["median"]), percent(own["below_a_tenth"])]
        for category, own in stats["distances"].items()
    ]
    x = "tokens between common beginning and common end"
    yield BarChart(bars, x, "pairs", "How much of the longer completion lies where the two differ.")
    yield (
        f"Median {percent(every['median'])}; {percent(every['below_a_tenth'])} of the pairs "
        "differ in less than a tenth. What DPO pushes down in such a pair it nearly pushes "
        "down in the chosen too; minimum_distance drops them."
    )
    yield Table(["category", "median", "less than a tenth"], rows)


@section("Columns not read")
def unread_columns(stats: Row) -> Iterator[Block]:
    """Columns of offline rows that no part of a pair was read from."""
    if rows := stats.get("unread"):
        yield Table(["source", "column", "rows that fill it", "example"], rows)


def pairs_to_read(rows: Sequence[Row]) -> Iterator[Block]:
    """A few pairs of each category."""
    shown: Counter[str] = Counter()
    for row in rows:
        shown[row["category"]] += 1
        if shown[row["category"]] <= SHOWN_PAIRS:
            yield _pair(row, opened=shown.total() == 1)


def _pair(row: Row, *, opened: bool) -> Fold:
    about = f" · reasoning {'on' if row['thinking'] else 'off'} · {row['id']}"
    prompt = row["prompt"][-SHOWN_CHARACTERS:]
    blocks: list[Block] = [(Styled("prompt", "bold"),), Dialogue(prompt)]
    for side in ("chosen", "rejected"):
        score, calls = row.get(f"{side}_score"), row.get(f"{side}_calls")
        figures = "" if score is None else f" · score {score:g}"
        figures += f" · {calls:,} calls" if calls else ""
        blocks += [(Styled(side, "bold"), figures), Dialogue(row[side][:SHOWN_CHARACTERS])]
    return Fold((Styled(row["category"], "bold"), about), blocks, opened)
