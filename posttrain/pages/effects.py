"""Effects of the stages of a chain: figures before and after, with intervals, from artifacts.

Roles come from manifests. The first checkpoint of an evaluation is the one before; checkpoints that
it was made from are control arms; those come after that none of the rest was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from posttrain.lineage import Node, read_json, trace
from posttrain.report import section as ui
from posttrain.sampling.alerts import alert_texts, worst

if TYPE_CHECKING:
    from posttrain.evaluation.compare import Difference
    from posttrain.evaluation.run import Record

# no page loads numpy when it is imported: functions that measure import what they need
METRICS = "metrics.json"
MOST_TILES = 6
EVALUATION = "evaluation"
JUDGES = "genrm_evaluation"
WIN_RATE = "win_rate"
# figure of an evaluation → its name
_FIGURES = {
    "accuracy": "accuracy",
    "hallucination": "undeclared calls",
    "called_tool": "declared calls",
    "truncated": "truncated",
}
_BETTER_IF_FEWER = (_FIGURES["hallucination"], _FIGURES["truncated"])
# figures in the order of a page; the first is what the stage is for
_AGAINST_CALLS = ("hallucination", "accuracy", "called_tool", "tokens", "truncated")
_OF_A_FAMILY = ("accuracy", "hallucination")
_OF_ANY_STAGE = ("accuracy", "tokens", "truncated", "hallucination", "called_tool")


@dataclass(frozen=True, slots=True)
class Effect:
    """One figure before and after a stage, with the change's 95 % interval over questions.

    Attributes:
        stage: folder of the checkpoint that came after.
        unit: "%" of a share, whose change is in points, or the unit of a count.
        evaluation: artifact that measured it.
        unscored: samples of either side that the backend, a grader or a judge failed on.
    """

    stage: str
    figure: str
    unit: str
    before: float
    after: float
    change: float
    low: float
    high: float
    questions: int
    evaluation: Node
    unscored: int = 0

    @property
    def title(self) -> str:
        """Figure and unit, such as `undeclared calls, %`."""
        return f"{self.figure}, %" if self.unit == "%" else self.figure

    @property
    def name(self) -> str:
        """Stage, figure and unit, such as `dpo: undeclared calls, %`."""
        return f"{self.stage}: {self.title}"

    @property
    def values(self) -> str:
        """Both values, such as `12.0 → 1.0`."""
        return f"{self.before:.1f} → {self.after:.1f}"

    @property
    def interval(self) -> str:
        """Change with its interval, such as `−11.0 (−12.1 … −9.9)`."""
        return interval(self.change, self.low, self.high)

    @property
    def extent(self) -> str:
        """Size of the evaluation, such as `650 questions, 3 samples unscored`."""
        lost = f", {self.unscored:,} samples unscored" if self.unscored else ""
        return f"{self.questions:,} questions{lost}"

    @property
    def is_better(self) -> bool | None:
        """True or False of a measurable change of accuracy or calls; None of any other.

        Undeclared calls and truncated completions should be few.
        """
        if self.unit != "%" or self.low <= 0 <= self.high:
            return None
        return (self.low > 0) != self.figure.startswith(_BETTER_IF_FEWER)

    def tile(self) -> ui.Tile:
        """Tile of the effect, for the head of a page."""
        unit = " %" if self.unit == "%" else ""
        remark = f"{self.stage}: {self.interval}, {self.extent}"
        return f"{self.values}{unit}", self.figure, remark


def interval(change: float, low: float, high: float, digits: int = 1) -> str:
    """Format a change with its interval, such as `+1.6 (−0.8 … +4.0)`."""
    bounds = f"{ui.signed(low, digits)} … {ui.signed(high, digits)}"
    return f"{ui.signed(change, digits)} ({bounds})"


@dataclass(frozen=True, slots=True)
class Arms:
    """The checkpoints of an evaluation by their roles.

    Attributes:
        before: checkpoint that the others are compared with.
        after: checkpoints that no other one was made from.
        controls: control arms.
        folders: folder of each checkpoint; its name if it is no artifact of ours.
        made_from: other checkpoints that each descends from, nearest first.
        methods: stats of each checkpoint's training; empty if it is no artifact of ours.
    """

    before: str
    after: tuple[str, ...]
    controls: tuple[str, ...]
    folders: Mapping[str, str]
    made_from: Mapping[str, Sequence[str]]
    methods: Mapping[str, Mapping[str, Any]]

    def base_of(self, name: str) -> str:
        """Checkpoint that `name` is compared with: the nearest that it was made from."""
        return next(iter(self.made_from[name]), self.before)


def arms_of(node: Node) -> Arms:
    """Roles of an evaluation's checkpoints; without a lineage, by the order of the recipe."""
    stats = node.stats
    names: list[str] = list(stats["checkpoints"])
    identities = stats["weights"] if node.kind == EVALUATION else stats["samplers"]
    digests = {name: identities.get(name, {}).get("weights") for name in names}
    nodes = {ancestor.digest: ancestor for ancestor in trace(node.path)}
    ancestors = {name: _ancestors(digests[name], nodes) for name in names}
    made_from: dict[str, list[str]] = {}
    for name in names:
        older = [candidate for candidate in names if digests[candidate] in ancestors[name]]
        # the nearest has the most ancestors
        older.sort(key=lambda candidate: len(ancestors[candidate]), reverse=True)
        made_from[name] = older
    base = names[0]
    controls = [name for name in names[1:] if name in made_from[base]]
    newer = [name for name in names[1:] if name not in controls]
    if controls and not newer:  # the recipe names the newest first
        newer = [base]
        base = controls[0]
        controls = controls[1:]
    leaves: list[str] = []
    for name in newer:
        has_children = any(name in made_from[child] for child in newer)
        if not has_children:
            leaves.append(name)
    folders: dict[str, str] = {}
    methods: dict[str, Mapping[str, Any]] = {}
    for name in names:
        artifact = nodes.get(digests[name] or "")
        folders[name] = artifact.name if artifact else name
        methods[name] = artifact.stats if artifact and artifact.manifest else {}
    return Arms(base, tuple(leaves), tuple(controls), folders, made_from, methods)


def _ancestors(digest: str | None, nodes: Mapping[str, Node]) -> set[str]:
    """Digests of all artifacts that an artifact was made from."""
    ancestors: set[str] = set()
    to_visit = [digest] if digest else []
    while to_visit:
        node = nodes.get(to_visit.pop())
        if node is None or node.manifest is None:
            continue
        for parent in node.manifest.parents:
            if parent.digest not in ancestors:
                ancestors.add(parent.digest)
                to_visit.append(parent.digest)
    return ancestors


def chain_effects(nodes: Iterable[Node]) -> list[Effect]:
    """Effects that the evaluations among some artifacts measured, in their order.

    Each stage is compared with the checkpoint that it started from.
    """
    effects: list[Effect] = []
    for node in nodes:
        if node.manifest is None:
            continue
        if node.kind == EVALUATION:
            arms = arms_of(node)
            changed = [name for name in node.stats["checkpoints"] if name != arms.before]
            pairs = [(arms.base_of(name), name) for name in changed if name not in arms.controls]
            effects += evaluation_effects(node, arms, pairs)
        elif node.kind == JUDGES:
            effects += judge_effects(node)
        elif node.kind == WIN_RATE:
            effects += win_rate_effects(node)
    return effects


# -- alerts, before any figure that they spoil -----------------------------------------------------


def alerts_of(node: Node) -> list[ui.Row]:
    """Alerts of a run: its parts of which more than a third of the completions are no answers."""
    if node.kind in (EVALUATION, JUDGES):
        return read_json(node, METRICS).get("alerts", [])
    return node.stats.get("alerts", [])


def alert_tiles(node: Node) -> list[ui.Tile]:
    """Tile of a run's worst alert; none without alerts.

    Alerts of control arms are left out: nobody expects answers in their form, and their tiles come
    last.
    """
    controls = arms_of(node).controls if node.kind in (EVALUATION, JUDGES) else ()
    rows = [row for row in alerts_of(node) if row["where"].partition(",")[0] not in controls]
    if not rows:
        return []
    row = worst(rows)
    unusable = row["truncated"] + row["unformatted"]
    share = ui.ratio(unusable, row["completions"])
    parts = {"truncated": row["truncated"], "without the format": row["unformatted"]}
    remark = f"{row['where']}: {ui.counted(parts)} of {row['completions']:,}"
    if len(rows) > 1:
        remark += f"; {len(rows) - 1:,} more below"
    return [(share or "–", "of the completions are no answers", remark)]


@ui.section("To know first")
def alerts(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Section with a sentence for each alert."""
    yield from alert_texts(rows)


# -- an evaluation ---------------------------------------------------------------------------------


def evaluation_effects(
    node: Node, arms: Arms, pairs: Sequence[tuple[str, str]]
) -> Iterator[Effect]:
    """Effects between checkpoints, given as (before, after).

    Tasks and both modes of reasoning are pooled, settings are not.
    """
    from posttrain.evaluation.run import read_run

    if not pairs:
        return
    _, records = read_run(node.path)
    for base, name in pairs:
        figures = figures_of(arms.methods[name])
        yield from _checkpoint_effects(node, arms, name, records[base], records[name], figures)


def family_effects(node: Node) -> Iterator[tuple[str, Effect]]:
    """Yield task and effect: each stage's accuracy and undeclared calls on each task alone.

    Nothing of an evaluation of a single task, whose effects are those of the evaluation.
    """
    from posttrain.evaluation.run import read_run

    arms = arms_of(node)
    _, records = read_run(node.path)
    tasks = list(dict.fromkeys(record.prompt.source for record in records[arms.before]))
    if len(tasks) < 2:
        return
    for name in records:
        if name == arms.before or name in arms.controls:
            continue
        for task in tasks:
            base_records = [r for r in records[arms.base_of(name)] if r.prompt.source == task]
            new_records = [r for r in records[name] if r.prompt.source == task]
            for effect in _checkpoint_effects(
                node, arms, name, base_records, new_records, _OF_A_FAMILY
            ):
                yield task, effect


def _checkpoint_effects(
    node: Node,
    arms: Arms,
    name: str,
    base_records: Sequence[Record],
    new_records: Sequence[Record],
    figures: Sequence[str],
) -> Iterator[Effect]:
    """Effects on the figures of one checkpoint, setting by setting.

    A figure that is 0 on both sides is left out, unless it is the first.

    Args:
        name: checkpoint of `new_records`.
        figures: keys of `_FIGURES`, or `tokens`; the first is what the stage is for.
    """
    base_by_setting = _by_setting(base_records)
    new_by_setting = _by_setting(new_records)
    for figure in figures:
        changes: dict[str, Difference] = {}
        for setting, records in base_by_setting.items():
            change = _figure_change(records, new_by_setting.get(setting, []), figure)
            if change and (figure == figures[0] or change.a or change.b):
                changes[setting] = change
        is_share = figure != "tokens"
        for setting, change in changes.items():
            title = _FIGURES.get(figure, figure)
            if len(changes) > 1:
                title += f" ({setting})"
            effect = _effect(
                node,
                arms.folders[name],
                title,
                "%" if is_share else "tokens",
                change,
                scale=100 if is_share else 1,
            )
            records = [*base_by_setting[setting], *new_by_setting[setting]]
            unscored = sum(record.failed or record.unscored for record in records)
            yield replace(effect, unscored=unscored)


def figures_of(stats: Mapping[str, Any]) -> Sequence[str]:
    """Figures of an evaluation, starting with what the checkpoint was trained for."""
    against_calls = "hallucination_penalty" in stats.get("pairs_by_category", {})
    return _AGAINST_CALLS if against_calls else _OF_ANY_STAGE


def _by_setting(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by the setting of their prompts."""
    records_by_setting: dict[str, list[Record]] = {}
    for record in records:
        records_by_setting.setdefault(record.prompt.setting, []).append(record)
    return records_by_setting


def _figure_change(a: Sequence[Record], b: Sequence[Record], figure: str) -> Difference | None:
    """Change of a figure over the questions with a value on both sides; None without any."""
    from posttrain.evaluation.compare import length_difference, rate_difference
    from posttrain.evaluation.intervals import by_question
    from posttrain.evaluation.metrics import values_of

    values_a = values_of(a)
    values_b = values_of(b)
    if figure == "tokens":
        for values in (values_a, values_b):
            lengths = zip(values["reasoning_tokens"], values["answer_tokens"], strict=True)
            tokens: list[tuple[float, Any]] = []
            for (reasoning, question), (answer, _) in lengths:
                tokens.append((reasoning + answer, question))
            values["tokens"] = tokens
    questions_a = by_question(values_a.get(figure, ()))
    questions_b = by_question(values_b.get(figure, ()))
    shared = set(questions_a.names) & set(questions_b.names)
    if figure == "tokens":
        # the interval of a mean needs two questions
        return length_difference(questions_a, questions_b) if len(shared) > 1 else None
    return rate_difference(questions_a, questions_b) if shared else None


def _effect(
    node: Node, stage: str, figure: str, unit: str, change: Difference, *, scale: float = 100
) -> Effect:
    """Effect of a change that `node` measured; 100 as `scale` turns shares into percent."""
    return Effect(
        stage,
        figure,
        unit,
        before=scale * change.a,
        after=scale * change.b,
        change=scale * change.difference,
        low=scale * change.low,
        high=scale * change.high,
        questions=change.questions,
        evaluation=node,
    )


def evaluation_tiles(node: Node) -> list[ui.Tile]:
    """Tiles of an evaluation: the changes of each figure, or of a single checkpoint its figures.

    Control arms come last.
    """
    from posttrain.evaluation.run import read_run

    arms = arms_of(node)
    # under the names of the recipe, as in the tables of the same page
    arms = replace(arms, folders={name: name for name in arms.folders})
    pairs = [(arms.before, name) for name in arms.after]
    effects = list(evaluation_effects(node, arms, pairs))
    # all arms of the first figure, then of the second
    order = list(dict.fromkeys(effect.figure for effect in effects))
    effects.sort(key=lambda effect: order.index(effect.figure))
    tiles = [effect.tile() for effect in effects]
    _, records = read_run(node.path)
    newest = next(iter(arms.after), arms.before)
    figures = figures_of(arms.methods[newest])
    if not arms.after:
        tiles += _levels(records[arms.before], figures, arms.folders[arms.before])
    controls: list[ui.Tile] = []
    for name in arms.controls:
        controls += _levels(records[name], figures[:1], f"control arm {arms.folders[name]}")
    return tiles[: MOST_TILES - len(controls)] + controls


def _levels(records: Sequence[Record], figures: Sequence[str], label: str) -> Iterator[ui.Tile]:
    """Tiles of a checkpoint's figures, with their intervals."""
    from posttrain.evaluation.intervals import rate
    from posttrain.evaluation.metrics import values_of

    settings = _by_setting(records)
    for figure in figures:
        if figure not in _FIGURES:
            continue
        for setting, setting_records in settings.items():
            estimate = rate(values_of(setting_records).get(figure, ()))
            if estimate is not None:
                title = _FIGURES[figure] + (f" ({setting})" if len(settings) > 1 else "")
                yield _level_tile(asdict(estimate), title, label)


def _level_tile(estimate: ui.Row, title: str, label: str) -> ui.Tile:
    """Tile of a share with its interval."""
    span = f"{100 * estimate['low']:.1f} … {100 * estimate['high']:.1f}"
    remark = f"{label}: ({span}), {estimate['questions']:,} questions"
    return f"{100 * estimate['value']:.1f} %", title, remark


# -- judges and their comparisons ------------------------------------------------------------------


def judge_effects(node: Node, figure: str = "pairwise_accuracy") -> Iterator[Effect]:
    """Effects of training on judges, measured on held-out pairs; control arms last."""
    from posttrain.evaluation.compare import Difference

    arms = arms_of(node)
    changes: dict[tuple[str, str], Difference] = {}
    for row in read_json(node, METRICS)["differences"]:
        if row.get(figure) is not None:  # with several sources, the row over all of them comes last
            changes[row["a"], row["b"]] = Difference(**row[figure])
    for name in arms.after:
        change = changes.get((arms.before, name))
        opposite = changes.get((name, arms.before))
        if change is None and opposite is not None:
            change = _reversed(opposite)
        if change is not None:
            yield _effect(node, arms.folders[name], _JUDGE_FIGURES[figure], "%", change)
    for name in arms.controls:
        # a control arm came before `before`: its change leads from the control to `before`
        opposite = changes.get((arms.before, name))
        if opposite is not None:
            stage = arms.folders[arms.before]
            yield _effect(node, stage, _JUDGE_FIGURES[figure], "%", _reversed(opposite))


_JUDGE_FIGURES = {
    "pairwise_accuracy": "accuracy on pairs",
    "position_consistency": "position consistency",
    "format": "verdicts in their format",
}


def judge_tiles(node: Node) -> list[ui.Tile]:
    """Tiles of an evaluation of judges: changes, or of a single judge its figures.

    Control arms come last.
    """
    arms = arms_of(node)
    # with several sources, the row over all of them comes last
    cells = {cell["checkpoint"]: cell for cell in read_json(node, METRICS)["cells"]}
    tiles: list[ui.Tile] = []
    for figure, title in _JUDGE_FIGURES.items():
        effects = list(judge_effects(node, figure))[: len(arms.after)]
        tiles += [effect.tile() for effect in effects]
        estimate = cells[arms.before][figure] if not arms.after else None
        if estimate is not None:
            tiles.append(_level_tile(estimate, title, arms.folders[arms.before]))
    controls: list[ui.Tile] = []
    for name in arms.controls:
        estimate = cells[name]["pairwise_accuracy"]
        if estimate is not None:
            title = _JUDGE_FIGURES["pairwise_accuracy"]
            controls.append(_level_tile(estimate, title, f"control arm {arms.folders[name]}"))
    return tiles[: MOST_TILES - len(controls)] + controls


def _reversed(change: Difference) -> Difference:
    """Turn a change from a to b into the one from b to a."""
    return replace(
        change,
        a=change.b,
        b=change.a,
        difference=-change.difference,
        low=-change.high,
        high=-change.low,
    )


def win_rate_effects(node: Node) -> Iterator[Effect]:
    """Effect of a win rate, compared with the 50 % of equal answers; none without a judgement."""
    score = read_json(node, METRICS)["rows"][-1]["score"]
    if score is None:
        return
    win_rate = 100 * score["value"]
    digest, stage = node.artifact.config["sides"][1]
    for ancestor in trace(node.path):
        if ancestor.digest == digest and ancestor.manifest is not None:
            stage = arms_of(ancestor).folders.get(stage, stage)
            break
    yield Effect(
        stage,
        "win rate",
        "%",
        before=50.0,
        after=win_rate,
        change=win_rate - 50,
        low=100 * score["low"] - 50,
        high=100 * score["high"] - 50,
        questions=score["questions"],
        evaluation=node,
    )


def win_rate_tiles(node: Node) -> list[ui.Tile]:
    """Tile of a win rate; none without a judgement."""
    return [effect.tile() for effect in win_rate_effects(node)]
