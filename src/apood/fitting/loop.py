"""Old names, until all rooms import the new ones."""

from apood.fitting.optimise import Objective, Outcome, cosine, minimise, warm_up

__all__ = ["Objective", "Outcome", "cosine", "minimise", "warm_up"]
