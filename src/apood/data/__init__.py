"""Inputs: files, folders and hub data sets, read as records of texts or sounds."""
