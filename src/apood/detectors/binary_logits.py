"""Logistic regression between ID and AUX sequences on their mean-pooled tokens."""

import warnings
from typing import Annotated, Any, get_args

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.shared.explanation import Explanation
from apood.detectors.shared.mean_pooling import Normalize, pool_means, share_means, standardize, standardize_by
from apood.fitting.optimise import Checkpoint
from apood.support.checks import check_choice, check_number
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["BinaryLogits"]

_MOST_ITERATIONS = 10_000
_TOLERANCE = 1e-10  # largest entry of the gradient at the end


class BinaryLogits(Detector):
    """Binary logits: a logistic regression tells ID from AUX sequences by their mean token.

        s(Z) = wᵀ z̄ + b

    Ren et al. 2023 (arXiv 2209.15558), "binary logits":

        min over w, b of ½ mean_n log(1 + exp(-s(Z_n))) + ½ mean_m log(1 + exp(s(X_m))) + λ/2 |w|²

    over ID sequences Z_n and AUX sequences X_m.

    Departures: both classes have the same weight, so that 8 AUX sequences count as much as 8,000 and b does not depend
    on their number. The penalty λ/2 |w|² is needed because few AUX sequences can always be separated without error. It
    acts on dimensions that have variance 1 over the ID sequences; the learnt w and b apply to the tokens as they are.
    The losses are means, not sums, so that λ means the same for any number of sequences.

    Args:
        normalize: "none" as published; "tokens" or "pooled" to compare directions only.
        penalty: λ.

    Attributes:
        weight_: w `[D]`, float64.
        bias_: b, a float64 tensor without dimensions.

    Examples:
        >>> import torch
        >>> from apood import BinaryLogits
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(5, 4, generator=generator) for _ in range(50)]
        >>> outside = [torch.randn(5, 4, generator=generator) + 2 for _ in range(8)]
        >>> detector = BinaryLogits().fit(inside, aux=outside)
        >>> detector.score_samples([torch.zeros(5, 4), torch.full((5, 4), 2.0)]) > 0
        array([ True, False])
    """

    name = "binary-logits"
    pools_tokens = True
    explains = True
    aux = "required"

    weight_: Annotated[Tensor, "D"]
    bias_: Annotated[Tensor, ""]

    def __init__(self, normalize: Normalize = "none", penalty: float = 0.01) -> None:
        self.normalize = normalize
        self.penalty = penalty

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_number("penalty", self.penalty, above=0)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return light and heavy penalties, each with every normalization."""
        return [
            {"penalty": value, "normalize": how} for value in (0.001, 0.01, 0.1, 1.0) for how in get_args(Normalize)
        ]

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        assert aux is not None, "fit requires AUX sequences"
        vectors, standard = standardize(source, self.normalize)
        both = np.concatenate([vectors, standardize_by(standard, aux, self.normalize)], dtype=np.float64)
        inside = np.arange(len(both)) < len(source)
        # scikit-learn takes the sum of the losses, we take their mean
        regression = LogisticRegression(
            C=1 / (self.penalty * len(both)), class_weight="balanced", tol=_TOLERANCE, max_iter=_MOST_ITERATIONS
        )
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always", ConvergenceWarning)
            regression.fit(both, inside)
        weight = torch.from_numpy(regression.coef_[0]) / standard.scale
        self.weight_, self.bias_ = weight, torch.tensor(regression.intercept_[0]) - weight @ standard.mean
        if any(issubclass(warning.category, ConvergenceWarning) for warning in noticed):
            warnings.warn(
                f"The logistic regression stopped after {regression.n_iter_[0]} iterations and did not converge; use a "
                "larger penalty, and remove AUX sequences with far too large values.",
                FitWarning,
                stacklevel=3,
            )

    def _score(self, tokens: TokenBatch) -> Tensor:
        return pool_means(tokens, self.normalize).cpu() @ self.weight_ + self.bias_

    def _explain(self, tokens: TokenBatch) -> Explanation:
        tokens = tokens.to("cpu")
        return share_means(tokens, self.normalize, -self.weight_.expand(len(tokens), -1), -self._score(tokens))
