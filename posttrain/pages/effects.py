"""What the stages of a chain changed: figures before and after, with intervals, from artifacts.

Roles come from manifests. Of an evaluation's checkpoints, the first is the one before; one that
the first was made from is a control arm; of the others, those come after that no other one was
made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from posttrain.lineage import Node, read_json, trace
from posttrain.report import section as ui
from posttrain.sampling.alerts import alert_text, worst

if TYPE_CHECKING:
    from posttrain.evaluation.compare import Difference
    from posttrain.evaluation.run import Record

# no file of report loads numpy when it is imported: what measures is imported where it is called
METRICS = "metrics.json"
MOST_TILES = 6
EVALUATION, JUDGES, WIN_RATE = "evaluation", "genrm_evaluation", "win_rate"
# figure of an evaluation → its name; the first of a stage is what the stage is for
_FIGURES = {
    "accuracy": "accuracy",
    "hallucination": "undeclared calls",
    "called_tool": "declared calls",
    "truncated": "truncated",
}
_AGAINST_CALLS = ("hallucination", "accuracy", "called_tool", "tokens", "truncated")
_OF_ANY_STAGE = ("accuracy", "tokens", "truncated", "hallucination", "called_tool")


@dataclass(frozen=True, slots=True)
class Effect:
    """One figure before and after a stage, with the change's 95 % interval over questions.

    Attributes:
        stage: the folder of the checkpoint that came after.
        unit: "%" of a share, whose change is in points, or what is counted.
        evaluation: the artifact that measured it.
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
        """As in `undeclared calls, %`."""
        return f"{self.figure}, %" if self.unit == "%" else self.figure

    @property
    def name(self) -> str:
        """As in `dpo: undeclared calls, %`."""
        return f"{self.stage}: {self.title}"

    @property
    def values(self) -> str:
        """As in `12.0 → 1.0`."""
        return f"{self.before:.1f} → {self.after:.1f}"

    @property
    def interval(self) -> str:
        """As in `−11.0 (−12.1 … −9.9)`."""
        return interval(self.change, self.low, self.high)

    @property
    def extent(self) -> str:
        """As in `650 questions, 3 samples unscored`."""
        lost = f", {self.unscored:,} samples unscored" if self.unscored else ""
        return f"{self.questions:,} questions{lost}"

    def tile(self) -> ui.Tile:
        """What a page opens with."""
        unit = " %" if self.unit == "%" else ""
        about = f"{self.stage}: {self.interval}, {self.extent}"
        return f"{self.values}{unit}", self.figure, about


def interval(change: float, low: float, high: float, digits: int = 1) -> str:
    """A change with its interval, e.g. "+1.6 (−0.8 … +4.0)"."""
    first, *bounds = (ui.signed(value, digits) for value in (change, low, high))
    return f"{first} ({' … '.join(bounds)})"


@dataclass(frozen=True, slots=True)
class Arms:
    """The checkpoints of an evaluation by their roles.

    Attributes:
        folders: the folder of each checkpoint; its name where it is no artifact of ours.
        made_from: of each checkpoint, those of the others that it descends from, nearest first.
    """

    before: str
    after: tuple[str, ...]
    controls: tuple[str, ...]
    folders: Mapping[str, str]
    made_from: Mapping[str, Sequence[str]]
    methods: Mapping[str, Mapping[str, Any]]

    def base_of(self, name: str) -> str:
        """The checkpoint that one is compared with: the nearest that it was made from."""
        return next(iter(self.made_from[name]), self.before)


def arms_of(node: Node) -> Arms:
    """The roles of an evaluation's checkpoints; without a lineage, in the order of the recipe."""
    stats = node.stats
    names: list[str] = list(stats["checkpoints"])
    identities = stats["weights"] if node.kind == EVALUATION else stats["samplers"]
    digests = {name: identities.get(name, {}).get("weights") for name in names}
    nodes = {known.digest: known for known in trace(node.path)}
    ancestors = {name: _ancestors(digests[name], nodes) for name in names}
    made_from: dict[str, list[str]] = {}
    for name in names:
        older = [other for other in names if digests[other] in ancestors[name]]
        made_from[name] = sorted(older, key=lambda other: len(ancestors[other]), reverse=True)
    before, *others = names
    controls = [name for name in others if name in made_from[before]]
    after = [name for name in others if name not in controls]
    if controls and not after:  # the recipe names the newest first
        before, after = controls[0], [before]
        controls = [name for name in controls if name != before]
    leaves = [name for name in after if not any(name in made_from[other] for other in after)]
    found = {name: nodes.get(digests[name] or "") for name in names}
    return Arms(
        before,
        tuple(leaves),
        tuple(controls),
        {name: own.name if own else name for name, own in found.items()},
        made_from,
        {name: own.stats if own and own.manifest else {} for name, own in found.items()},
    )


def _ancestors(digest: str | None, nodes: Mapping[str, Node]) -> set[str]:
    """The digests of everything that an artifact was made from."""
    known: set[str] = set()
    waiting = [digest] if digest else []
    while waiting:
        own = nodes.get(waiting.pop())
        for parent in own.manifest.parents if own and own.manifest else ():
            if parent.digest not in known:
                known.add(parent.digest)
                waiting.append(parent.digest)
    return known


def chain_effects(nodes: Iterable[Node]) -> list[Effect]:
    """Every effect that the evaluations among some artifacts measured, in their order; each stage
    is compared with what it started from."""
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


# -- what is to be known first ---------------------------------------------------------------------


def alerts_of(node: Node) -> list[ui.Row]:
    """Parts of a run whose completions are no answers in more than a third."""
    if node.kind in (EVALUATION, JUDGES):
        return read_json(node, METRICS).get("alerts", [])
    return node.stats.get("alerts", [])


def alert_tiles(node: Node) -> list[ui.Tile]:
    """The worst part of a run, before any figure that it spoils.

    A control arm spoils none: nobody expects answers in the form of it, and its tile comes last.
    """
    controls = arms_of(node).controls if node.kind in (EVALUATION, JUDGES) else ()
    rows = [row for row in alerts_of(node) if row["where"].partition(",")[0] not in controls]
    if not rows:
        return []
    row = worst(rows)
    unusable = row["truncated"] + row["unformatted"]
    share = ui.ratio(unusable, row["completions"])
    parts = {"truncated": row["truncated"], "without the format": row["unformatted"]}
    others = f"; {len(rows) - 1:,} more below" if len(rows) > 1 else ""
    about = f"{row['where']}: {ui.counted(parts)} of {row['completions']:,}{others}"
    return [(share or "–", "of the completions are no answers", about)]


@ui.section("To know first")
def alerts(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    yield from map(alert_text, rows)


# -- an evaluation ---------------------------------------------------------------------------------


def evaluation_effects(
    node: Node, arms: Arms, pairs: Sequence[tuple[str, str]]
) -> Iterator[Effect]:
    """The figures of pairs of checkpoints, (before, after); tasks and both modes of reasoning are
    pooled, settings are not."""
    from posttrain.evaluation.run import read_run

    records = read_run(node.path)[1] if pairs else {}
    for before, after in pairs:
        yield from _changes(node, arms, after, records[before], records[after])


def _changes(
    node: Node, arms: Arms, name: str, before: Sequence[Record], after: Sequence[Record]
) -> Iterator[Effect]:
    wanted = figures_of(arms.methods[name])
    sides = (by_setting(before), by_setting(after))
    for figure in wanted:
        found: dict[str, Difference] = {}
        lost: dict[str, int] = {}
        for setting, ours in sides[0].items():
            change = figure_change(ours, sides[1].get(setting, []), figure)
            # a figure that is not what the stage is for is left out where nothing happened
            if change and (figure == wanted[0] or change.a or change.b):
                found[setting] = change
                both = [*ours, *sides[1][setting]]
                lost[setting] = sum(record.failed or record.unscored for record in both)
        for setting, change in found.items():
            title = _FIGURES.get(figure, figure)
            title += f" ({setting})" if len(found) > 1 else ""
            scale, unit = (1, "tokens") if figure == "tokens" else (100, "%")
            effect = _effect(node, arms.folders[name], title, unit, change, scale)
            yield replace(effect, unscored=lost[setting])


def figures_of(stats: Mapping[str, Any]) -> Sequence[str]:
    """Figures of an evaluation, what the checkpoint was trained for first."""
    against_calls = "hallucination_penalty" in stats.get("pairs_by_category", {})
    return _AGAINST_CALLS if against_calls else _OF_ANY_STAGE


def by_setting(records: Iterable[Record]) -> dict[str, list[Record]]:
    settings: dict[str, list[Record]] = {}
    for record in records:
        settings.setdefault(record.prompt.setting, []).append(record)
    return settings


def figure_change(a: Sequence[Record], b: Sequence[Record], figure: str) -> Difference | None:
    """The change of a figure over the questions that both have a value for; None without any."""
    from posttrain.evaluation.compare import length_difference, rate_difference
    from posttrain.evaluation.intervals import by_question
    from posttrain.evaluation.metrics import values_of

    sides = [values_of(a), values_of(b)]
    if figure == "tokens":
        for values in sides:
            both = zip(values["reasoning_tokens"], values["answer_tokens"], strict=True)
            values["tokens"] = [(x + y, question) for (x, question), (y, _) in both]
    left, right = (by_question(values.get(figure, ())) for values in sides)
    shared = len(set(left.names) & set(right.names))
    if shared < (2 if figure == "tokens" else 1):
        return None
    difference = length_difference if figure == "tokens" else rate_difference
    return difference(left, right)


def _effect(
    node: Node, stage: str, figure: str, unit: str, change: Difference, scale: float = 100
) -> Effect:
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
    """What an evaluation's page opens with: the change of each figure, then control arms; of a
    single checkpoint its figures."""
    from posttrain.evaluation.run import read_run

    arms = arms_of(node)
    pairs = [(arms.before, name) for name in arms.after]
    effects = list(evaluation_effects(node, arms, pairs))
    # all arms of the first figure, then of the second
    order = list(dict.fromkeys(effect.figure for effect in effects))
    effects.sort(key=lambda effect: order.index(effect.figure))
    records = read_run(node.path)[1]
    alone = () if arms.after else (arms.before,)
    figures = figures_of(arms.methods[next(iter(arms.after), arms.before)])
    levels = [
        tile for name in alone for tile in _levels(records[name], figures, arms.folders[name])
    ]
    controls = [
        tile
        for name in arms.controls
        for tile in _levels(records[name], figures[:1], f"control arm {arms.folders[name]}")
    ]
    tiles = [effect.tile() for effect in effects] + levels
    return tiles[: MOST_TILES - len(controls)] + controls


def _levels(records: Sequence[Record], figures: Sequence[str], about: str) -> Iterator[ui.Tile]:
    """Figures of one checkpoint alone, with their intervals."""
    from posttrain.evaluation.intervals import rate
    from posttrain.evaluation.metrics import values_of

    settings = by_setting(records)
    for figure in [figure for figure in figures if figure in _FIGURES]:
        for setting, own in settings.items():
            found = rate(values_of(own).get(figure, ()))
            if found is not None:
                title = _FIGURES[figure] + (f" ({setting})" if len(settings) > 1 else "")
                yield level_tile(asdict(found), title, about)


def level_tile(found: ui.Row, title: str, about: str) -> ui.Tile:
    """A share with its interval."""
    span = f"{100 * found['low']:.1f} … {100 * found['high']:.1f}"
    return (
        f"{100 * found['value']:.1f} %",
        title,
        f"{about}: ({span}), {found['questions']:,} questions",
    )


# -- judges and their comparisons ------------------------------------------------------------------


def judge_effects(node: Node, figure: str = "pairwise_accuracy") -> Iterator[Effect]:
    """What training changed of judges on held-out pairs, control arms last."""
    from posttrain.evaluation.compare import Difference

    arms = arms_of(node)
    rows = read_json(node, METRICS)["differences"]
    changes: dict[tuple[str, str], Difference] = {}
    for row in rows:
        if row.get(figure) is not None:  # of several sources the row over all comes last
            changes[row["a"], row["b"]] = Difference(**row[figure])
    for name in (*arms.after, *arms.controls):
        change = changes.get((arms.before, name))
        control = name in arms.controls
        if control:  # what came before the one before: the other way round
            change = change and _reversed(change)
        elif change is None and (backwards := changes.get((name, arms.before))):
            change = _reversed(backwards)
        if change is not None:
            stage = arms.folders[arms.before if control else name]
            yield _effect(node, stage, JUDGE_FIGURES[figure], "%", change)


JUDGE_FIGURES = {
    "pairwise_accuracy": "accuracy on pairs",
    "position_consistency": "position consistency",
    "format": "verdicts in their format",
}


def judge_tiles(node: Node) -> list[ui.Tile]:
    """What an evaluation of judges opens with; of one judge its figures, control arms last."""
    arms = arms_of(node)
    # of several sources the row over all comes last
    cells = {cell["checkpoint"]: cell for cell in read_json(node, METRICS)["cells"]}
    tiles: list[ui.Tile] = []
    for figure, title in JUDGE_FIGURES.items():
        effects = list(judge_effects(node, figure))[: len(arms.after)]
        tiles += [effect.tile() for effect in effects if arms.after]
        if not arms.after and (found := cells[arms.before][figure]) is not None:
            tiles.append(level_tile(found, title, arms.folders[arms.before]))
    controls: list[ui.Tile] = []
    for name in arms.controls:
        figure, title = next(iter(JUDGE_FIGURES.items()))
        if (found := cells[name][figure]) is not None:
            controls.append(level_tile(found, title, f"control arm {arms.folders[name]}"))
    return tiles[: MOST_TILES - len(controls)] + controls


def _reversed(change: Difference) -> Difference:
    return replace(
        change,
        a=change.b,
        b=change.a,
        difference=-change.difference,
        low=-change.high,
        high=-change.low,
    )


def win_rate_effects(node: Node) -> Iterator[Effect]:
    """How much better than an equal a judge finds the answers of the checkpoint that came after."""
    score = read_json(node, METRICS)["rows"][-1]["score"]
    if score is None:
        return
    value, low, high = (100 * score[key] for key in ("value", "low", "high"))
    digest, name = node.artifact.config["sides"][1]
    evaluation = next((known for known in trace(node.path) if known.digest == digest), None)
    stage = name
    if evaluation is not None and evaluation.manifest is not None:
        stage = arms_of(evaluation).folders.get(name, name)
    yield Effect(
        stage,
        "win rate",
        "%",
        before=50.0,
        after=value,
        change=value - 50,
        low=low - 50,
        high=high - 50,
        questions=score["questions"],
        evaluation=node,
    )


def win_rate_tiles(node: Node) -> list[ui.Tile]:
    return [effect.tile() for effect in win_rate_effects(node)]
