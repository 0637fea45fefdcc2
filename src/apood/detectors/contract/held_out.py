"""What a detector says about sequences that it has not seen: its fit to them, and their scores."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

__all__ = ["FAR", "HeldOutFit", "LeftOut"]

FAR = 4.0
"""The limit of the squared distance per head, and of its ratio between held-out and training sequences.

Both should be about 1. From here on, the training has failed.
"""


class HeldOutFit(NamedTuple):
    """The loss and the distances of held-out ID sequences.

    It does not rank settings, but it shows models that failed.

    Attributes:
        loss: mean over the sequences of the method's loss; AP-OOD's is Σ_j d²_j - Σ_j log |W_j|².
        distance: mean squared distance per head.
        training_distance: the same for the sequences that the model was fitted on.
    """

    loss: float
    distance: float
    training_distance: float

    @property
    def ratio(self) -> float:
        """Held-out distance divided by training distance: 1 is ideal, whatever the size of the model."""
        return self.distance / max(self.training_distance, np.finfo(np.float64).tiny)

    @property
    def disaster(self) -> bool:
        """Whether the training never converged, or the model memorised its training sequences."""
        return not (self.ratio < FAR and self.training_distance < FAR)


class LeftOut(NamedTuple):
    """What a detector says about training sequences as if it had seen neither them nor their near copies.

    Attributes:
        scores: their scores, float64; 0 if nothing is known.
        copied: whether they have near copies.
    """

    scores: Tensor
    copied: Tensor
