"""The errors a user can meet, each a `ValueError` because each is about the user's input.

    ConfigError   a recipe that cannot mean anything: unknown key, impossible combination
    DataError     a row, file or artifact that is not what it claims to be
    RenderError   a conversation or template that cannot be rendered or masked exactly
    JudgeError    a judge that failed too often to train on what is left
    TrainingError a run that goes wrong: a limit of its health guard, a loss that is not finite, no
                  token trained

Broken invariants of our own are `assert`s and are never caught.
"""

from __future__ import annotations


class PosttrainError(ValueError):
    """Base of every error this project raises about its input."""


class ConfigError(PosttrainError):
    """A recipe, override or combination of settings that cannot be used."""


class DataError(PosttrainError):
    """A row, file or artifact that cannot be used; the message names file, line and field."""


class RenderError(PosttrainError):
    """A conversation that the chat template refuses, or whose loss mask cannot be determined."""


class JudgeError(PosttrainError):
    """A judge that failed on more than the allowed share of its judgements."""


class TrainingError(PosttrainError):
    """A run that would waste what it goes on with; its checkpoints stay."""
