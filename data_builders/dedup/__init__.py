"""Deduplication: which records say what another record already says."""
