"""Messages → rendered text with loss masks, and completions → messages. Torch-free."""

from posttrain.chat.left_out import describe, left_out, losses, serial_calls
from posttrain.chat.masks import TrainingSample, render, training_samples
from posttrain.chat.parse import parse_completion
from posttrain.chat.profile import profile_of, variants_hint, writes_reasoning
from posttrain.chat.reasoning import strip_reasoning, truncate_reasoning
from posttrain.chat.template import ChatTemplate, nemotron_3_nano_template

__all__ = [
    "ChatTemplate",
    "TrainingSample",
    "describe",
    "left_out",
    "losses",
    "nemotron_3_nano_template",
    "parse_completion",
    "profile_of",
    "render",
    "serial_calls",
    "strip_reasoning",
    "training_samples",
    "truncate_reasoning",
    "variants_hint",
    "writes_reasoning",
]
