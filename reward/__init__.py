"""Graders and judges: the score of a completion, or that it is unscored."""
