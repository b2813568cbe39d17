"""A checkpoint in FP8: calibrated and simulated by ModelOpt, measured, and written for servers."""
