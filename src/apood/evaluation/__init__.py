"""Metrics with intervals, and rows of results."""
