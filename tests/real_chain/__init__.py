"""The chain on a real model: its rows, the rule of its families, its table of effects."""
