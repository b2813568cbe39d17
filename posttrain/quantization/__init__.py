"""A checkpoint in FP8 or NVFP4: calibrated and simulated by ModelOpt, measured, and written."""
