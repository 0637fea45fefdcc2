"""What an audio encoder needs of a model of sounds."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from apood.encoders.base.hidden import LayerReader
from apood.encoders.base.pretrained import Kind

__all__ = ["SoundModel"]


class SoundModel(Protocol):
    """A model of sounds, and the features that it takes.

    Attributes:
        classes: the names of the classes, in the order of the logits; empty if the model is not a classifier.
        depth: the number of its layers.
        dim: D, the length of a state.
        kind: what the model was made for.
        least_samples: the smallest number of samples of a sound.
        max_tokens: the number of tokens of a sound that fills the model's window.
        module: the module with the layers.
        rate: the number of samples per second that sounds must have.
        shape: the shape of the features of a sound.
    """

    classes: list[str]
    depth: int
    dim: int
    kind: Kind
    least_samples: int
    max_tokens: int
    module: Any
    rate: int
    shape: tuple[int, int]

    def compute_features(self, samples: NDArray[np.float32]) -> Tensor:
        """Return the features of a sound, padded or cut to the model's window."""

    def is_cut(self, samples: int) -> bool:
        """Return whether a sound with this number of samples is longer than the model's window."""

    def find_kept(self, samples: int) -> Tensor:
        """Return the indices of the states of a sound with this number of samples; the others are padding."""

    def run(self, features: Tensor, reader: LayerReader) -> tuple[Tensor, Tensor | None]:
        """Return the states of the layers `[sounds, states, D]`, and the logits of a classifier."""
