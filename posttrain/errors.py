"""The errors a user can meet, each a `ValueError` because each is about the user's input.

Broken invariants of our own are `assert`s and are never caught.
"""

from __future__ import annotations


class PosttrainError(ValueError):
    """Base of every error this project raises about its input.

    Attributes:
        path: the path of an input, as it was named, where the error is about an input as a whole:
            a command puts the recipe's key for it before the message.
    """

    def __init__(self, message: str = "", *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class ConfigError(PosttrainError):
    """A recipe, override or combination of settings that cannot be used."""


class DataError(PosttrainError):
    """A row, file or artifact that cannot be used; the message names file, line and field."""


class RenderError(PosttrainError):
    """A conversation that the chat template refuses, or whose loss mask cannot be determined."""


class JudgeError(PosttrainError):
    """A judge that failed on more than the allowed share of its judgements."""


class TrainingError(PosttrainError):
    """A run whose checkpoints stay: a limit of its guard, a loss not finite, no token trained."""
