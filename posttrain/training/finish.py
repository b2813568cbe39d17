"""What a finished run leaves: its outcome, the files that its manifest lists, lines of its card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.sft import TrainingRecipe
from posttrain.publish.card import CARD, checkpoint_card, origins_of
from posttrain.report.live import LOG, REPORT
from posttrain.runs import MANIFEST, STAGE, Parent, atomic_write_text
from posttrain.training.log import SPEED, TIMING
from posttrain.versions import package_versions

RESUME = "resume"
REFERENCE = "reference"
ROLLOUTS = "rollouts"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Results of a finished run.

    Attributes:
        rows: of the data.
        reached: of these, trained on.
        stats: the method's own, for the manifest.
        summary: lines of the card on what the run did.
        data: lines of the card on what it was trained on.
        training: sentences of the card on what else was set.
    """

    rows: int
    reached: int
    stats: dict[str, Any]
    summary: Sequence[str]
    data: Sequence[str] = ()
    training: str = ""


def artifact_files(out: Path) -> dict[str, int | None]:
    """The files of a finished checkpoint that its manifest lists, and the rows of those that have
    any."""
    # neither speeds, nor caches, nor pages that are written again or edited are part of the
    # artifact, nor event files, whose names and bytes hold the host and the time
    own = {MANIFEST, STAGE, SPEED, TIMING, CARD, REPORT}
    names = (str(path.relative_to(out)) for path in sorted(out.rglob("*")) if path.is_file())
    return {
        name: _rows(out / name)
        for name in names
        if name not in own
        and not name.startswith((".", f"{RESUME}/", f"{REFERENCE}/"))
        and "events.out.tfevents." not in name
    }


def _rows(file: Path) -> int | None:
    if file.name != LOG and file.parent.name != ROLLOUTS:
        return None
    with file.open("rb") as handle:
        return sum(1 for _ in handle)


def write_card(
    out: Path,
    method: str,
    recipe: TrainingRecipe,
    outcome: RunOutcome,
    *,
    parents: Sequence[Parent],
) -> None:
    """Write the model card of a checkpoint whose model lies in `out`."""
    spec = recipe.adapter
    adapter = "none, all weights"
    if spec is not None:
        adapter = f"{spec.method} rank {spec.rank}, preset {spec.preset}, merged into these weights"
    details = [
        *outcome.data,
        "## Training",
        "",
        f"Adapter: {adapter}. {outcome.training}Seed: {recipe.seed}.",
        "",
        *[f"- `{key}`: {value}" for key, value in sorted(recipe.trainer.items())],
        "",
        "## Versions",
        "",
        *[f"- {name} {version}" for name, version in sorted(package_versions().items())],
    ]
    card = checkpoint_card(
        method,
        origins_of(out, base=recipe.model.path, parents=parents, stats=outcome.stats),
        folder=out,
        summary=outcome.summary,
        parents=parents,
        details=details,
    )
    atomic_write_text(out / CARD, card)
