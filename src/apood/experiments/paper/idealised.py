"""The idealised kernel distance of appendix B.3, which the paper found to be worse than attention."""

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from apood.detectors.ap_ood.training import log_norms
from apood.detectors.contract.base import Detector
from apood.fitting.optimise import Checkpoint, minimise, run_digest
from apood.support.checks import check_integer, check_number
from apood.support.device import resolve_device
from apood.support.errors import DivergedWarning
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import place_on_device, shuffle_batches
from apood.tokens.source import TokenSource, token_budget

__all__ = ["IdealisedKernel"]

_BATCH_SIZE, _LEARNING_RATE = 512, 0.01  # of AP-OOD's recipe "paper"
_SPARE = 2**34  # bytes of GPU memory that the corpus leaves free for the kernel values of a batch and their gradients
_LARGEST_EXPONENT = 60.0  # keeps kernel values finite


class IdealisedKernel(Detector):
    """The distance d²(Z) = Σ_j (mean_s k(z_s, w_j) - μ_j)² with the kernel k(a, b) = exp(β aᵀb) aᵀb.

    μ_j is the mean over the training sequences. This is AP-OOD with one query per head and without the normalisation of
    the softmax. It is trained like AP-OOD: Adam with a learning rate of 0.01, a cosine schedule, and the term
    -Σ_j log |w_j|² against collapse.

    Args:
        heads: M.
        beta: β; None for 1/√D.
        steps: gradient steps.
        seed: of the start and of the batches.

    Attributes:
        weights_: the vectors w_j, `[M, D]`.
        centre_: the means μ_j, `[M]`.
        beta_: β.
    """

    name = "idealised-kernel"

    weights_: Tensor
    centre_: Tensor
    beta_: float

    def __init__(self, heads: int = 1, beta: float | None = None, steps: int = 1000, seed: int = 0) -> None:
        self.heads = heads
        self.beta = beta
        self.steps = steps
        self.seed = seed

    def check_parameters(self) -> None:
        """Raise InputError if a constructor argument is not allowed."""
        for name in ("heads", "steps"):
            check_integer(name, getattr(self, name), least=1)
        check_integer("seed", self.seed, least=0)
        if self.beta is not None:
            check_number("beta", self.beta, least=0)

    def _place(self, source: TokenSource, aux: TokenSource | None) -> tuple[TokenSource, TokenSource | None]:
        (own,) = place_on_device([source], resolve_device(), _SPARE)
        return own, aux

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        self.beta_ = 1 / math.sqrt(source.dim) if self.beta is None else self.beta
        start = torch.randn(self.heads, source.dim, generator=torch.Generator().manual_seed(int(self.seed)))
        weights = start.to(resolve_device()).requires_grad_()
        batches: Iterator[Tensor] | None = None

        def objective(step: int) -> tuple[Tensor, Tensor]:
            nonlocal batches
            if batches is None:
                batches = shuffle_batches(source, seed=self.seed, batch_size=_BATCH_SIZE, start=step)
            values = self._values(source.select(next(batches)), weights)
            distances = (values - values.mean(0)).square().mean(0)
            return (distances - log_norms(weights[:, None])).sum(), distances.detach().mean()

        outcome = minimise(
            [weights],
            objective,
            steps=self.steps,
            learning_rate=_LEARNING_RATE,
            run=run_digest({"method": self.name, **self.get_params(deep=False)}, source, aux),
            checkpoint=checkpoint,
            label="fit",
        )
        if outcome.diverged_at is not None:
            message = f"Training stopped at step {outcome.diverged_at}: its loss is {outcome.loss}."
            warnings.warn(message, DivergedWarning, stacklevel=3)
        self.weights_ = weights.detach().cpu()
        with torch.no_grad():
            parts = [self._values(batch, weights).sum(0) for batch in source.batches(token_budget(source.dim))]
        self.centre_ = (torch.stack(parts).sum(0) / len(source)).cpu()

    def _score(self, tokens: TokenBatch) -> Tensor:
        device = resolve_device()
        values = self._values(tokens, self.weights_.to(device))
        return -(values - self.centre_.to(device)).square().sum(1)

    def _values(self, tokens: TokenBatch, weights: Tensor) -> Tensor:
        """Return the mean kernel value per sequence and head, `[N, M]`."""
        similarities = tokens.values.to(weights.device, torch.float32) @ weights.T
        kernel = (self.beta_ * similarities).clamp_max(_LARGEST_EXPONENT).exp() * similarities
        sums = kernel.new_zeros(len(tokens), weights.shape[0])
        owners = torch.arange(len(tokens)).repeat_interleave(tokens.lengths).to(weights.device)
        return sums.index_add(0, owners, kernel) / tokens.lengths.to(weights.device)[:, None]
