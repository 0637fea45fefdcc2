"""Detectors in use: the guard before a generator."""
