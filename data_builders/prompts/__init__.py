"""Rows of any kind → prompts, each asked in the settings that a recipe names."""

from data_builders.prompts.build import PromptSet, build_prompts
from data_builders.prompts.inputs import prompt_inputs

__all__ = ["PromptSet", "build_prompts", "prompt_inputs"]
