"""The optimisation loop of the trained detectors, and its checkpoints."""
