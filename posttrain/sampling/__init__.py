"""Sampling: one protocol, and the backends that fulfil it."""
