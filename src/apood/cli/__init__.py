"""The command line: one thin module a command."""

from apood.cli.app import main

__all__ = ["main"]
