"""Rows of any kind → prompts, each asked in the settings that a recipe names."""

from data_builders.prompts.build import (
    PromptPlan,
    PromptSet,
    build_prompts,
    prompt_inputs,
    refuse_changes,
)

__all__ = ["PromptPlan", "PromptSet", "build_prompts", "prompt_inputs", "refuse_changes"]
