"""The number of tokens as a detector: a control for every comparison."""

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.fitting.optimise import Checkpoint
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["Length"]


class Length(Detector):
    """Length alone: minus how far the length of a sequence is from the usual length.

        s(Z) = -|log S - mean log S|

    Not a published method. It sees nothing but the number of tokens, so it shows how much of another method's success
    on a data set is due to length alone.

    Attributes:
        mean_log_length_: mean of log S over the ID sequences.

    Examples:
        >>> import torch
        >>> from apood import Length
        >>> detector = Length().fit([torch.ones(10, 2), torch.ones(10, 2)])
        >>> detector.score_samples([torch.ones(10, 2), torch.ones(20, 2)]).round(3)
        array([-0.   , -0.693])
    """

    name = "length"

    mean_log_length_: float

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        self.mean_log_length_ = float(source.lengths.double().log().mean())

    def _score(self, tokens: TokenBatch) -> Tensor:
        return -torch.abs(tokens.lengths.double().log() - self.mean_log_length_)
