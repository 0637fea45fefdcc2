"""Benchmarks: each prints a ratio against a baseline that ran in the same process."""
