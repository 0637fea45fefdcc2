"""Distance to the k-th nearest training sequence, in the Euclidean and in the Mahalanobis metric."""

import math
from typing import Annotated, Any, get_args

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.shared.log_distances import compute_floored_log
from apood.detectors.shared.mean_pooling import (
    EIGENVALUE_FLOOR,
    Normalize,
    compute_moments,
    inverse_root,
    pool_means,
    warn_of_few,
)
from apood.fitting.optimise import Checkpoint
from apood.support.checks import check_choice, check_integer
from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, token_budget

__all__ = ["KNN", "MahalanobisKNN"]

_CHUNK = 2**22  # numbers in any temporary of the search: 32 MB of float64


class KNN(Detector):
    """s(Z) = -|z̄ - z̄₍ₖ₎|, the distance of the mean token to its k-th nearest neighbour in the training set.

    Sun et al. 2022 (arXiv 2204.06507), who scale the features to length 1: `normalize="pooled"`.

    Departures: none in the score. The search is exact, up to ties within the rounding of float64: it uses no index,
    compares every training vector in float64, and computes the distances of the k nearest ones again from the
    differences, so that the cancellation in a matrix product never reaches a score. The vectors are stored in float32
    relative to one of them, because float32 cannot tell neighbours far from the origin apart. Apart from the vectors
    the search needs at most about 300 MB for every k, D and number of sequences. It runs on the device of the tokens;
    on a GPU with a copy of the vectors there, if there is room.

    Args:
        k: which neighbour.
        normalize: "pooled" as published; "tokens" or "none".

    Attributes:
        centre_: the vector `[D]`, float64, that the training vectors are stored relative to.
        bank_: the training vectors `[N, D]`, float32, minus `centre_`.

    Examples:
        >>> import torch
        >>> from apood import KNN
        >>> points = [torch.tensor([[x, 0.0]]) for x in (0.0, 1.0, 2.0)]
        >>> KNN(k=2, normalize="none").fit(points).score_samples([torch.tensor([[5.0, 0.0]])])
        array([-4.])
    """

    name = "knn"
    propagates_nonfinite = True

    centre_: Annotated[Tensor, "D"]
    bank_: Annotated[Tensor, "N D"]

    def __init__(self, k: int = 5, normalize: Normalize = "pooled") -> None:
        self.k = k
        self.normalize = normalize

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_integer("k", self.k, least=1)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return near and far neighbours, each with every normalization."""
        return [{"k": k, "normalize": normalize} for k in (1, 5, 10, 50) for normalize in get_args(Normalize)]

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the distances to the k-th neighbour."""
        return compute_floored_log(-scores)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        if len(source) < self.k:
            raise InputError(f"k={self.k} neighbours need at least as many ID sequences, got {len(source)}.")
        # any point near the vectors will do; the first vector does not depend on the batches
        self.centre_ = pool_means(source.select([0]), self.normalize).cpu()[0]
        self._keep(source)

    def _keep(self, source: TokenSource) -> None:
        """Store the vectors of all training sequences."""
        with progress_bar(len(source), "neighbours", "seq") as progress:
            parts = []
            for batch in source.batches(token_budget(source.dim)):
                parts.append(self._pool_vectors(batch).cpu())
                progress.update(len(batch))
        self.bank_ = torch.cat(parts)

    def _pool_vectors(self, tokens: TokenBatch) -> Tensor:
        """Return the pooled sequences as they are compared, `[N, D]`, float32, on the device of the tokens."""
        vectors = pool_means(tokens, self.normalize)
        return (vectors - self._copy_on(vectors.device, "centre_")).float()

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = self._pool_vectors(tokens)
        try:
            return -self._measure(vectors, self._copy_on(vectors.device, "bank_"))
        except torch.OutOfMemoryError:  # an encoder may take most of the memory
            return -self._measure(vectors.cpu(), self.bank_)

    def _measure(self, vectors: Tensor, bank: Tensor) -> Tensor:
        """Return the distance of each vector to its k-th nearest neighbour, on the device of both."""
        # square tiles of distances, or fewer rows if a vector or its k neighbours are long
        rows = max(1, min(math.isqrt(_CHUNK), _CHUNK // max(vectors.shape[1], self.k)))
        return torch.cat([self._measure_tile(chunk.double(), bank) for chunk in torch.split(vectors, rows)])

    def _measure_tile(self, vectors: Tensor, bank: Tensor) -> Tensor:
        """Return the same for vectors that fit into one tile: the largest distance among the k nearest."""
        rows, dim = vectors.shape
        neighbours = self._find_nearest(vectors, bank).flatten()
        owners = torch.arange(rows, device=bank.device)[:, None].expand(-1, self.k).flatten()
        pairs = max(1, _CHUNK // dim)
        distances = [
            torch.linalg.vector_norm(bank[theirs].double() - vectors[own], dim=1)
            for theirs, own in zip(torch.split(neighbours, pairs), torch.split(owners, pairs), strict=True)
        ]
        return torch.cat(distances).view(rows, self.k).amax(1)

    def _find_nearest(self, vectors: Tensor, bank: Tensor) -> Tensor:
        """Return the rows of the k nearest training vectors, `[rows, k]`, in no order."""
        rows, dim = vectors.shape
        smallest = vectors.new_full((rows, self.k), torch.inf)
        nearest = torch.zeros(rows, self.k, dtype=torch.int64, device=bank.device)
        part_rows = max(1, _CHUNK // max(rows, dim))
        for start in range(0, len(bank), part_rows):
            part = bank[start : start + part_rows].double()
            # |x - y|² = |y|² - 2 x·y, up to |x|², which does not change the order
            rough = torch.addmm(part.square().sum(1), vectors, part.T, alpha=-2)
            numbers = torch.arange(start, start + len(part), device=bank.device).expand(rows, -1)
            smallest, places = torch.cat([smallest, rough], 1).topk(self.k, largest=False, sorted=False)
            nearest = torch.cat([nearest, numbers], 1).gather(1, places)
        return nearest


class MahalanobisKNN(KNN):
    """s(Z) = -|Σ^(-1/2) (z̄ - z̄₍ₖ₎)|: the nearest neighbour, with every direction divided by its spread.

    Not a published method. It joins two classical ones. Mahalanobis (1936) knows that a small step in a direction of
    low variance says more than a large step in a direction of high variance, but has only one centre. Nearest
    neighbours (Sun et al. 2022, arXiv 2204.06507) fit any shape, but weigh all directions alike. Σ is the covariance of
    the mean-pooled ID sequences; eigenvalues below 10⁻⁴ of their mean are raised to it.

    Args:
        k: which neighbour.
        normalize: "tokens", "pooled" or "none".

    Attributes:
        centre_: mean `[D]` of the training vectors, float64.
        whitening_: Σ^(-1/2) `[D, D]`, float64.
        bank_: the training vectors `[N, D]`, float32, centred and whitened.

    Examples:
        >>> import torch
        >>> from apood import MahalanobisKNN
        >>> corners = [torch.tensor([[x, y]]) for x in (-2.0, 2.0) for y in (-1.0, 1.0)]
        >>> detector = MahalanobisKNN(normalize="none").fit(corners)
        >>> detector.score_samples([torch.tensor([[2.0, 3.0]]), torch.tensor([[4.0, 1.0]])]).round(4)
        array([-2., -1.])
    """

    name = "mahalanobis-knn"

    whitening_: Annotated[Tensor, "D D"]

    def __init__(self, k: int = 1, normalize: Normalize = "tokens") -> None:
        super().__init__(k, normalize)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        if len(source) < max(self.k, 2):
            least = max(self.k, 2)
            raise InputError(f"A covariance and {self.k} neighbours need {least} ID sequences, got {len(source)}.")
        _, self.centre_, covariance = compute_moments(source, self.normalize)
        self.whitening_ = inverse_root(covariance, EIGENVALUE_FLOOR)
        self._keep(source)
        warn_of_few(source)

    def _pool_vectors(self, tokens: TokenBatch) -> Tensor:
        vectors = pool_means(tokens, self.normalize)
        centre, whitening = (self._copy_on(vectors.device, name) for name in ("centre_", "whitening_"))
        return ((vectors - centre) @ whitening).float()
