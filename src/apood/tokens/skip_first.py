"""Old names, until all rooms import the new ones."""

from apood.tokens.source import SkipFirst
from apood.tokens.source import drop_first_token as without_first

__all__ = ["SkipFirst", "without_first"]
