"""Decontamination: records that hold what an evaluation asks, found by shared runs of words."""
