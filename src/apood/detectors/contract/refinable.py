"""Detectors whose closed-form parts can be learnt from far more sequences than they were trained on."""

from collections.abc import Mapping

from torch import Tensor

from apood.tokens.batch import TokenBatch

__all__ = ["Measured", "Refinable"]

Measured = Mapping[str, Tensor]
"""Statistics of some sequences, by name, in float64. Statistics of disjoint sets can be merged."""


class Refinable:
    """What a detector adds to the contract if some of what it learns are sums over sequences.

    Such a detector is fitted on a sample first. Then several processes can measure other sequences, in any grouping.
    The merged statistics are those of all sequences together, up to rounding, and `refine` learns from them.
    """

    @property
    def refines(self) -> bool:
        """Whether there is anything to refine."""
        return True

    def measure(self, tokens: TokenBatch) -> Measured:
        """Return the statistics of at least one sequence; none of them is empty."""
        raise NotImplementedError

    def merge_measured(self, first: Measured, second: Measured) -> Measured:
        """Return the statistics of the union of two disjoint sets of sequences."""
        raise NotImplementedError

    def refine(self, measured: Measured) -> None:
        """Replace what was learnt from the sample by what follows from the statistics of everything."""
        raise NotImplementedError
