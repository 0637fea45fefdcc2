"""Old names, until all rooms import the new ones."""

from apood.support.files import source_digest

__all__ = ["source_digest"]
