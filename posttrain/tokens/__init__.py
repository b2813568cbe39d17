"""Segments → token ids and loss masks → packs. Plain integers; no model, no trainer."""

from posttrain.tokens.packing import Packs, pack_lengths

__all__ = ["Packs", "pack_lengths"]
