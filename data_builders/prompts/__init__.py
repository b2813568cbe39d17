"""Rows of any kind → prompts, each asked in the settings that a recipe names."""
