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
    """Sections of a `samples` artifact."""
    yield effects.alerts(effects.alerts_of(node))
    yield settings(node.stats["settings"])
    yield prompts_by_source(node.stats)
    yield completions(node, "Samples to read")


def tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the samples, their tokens and the truncated ones."""
    sums = Counter[str]()
    for figures in node.stats["settings"].values():
        for key in ("samples", "tokens", "prompts"):
            sums[key] += figures[key]
        sums["truncated"] += sum(figures["finish"][finish] for finish in TRUNCATED)
    samples = sums["samples"]
    truncated = sums["truncated"]
    each = f"{samples / max(1, sums['prompts']):.1f} each"
    limited = f"a limit ended {truncated:,} of {samples:,}"
    return [
        (f"{sums['prompts']:,} → {samples:,}", "prompts → samples", each),
        (f"{sums['tokens'] / 1e6:,.2f} M", "tokens sampled", "tool results not counted"),
        (ui.ratio(truncated, samples) or "–", "truncated", limited),
    ]


@ui.section("Samples")
def settings(settings: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    finishes = list(next(iter(settings.values()))["finish"])
    counts: list[list[object]] = []
    lengths: list[list[object]] = []
    for name, figures in settings.items():
        samples = figures["samples"]
        ended = [ui.ratio(figures["finish"][finish], samples) for finish in finishes]
        counts.append([name, figures["prompts"], samples, figures["thinking_on"], *ended])
        lengths.append(
            [
                name,
                f"{figures['reasoning_tokens'] / samples:.1f}",
                f"{figures['answer_tokens'] / samples:.1f}",
                f"{figures['steps'] / samples:.1f}",
                ui.ratio(figures["samples_with_calls"], samples, 2) or "",
                figures["tool_results"],
            ]
        )
    head = ["setting", "prompts", "samples", "reasoning on"]
    head += [f"ended: {finish}" for finish in finishes]
    columns = ["setting", "reasoning tokens", "answer tokens", "steps", "with a call"]
    columns += ["tool results"]
    yield ui.Table(head, counts)
    yield "Means of a sample. A call counts wherever it was parsed as one, declared or not."
    yield ui.Table(columns, lengths)
    for name, figures in settings.items():
        if problems := ui.counted(figures["problems"]):
            yield f"Malformed, {name}: {problems}."


@ui.section("Prompts by source")
def prompts_by_source(stats: ui.Row) -> Iterator[ui.Block]:
    sources: Mapping[str, ui.Row] = stats["sources"]
    rows = [[name, source["rows_in"], source["kept"]] for name, source in sources.items()]
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
    """Section of a dry run: prompts, completions and tokens of each setting.

    Args:
        n_of: completions of each prompt in a setting.
        most_tokens: largest number of tokens of a completion in a setting.
    """
    settings = dict.fromkeys(prompt.setting for prompt in prompts)
    rows: list[list[object]] = []
    for name in settings:
        modes = [prompt.thinking for prompt in prompts if prompt.setting == name]
        n = n_of(name)
        completions = len(modes) * n
        tokens = completions * most_tokens(name)
        rows.append([name, len(modes), sum(modes), n, completions, tokens])
    head = ["setting", "prompts", "reasoning on", "n", "completions", "tokens at most"]
    return ui.Section("Settings", [ui.Table(head, rows)])


def completions(node: Node, title: str) -> ui.Section:
    """Section of completions to read, with their prompts; the model's own text stands out."""
    prompts: dict[str, ui.Row] = {}

    def sample(row: ui.Row, most: int) -> ui.Sample:
        if "prompt" in row:  # a row of the examples
            return _example(row["prompt"], row["completion"], most)
        if not prompts:
            for prompt in listed_rows(node, "prompts.jsonl") or []:
                prompts[prompt["id"]] = prompt
        return _example(prompts[row["prompt_id"]], row, most)

    return samples_to_read(node, title, sample, examples="examples.jsonl", all_rows="samples.jsonl")


def _example(prompt: ui.Row, completion: ui.Row, most: int) -> ui.Sample:
    """A completion as a sample, with at most `most` characters of each text."""
    steps = completion["steps"]
    reasoning = ui.on_off(prompt["thinking"])
    tokens = sum(step["reasoning_tokens"] + step["answer_tokens"] for step in steps)
    values = {
        "setting": prompt["setting"],
        "source": prompt["source"],
        "reasoning": reasoning,
        "finish": completion["finish"],
    }
    remark = f" · reasoning {reasoning} · {prompt['source']} · {completion['finish']}"
    title = (ui.Styled(prompt["setting"], "bold"), f"{remark} · {tokens:,} tokens")
    words = turns(prompt, most)
    most_of_step = ui.each(most, len(steps))
    for step in steps:
        words += [ui.Styled(ui.shortened(step["text"], most_of_step), "mark"), "\n"]
        for result in step["results"]:
            words += _turn("tool", result["content"], most_of_step)
    figures = {"tokens": tokens, "steps": len(steps)}
    return ui.Sample(title, [ui.Dialogue(words)], values, figures)


def turns(prompt: ui.Row, most: int) -> list[str | ui.Styled]:
    """Messages of a prompt and its gold, each after its role."""
    most_of_message = ui.each(most, len(prompt["messages"]))
    words: list[str | ui.Styled] = []
    for message in prompt["messages"]:
        words += _turn(message["role"], message["content"], most_of_message)
    if prompt["gold"] is not None:
        words += _turn("gold", prompt["gold"], most)
    return words


def _turn(role: str, content: str, most: int) -> list[str | ui.Styled]:
    return [ui.Styled(f"[{role}]", "faint"), f" {ui.shortened(content, most)}\n"]


# preference pairs


def pair_sections(node: Node) -> ui.Sections:
    """Sections of a `dpo_data` artifact."""
    yield from pair_figures(node.stats)
    yield samples_to_read(node, "Pairs to read", _pair, examples="samples.jsonl", texts=3)


def pair_figures(stats: ui.Row) -> Iterator[ui.Section]:
    """Sections that need no file; a build prints them at its end too."""
    yield categories(stats)
    yield graded_samples(stats["samples"])
    yield length_balance(stats["lengths"])
    yield distances(stats)
    yield unread_columns(stats)


def pair_tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the pairs, and of the truncated samples if there are samples."""
    pairs = node.stats["pairs"]
    values = f"{node.artifact.counts.rows_in:,} → {pairs['total']:,}"
    tiles = [(values, "completions and rows → pairs", ui.counted(pairs["by_category"]))]
    truncated = 0
    completions = 0
    for figures in node.stats["samples"].values():
        truncated += figures.get("truncated", 0)
        completions += figures["completions"]
    share = ui.ratio(truncated, completions)
    if share:
        tiles.append((share, "of the samples truncated", f"{truncated:,} of {completions:,}"))
    return tiles


@ui.section("Plan")
def planned_pairs(recipe: BuildDpoConfig, parents: Sequence[Manifest]) -> Iterator[ui.Block]:
    rows = [[path, *_rows_of(parent)] for path, parent in zip(recipe.samples, parents, strict=True)]
    if rows:
        yield ui.Table(["samples", "prompts", "completions"], rows)
    offline = [[source.name, ", ".join(source.paths) or source.hub] for source in recipe.offline]
    if offline:
        yield ui.Table(["offline", "files"], offline)
    shares = [[category, ui.percent(share)] for category, share in recipe.categories.items()]
    yield ui.Table(["category", "share"], shares)
    total = f"{recipe.total:,} pairs at most" if recipe.total else "As many pairs as shares allow"
    yield f"{total}, {recipe.pairs_per_prompt} of a prompt."


@ui.section("Completions and rows")
def pair_rows(counts: Counts) -> Iterator[ui.Block]:
    dropped = ui.counted(counts.dropped) or "none"
    yield f"{counts.rows_in:,} in = {counts.kept:,} in a pair + dropped: {dropped}."


def _rows_of(samples: Manifest) -> list[int | None]:
    rows = {file.path: file.rows for file in samples.files}
    return [rows.get(name) for name in ("prompts.jsonl", "samples.jsonl")]


@ui.section("Preference pairs")
def categories(stats: ui.Row) -> Iterator[ui.Block]:
    pairs = stats["pairs"]
    rows: list[list[object]] = []
    for category, count in pairs["by_category"].items():
        share = ui.percent(count / max(1, pairs["total"]))
        by_mode = [pairs["by_mode"].get(f"{category}/{mode}", 0) for mode in ("on", "off")]
        target = ui.percent(stats["requested_shares"][category])
        rows.append([category, target, count, share, *by_mode])
    head = ["category", "target share", "pairs", "share", "reasoning on", "reasoning off"]
    counts = stats["pair_counts"]
    limit = stats["limited_by"]
    yield ui.Table(head, rows)
    yield (
        f"{counts['in']:,} candidate pairs = {counts['kept']:,} kept + dropped: "
        f"{ui.counted(counts['dropped']) or 'none'}. Each right completion is paired with each "
        "wrong one, all used as evenly as can be (ours; the paper states no rule). "
        + (f"The total is limited by {limit}: there are no more such pairs." if limit else "")
    )
    if outcomes := ui.nested(stats["prompts"]):
        yield ui.Table(["category", "prompt", "prompts"], outcomes)


@ui.section("Graded samples")
def graded_samples(samples: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    names = ("right", "with_call", "truncated", "unscored", "failed")
    rows: list[list[object]] = []
    for setting, counts in samples.items():
        completions = counts["completions"]
        shares = [ui.percent(counts.get(name, 0) / max(1, completions)) for name in names]
        rows.append([setting, completions, *shares])
    head = ["setting / reasoning", "completions", "right", "with a call"]
    head += ["truncated", "unscored", "failed"]
    if rows:
        yield "Of on-policy samples, before pairing. Where no tool is declared, any call counts."
        yield ui.Table(head, rows)


@ui.section("Length balance")
def length_balance(lengths: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for category, figures in lengths.items():
        means = [f"{figures[key]:.1f}" for key in ("chosen_mean", "rejected_mean")]
        longer = [ui.percent(figures[key]) for key in ("chosen_longer", "rejected_longer")]
        median = ui.signed(figures["difference_median"], 0)
        rows.append([category, figures["pairs"], *means, median, *longer])
    head = ["category", "pairs", "chosen, tokens", "rejected, tokens", "median difference"]
    head += ["chosen longer", "rejected longer"]
    yield "Tokens that the model sampled. DPO can learn length."
    yield ui.Table(head, rows)


@ui.section("Distance of chosen and rejected")
def distances(stats: ui.Row) -> Iterator[ui.Block]:
    all_pairs = stats["distances"].get("all")
    if not all_pairs:
        return
    bars = [(f"{10 * k}–{10 * k + 10} %", [count]) for k, count in enumerate(all_pairs["tenths"])]
    rows: list[list[object]] = []
    for category, figures in stats["distances"].items():
        below_a_tenth = ui.percent(figures["below_a_tenth"])
        rows.append([category, ui.percent(figures["median"]), below_a_tenth])
    x = "tokens between common beginning and common end"
    caption = "How much of the longer completion lies where the two differ."
    yield ui.BarChart(bars, x, "pairs", caption)
    yield (
        f"{ui.percent(all_pairs['below_a_tenth'])} of the pairs differ in less than a tenth. What "
        "DPO pushes down there it nearly pushes down in the chosen too; minimum_distance drops "
        "them."
    )
    yield ui.Table(["category", "median", "less than a tenth"], rows)


@ui.section("Columns not read")
def unread_columns(stats: ui.Row) -> Iterator[ui.Block]:
    if rows := stats.get("unread"):
        yield ui.Table(["source", "column", "rows that fill it", "example"], rows)


def _pair(row: ui.Row, most: int) -> ui.Sample:
    reasoning = ui.on_off(row["thinking"])
    prompt = ui.Dialogue(ui.shortened(row["prompt"], most))
    blocks: list[ui.Block] = [(ui.Styled("prompt", "bold"),), prompt]
    for side in ("chosen", "rejected"):
        score = row.get(f"{side}_score")
        calls = row.get(f"{side}_calls")
        figures = "" if score is None else f" · score {score:g}"
        figures += f" · {calls:,} calls" if calls else ""
        text = ui.Dialogue(ui.shortened(row[side], most))
        blocks += [(ui.Styled(side, "bold"), figures), text]
    title = (ui.Styled(row["category"], "bold"), f" · reasoning {reasoning} · {row['id']}")
    values = {"category": row["category"], "reasoning": reasoning}
    lengths = {f"{side}, characters": len(row[side]) for side in ("chosen", "rejected")}
    return ui.Sample(title, blocks, values, lengths)
