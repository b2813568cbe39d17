"""Measurements behind README, guides and evidence: `python -m benchmarks NAME`, in the root.

Nothing imports this folder. What tests and measurements share lies in `tests/`.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# for measurements that start others, or themselves, as processes
COMMAND = (sys.executable, "-m", "benchmarks")
