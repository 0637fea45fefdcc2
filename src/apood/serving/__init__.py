"""Detectors at work beside the models that they were fitted for."""
