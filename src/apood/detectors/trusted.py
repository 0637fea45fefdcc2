"""TRUSTED: the statistical depth of the mean-pooled tokens among those of the training set."""

from typing import Annotated, Any, get_args

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.shared.mean_pooling import Normalize, pool_means
from apood.fitting.optimise import Checkpoint
from apood.support.checks import check_choice, check_integer
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource, token_budget

__all__ = ["Trusted"]

_ROWS = 256  # sequences compared with the training set at once


class Trusted(Detector):
    """Statistical depth: how deep the mean token lies in the training set.

        s(Z) = mean over u of min(F_u(u·z̄), 1 - F_u(u·z̄))

    Colombo et al. 2022 (arXiv 2211.13527): the integrated rank-weighted depth of the features, averaged over random
    unit directions u. F_u is the empirical distribution of u·z̄ over the training sequences. The score lies between 0,
    outside the training set in every direction, and 0.5, at its centre.

    Departures: one class, because there are no labels. TRUSTED averages the states of all layers; a detector sees one
    vector per token, so this is TRUSTED on tokens that are embedded with `layers="mix"`, and the same depth of another
    view otherwise. Equal projections count half on each side.

    Args:
        projections: number of directions.
        normalize: "none" as published; "tokens" or "pooled" to compare directions only.
        seed: seed of the directions.

    Attributes:
        centre_: the vector `[D]`, float64, that all vectors are taken relative to.
        directions_: the unit vectors u `[projections, D]`, float32.
        projected_: u·z̄ of the training sequences in ascending order, `[projections, N]`, float32.

    Examples:
        >>> import torch
        >>> from apood import Trusted
        >>> points = [torch.tensor([[x, y]]) for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)]
        >>> Trusted().fit(points).score_samples([torch.tensor([[0.0, 0.0]]), torch.tensor([[9.0, 9.0]])]).round(1)
        array([0.5, 0. ])
    """

    name = "trusted"
    pools_tokens = True

    centre_: Annotated[Tensor, "D"]
    directions_: Annotated[Tensor, "projections D"]
    projected_: Annotated[Tensor, "projections N"]

    def __init__(self, projections: int = 1000, normalize: Normalize = "none", seed: int = 0) -> None:
        self.projections = projections
        self.normalize = normalize
        self.seed = seed

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_integer("projections", self.projections, least=1)
        check_choice("normalize", self.normalize, get_args(Normalize))
        check_integer("seed", self.seed, least=0)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return every normalization."""
        return [{"normalize": normalize} for normalize in get_args(Normalize)]

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        generator = torch.Generator().manual_seed(int(self.seed))
        drawn = torch.randn(int(self.projections), source.dim, generator=generator, dtype=torch.float64)
        self.directions_ = (drawn / drawn.norm(dim=1, keepdim=True)).float()
        # any point near the vectors will do; the first vector does not depend on the batches
        self.centre_ = pool_means(source.select([0]), self.normalize).cpu()[0]
        parts = []
        with progress_bar(len(source), "projections", "seq") as progress:
            for batch in source.batches(token_budget(source.dim)):
                parts.append(self._project(batch).cpu())
                progress.update(len(batch))
        self.projected_ = torch.cat(parts, 1).sort(1).values

    def _project(self, tokens: TokenBatch) -> Tensor:
        """Return u·z̄ `[projections, sequences]`.

        float32 makes the projections of equal sequences equal, which rounding would otherwise tell apart.
        """
        vectors = pool_means(tokens, self.normalize)
        centre, directions = (self._copy_on(vectors.device, name) for name in ("centre_", "directions_"))
        return (directions.double() @ (vectors - centre).T).float()

    def _score(self, tokens: TokenBatch) -> Tensor:
        projected = self._project(tokens)
        known = self._copy_on(projected.device, "projected_")
        depths = []
        for part in torch.split(projected, _ROWS, 1):
            own = part.contiguous()
            below = torch.searchsorted(known, own) + torch.searchsorted(known, own, right=True)
            share = below.double() / (2 * known.shape[1])
            depths.append(torch.minimum(share, 1 - share).mean(0))
        return torch.cat(depths)
