"""Verifiers and judges: what a completion is worth, or that it could not be said."""
