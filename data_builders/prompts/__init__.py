"""Rows of any kind → prompts, each asked in the settings that a recipe names."""

from data_builders.prompts.build import PromptSet, build_prompts, prompt_inputs, refuse_changes
from data_builders.prompts.tables import print_prompts

__all__ = ["PromptSet", "build_prompts", "print_prompts", "prompt_inputs", "refuse_changes"]
