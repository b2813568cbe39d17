"""Backends: what continues token ids, and servers that chat."""
