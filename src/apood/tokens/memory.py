"""Old names, until all rooms import the new ones."""

from apood.tokens.batch import empty_rows

__all__ = ["empty_rows"]
