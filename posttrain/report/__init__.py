"""`report.html`: one self-contained page about an artifact and everything it was made from."""

from posttrain.report.overlay import write_overlay
from posttrain.report.write import (
    ensure_report,
    run_stage,
    show_finished,
    show_up_to_date,
    write_report,
)

__all__ = [
    "ensure_report",
    "run_stage",
    "show_finished",
    "show_up_to_date",
    "write_overlay",
    "write_report",
]
