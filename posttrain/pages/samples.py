"""On-policy data: a set of samples, and the preference pairs selected from graded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.lineage import Node, listed_rows
from posttrain.pages import effects
from posttrain.pages.artifact import samples_to_read
from posttrain.report import section as ui
from posttrain.rollouts import TRUNCATED, Prompt
from posttrain.runs import Counts, Manifest


def sections(node: Node) -> ui.Sections:
    yield effects.alerts(effects.alerts_of(node))
    yield settings(node.stats["settings"])
    yield prompts_by_source(node.stats)
    yield completions(node, "Samples to read")


def tiles(node: Node) -> list[ui.Tile]:
    found = node.stats["settings"].values()
    samples, tokens, prompts = (
        sum(f[key] for f in found) for key in ("samples", "tokens", "prompts")
    )
    cut = sum(f["finish"][finish] for f in found for finish in TRUNCATED)
    return [
        (
            f"{prompts:,} → {samples:,}",
            "prompts → samples",
            f"{samples / max(1, prompts):.1f} each",
        ),
        (f"{tokens / 1e6:,.2f} M", "tokens sampled", "tool results not counted"),
        (ui.ratio(cut, samples) or "–", "truncated", f"a limit ended {cut:,} of {samples:,}"),
    ]


@ui.section("Samples")
def settings(settings: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    ended = list(next(iter(settings.values()))["finish"])
    counts: list[list[object]] = [
        [name, own["prompts"], own["samples"], own["thinking_on"]]
        + [ui.ratio(own["finish"][finish], own["samples"]) for finish in ended]
        for name, own in settings.items()
    ]
    means = ("reasoning_tokens", "answer_tokens", "steps")
    lengths: list[list[object]] = []
    for name, own in settings.items():
        figures = [f"{own[key] / own['samples']:.1f}" for key in means]
        figures.append(ui.ratio(own["samples_with_calls"], own["samples"], 2) or "")
        problems = ui.counted(own["problems"]) or None
        lengths.append([name, *figures, own["tool_results"], problems])
    head = ["setting", "prompts", "samples", "reasoning on", *(f"ended: {e}" for e in ended)]
    columns = ["setting", "reasoning tokens", "answer tokens", "steps", "with a call"]
    columns += ["tool results", "malformed"]
    yield ui.Table(head, counts)
    yield "Means of a sample. A call counts wherever it was parsed as one, declared or not."
    yield ui.Table(columns, lengths)


@ui.section("Prompts by source")
def prompts_by_source(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows = [[name, own["rows_in"], own["kept"]] for name, own in sources.items()]
    yield ui.Table(["source", "rows", "requested"], rows)
    if dropped := ui.dropped_rows(sources):
        yield ui.Table(["source", "dropped because", "rows", "such as"], dropped)
    if templates := ui.nested(stats.get("templates", {})):
        yield ui.Table(["source", "template", "prompts"], templates)
    if skipped := ui.nested(stats["skipped"]):
        yield "Questions that a setting skips, of all distinct ones:"
        yield ui.Table(["setting", "because", "questions"], skipped)


def planned(
    prompts: Sequence[Prompt], n_of: Callable[[str], int], most_tokens: Callable[[str], int]
) -> ui.Section:
    """What a dry run expects of each setting."""
    settings = dict.fromkeys(prompt.setting for prompt in prompts)
    rows: list[list[object]] = []
    for name in settings:
        own, n = [prompt for prompt in prompts if prompt.setting == name], n_of(name)
        thinking = sum(prompt.thinking for prompt in own)
        rows.append([name, len(own), thinking, n, len(own) * n, len(own) * n * most_tokens(name)])
    head = ["setting", "prompts", "reasoning on", "n", "completions", "tokens at most"]
    return ui.Section("Settings", [ui.Table(head, rows)])


def completions(node: Node, title: str) -> ui.Section:
    """Completions of an artifact of prompts and samples; the model's own text stands out."""
    prompts: dict[str, ui.Row] = {}

    def sample(row: ui.Row, most: int) -> ui.Sample:
        if "prompt" in row:
            return _example(row["prompt"], row["completion"], most)
        if not prompts:
            prompts.update((own["id"], own) for own in listed_rows(node, "prompts.jsonl") or [])
        return _example(prompts[row["prompt_id"]], row, most)

    return samples_to_read(node, title, sample, few="examples.jsonl", every="samples.jsonl")


def _example(prompt: ui.Row, completion: ui.Row, most: int) -> ui.Sample:
    steps, reasoning = completion["steps"], ui.on_off(prompt["thinking"])
    tokens = sum(step["reasoning_tokens"] + step["answer_tokens"] for step in steps)
    values = {
        "setting": prompt["setting"],
        "source": prompt["source"],
        "reasoning": reasoning,
        "finish": completion["finish"],
    }
    about = f" · reasoning {reasoning} · {prompt['source']} · {completion['finish']}"
    title = (ui.Styled(prompt["setting"], "bold"), f"{about} · {tokens:,} tokens")
    words, each = turns(prompt, most), ui.each(most, len(steps))
    for step in steps:
        words += [ui.Styled(ui.shortened(step["text"], each), "mark"), "\n"]
        words += [part for m in step["results"] for part in _turn("tool", m["content"], each)]
    figures = {"tokens": tokens, "steps": len(steps)}
    return ui.Sample(title, [ui.Dialogue(words)], values, figures)


def turns(prompt: ui.Row, most: int) -> list[str | ui.Styled]:
    """The messages of a prompt and its gold, each behind its role."""
    each = ui.each(most, len(prompt["messages"]))
    words = [part for m in prompt["messages"] for part in _turn(m["role"], m["content"], each)]
    return words if prompt["gold"] is None else [*words, *_turn("gold", prompt["gold"], most)]


def _turn(role: str, content: str, most: int) -> list[str | ui.Styled]:
    return [ui.Styled(f"[{role}]", "faint"), f" {ui.shortened(content, most)}\n"]


# preference pairs


def pair_sections(node: Node) -> ui.Sections:
    yield from pair_figures(node.stats)
    yield samples_to_read(node, "Pairs to read", _pair, few="samples.jsonl", texts=3)


def pair_figures(stats: ui.Row) -> Iterator[ui.Section]:
    """The sections that need no file: those that a build prints at its end too."""
    yield categories(stats)
    yield graded_samples(stats["samples"])
    yield length_balance(stats["lengths"])
    yield distances(stats)
    yield unread_columns(stats)


def pair_tiles(node: Node) -> list[ui.Tile]:
    stats = node.stats
    total, parts = stats["pairs"]["total"], stats["pairs"]["by_category"]
    sums = sum(map(Counter, stats["samples"].values()), Counter[str]())
    cut, of = sums["truncated"], sums["completions"]
    share = ui.ratio(cut, of)
    came = f"{node.artifact.counts.rows_in:,}"
    pairs = (f"{came} → {total:,}", "completions and rows → pairs", ui.counted(parts))
    return [pairs, *([(share, "of the samples truncated", f"{cut:,} of {of:,}")] if share else [])]


@ui.section("Plan")
def planned_pairs(recipe: BuildDpoConfig, parents: Sequence[Manifest]) -> Iterator[ui.Block]:
    rows = [[path, *_rows_of(parent)] for path, parent in zip(recipe.samples, parents, strict=True)]
    if rows:
        yield ui.Table(["samples", "prompts", "completions"], rows)
    offline = [[source.name, ", ".join(source.paths) or source.hub] for source in recipe.offline]
    if offline:
        yield ui.Table(["offline", "files"], offline)
    yield ui.Table(
        ["category", "share"], [[c, ui.percent(s)] for c, s in recipe.categories.items()]
    )
    total = f"{recipe.total:,} pairs at most" if recipe.total else "As many pairs as shares allow"
    yield f"{total}, {recipe.pairs_per_prompt} of a prompt, rule {recipe.rule}."


@ui.section("Completions and rows")
def pair_rows(counts: Counts) -> Iterator[ui.Block]:
    dropped = ui.counted(counts.dropped) or "none"
    yield f"{counts.rows_in:,} in = {counts.kept:,} in a pair + dropped: {dropped}."


def _rows_of(samples: Manifest) -> list[int | None]:
    rows = {file.path: file.rows for file in samples.files}
    return [rows.get(name) for name in ("prompts.jsonl", "samples.jsonl")]


@ui.section("Preference pairs")
def categories(stats: ui.Row) -> Iterator[ui.Block]:
    pairs, modes = stats["pairs"]["by_category"], stats["pairs"]["by_mode"]
    rows: list[list[object]] = []
    for category, count in pairs.items():
        share = ui.percent(count / max(1, stats["pairs"]["total"]))
        by_mode = [modes.get(f"{category}/{mode}", 0) for mode in ("on", "off")]
        target = ui.percent(stats["requested_shares"][category])
        rows.append([category, target, count, share, *by_mode])
    head = ["category", "target share", "pairs", "share", "reasoning on", "reasoning off"]
    counts, limit = stats["pair_counts"], stats["limited_by"]
    yield ui.Table(head, rows)
    yield (
        f"{counts['in']:,} candidate pairs = {counts['kept']:,} kept + dropped: "
        f"{ui.counted(counts['dropped']) or 'none'}. Rule: {stats['rule']} (ours; the paper states "
        "none). "
        + (f"The total is limited by {limit}: there are no more such pairs." if limit else "")
    )
    if outcomes := ui.nested(stats["prompts"]):
        yield ui.Table(["category", "prompt", "prompts"], outcomes)


@ui.section("Graded samples")
def graded_samples(samples: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    names = ("right", "with_call", "truncated", "unscored", "failed")
    rows = [
        [setting, own["completions"]]
        + [ui.percent(own.get(name, 0) / max(1, own["completions"])) for name in names]
        for setting, own in samples.items()
    ]
    head = ["setting / reasoning", "completions", "right", "with a call"]
    head += ["truncated", "unscored", "failed"]
    if rows:
        yield "Of on-policy samples, before pairing. Where no tool is declared, any call counts."
        yield ui.Table(head, rows)


@ui.section("Length balance")
def length_balance(lengths: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for category, own in lengths.items():
        means = [f"{own[key]:.1f}" for key in ("chosen_mean", "rejected_mean")]
        longer = [ui.percent(own[key]) for key in ("chosen_longer", "rejected_longer")]
        median = ui.signed(own["difference_median"], 0)
        rows.append([category, own["pairs"], *means, median, *longer])
    head = ["category", "pairs", "chosen, tokens", "rejected, tokens", "median difference"]
    head += ["chosen longer", "rejected longer"]
    yield "Tokens that the model sampled. DPO can learn length; match_length evens it out."
    yield ui.Table(head, rows)


@ui.section("Distance of chosen and rejected")
def distances(stats: ui.Row) -> Iterator[ui.Block]:
    every = stats["distances"].get("all")
    if not every:
        return
    bars = [(f"{10 * k}–{10 * k + 10} %", [count]) for k, count in enumerate(every["tenths"])]
    rows = [
        [category, ui.percent(own["median"]), ui.percent(own["below_a_tenth"])]
        for category, own in stats["distances"].items()
    ]
    x = "tokens between common beginning and common end"
    yield ui.BarChart(
        bars, x, "pairs", "How much of the longer completion lies where the two differ."
    )
    yield (
        f"{ui.percent(every['below_a_tenth'])} of the pairs differ in less than a tenth. What DPO "
        "pushes down there it nearly pushes down in the chosen too; minimum_distance drops them."
    )
    yield ui.Table(["category", "median", "less than a tenth"], rows)


@ui.section("Columns not read")
def unread_columns(stats: ui.Row) -> Iterator[ui.Block]:
    if rows := stats.get("unread"):
        yield ui.Table(["source", "column", "rows that fill it", "example"], rows)


def _pair(row: ui.Row, most: int) -> ui.Sample:
    reasoning = ui.on_off(row["thinking"])
    blocks: list[ui.Block] = [
        (ui.Styled("prompt", "bold"),), ui.Dialogue(ui.shortened(row["prompt"], most)),
    ]  # fmt: skip
    for side in ("chosen", "rejected"):
        score, calls = row.get(f"{side}_score"), row.get(f"{side}_calls")
        figures = "" if score is None else f" · score {score:g}"
        figures += f" · {calls:,} calls" if calls else ""
        text = ui.Dialogue(ui.shortened(row[side], most))
        blocks += [(ui.Styled(side, "bold"), figures), text]
    title = (ui.Styled(row["category"], "bold"), f" · reasoning {reasoning} · {row['id']}")
    values = {"category": row["category"], "reasoning": reasoning}
    lengths = {f"{side}, characters": len(row[side]) for side in ("chosen", "rejected")}
    return ui.Sample(title, blocks, values, lengths)
