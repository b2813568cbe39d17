"""Checkpoints in FP8 and NVFP4: calibrated by ModelOpt, simulated, measured, written."""
