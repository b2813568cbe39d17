"""Deduplication: which records say what another record already says.

`keys`: what makes two conversations, or two prompts, the same. `near_text`, `signature`, `verify`:
when two that differ are still one text. `equal_keys`, `candidates`, `duplicates`: the search over
all records of a build.
"""
