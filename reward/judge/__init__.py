"""Judging with a generative reward model: the prompt, the verdict, the calls and their cache."""
