"""`report.html`: one self-contained page about an artifact and everything it was made from."""

from posttrain.report.write import write_report

__all__ = ["write_report"]
