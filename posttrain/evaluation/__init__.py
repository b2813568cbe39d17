"""What a checkpoint can do: generation, and counts with their uncertainty."""
