"""A benchmark for the detection of OOD texts from the tokens of a frozen model."""
