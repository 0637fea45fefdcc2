"""Deep SVDD: distance from the centre that a small network draws ID sequences to."""

from typing import Any, get_args

from apood.detectors.shared.hypersphere import Hypersphere
from apood.detectors.shared.mean_pooling import Normalize

__all__ = ["DeepSVDD"]


class DeepSVDD(Hypersphere):
    """s(Z) = -|φ(z̄) - c|², the distance of the encoded mean token from the centre of the ID sequences.

    Ruff et al. 2018, "Deep One-Class Classification" (ICML), the one-class objective:

        min over W of mean_n |φ(z̄_n; W) - c|² + λ/2 |W|²

    As published, c is the mean of φ over the ID sequences before training with none of its coordinates near 0, and
    φ(x) = W₂ leaky(W₁ x) has no bias terms and an unbounded activation; otherwise weights could be found that
    map every input to c.

    Departures: the input is the mean token, each dimension with mean 0 and variance 1 over the ID sequences
    (dimensions that are constant but for rounding stay small). There is no autoencoder to begin with, but
    random weights; W₂ is scaled so that the outputs have variance 1 in all. The learning rate follows a cosine
    and is 0.04 / D, so that a step changes a hidden unit by as much whatever D is. Training is short: with
    more steps the encoder fits each training sequence and finds fewer outliers, until it has collapsed, which
    a `FitWarning` tells. The AP-OOD paper does not say how it set this method up.

    Args:
        normalize: "none" as published, "tokens" or "pooled" to compare directions only.
        hidden: hidden units; None for 2 D, at most 1024.
        outputs: outputs; None for D, at most 128.
        steps: gradient steps.
        batch_size: sequences a step.
        learning_rate: peak rate of Adam; None for 0.04 / D.
        weight_decay: λ.
        seed: of the start and of the batches.
    """

    name = "deep-svdd"

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Short and long training, each with every way to normalise."""
        return [{"steps": steps, "normalize": normalize} for steps in (100, 300) for normalize in get_args(Normalize)]
