"""Metrics with intervals, and the study engine under comparisons, searches and experiments."""
