"""Distance to the nearest training sequences, in the Euclidean and in the Mahalanobis metric."""

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.contract.held_out import LeftOut
from apood.detectors.contract.refinable import Measured, Refinable, Remembered
from apood.detectors.shared.explanation import Explanation
from apood.detectors.shared.log_distances import compute_floored_log
from apood.detectors.shared.mean_pooling import (
    EIGENVALUE_FLOOR,
    Normalize,
    compute_covariance,
    compute_moments,
    inverse_root,
    measure_spread,
    merge_spreads,
    pool_means,
    share_means,
    shrink,
    warn_of_few,
)
from apood.fitting.optimise import Checkpoint
from apood.pooling import Preprocessing
from apood.support.checks import check_choice, check_flag, check_integer, check_number
from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, Trimmed, token_budget, trim_ends

__all__ = ["KNN", "MahalanobisKNN"]

_CHUNK = 2**22  # numbers in any temporary of the search: 32 MB of float64
_COPY = 0.1  # a near copy is nearer than this share of the distance to the `_CROWD`-th nearest training sequence
_VECTORS = "vectors"
_ROWS = 4096  # vectors converted to float64 at once
_CROWD = 32  # more than a sequence has near copies, and fewer than there are sequences of any kind


View = Literal["tokens", "summary"]
"""What a sequence is compared by: its mean token, or the vector in its channel `summary`."""


class KNN(Refinable, Detector):
    """Nearest neighbours: minus the distance of the mean token to its k-th nearest in the training set.

        s(Z) = -|z̄ - z̄₍ₖ₎|

    Sun et al. 2022 (arXiv 2204.06507), who scale the features to length 1: `normalize="pooled"`. With `average`, it is
    the mean of the distances to the k nearest ones (Angiulli and Pizzuti 2002), which a single foreign or copied
    sequence in the training set changes less.

    Departures: none in the score. The search is exact, up to ties within the rounding of float64: it uses no index,
    compares every training vector in float64, and computes the distances of the k nearest ones again from the
    differences, so that the cancellation in a matrix product never reaches a score. The vectors are stored in float32
    relative to one of them, because float32 cannot tell neighbours far from the origin apart. Apart from the vectors
    the search needs at most about 300 MB for every k, D and number of sequences. It runs on the device of the tokens;
    on a GPU with a copy of the vectors there, if there is room.

    Args:
        k: which neighbour, or the number of neighbours to average over.
        normalize: "pooled" as published; "tokens" or "none".
        average: whether to average over the k nearest neighbours.
        view: "tokens" for the mean token; "summary" for the channel of that name, in which encoders keep the mean of
            the layers that the tokens are not made of.

    Attributes:
        centre_: the vector `[D]`, float64, that the training vectors are stored relative to; for the view "summary", D
            is the dimension of the summary.
        bank_: the training vectors `[N, D]`, float32, minus `centre_`.

    Examples:
        >>> import torch
        >>> from apood import KNN
        >>> points = [torch.tensor([[x, 0.0]]) for x in (0.0, 1.0, 2.0)]
        >>> KNN(k=2, normalize="none").fit(points).score_samples([torch.tensor([[5.0, 0.0]])])
        array([-4.])
        >>> KNN(k=2, normalize="none", average=True).fit(points).score_samples([torch.tensor([[5.0, 0.0]])])
        array([-3.5])
    """

    name = "knn"
    propagates_nonfinite = True
    view: View

    centre_: Annotated[Tensor, "D"]
    bank_: Annotated[Tensor, "N D"]

    def __init__(
        self, k: int = 5, normalize: Normalize = "pooled", average: bool = False, view: View = "tokens"
    ) -> None:
        self.k = k
        self.normalize = normalize
        self.average = average
        self.view = view

    # Class attributes of other detectors; here they depend on the view.

    @property
    def requires(self) -> frozenset[str]:  # type: ignore[override]
        """The view."""
        return frozenset({self.view})

    @property
    def pools_tokens(self) -> bool:  # type: ignore[override]
        """Whether the view is the mean token."""
        return self.view == "tokens"

    @property
    def explains(self) -> bool:  # type: ignore[override]
        """Whether the view is the mean token: a summary belongs to no token."""
        return self.view == "tokens"

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_choice("view", self.view, get_args(View))
        check_integer("k", self.k, least=1)
        check_flag("average", self.average)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return near and far neighbours, each with every normalization."""
        return [{"k": k, "normalize": normalize} for k in (1, 5, 10, 50) for normalize in get_args(Normalize)]

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the distances to the neighbours."""
        return compute_floored_log(-scores)

    def score_training(
        self, chosen: Tensor, documents: Tensor | None = None, beginnings: TokenSource | None = None
    ) -> LeftOut:
        """Return the scores of training sequences among those of other documents that are not near copies of them.

        A near copy is nearer than a tenth of the distance to the 32nd nearest sequence (or to that in the middle, if
        there are few). The score is 0 if too few others are left.
        """
        if documents is None:
            documents = torch.arange(len(self.bank_))
        others = len(self.bank_) - documents.bincount()[documents]
        crowds = (others // 2).clamp(1, _CROWD)
        wanted = min(self.k, len(self.bank_) - 1)
        count = min(int(crowds.max()) + wanted, len(self.bank_) - 1)
        pooled = self.bank_[chosen] if beginnings is None else self._pool_source(beginnings)
        rows = self._count_rows(count)
        scores, copied = [], []
        for own, part in zip(torch.split(chosen, rows), torch.split(pooled, rows), strict=True):
            vectors = part.double()
            # a beginning points elsewhere than its sequence, so hardly anything of its own metric is due to it
            stretches = self._find_stretches(vectors) if beginnings is None else None
            left_out = _LeftOutRows(documents[own], documents, stretches)
            nearest = _measure_tile(vectors, self.bank_, count, left_out)
            copies = (nearest <= _COPY * nearest.gather(1, crowds[own, None] - 1)).sum(1, keepdim=True)
            places = copies + torch.arange(wanted)
            distances = self._reduce(nearest.gather(1, places.clamp_max(count - 1)))
            scores.append(-distances.where((places[:, -1] < count) & distances.isfinite(), 0.0))
            copied.append(copies.flatten() > 0)
        return LeftOut(torch.cat(scores), torch.cat(copied))

    def _find_stretches(self, vectors: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return how much farther others are along each training vector in a metric learnt without it, or None."""
        return None

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        self._refuse_few(len(source))
        # any point near the vectors will do; the first vector does not depend on the batches
        self.centre_ = self._pool(source.select([0])).cpu()[0]
        self._keep(source)

    def _refuse_few(self, sequences: int) -> None:
        if sequences < self.k:
            raise InputError(f"k={self.k} neighbours need at least as many ID sequences, got {sequences}.")

    def remember(self, tokens: TokenBatch) -> Remembered:
        """Return the pooled vectors relative to `centre_`, float32."""
        return {_VECTORS: self._pool_centred(self._trim(tokens)).float().cpu()}

    def refine(self, measured: Measured, remembered: Remembered) -> None:  # noqa: ARG002
        """Make the sequences remembered the training set; if these are all sequences, it is the fit on all."""
        self._refuse_few(len(remembered[_VECTORS]))
        self.bank_ = remembered[_VECTORS]

    def _trim(self, tokens: TokenBatch) -> TokenBatch:
        """Return the sequences without sinks; with all channels if there are none."""
        if not (self.skips_first_ or self.skips_last_):
            return tokens
        return trim_ends(tokens, first=self.skips_first_, last=self.skips_last_)

    def _keep(self, source: TokenSource) -> None:
        """Store the vectors of all training sequences."""
        with progress_bar(len(source), "neighbours", "seq") as progress:
            parts = []
            for batch in source.batches(token_budget(source.dim)):
                parts.append(self._pool_vectors(batch).cpu())
                progress.update(len(batch))
        self.bank_ = torch.cat(parts)

    def _pool_source(self, source: TokenSource) -> Tensor:
        """Return the vectors of sequences that still have their sinks, float32."""
        batches = Trimmed(source, first=self.skips_first_, last=self.skips_last_).batches(token_budget(source.dim))
        return torch.cat([self._pool_vectors(batch).cpu() for batch in batches])

    def _pool(self, tokens: TokenBatch) -> Tensor:
        """Return one vector per sequence `[N, D]`, float64, in the view."""
        if self.view == "tokens":
            return pool_means(tokens, self.normalize)
        rows = tokens.channels["summary"].values.double()
        return rows if self.normalize == "none" else Preprocessing(unit=True).apply(rows)

    def _pool_vectors(self, tokens: TokenBatch) -> Tensor:
        """Return the pooled sequences as they are compared, `[N, D]`, float32, on the device of the tokens."""
        return self._pool_centred(tokens).float()

    def _pool_centred(self, tokens: TokenBatch) -> Tensor:
        """Return the pooled sequences minus `centre_`, `[N, D]`, float64, on the device of the tokens."""
        vectors = self._pool(tokens)
        if vectors.shape[1] != len(self.centre_):
            raise InputError(
                f"The summary has {vectors.shape[1]} numbers, and this detector was fitted on {len(self.centre_)}."
            )
        return vectors - self._copy_on(vectors.device, "centre_")

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        if self.view != "summary":
            return
        summary = batch.channels["summary"]
        if summary.values.dim() != 2:
            raise InputError(f"The summary in {where} must be one vector per sequence, not numbers.")
        if not bool((summary.lengths <= 1).all()):
            wrong = first + int((summary.lengths > 1).nonzero()[0])
            raise InputError(f"Sequence {wrong} of {where} has several rows of summary; a sequence has one.")

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = self._pool_vectors(tokens)
        try:
            return -self._measure(vectors, self._copy_on(vectors.device, "bank_"))
        except torch.OutOfMemoryError:  # an encoder may take most of the memory
            return -self._measure(vectors.cpu(), self.bank_)

    def _explain(self, tokens: TokenBatch) -> Explanation:
        tokens = tokens.to("cpu")
        vectors = self._pool_vectors(tokens).double()
        found, _ = _find_nearest(vectors, self.bank_, self.k, None)
        apart = vectors[:, None] - self.bank_[found].double()
        distances, order = torch.linalg.vector_norm(apart, dim=2).sort(1)
        found, apart = found.gather(1, order), apart.gather(1, order[:, :, None].expand_as(apart))
        units = apart / distances.clamp_min(torch.finfo(distances.dtype).tiny)[:, :, None]
        directions = self._find_direction(units.mean(1) if self.average else units[:, -1])
        own = share_means(tokens, self.normalize, directions, self._reduce(distances))
        return replace(own, neighbours=found)

    def _find_direction(self, units: Tensor) -> Tensor:
        """Return the directions in which pooled vectors must move for the compared ones to move along `units`."""
        return units

    def _measure(self, vectors: Tensor, bank: Tensor) -> Tensor:
        """Return the distance of each vector to its neighbours, computed on the device of both."""
        tiles = torch.split(vectors, self._count_rows(self.k))
        return torch.cat([self._reduce(_measure_tile(tile.double(), bank, self.k)) for tile in tiles])

    def _count_rows(self, count: int) -> int:
        """Return how many vectors are compared at once: square tiles of distances, or fewer if rows are long."""
        return max(1, min(math.isqrt(_CHUNK), _CHUNK // max(self.bank_.shape[1], count)))

    def _reduce(self, nearest: Tensor) -> Tensor:
        """Return one distance per vector from those to its neighbours, which are in ascending order."""
        return nearest.mean(1) if self.average else nearest[:, -1]


class _LeftOutRows(NamedTuple):
    """What a search leaves out if the vectors are training vectors themselves.

    Attributes:
        own: the document of each vector.
        documents: the document of each training vector; those of the same document do not count as neighbours.
        stretches: how much farther others are along each vector (see `KNN._find_stretches`), or None.
    """

    own: Tensor
    documents: Tensor
    stretches: Tensor | None


def _measure_tile(vectors: Tensor, bank: Tensor, count: int, left_out: _LeftOutRows | None = None) -> Tensor:
    """Return the distances of each vector to its nearest neighbours, `[rows, count]`, in ascending order.

    The squared distance between x and y is |x - y|² + stretch (x·(x - y))², with a stretch of 0 if there is none. The
    last ones are inf if there are fewer neighbours.
    """
    rows, dim = vectors.shape
    stretches = None if left_out is None else left_out.stretches
    found, missing = _find_nearest(vectors, bank, count, left_out)
    neighbours = found.flatten()
    owners = torch.arange(rows, device=bank.device)[:, None].expand(-1, count).flatten()
    pairs = max(1, _CHUNK // dim)
    distances = []
    for theirs, own in zip(torch.split(neighbours, pairs), torch.split(owners, pairs), strict=True):
        apart = bank[theirs].double() - vectors[own]
        distances.append(torch.linalg.vector_norm(apart, dim=1))
        if stretches is not None:
            along = (vectors[own] * apart).sum(1)
            distances[-1] = torch.hypot(distances[-1], stretches[own].sqrt() * along)
    measured = torch.cat(distances).view(rows, count)
    return (measured if left_out is None else measured.masked_fill_(missing, torch.inf)).sort(1).values


def _find_nearest(vectors: Tensor, bank: Tensor, count: int, left_out: _LeftOutRows | None) -> tuple[Tensor, Tensor]:
    """Return the rows of the nearest training vectors, `[rows, count]`, in no order, and which of them are none."""
    rows, dim = vectors.shape
    smallest = vectors.new_full((rows, count), torch.inf)
    nearest = torch.zeros(rows, count, dtype=torch.int64, device=bank.device)
    part_rows = max(1, _CHUNK // max(rows, dim))
    for start in range(0, len(bank), part_rows):
        part = bank[start : start + part_rows].double()
        squares = part.square().sum(1)
        # |x - y|² = |y|² - 2 x·y, up to |x|², which does not change the order
        rough = torch.addmm(squares, vectors, part.T, alpha=-2)
        if left_out is not None:
            if left_out.stretches is not None:
                along = vectors.square().sum(1, keepdim=True) + (rough - squares) / 2
                rough.addcmul_(left_out.stretches[:, None] * along, along)
            same = left_out.own[:, None] == left_out.documents[start : start + len(part)]
            rough.masked_fill_(same, torch.inf)
        numbers = torch.arange(start, start + len(part), device=bank.device).expand(rows, -1)
        smallest, places = torch.cat([smallest, rough], 1).topk(count, largest=False, sorted=False)
        nearest = torch.cat([nearest, numbers], 1).gather(1, places)
    return nearest, smallest.isinf()


class MahalanobisKNN(KNN):
    """Nearest neighbours in the Mahalanobis metric: every direction is divided by its spread.

        s(Z) = -|Σ^(-1/2) (z̄ - z̄₍ₖ₎)|

    Not a published method. It joins two classical ones. Mahalanobis (1936) knows that a small step in a direction of
    low variance says more than a large step in a direction of high variance, but has only one centre. Nearest
    neighbours (Sun et al. 2022, arXiv 2204.06507) fit any shape, but weigh all directions alike. Σ is the covariance of
    the mean-pooled ID sequences, mixed with its mean variance in all directions: with few sequences the smallest
    variances of the sample are far too small. Eigenvalues below 10⁻⁴ of their mean are raised to it.

    Args:
        k: which neighbour, or the number of neighbours to average over.
        normalize: "tokens", "pooled" or "none".
        average: whether to average over the k nearest neighbours.
        shrinkage: share of the mean variance in Σ.

    Attributes:
        centre_: mean `[D]` of the training vectors, float64.
        whitening_: Σ^(-1/2) `[D, D]`, float64.
        bank_: the training vectors `[N, D]`, float32, centred and whitened.
        sequences_: the number of sequences that Σ is learnt from; after `refine` it may be larger than N.

    Examples:
        >>> import torch
        >>> from apood import MahalanobisKNN
        >>> corners = [torch.tensor([[x, y]]) for x in (-2.0, 2.0) for y in (-1.0, 1.0)]
        >>> detector = MahalanobisKNN(normalize="none", shrinkage=0.0).fit(corners)
        >>> detector.score_samples([torch.tensor([[2.0, 3.0]]), torch.tensor([[4.0, 1.0]])]).round(4)
        array([-2., -1.])
    """

    name = "mahalanobis-knn"
    view = "tokens"
    absent_parameters = MappingProxyType({"shrinkage": 0.0})

    whitening_: Annotated[Tensor, "D D"]
    sequences_: int = 0  # detectors that were saved before this existed have those in their bank

    def __init__(
        self, k: int = 1, normalize: Normalize = "tokens", average: bool = False, shrinkage: float = 0.1
    ) -> None:
        self.k = k
        self.normalize = normalize
        self.average = average
        self.shrinkage = shrinkage

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        super().check_parameters()
        check_number("shrinkage", self.shrinkage, least=0, most=1)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        if len(source) < max(self.k, 2):
            least = max(self.k, 2)
            raise InputError(f"A covariance and {self.k} neighbours need {least} ID sequences, got {len(source)}.")
        self.sequences_, self.centre_, covariance = compute_moments(source, self.normalize)
        self.whitening_ = self._compute_whitening(covariance)
        self._keep(source)
        warn_of_few(source)

    def _compute_whitening(self, covariance: Tensor) -> Tensor:
        return inverse_root(shrink(covariance, self.shrinkage), EIGENVALUE_FLOOR)

    def measure(self, tokens: TokenBatch) -> Measured:
        """Return number, mean and scatter of the pooled vectors."""
        return measure_spread(self._trim(tokens), self.normalize)

    def merge_measured(self, first: Measured, second: Measured) -> Measured:
        """Return number, mean and scatter of a union."""
        return merge_spreads(first, second)

    def refine(self, measured: Measured, remembered: Remembered) -> None:
        """Replace mean and covariance by those of everything, and the training set by the sequences remembered."""
        self._refuse_few(len(remembered[_VECTORS]))
        self.sequences_, centre, covariance = compute_covariance(measured)
        moved, self.centre_ = self.centre_ - centre, centre
        self.whitening_ = self._compute_whitening(covariance)
        parts = torch.split(remembered[_VECTORS], _ROWS)
        self.bank_ = torch.cat([((part.double() + moved) @ self.whitening_).float() for part in parts])

    def _find_stretches(self, vectors: Tensor) -> Tensor:
        """Return how much larger squared distances along each training vector are without its part in Σ.

        Σ of n sequences without x is Σ - x xᵀ / (n - 1), up to a factor and the mean variance, which hardly change. In
        whitened space its inverse is I + stretch x xᵀ (Sherman and Morrison). With few sequences each one has made Σ
        large along itself, so that it is far nearer to the others than a new one.
        """
        part = (1 - self.shrinkage) / ((self.sequences_ or len(self.bank_)) - 1)
        return part / (1 - part * vectors.square().sum(1)).clamp_min(EIGENVALUE_FLOOR)

    def _find_direction(self, units: Tensor) -> Tensor:
        return units @ self.whitening_

    def _pool_vectors(self, tokens: TokenBatch) -> Tensor:
        vectors = self._pool_centred(tokens)
        return (vectors @ self._copy_on(vectors.device, "whitening_")).float()
