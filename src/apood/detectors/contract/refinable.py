"""Detectors that can learn from far more sequences than they were trained on."""

from collections.abc import Mapping

from torch import Tensor

from apood.tokens.batch import TokenBatch

__all__ = ["Measured", "Refinable", "Remembered"]

Measured = Mapping[str, Tensor]
"""Statistics of some sequences, by name, in float64. Statistics of disjoint sets can be merged."""

Remembered = Mapping[str, Tensor]
"""What is kept of single sequences, by name: tensors with one row per sequence. Those of several sets are joined."""


class Refinable:
    """What a detector adds to the contract if it can learn from more sequences after it was fitted on a sample.

    Some of what a detector learns are sums over sequences. Several processes can measure them, in any grouping, and the
    merged statistics are those of all sequences together, up to rounding. Other detectors remember sequences, such as
    neighbours. Several processes can collect what they keep of each sequence, in the order of the inputs. `refine`
    learns from both. A subclass defines what it needs of `measure` with `merge_measured`, and of `remember`.
    """

    @property
    def refines(self) -> bool:
        """Whether there is anything to refine."""
        return True

    def measure(self, tokens: TokenBatch) -> Measured:  # noqa: ARG002
        """Return the statistics of at least one sequence; none of them is empty."""
        return {}

    def merge_measured(self, first: Measured, second: Measured) -> Measured:  # noqa: ARG002
        """Return the statistics of the union of two disjoint sets of sequences."""
        return {}

    def remember(self, tokens: TokenBatch) -> Remembered:  # noqa: ARG002
        """Return what the detector keeps of each sequence; none of them is empty."""
        return {}

    def refine(self, measured: Measured, remembered: Remembered) -> None:
        """Replace what was learnt from the sample by what follows from everything.

        Args:
            measured: the merged statistics of everything.
            remembered: what is kept of all sequences or, if there are very many, of a uniform sample of documents.
        """
        raise NotImplementedError
