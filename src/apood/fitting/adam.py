"""Old names, until all rooms import the new ones."""

from apood.fitting.optimise import Adam

__all__ = ["Adam"]
