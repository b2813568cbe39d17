"""Publishing a checkpoint: its model card, the files that belong, the hub."""
