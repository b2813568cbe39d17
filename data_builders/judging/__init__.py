"""Preference data of any dialect → prompts on which a generative reward model is trained."""
