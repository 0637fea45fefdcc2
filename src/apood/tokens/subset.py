"""Old names, until all rooms import the new ones."""

from apood.tokens.source import Subset, split

__all__ = ["Subset", "split"]
