"""The optimisation loop shared by the trained detectors."""
