"""Tools a model may call: JSON schemas and what runs their calls. Torch-free."""
