"""The command line: one module per command, and what commands share."""

from apood.cli.app import main

__all__ = ["main"]
