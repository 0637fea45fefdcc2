"""Errors, argument checks, atomic files and locks, progress bars and devices: no knowledge of the field."""
