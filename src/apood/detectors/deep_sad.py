"""Deep SAD: Deep SVDD that pushes known outliers away from its centre."""

from typing import Any, get_args

from apood.detectors.shared.hypersphere import Hypersphere
from apood.detectors.shared.mean_pooling import Normalize

__all__ = ["DeepSAD"]


class DeepSAD(Hypersphere):
    """s(Z) = -|φ(z̄) - c|² like Deep SVDD, trained to be low for auxiliary outliers.

    Ruff et al. 2019, "Deep Semi-Supervised Anomaly Detection" (arXiv 1906.02694), without labelled normal
    sequences:

        min over W of mean_n |φ(z̄_n; W) - c|² + η mean_m (|φ(x̄_m; W) - c|² + ε)⁻¹ + λ/2 |W|²

    with x̄_m the mean tokens of the AUX sequences and ε = 1e-6 as in the authors' code.

    Departures: both terms are means, where the publication divides both sums by N + N', so that 8 AUX sequences
    weigh as much as 8,000; all others are those of `DeepSVDD`. Without AUX sequences it is Deep SVDD, as the
    authors point out: they are optional, and results over their number begin at none. Outputs have variance 1 in
    all at the start, so that η means the same on all data: 0.01 is the published 1 for 10 outputs of variance
    1 each, and larger ones let a few AUX sequences do harm. The AP-OOD paper does not say how it set this
    method up.

    Args:
        normalize: "none" as published, "tokens" or "pooled" to compare directions only.
        aux_weight: η, the weight of AUX sequences in the loss.
        hidden: hidden units; None for 2 D, at most 1024.
        outputs: outputs; None for D, at most 128.
        steps: gradient steps.
        batch_size: sequences a step, of either kind.
        learning_rate: peak rate of Adam; None for 0.04 / D.
        weight_decay: λ.
        seed: of the start and of the batches.
    """

    name = "deep-sad"
    aux = "optional"

    def __init__(
        self,
        normalize: Normalize = "none",
        aux_weight: float = 0.01,
        hidden: int | None = None,
        outputs: int | None = None,
        steps: int = 300,
        batch_size: int = 128,
        learning_rate: float | None = None,
        weight_decay: float = 1e-6,
        seed: int = 0,
    ) -> None:
        super().__init__(normalize, hidden, outputs, steps, batch_size, learning_rate, weight_decay, seed)
        self.aux_weight = aux_weight

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Every way to normalise, each with light and heavy outliers where there are any, else short and long."""
        name, values = ("aux_weight", (0.01, 0.1, 1.0)) if supervised else ("steps", (100, 300))
        return [{name: value, "normalize": normalize} for value in values for normalize in get_args(Normalize)]
