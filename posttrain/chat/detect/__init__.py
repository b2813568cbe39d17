"""Tool calls in a model's output, in whichever notation. docs/guides/detector.md."""

from posttrain.chat.detect.markers import has_call_marker
from posttrain.chat.detect.scan import (
    CallDetection,
    FoundCall,
    detect_calls,
    detect_in_completion,
    searched,
)

__all__ = [
    "CallDetection",
    "FoundCall",
    "detect_calls",
    "detect_in_completion",
    "has_call_marker",
    "searched",
]
