"""Tool calls in a model's output, whatever notation it made up for them. docs/detector.md."""

from posttrain.chat.detect.found import CLIP, KINDS, CallDetection, FoundCall, Kind, Part
from posttrain.chat.detect.marked import has_call_marker
from posttrain.chat.detect.scan import detect_calls, detect_in_completion, searched

__all__ = [
    "CLIP",
    "KINDS",
    "CallDetection",
    "FoundCall",
    "Kind",
    "Part",
    "detect_calls",
    "detect_in_completion",
    "has_call_marker",
    "searched",
]
