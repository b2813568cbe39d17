"""Graded completions → preference pairs, in the three categories of the paper's Appendix C."""

from __future__ import annotations
