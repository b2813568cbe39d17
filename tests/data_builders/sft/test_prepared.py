"""Parts are done by whoever and as often as need be: the same bytes.

Workers in processes of their own are in `test_build_sft_parts`; here eight take turns in one.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from data_builders.progress import Stages
from data_builders.sft.inputs import scan_inputs
from data_builders.sft.part import prepare_sources
from data_builders.sft.prepared import PreparedSource
from data_builders.workers import Executor, OnProgress, Serial
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from tests.data_builders.light_state import light_state
from tests.data_builders.small_build import write_recipe


def _silent() -> Stages:
    return Stages(Console(file=io.StringIO()))


def _spool(
    folder: Path, recipe: BuildSftConfig, executor: Executor, stages: Stages
) -> list[PreparedSource]:
    _, parts = scan_inputs(recipe, Path("."))
    assert sum(len(own) for own in parts.values()) > 16, "more parts than workers"
    return prepare_sources(
        recipe, parts, folder, tokens={}, scratch="mine", executor=executor, stages=stages
    )


def _files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _recipe(folder: Path) -> BuildSftConfig:
    keys = {"shards": {"packs": 3}, "write_dropped": True, "part_bytes": 5000}
    return load_recipe(write_recipe(folder, **keys), BuildSftConfig, [])


class Counting(Serial):
    """Remembers where the jobs that it was given write."""

    def __init__(self, recipe: BuildSftConfig) -> None:
        super().__init__(light_state(recipe))
        self.folders: list[str] = []

    def run(self, jobs: Sequence[Any], on_progress: OnProgress) -> Iterator[tuple[int, Any]]:
        """As `Executor.run`."""
        self.folders = [job.folder for job in jobs]
        return super().run(jobs, on_progress)


def test_parts_that_are_not_as_they_were_written_are_done_again(tmp_path):
    """After a kill, a full disk, a machine that went down; what another build works on is left."""
    recipe, parts_dir = _recipe(tmp_path), tmp_path / "parts_dir"
    with _silent() as stages:
        _spool(parts_dir, recipe, Serial(light_state(recipe)), stages)
        whole = _files(parts_dir)
        cut, bare, garbled, gone, *_ = sorted((parts_dir / "plain").iterdir())
        (cut / "tokens.bin").write_bytes((cut / "tokens.bin").read_bytes()[:-4])
        (bare / "counts.json").unlink()
        (garbled / "counts.json").write_text((garbled / "counts.json").read_text()[:100])
        (gone / "texts.bin").unlink()
        mine, other = (gone.with_name(f"{gone.name}.{build}-0") for build in ("mine", "theirs"))
        for partial in (mine, other):
            partial.mkdir()
            (partial / "records.bin").write_bytes(b"half")
        counting = Counting(recipe)
        _spool(parts_dir, recipe, counting, stages)
    assert sorted(counting.folders) == [str(path) for path in (cut, bare, garbled, gone)]
    assert not mine.exists()
    assert (other / "records.bin").read_bytes() == b"half"
    shutil.rmtree(other)
    assert _files(parts_dir) == whole
