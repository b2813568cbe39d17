"""Segments → token ids and loss masks → packs. Plain integers; no model, no trainer."""

from posttrain.tokens.packing import pack_lengths

__all__ = ["pack_lengths"]
