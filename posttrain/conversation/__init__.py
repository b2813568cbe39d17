"""Talking to a checkpoint or a server in the terminal."""
