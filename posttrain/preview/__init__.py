"""Look into any artifact: where it came from, its books, and samples with their loss mask."""

from posttrain.preview.lineage import lineage
from posttrain.preview.packs import preview_packs
from posttrain.preview.pairs import preview_pairs
from posttrain.preview.rows import preview_rows
from posttrain.preview.summary import summary

__all__ = ["lineage", "preview_packs", "preview_pairs", "preview_rows", "summary"]
