"""Synthetic rows: seeds go through rounds of requests to models, and a check keeps what passes.

One engine (`engine.py`), one file a kind; `steps.py` has the values that pass between them.
"""
